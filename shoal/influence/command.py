"""The command `shoal influence`."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

from shoal.cli.completion import complete_run
from shoal.cli.past import AsJson, possible_path, read_clients
from shoal.cli.readers import read_run, show_reading
from shoal.storage.files.atomic import output


def influence_command(
    run: Annotated[str, typer.Argument(metavar="RUN", autocompletion=complete_run, help="A finished run.")],
    clients: Annotated[str, typer.Option(metavar="I,J,…", help="Some clients; by default all.")] = "",
    scope: Annotated[
        Literal["global", "deployed", "trained"] | None, typer.Option(help="The models that are scored.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="CSV file to write.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make a run again without each of its clients: what it changes of the scores; interrupted, it goes on."""
    path = possible_path(run)
    if out is not None:
        # A reading takes long.
        output(out)
    reading = read_run("influence", {"clients": read_clients("--clients", clients), "scope": scope}, path)
    show_reading(reading, out, f"next: shoal report {shlex.quote(run)}", as_json)
