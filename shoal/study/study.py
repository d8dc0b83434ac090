"""A study: a config, axes, and a key that validation chooses; from the command line or a file."""

import itertools
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from shoal.engine.config.config import Config, load_config, require_names, sections
from shoal.engine.config.config_text import MOST_BYTES, require_small
from shoal.engine.config.effects import COMMAND_LINE
from shoal.engine.config.faults import override_meant
from shoal.engine.config.overrides import word_key
from shoal.engine.config.run_identity import fingerprint_of
from shoal.engine.config.sections import current_name
from shoal.storage.errors import ShoalError
from shoal.storage.files.reading import read_text
from shoal.storage.options.types import message_of, quoted

# The configs of all runs are read before the first run starts, which takes a while for many.
MOST_RUNS = 1000
FORM = "an axis of a sweep has the form key.sub=a,b,c"
# `seeds=5` draws the training five times on one partition and one split, as papers and published partitions do.
SEEDS = {"seeds": ("seed",), "draws": ("seed", "partition.seed", "data.split_seed")}
NAME = re.compile(r"[\w.]+")
OPEN, CLOSE = "[{(", "]})"


@dataclass(frozen=True)
class Selection:
    """A combination: values of all keys and of options of a method, and `key=value` in order."""

    columns: dict[str, str]
    overrides: tuple[str, ...]

    @classmethod
    def plain(cls, values: Mapping[str, str]) -> "Selection":
        """Makes a selection with its keys and values as overrides."""
        return cls(dict(values), tuple(f"{key}={value}" for key, value in values.items()))


def is_seed(key: str) -> bool:
    """Returns whether runs that differ in a key alone are repetitions of one another."""
    return key == "repeat" or key.rpartition(".")[2] in ("seed", "split_seed")


def combinations(axes: Sequence[str]) -> list[Selection]:
    """Expands `["a=1,2", "b=x,y"]` to all combinations, the last key changing fastest.

    - `algorithm=a{eps:0.5,0.9},b`: options of one method alone, every combination of theirs
    - `partition.file+data.split_file=p0.npy+s0.npy,p1.npy+s1.npy`: keys that vary in pairs
    - `partition.clients=[3,3],[4,2]`: commas within brackets belong to a value
    - `seeds=5`: `seed=0,1,2,3,4`; `draws=5`: partition and split are drawn anew with each of them
    """
    runs = 1
    by_axis: list[list[Selection]] = []
    for axis in axes:
        values = _values(axis)
        runs *= len(values)
        if runs > MOST_RUNS:
            raise ShoalError(_shorten(axis), f"a sweep has at most {MOST_RUNS:,} runs; give fewer values")
        by_axis.append(values)
    keys = [key for values in by_axis for key in dict.fromkeys(key for choice in values for key in choice.columns)]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise ShoalError(twice, "is in two axes of the sweep; name it once")
    return [
        Selection(
            {key: value for choice in choices for key, value in choice.columns.items()},
            tuple(override for choice in choices for override in choice.overrides),
        )
        for choices in itertools.product(*by_axis)
    ]


def _values(axis: str) -> list[Selection]:
    key, equals, text = axis.partition("=")
    if not equals or not key:
        meant = override_meant(key, "A,B,C", Config)
        raise ShoalError(_shorten(axis), f"write {meant}; {FORM}" if meant else FORM)
    if key in SEEDS:
        return _repetitions(axis, key, text)
    keys = key.split("+")
    parts = [part for part in split(text) if part]
    if not parts or not all(NAME.fullmatch(name) for name in keys):
        raise ShoalError(_shorten(axis), FORM)
    if len(keys) > 1:
        return [_joint(axis, keys, part) for part in parts]
    return [choice for part in parts for choice in _expand_options(axis, key, part)]


def _repetitions(axis: str, key: str, text: str) -> list[Selection]:
    if not text.isdecimal() or not 1 <= int(text) <= MOST_RUNS:
        raise ShoalError(_shorten(axis), f"{key} is a number of repetitions, 1 to {MOST_RUNS:,}")
    return [Selection.plain(dict.fromkeys(SEEDS[key], str(number))) for number in range(int(text))]


def _joint(axis: str, keys: Sequence[str], part: str) -> Selection:
    values = part.split("+")
    if len(values) != len(keys):
        raise ShoalError(_shorten(axis), f"{part} has {len(values)} values for {len(keys)} keys; join them by +")
    return Selection.plain(dict(zip(keys, values)))


def _expand_options(axis: str, key: str, part: str) -> Iterator[Selection]:
    """Yields a selection of a value, or for `name{option:a,b}` one for every combination of the options."""
    name, brace, rest = part.partition("{")
    if not name or not brace:
        yield Selection.plain({key: part})
        return
    if not rest.endswith("}"):
        raise ShoalError(_shorten(axis), part, "the brace is not closed")
    options = _options(axis, part, rest[:-1])
    word = word_key(sections()[key]) if key in sections() else None
    if word is None:
        raise ShoalError(_shorten(axis), part, "options in braces are for a section with a name or kind, as algorithm")
    for values in itertools.product(*options.values()):
        of_name = dict(zip(options, values))
        inner = ", ".join([f"{word}: {json.dumps(name)}", *(f"{option}: {value}" for option, value in of_name.items())])
        columns = {key: name, **{f"{key}.{option}": value for option, value in of_name.items()}}
        yield Selection(columns, (f"{key}={{{inner}}}",))


def _options(axis: str, part: str, text: str) -> dict[str, list[str]]:
    """Reads `eps:0.5,0.9,orders:3` as `{"eps": ["0.5", "0.9"], "orders": ["3"]}`."""
    options: dict[str, list[str]] = {}
    for part_of in split(text) if text else ():
        option, colon, value = part_of.partition(":")
        if colon and NAME.fullmatch(option):
            options[option] = [value]
        elif options and part_of:
            options[next(reversed(options))].append(part_of)
        else:
            raise ShoalError(_shorten(axis), part, "options of one method have the form name{option:a,b}")
    return options


def split(text: str) -> list[str]:
    """Splits a text at commas that no bracket encloses."""
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in OPEN) - (letter in CLOSE)
        if letter == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def _shorten(axis: str) -> str:
    return axis if len(axis) <= 60 else f"{axis[:60]}…"


Scope = Literal["main", "trained", "deployed", "global", "domains"]
Scalar = str | int | float | bool


class Choose(BaseModel):
    """The key whose value validation chooses: `{key: algorithm.eps, seeds: 2, by: deployed}`."""

    model_config = ConfigDict(extra="forbid")
    key: str
    seeds: Annotated[int, Field(ge=1)] = 2
    by: Annotated[Scope, BeforeValidator(current_name)] = "main"


class _File(BaseModel):
    """A study in YAML."""

    model_config = ConfigDict(extra="forbid")
    config: str
    axes: Annotated[dict[str, str | list[Scalar] | Scalar], Field(min_length=1)]
    choose: Choose | None = None
    fork_at: Annotated[int, Field(ge=1)] | None = None


@dataclass(frozen=True)
class Study:
    """A sweep before it starts: a config's path, and axes as `combinations` reads them.

    With `choose`, validation chooses the value of that key before the other seeds run: with so many of the seeds, by
    the mean of a scope at the best validation round; `main` is that of `MainScore`. `search` are the options of a
    search, as words of its command. With `fork_at` combinations share so many first rounds, those of the config with
    the same seed. Errors of an axis name its `source`.
    """

    config: str
    axes: tuple[str, ...]
    choose: str | None = None
    choose_seeds: int = 2
    choose_by: Scope = "main"
    search: tuple[str, ...] = ()
    fork_at: int | None = None
    source: str = COMMAND_LINE

    @cached_property
    def choices(self) -> list[Selection]:
        """All combinations. Raises as `combinations`, or where the key to be chosen is in no axis."""
        choices = combinations(self.axes)
        if self.choose is not None and not any(self.choose in choice.columns for choice in choices):
            keys = ", ".join(dict.fromkeys(key for choice in choices for key in choice.columns))
            raise ShoalError(f"--choose {self.choose}: no axis has this key; there are {keys}")
        return choices

    @property
    def varied(self) -> frozenset[str]:
        """The keys that differ between runs; a run leaves out those that have no effect in it."""
        values = {key: {choice.columns.get(key) for choice in self.choices} for key in self.choices[0].columns}
        return frozenset(key for key, several in values.items() if len(several) > 1)

    def alone(self, choice: Selection) -> tuple[str, ...]:
        """Returns the overrides of a run that have an effect in it, with which it is the same without the others."""
        overrides = choice.overrides
        while True:
            try:
                load_config(self.config, overrides, source=self.source)
            except ShoalError as error:
                kept = tuple(text for text in overrides if not f"{error.key}.".startswith(f"{text.partition('=')[0]}."))
                if kept == overrides:
                    raise
                overrides = kept
            else:
                return overrides

    @cached_property
    def configs(self) -> list[Config]:
        """The config of every combination. Raises as `choices`, or ShoalError: a key, value or name is wrong."""
        configs = [
            load_config(self.config, choice.overrides, varied=self.varied, source=self.source)
            for choice in self.choices
        ]
        for config in configs:
            require_names(config)
        return configs

    @cached_property
    def rivals(self) -> dict[int, tuple[tuple[str, str], ...]]:
        """With `choose`, the runs of the other seeds by place in `choices`, with their columns without the key.

        Among runs that share these columns, the one with the chosen value runs.
        """
        seeds = [tuple(value for key, value in choice.columns.items() if is_seed(key)) for choice in self.choices]
        first = list(dict.fromkeys(seeds))[: self.choose_seeds]
        return {
            place: tuple((key, value) for key, value in choice.columns.items() if key != self.choose)
            for place, choice in enumerate(self.choices)
            if self.choose in choice.columns and seeds[place] not in first
        }

    @property
    def runs(self) -> int:
        """The number of combinations that will run."""
        return len(self.choices) - len(self.rivals) + len(set(self.rivals.values()))

    @property
    def command(self) -> str:
        """The command line of the sweep."""
        chosen = [] if self.choose is None else ["--choose", self.choose, "--choose-seeds", str(self.choose_seeds)]
        by = [] if self.choose is None or self.choose_by == Study.choose_by else ["--choose-by", self.choose_by]
        forked = [] if self.fork_at is None else ["--fork-at", str(self.fork_at)]
        return shlex.join(["shoal", "sweep", self.config, *self.axes, *chosen, *by, *self.search, *forked])

    def folder(self, root: Path, name: str) -> Path:
        """Returns the folder of the sweep, in `sweeps` of the root of its runs; named after them and after its axes."""
        named: dict[str, Any] = {"config": name, "axes": self.axes}
        if self.choose is not None:
            named |= {"choose": self.choose, "seeds": self.choose_seeds, "by": self.choose_by}
        if self.fork_at is not None:
            named["fork_at"] = self.fork_at
        return root / "sweeps" / f"{name}-{fingerprint_of(named)}"


@dataclass(frozen=True)
class Selected(Study):
    """Runs that are listed one by one, the folder of their sweep, and the keys of the space from which they are."""

    selections: tuple[Selection, ...] = ()
    place: Path = Path()
    space: tuple[str, ...] = ()

    @property
    def varied(self) -> frozenset[str]:
        """The keys that differ, and those of the space of a search, in which a run may be the only one so far."""
        return super().varied.union(self.space)

    @cached_property
    def choices(self) -> list[Selection]:
        """The runs in their order."""
        return list(self.selections)

    def folder(self, root: Path, name: str) -> Path:
        """Returns the folder of the sweep, which is given."""
        return self.place


def read_study(
    path: str, axes: Sequence[str], choose: str | None, choose_seeds: int, choose_by: Scope, bare: bool = False
) -> Study:
    """Reads a study of a config and axes, or of a file that names both; its config is relative to that file.

    A `bare` one needs no axes: a search varies keys of a space.
    """
    plain = mapping_in(path) if not Path(path).is_dir() else None
    if plain is None or "axes" not in plain:
        if not axes and not bare:
            raise ShoalError(path, "name what varies, as in seed=0,1,2; a file of a study has the key axes")
        return Study(path, tuple(axes), choose, choose_seeds, choose_by)
    try:
        file = _File.model_validate(plain)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"][:2])
        raise ShoalError(path, key, f"{message_of(error)}, found {quoted(first.get('input'))}") from None
    config = Path(path).parent / Path(file.config).expanduser()
    named = [f"{key}={axis_text(values)}" for key, values in file.axes.items()]
    asked = file.choose
    if asked is not None and choose is None:
        choose, choose_seeds, choose_by = asked.key, asked.seeds, asked.by
    return Study(str(config), (*named, *axes), choose, choose_seeds, choose_by, fork_at=file.fork_at, source=path)


def mapping_in(path: str) -> dict[str, Any] | None:
    """Reads a file if it is a plain mapping; the reader of configs reads and checks it again."""
    try:
        text = read_text(Path(path), MOST_BYTES)
        require_small(text)
        plain = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    return plain if isinstance(plain, dict) else None


def axis_text(values: str | list[Scalar] | Scalar) -> str:
    """Writes values as an axis has them on the command line."""
    several = values if isinstance(values, list) else [values]
    return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in several)
