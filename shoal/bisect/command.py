"""The command `shoal bisect`."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.completion import complete_run
from shoal.cli.past import AsJson, possible_path
from shoal.cli.readers import read_run, show_reading


def bisect_command(
    run: Annotated[str, typer.Argument(metavar="A", autocompletion=complete_run, help="A run.")],
    other: Annotated[
        str, typer.Argument(metavar="B", autocompletion=complete_run, help="A run, or a folder of uploads.")
    ],
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="The largest relative difference that is one in last bits.")
    ] = 1e-5,
    out: Annotated[Path | None, typer.Option(help="Folder to write: the tables, as CSV.")] = None,
    as_json: AsJson = False,
) -> None:
    """Find where two runs part and why, by round, client, phase and tensor."""
    options = {"other": str(possible_path(other)), "tolerance": tolerance}
    show_reading(read_run("bisect", options, possible_path(run)), out, as_json=as_json)
