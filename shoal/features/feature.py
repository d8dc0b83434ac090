"""A feature of `shoal/` as commands, readers, pages and sweeps know it: all that its folder declares of itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Feature:
    """A folder that adds something around runs; functions are named `module:function`, and imported when used.

    Attributes:
        readers: Classes of readers of runs by name, see `shoal.past.reader`.
        command: The command of the same name as the function that follows, for `shoal NAME`; its module is imported
            for every command, and loads nothing that takes long.
        runs: The function of the command.
        behind: The command that it follows in `shoal --help`.
        page: Makes its sections of the page of a run or a sweep, `(folder) -> list[Section]`.
        searches: What makes the search of a study by its name, `(study, options, at_once) -> Searching`, see
            `shoal.sweeps.searching`.
        chosen: Reads what a search chose, `(folder of a sweep) -> TextTable | None`.
    """

    readers: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    runs: str = ""
    behind: str = ""
    page: str = ""
    searches: Mapping[str, str] = field(default_factory=dict)
    chosen: str = ""
