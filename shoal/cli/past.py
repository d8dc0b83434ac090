"""The commands that look back at a run: forks, and readers by name; and paths of commands."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.completion import KEPT, complete_override, complete_reader, complete_run
from shoal.cli.readers import options_in, read_run, show_reading
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import is_address, path_fault

OVERRIDES = typer.Argument(metavar="[KEY.SUB=VALUE]...", help="Keys to override.", autocompletion=complete_override)


# Every command has it with one meaning: the result as JSON on standard output, and nothing else there.
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def possible_path(place: str) -> Path:
    """Returns a path that the system can look up; for a run or a store at an address, that of its local copy.

    The name of a run or a sweep alone, as `shoal list` shows it, is one in `runs`, if nothing else has the name.
    """
    if is_address(place):
        from shoal.kept.at_address import local_copy

        return local_copy(place)
    path = Path(place)
    if fault := path_fault(place):
        raise ShoalError(path, fault)
    try:
        if not path.exists() and path.name == place:
            return next((kept for folder in KEPT if (kept := folder / place).is_dir()), path)
    except OSError as error:
        raise ShoalError(path, f"cannot be read: {error.strerror}") from error
    return path


def present_path(place: str) -> Path:
    """Returns the path as `possible_path` does; raises a ShoalError where nothing is there."""
    path = possible_path(place)
    if not path.exists():
        raise ShoalError(place, "no such folder; shoal list shows stores and runs")
    return path


def replay_command(
    run: Annotated[str, typer.Argument(metavar="RUN", autocompletion=complete_run)],
    round_number: Annotated[int, typer.Option("--round", min=1, help="The round.")],
    client: Annotated[int, typer.Option("--client", min=0, help="A client of its cohort.")],
    overrides: Annotated[list[str] | None, OVERRIDES] = None,
    debug: Annotated[bool, typer.Option("--pdb", help="Stop where the method's code of the client begins.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make one client's visit of a round again, alone in this process, and compare its upload with the record."""
    options = {"round": round_number, "client": client, "changes": [*(overrides or ())], "pdb": debug}
    show_reading(read_run("replay", options, possible_path(run)), as_json=as_json)


def fork_command(
    run: Annotated[str, typer.Argument(metavar="RUN", autocompletion=complete_run, help="The parent.")],
    round_number: Annotated[int, typer.Option("--round", min=1, help="The last round that both share.")],
    overrides: Annotated[list[str] | None, OVERRIDES] = None,
    without: Annotated[str, typer.Option(metavar="I,J,…", help="Clients that take no part any more.")] = "",
) -> None:
    """Go on from a round of a run with other options, in a new run; interrupted, the same command continues it."""
    from shoal.engine.screen.tables import show_run
    from shoal.past.fork import fork

    left_out = [f"participation.without={read_clients('--without', without)}"] if without else []
    show_run(fork(possible_path(run), round_number, [*(overrides or ()), *left_out]))


def read_clients(option: str, text: str) -> list[int]:
    """Reads numbers of clients with commas between them."""
    numbers = text.split(",") if text else []
    if not all(number.strip().isdecimal() for number in numbers):
        raise ShoalError(option, f"must be numbers of clients with commas between them, found {text}")
    return [int(number) for number in numbers]


def privacy_command(
    run: Annotated[str, typer.Argument(metavar="RUN", autocompletion=complete_run)],
    round_number: Annotated[int, typer.Option("--round", min=1, help="The round that is made again.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder to write: tables of all clients, as CSV.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what left each client of a run, what hid in a mean, and epsilon of its unit after rounds."""
    show_reading(read_run("ledger", {"round": round_number}, possible_path(run)), out, as_json=as_json)


def read_command(
    run: Annotated[str, typer.Argument(metavar="RUN", autocompletion=complete_run)],
    reader: Annotated[
        str, typer.Argument(metavar="READER", help="Its name, or my_file.py:MyReader.", autocompletion=complete_reader)
    ],
    options: Annotated[
        list[str] | None, typer.Argument(metavar="[--OPTION VALUE]...", help="Options of the reader.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="CSV file to write, or with several tables a folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a reader tells of a run: one of ours, or a class of your file."""
    show_reading(read_run(reader, options_in(options or ()), possible_path(run)), out, as_json=as_json)
