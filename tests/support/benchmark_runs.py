"""Runs scripts of benchmarks, each in a fork of one process that has imported what is slow to import."""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
PRELOADED = ["torch", "shoal", "shoal.engine.runs.run", "shoal.engine.hosts.host", "torch_geometric.nn", "rich.table"]


def run_benchmark(script: str, arguments: Sequence[str], folder: Path, seconds: float = 60.0) -> tuple[int, str]:
    """The exit status of a script of benchmarks and what it printed; it works in a folder.

    Status -9: it took longer than so many seconds, and was killed with what it had started.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    printed = folder / "printed.txt"
    process = context.Process(target=_run, args=(script, list(arguments), folder, printed))
    process.start()
    process.join(seconds)
    if process.is_alive():
        assert process.pid is not None
        os.killpg(process.pid, 9)
        process.join()
    assert process.exitcode is not None
    return process.exitcode, printed.read_text() if printed.exists() else ""


def _run(script: str, arguments: list[str], folder: Path, printed: Path) -> None:
    os.setpgrp()
    os.chdir(folder)
    with printed.open("wb", buffering=0) as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    path = BENCHMARKS / script
    # As if it were started: its own folder comes first.
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path), *arguments]
    runpy.run_path(str(path), run_name="__main__")
