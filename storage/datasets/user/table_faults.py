"""Faults of the tables of a graph, all at once, and names of columns that mean something else."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from shoal.storage.errors import ShoalError

ENDS, WEIGHT = ("source", "target"), "weight"
# The kinds of edges, and of nodes.
RELATION, KIND = "relation", "kind"
ID, LABEL, SPLIT, CLIENT = "id", "label", "split", "assignment"
# Letters and digits of other names for columns that a table needs.
OTHER_NAMES = {
    "source": "src from u head sourceid srcid fromid fromnode fromnodeid sourcenode node1 start i",
    "target": "dst to v tail targetid dstid toid tonode tonodeid targetnode dest destination node2 end j",
    WEIGHT: "w weights edgeweight edgeweights wt",
    RELATION: "relation kind kinds type types rel relations relationtype edgetype edgetypes etype edgekind edgelabel",
    ID: "node nodeid nodeidx nodeindex nid ids",
    LABEL: "y labels labelid class classid target targets",
}
# Letters and digits of names that are no features: what they say, and the way out.
NO_FEATURES = (
    (
        "the number of a row",
        "leave it out, in pandas with index=False",
        "index idx rowindex rownumber rownum rowid rowname rownames level0",
    ),
    ("an id", "call the ids 'id' and leave others out", OTHER_NAMES[ID]),
    ("a label", "the label is column 'label'; leave others out", OTHER_NAMES[LABEL]),
    (
        "a part of the split",
        "write one column 'split' of train, val and test",
        "trainmask valmask validmask validationmask testmask mask train val test istrain isval istest splits",
    ),
    ("a client", "write its number as column 'assignment'", "client clientid clients assignments party partyid"),
    ("a graph", "write every graph into a folder of its own", "graph graphid graphidx graphindex domain domainid"),
)
# Names that pandas and others give to columns that have none: row numbers, as they write them.
UNNAMED = re.compile(r"\W*|Unnamed: [\d.]+|__index_level_\d+__")
# Faults of a graph are named up to so many letters, which one line holds.
MOST_LETTERS = 700


class Faults:
    """The faults of the tables of a graph, gathered so that one error names them all."""

    def __init__(self) -> None:
        """Begins without a fault."""
        self.errors: list[ShoalError] = []
        self._of: set[object] = set()

    def add(self, path: Path, says: str) -> None:
        """Adds a fault of a file."""
        self.errors.append(ShoalError(path, says))

    @contextmanager
    def gathered(self, of: object = None) -> Iterator[None]:
        """Keeps the error of a block, which ends with it; of a column that is given as `of`, the first alone."""
        try:
            yield
        except ShoalError as error:
            if of is None or of not in self._of:
                self.errors.append(error)
            self._of.add(of)

    def require_none(self, folder: Path) -> None:
        """Raises ShoalError: a table has faults; of several it names all, as far as a line holds them."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if not self.errors:
            return
        lines = [error.line.replace(f"{folder}/", "") for error in self.errors]
        shown = [f"({number}) {line}" for number, line in enumerate(lines, 1)]
        count = max(1, sum(len("; ".join(shown[: end + 1])) <= MOST_LETTERS for end in range(len(shown))))
        more = f"; and {len(shown) - count} more" if count < len(shown) else ""
        raise ShoalError(folder, f"{len(shown)} faults: {'; '.join(shown[:count])}{more}") from self.errors[0]


def plain_word(name: str) -> str:
    """Writes the name of a column without case and separators."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def other_names(names: Sequence[str]) -> list[str]:
    """Lists other names of columns."""
    return [other for name in names for other in OTHER_NAMES.get(name, "").split()]


def require_columns(path: Path, columns: Sequence[str], needed: Sequence[str], faults: Faults) -> set[str]:
    """Adds a fault for columns that are missing, with those that may be meant, and returns the latter."""
    missing = [name for name in needed if name not in columns]
    meant = {
        name: next((other for other in columns if plain_word(other) in OTHER_NAMES[name].split()), "")
        for name in missing
    }
    renamed = {name: other for name, other in meant.items() if other}
    if missing:
        hint = ""
        if renamed:
            others, names = (" and ".join(map(repr, words)) for words in (renamed.values(), renamed))
            hint = f"did you mean {names} by {others}? rename {'it' if len(renamed) == 1 else 'them'}; "
        absent = " and no column ".join(map(repr, missing))
        needs = f"it needs {' and '.join(needed)}, found {', '.join(columns)}"
        faults.add(path, f"{hint}no column {absent}; {needs}")
    return set(renamed.values())


def is_feature(path: Path, name: str, faults: Faults) -> bool:
    """Whether a column can be a feature; adds a fault for a name that means something else, however it is spelled."""
    for what, way_out, words in NO_FEATURES:
        if plain_word(name) in words.split():
            faults.add(path, f"column {name!r} means {what} and is no feature; {way_out}, or rename it")
            return False
    return True


def means_other(path: Path, name: str, has_weight: bool, faults: Faults) -> bool:
    """Whether a column of edges is likely to be their weight, or their kind, by another name, which is a fault."""
    meant = next((what for what in (WEIGHT, RELATION) if plain_word(name) in OTHER_NAMES[what].split()), None)
    if name == RELATION or meant is None or (meant == WEIGHT and has_weight):
        return False
    faults.add(path, f"did you mean {meant!r} by {name!r}? rename it, or take it out")
    return True
