"""Runs scripts of benchmarks, each in a fork of one process that has imported what is slow to import."""

import os
from collections.abc import Sequence
from pathlib import Path

from support.forked import start

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
# As if the script were started: its own folder comes first.
SCRIPT = """
import runpy, sys
from pathlib import Path
del sys.argv[0]
sys.path.insert(0, str(Path(sys.argv[0]).parent))
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_benchmark(script: str, arguments: Sequence[str], folder: Path, seconds: float = 60.0) -> tuple[int, str]:
    """The exit status of a script of benchmarks and what it printed; it works in a folder.

    Status -9: it took longer than so many seconds, and was killed with what it had started.
    """
    printed = folder / "printed.txt"
    process = start(SCRIPT, BENCHMARKS / script, *arguments, printed=printed, folder=folder)
    process.join(seconds)
    if process.is_alive():
        assert process.pid is not None
        os.killpg(process.pid, 9)
        process.join()
    assert process.exitcode is not None
    return process.exitcode, printed.read_text() if printed.exists() else ""
