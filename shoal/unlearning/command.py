"""The command `shoal unlearn`."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.completion import complete_run
from shoal.cli.past import AsJson, possible_path
from shoal.cli.readers import show_reading
from shoal.storage.files.atomic import output

DEFAULT = "fine_tune,gradient_ascent,orthogonal_ascent,federaser,forgetting_head"


def unlearn_command(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", autocompletion=complete_run, help="Finished runs.")],
    client: Annotated[str | None, typer.Option(metavar="I,J,…", help="Clients, each alone, or all.")] = None,
    nodes: Annotated[
        str | None,
        typer.Option(metavar="N,M,…", help="Nodes, or a file of them, or a share, drawn: 5%."),
    ] = None,
    label: Annotated[str | None, typer.Option("--class", metavar="C,D,…", help="Classes, each alone.")] = None,
    edges: Annotated[str | None, typer.Option(metavar="N-M,…", help="Edges inside clients.")] = None,
    methods: Annotated[str, typer.Option(help="Approximations, also mine.py:Mine; or none.")] = DEFAULT,
    rounds: Annotated[int | None, typer.Option(min=1, help="Their rounds, by default a tenth.")] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Draws of a share.")] = 1,
    out: Annotated[Path | None, typer.Option(help="CSV file to write.")] = None,
    as_json: AsJson = False,
) -> None:
    """Remove data from runs exactly, and score approximations; interrupted, it goes on."""
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
