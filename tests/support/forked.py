"""Programs in forks of one process that has imported what is slow to import: from nothing, each starts for seconds."""

import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

PRELOADED = [
    "torch", "shoal", "shoal.cli.cli", "shoal.engine.runs.run", "shoal.engine.hosts.host", "torch_geometric.nn",
    "rich.table", "numba", "scipy.sparse", "shoal.engine.screen.tables",
]  # fmt: skip
SHOAL = "from shoal.cli.main import main; main()"


def start(program: str, *words: object, printed: Path, folder: Path | None = None) -> BaseProcess:
    """Starts the text of a program with its words, in a folder and a process group of its own.

    What it prints is written to a file. `exitcode` is the negative number of the signal that killed it, if one did.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    place = folder or Path.cwd()
    process = context.Process(
        target=_run, args=(program, [str(word) for word in words], place, printed, {**os.environ})
    )
    process.start()
    return process


def shoal(*words: object, printed: Path, seconds: float = 120.0) -> tuple[int, str]:
    """Runs the command; gives its exit status and what it printed."""
    process = start(SHOAL, *words, printed=printed)
    process.join(seconds)
    assert process.exitcode is not None
    return process.exitcode, printed.read_text()


def _run(program: str, words: Sequence[str], folder: Path, printed: Path, env: dict[str, str]) -> None:
    os.setpgrp()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    with printed.open("wb", buffering=0) as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    sys.argv = ["shoal", *words]
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})
