"""The command `shoal values`."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from shoal.cli.completion import complete_run
from shoal.cli.past import AsJson, possible_path
from shoal.cli.readers import read_run, show_reading
from shoal.storage.files.atomic import output


def values_command(
    run: Annotated[str, typer.Argument(metavar="RUN", autocompletion=complete_run, help="A finished run.")],
    method: Annotated[
        Literal["shapley", "permutations", "banzhaf", "leave-one-out", "exact", "uploads"],
        typer.Option(help="The estimate; exact trains all coalitions, uploads none."),
    ] = "shapley",
    precision: Annotated[
        float | None, typer.Option(help="Stop where intervals are within so many points, by default 0.1.")
    ] = None,
    trainings: Annotated[
        float | None, typer.Option(help="Stop after the work of so many trainings of the run, by default 40.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Of permutations: end each within so many points of the whole, by default 0.")
    ] = None,
    part: Annotated[Literal["val", "test"], typer.Option(help="The items that are scored.")] = "val",
    out: Annotated[Path | None, typer.Option(help="CSV file to write.")] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate what each client adds to the score of a run, by training coalitions; interrupted, it goes on."""
    path = possible_path(run)
    if out is not None:
        # A reading takes long.
        output(out)
    options = {"method": method, "precision": precision, "trainings": trainings, "tolerance": tolerance, "part": part}
    show_reading(read_run("values", options, path), out, f"next: shoal report {shlex.quote(run)}", as_json)
