"""A small config as a file, and the command in this process or, under a limit, in one of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rooms import ROOT

from engine.commands.main import command

PLAIN: dict[str, Any] = {
    "name": "tiny",
    "rounds": 2,
    "data": {"dataset": "sbm", "options": {"nodes": 120, "features": 8, "classes": 3}},
    "partition": {"method": "metis", "clients": 4},
    "propagation": {"hops": 1},
    "model": {"name": "sgc"},
    "algorithm": {"name": "fedavg"},
    "engine": {"backend": "local"},
    "run": {"tensorboard": False},
}

# Each command is a fork of a process that has imported everything: from nothing, each would start for seconds.
FORKING = """
import json, os, resource, signal, sys, traceback
import numba, scipy.sparse
import engine.commands.cli, engine.commands.run, engine.screen.report
from engine.commands.main import main

for line in sys.stdin:
    words, limit, most, seconds = json.loads(line)
    end, begin = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(begin, 2)
        signal.alarm(seconds)
        resource.setrlimit(getattr(resource, limit), (most, most))
        sys.argv[1:] = words
        status = 1
        try:
            main()
            status = 0
        except SystemExit as ended:
            status = ended.code or 0
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(status)
    os.close(begin)
    with open(end, errors="replace") as errors:
        said = errors.read()
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said]), flush=True)
"""


# Of a file, not of the session: a Ray that ends in this process takes all its children along.
@pytest.fixture(scope="module")
def limited() -> Iterator[Callable[..., tuple[int, str]]]:
    """Runs a command under a limit of `resource`, for some seconds at most; gives its status and what it said."""
    env = {**os.environ, "NUMBA_CACHE_DIR": ""}
    words, pipe = [sys.executable, "-c", FORKING], subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe, text=True, env=env) as forking:
        assert forking.stdin is not None
        assert forking.stdout is not None

        def run(*words: object, limit: str, most: int, seconds: int = 60) -> tuple[int, str]:
            print(json.dumps([[str(word) for word in words], limit, most, seconds]), file=forking.stdin, flush=True)
            status, said = json.loads(forking.stdout.readline())
            return status, said

        yield run
        forking.stdin.close()


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A sound config whose store and runs lie in a folder of the test."""
    plain = {**PLAIN, "data": {**PLAIN["data"], "root": str(tmp_path), "store": str(tmp_path / "store")}}
    plain["run"] = {**PLAIN["run"], "root": str(tmp_path / "runs")}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


@pytest.fixture
def status(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs a command and gives its exit status."""

    def run(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["shoal", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            command()
        return int(end.value.code or 0)

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], status: Callable[..., int]) -> Callable[..., str]:
    """Runs a command that must fail, and returns its one line."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        assert status(*arguments) == 2
        (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("shoal: ")]
        return line

    return run


@pytest.fixture
def shoal(status: Callable[..., int]) -> Callable[..., None]:
    """Runs a command that must succeed."""

    def run(*arguments: object) -> None:
        assert status(*arguments) == 0

    return run
