"""The command `shoal attack`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from shoal.cli.completion import complete_run
from shoal.cli.past import AsJson, possible_path
from shoal.cli.readers import read_run, show_reading
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import output


def attack_command(
    run: Annotated[
        str, typer.Argument(metavar="RUN", autocompletion=complete_run, help="A run; for membership a finished one.")
    ],
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
    out: Annotated[
        Path | None, typer.Option(help="CSV file to write: clients one by one, of inversion the table.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Attack a run: what its models, or the uploads of a round, tell of clients, beside chance."""
    path = possible_path(run)
    if out is not None:
        # A reading takes long.
        output(out)
    options = {"round": round_number, "client": client}
    takes = {"membership": (), "properties": ("round",), "inversion": ("round", "client")}[kind]
    for option, value in options.items():
        if value is not None and option not in takes:
            raise ShoalError(f"--{option}", f"is not of --kind {kind}; leave it out")
    show_reading(
        read_run(kind, {name: value for name, value in options.items() if value is not None}, path),
        out,
        as_json=as_json,
    )
