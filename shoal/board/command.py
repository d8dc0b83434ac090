"""The command `shoal board`."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli.completion import complete_run
from shoal.cli.past import possible_path
from shoal.engine.screen.output import put


def board_command(
    folders: Annotated[
        list[str],
        typer.Argument(metavar="RUN|SWEEP|FOLDER|BOARD...", autocompletion=complete_run),
    ],
    method: Annotated[
        str, typer.Option(metavar="METHOD", help="Run it in all settings of a board first: mine.py:Mine{mu:0.1}.")
    ] = "",
    title: Annotated[str, typer.Option(help="What the page is called.")] = "",
    out: Annotated[Path | None, typer.Option(help="Folder to write; by default `board` beside the runs.")] = None,
) -> None:
    """Make a board of finished runs: methods by settings, with intervals, budgets, and digests to verify; a page."""
    from shoal.board.board import BOARD, Board, folder_of, read_board, write_board
    from shoal.board.entries import read_entries
    from shoal.board.joining import run_method
    from shoal.storage.errors import ShoalError
    from shoal.tables.table_output import on_screen

    paths = [possible_path(folder) for folder in folders]
    boards = [path for path in paths if (path / BOARD).exists()]
    if method and len(boards) != 1:
        raise ShoalError("--method", "runs in the settings of one board; name its folder")
    runs, place = [], out
    for path in paths:
        if path in boards:
            board, fault = read_board(path)
            if fault:
                raise ShoalError(fault, "shoal verify names what changed")
            runs += [Path(run.run) for entry in board.entries for run in entry.runs]
            title, place = title or board.title, place or path
            runs += run_method(board, method) if method else []
        else:
            runs.append(path)
    made = Board(title or "Board", tuple(read_entries(runs)))
    place = place or folder_of(paths)
    page = write_board(made, place)
    put(on_screen(made.table()), end="")
    put(f"page: {page}; beside it {BOARD}")
    put(f"next: shoal verify {shlex.quote(str(place))} --visits 20")
