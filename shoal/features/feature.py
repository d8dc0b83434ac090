"""A feature of `shoal/` as commands, readers, pages and sweeps know it: all that its folder declares of itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Feature:
    """A folder that adds something around runs; functions are named `module:function`, and imported when used.

    Attributes:
        readers: Classes of readers of runs by name, see `shoal.past.reader`.
        command: Name of its command, for `shoal NAME`; empty: it has none.
        runs: The function of the command. Its module is imported for every command, and loads nothing that takes long.
        behind: The command that it follows in `shoal --help`.
        page: Makes its sections of the page of a run or a sweep, `(folder) -> list[Section]`; empty: it has none.
        searches: What makes the search of a study by its name, `(study, options, at_once) -> Searching`, see
            `shoal.sweeps.searching`.
        inspected: Makes a table of `shoal inspect` of a folder of a store or a run, or a line that says why there is
            none, `(folder) -> TextTable | str | None`; empty: it has none.
        chosen: Reads what its searches chose, `(folder of a sweep) -> TextTable | None`; empty: it has none.
        verifies: A file by which folders of its own are known, and what `shoal verify` runs on one, `(folder, visits,
            seed) -> None`; None: it has none.
    """

    readers: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    runs: str = ""
    behind: str = ""
    page: str = ""
    searches: Mapping[str, str] = field(default_factory=dict)
    inspected: str = ""
    chosen: str = ""
    verifies: tuple[str, str] | None = None
