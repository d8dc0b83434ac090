"""The commands on past runs: a visit made again, a fork, influence, the ledger, attacks; and paths of commands."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from shoal.engine.screen.output import put
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import is_address, path_fault

OVERRIDES = typer.Argument(metavar="[KEY.SUB=VALUE]...", help="Keys to override.")


def possible_path(place: str) -> Path:
    """Returns a path that the system can look up; for a run or a store at an address, that of its local copy."""
    if is_address(place):
        from shoal.engine.studies.at_address import local_copy

        return local_copy(place)
    path = Path(place)
    if fault := path_fault(place):
        raise ShoalError(path, fault)
    try:
        path.exists()
    except OSError as error:
        raise ShoalError(path, f"cannot be read: {error.strerror}") from error
    return path


def replay_command(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    round_number: Annotated[int, typer.Option("--round", min=1, help="The round.")],
    client: Annotated[int, typer.Option("--client", min=0, help="A client of its cohort.")],
    overrides: Annotated[list[str] | None, OVERRIDES] = None,
    debug: Annotated[bool, typer.Option("--pdb", help="Stop where the method's code of the client begins.")] = False,
) -> None:
    """Make one client's visit of a round again, alone in this process, and compare its upload with the record."""
    from shoal.engine.past.replay import replay, tables
    from shoal.engine.studies.study_table import on_screen

    replayed = replay(possible_path(run), round_number, client, overrides or (), debug)
    put("\n".join(map(on_screen, tables(replayed))), end="")
    put(replayed.verdict)
    if not replayed.equal:
        raise typer.Exit(1)


def fork_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The parent.")],
    round_number: Annotated[int, typer.Option("--round", min=1, help="The last round that both share.")],
    overrides: Annotated[list[str] | None, OVERRIDES] = None,
    without: Annotated[str, typer.Option(metavar="I,J,…", help="Clients that take no part any more.")] = "",
) -> None:
    """Go on from a round of a run with other options, in a new run; interrupted, the same command continues it."""
    from shoal.engine.past.fork import fork
    from shoal.engine.screen.tables import show_run

    left_out = [f"participation.without={_clients('--without', without)}"] if without else []
    show_run(fork(possible_path(run), round_number, [*(overrides or ()), *left_out]))


def influence_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A finished run.")],
    clients: Annotated[str, typer.Option(metavar="I,J,…", help="Some clients; by default all.")] = "",
    scope: Annotated[str | None, typer.Option(help="global, deployed or trained models.")] = None,
    out: Annotated[Path | None, typer.Option(help="CSV file to write.")] = None,
) -> None:
    """Make a run again without each of its clients: what it changes of the scores; interrupted, it goes on."""
    from shoal.engine.past.influence import influence
    from shoal.engine.studies.study_table import on_screen
    from shoal.storage.files.atomic import output, replacing

    path = possible_path(run)
    influences = influence(path, _clients("--clients", clients), scope)
    put("\n".join(map(on_screen, (influences.table(), influences.of_classes()))), end="")
    influences.write(path)
    put(f"next: shoal report {shlex.quote(run)}")
    if out is not None:
        with replacing(output(out)) as unfinished:
            unfinished.write_text(influences.table(by_class=True).csv())
        put(f"written: {out}")


def _clients(option: str, text: str) -> list[int]:
    """Reads numbers of clients with commas between them."""
    numbers = text.split(",") if text else []
    if not all(number.strip().isdecimal() for number in numbers):
        raise ShoalError(option, f"must be numbers of clients with commas between them, found {text}")
    return [int(number) for number in numbers]


def privacy_command(
    run: Annotated[str, typer.Argument(metavar="RUN")],
    round_number: Annotated[int, typer.Option("--round", min=1, help="The round that is made again.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder for tables of all clients, as CSV.")] = None,
) -> None:
    """Say what left each client of a run, what hid in a mean, and epsilon of its unit after rounds."""
    from shoal.engine.past.ledger import ledger
    from shoal.engine.studies.study_table import on_screen

    the_ledger = ledger(possible_path(run), round_number)
    put("\n".join(map(on_screen, the_ledger.tables().values())), end="")
    if out is not None:
        put(f"written: {the_ledger.write(out)}")


def attack_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run; for membership a finished one.")],
    kind: Annotated[
        Literal["membership", "properties", "inversion"],
        typer.Option(
            help="Finds items that models trained on, classes of clients from uploads, or rows of one client."
        ),
    ] = "membership",
    round_number: Annotated[
        int | None,
        typer.Option("--round", min=1, help="The round that is made again, by default 1; not of membership."),
    ] = None,
    client: Annotated[
        int | None, typer.Option(min=0, help="Of inversion; by default that of the fewest training nodes.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="CSV file: clients one by one, of inversion the table.")] = None,
) -> None:
    """Attack a run: what its models, or the uploads of a round, tell of clients, beside chance."""
    from shoal.engine.studies.study_table import on_screen
    from shoal.storage.files.atomic import output, replacing

    path, number = possible_path(run), round_number or 1
    for option, given, takes in (
        ("--round", round_number, kind != "membership"),
        ("--client", client, kind == "inversion"),
    ):
        if given is not None and not takes:
            raise ShoalError(option, f"is not of --kind {kind}; leave it out")
    if kind == "membership":
        from shoal.engine.past.membership import membership

        memberships = membership(path)
        table, by_client = memberships.table(), memberships.csv()
    elif kind == "properties":
        from shoal.engine.past.properties import properties

        table, lines = properties(path, number)
        by_client = lines.csv()
    else:
        from shoal.engine.past.inversion import inversion

        table = inversion(path, number, client)
        by_client = table.csv()
    put(on_screen(table), end="")
    if out is not None:
        with replacing(output(out)) as unfinished:
            unfinished.write_text(by_client)
        put(f"written: {out}")
