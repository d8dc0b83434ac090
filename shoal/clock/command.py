"""The command `shoal clock`."""

from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.completion import complete_run
from shoal.cli.past import AsJson, possible_path
from shoal.engine.screen.output import put, put_json


def clock_command(
    paths: Annotated[list[str], typer.Argument(metavar="RUN|SWEEP...", autocompletion=complete_run)],
    devices: Annotated[str, typer.Option(help="CSV of classes of devices; ours: phones, hospital.")] = "phones",
    network: Annotated[str, typer.Option(help="CSV of classes of links; ours: consumer, institutions.")] = "consumer",
    deadline: Annotated[float | None, typer.Option(help="Seconds that a round waits; says who is late.")] = None,
    target: Annotated[float | None, typer.Option(help="Score to reach, as 0.8; by default 95 % of the best.")] = None,
    seed: Annotated[int, typer.Option(help="Draws the device and the link of every client.")] = 0,
    no_server: Annotated[bool, typer.Option("--no-server", help="Leave out the seconds of the server.")] = False,
    no_evaluation: Annotated[
        bool, typer.Option("--no-evaluation", help="Leave out evaluations of clients, as asynchronous steps do.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write, or an .html file; by default `clock` in the first.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Simulate devices and links after the fact: time, energy and money of every round, and to a score; a page."""
    from shoal.clock.clock_page import write_clock
    from shoal.clock.report import ClockReader
    from shoal.engine.records.outputs import CLOCK, page_folder
    from shoal.pages.page import is_alone, require_place

    require_place(out)
    reader = ClockReader(devices, network, deadline, target, seed, not no_server, not no_evaluation)
    made = reader.read_all([possible_path(path) for path in paths])
    place = out or page_folder(possible_path(paths[0]), CLOCK)
    if out is not None or not as_json:
        page = write_clock(made, place)
    if as_json:
        put_json(made.plain())
        return
    from shoal.tables.table_output import on_screen

    put("\n".join(map(on_screen, made.tables())), end="")
    put(f"page: {page}" + ("" if is_alone(place) else "; beside it rounds.csv and target.csv"))
