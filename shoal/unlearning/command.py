"""The command `shoal unlearn`."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.completion import complete_run
from shoal.cli.past import AsJson, possible_path
from shoal.cli.readers import show_reading
from shoal.storage.files.atomic import output

DEFAULT = "fine_tune,gradient_ascent,federaser,forgetting_head"


def unlearn_command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", autocompletion=complete_run, help="Finished runs.")],
    client: Annotated[str | None, typer.Option(metavar="I,J,…", help="Clients, each removed alone, or all.")] = None,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="N,M,…", help="Nodes, removed together; a file of them, or a drawn share as 5%."),
    ] = None,
    label: Annotated[
        str | None, typer.Option("--class", metavar="C,D,…", help="Classes, each removed alone from training.")
    ] = None,
    edges: Annotated[str | None, typer.Option(metavar="N-M,…", help="Edges inside clients, removed together.")] = None,
    methods: Annotated[str, typer.Option(help="Approximations, of ours or my_file.py:Mine; or none.")] = DEFAULT,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Their rounds on the rest, by default a tenth of the run's.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Draws of a share of nodes.")] = 1,
    out: Annotated[Path | None, typer.Option(help="CSV file to write.")] = None,
    as_json: AsJson = False,
) -> None:
    """Remove data from runs exactly, and score approximations against that; interrupted, it goes on."""
    from shoal.past.reader import Reading
    from shoal.past.rewind import PastRun
    from shoal.unlearning.targets import Asked
    from shoal.unlearning.unlearn import unlearn

    paths = [possible_path(run) for run in runs]
    asked = Asked(client, nodes, label, edges, repeat)
    if out is not None:
        # A reading takes long.
        output(out)
    result = unlearn([PastRun(path) for path in paths], asked, methods, rounds)
    show_reading(Reading((result.table(),), result.csv()), out, as_json=as_json)
