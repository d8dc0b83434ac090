"""Programs in forks of one process that has imported what is slow to import: from nothing, each starts for seconds."""

import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

PRELOADED = [
    "torch", "shoal", "shoal.cli.cli", "shoal.engine.runs.run", "shoal.engine.hosts.host", "torch_geometric.nn",
    "rich.table", "numba", "scipy.sparse", "shoal.engine.screen.tables",
]  # fmt: skip
SHOAL = "from shoal.cli.main import main; main()"
LIMITED = f"""
import os, resource, signal
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
signal.alarm({{seconds}})
resource.setrlimit(resource.{{limit}}, ({{most}}, {{most}}))
{SHOAL}
"""


def start(program: str, *words: object, printed: Path, folder: Path | None = None) -> BaseProcess:
    """Starts the text of a program with its words, in a folder and a process group of its own.

    What it prints is written to a file. `exitcode` is the negative number of the signal that killed it, if one did.
    """
    return _start(program, words, os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), folder or Path.cwd())


def shoal(*words: object, printed: Path, seconds: float = 120.0) -> tuple[int, str]:
    """Runs the command; gives its exit status and what it printed."""
    process = start(SHOAL, *words, printed=printed)
    process.join(seconds)
    assert process.exitcode is not None
    return process.exitcode, printed.read_text()


def limited(*words: object, limit: str, most: int, seconds: int = 60) -> tuple[int, str]:
    """Runs the command under a limit of `resource`, for some seconds at most; gives its status and its errors.

    They go into a pipe: a limit of the size of files holds for those that the command prints into.
    """
    end, begin = os.pipe()
    process = _start(LIMITED.format(seconds=seconds, limit=limit, most=most), words, begin, Path.cwd())
    with open(end, errors="replace") as errors:
        said = errors.read()
    process.join()
    assert process.exitcode is not None
    return process.exitcode, said


def _start(program: str, words: Sequence[object], descriptor: int, folder: Path) -> BaseProcess:
    """Starts a program that prints into an open file, which is closed here."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    # Of all that a process may be given, connections alone take their files along.
    with Connection(descriptor, readable=False) as output:
        given = (program, [str(word) for word in words], output, folder, {**os.environ})
        process = context.Process(target=_run, args=given)
        process.start()
    return process


def _run(program: str, words: Sequence[str], output: Connection, folder: Path, env: dict[str, str]) -> None:
    os.setpgrp()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    output.close()
    sys.argv = ["shoal", *words]
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})
