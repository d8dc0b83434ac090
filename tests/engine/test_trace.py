"""How many product files a round runs through, traced in the second one of ten clients in one process.

A round of FedAvg is traced at the backend, one of the quickstart from the command, with its evaluation.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import yaml
from support.fixtures import Configure
from typer.testing import CliRunner

from shoal.cli.cli import app
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.costs import Watch, unwatched
from shoal.engine.runs.plan import plan_of

ROOT = Path(__file__).parents[2]
PRODUCT = tuple(f"{ROOT}/{name}/" for name in ("shoal", "engine", "algorithms", "storage", "partition"))
MOST_OF_A_ROUND, MOST_OF_A_VISIT, MOST_IMPORTED = 18, 9, 198
MOST_OF_QUICKSTART, MOST_OF_ITS_VISIT = 35, 20
VISIT = "_CellAtWork.visit_client"
IMPORTED = """
import sys

# What this run does not need, it must not import.
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"ray", "pymetis", "kaminpar", "networkit", "torch_geometric"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import shoal
from shoal.engine.hosts.backend import LocalBackend

def round_printed(self, *args, before=LocalBackend.round):
    if self.state().round == 0:
        # Torch's compiler takes a second of every process, and nothing is compiled.
        assert not {"torch._dynamo", "sympy"} & sys.modules.keys()
        print(*(m.__file__ for n, m in sys.modules.items() if n.startswith("shoal.")), sep="\\n")
    return before(self, *args)

LocalBackend.round = round_printed
shoal.run(sys.argv[1])
"""


def test_round_and_visit_are_of_few_files(make_config: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CHECK_ALWAYS", "0")
    config = make_config(partition__clients=10, model__name="sgc", engine__backend="local")
    backend = LocalBackend()
    backend.open(make_job(config, prepare(config), "traced"), plan_of(config), None)
    backend.round(unwatched)
    of_round, of_visit = trace(lambda: backend.round(unwatched))
    assert len(of_round) <= MOST_OF_A_ROUND, ", ".join(sorted(of_round))
    assert len(of_visit) <= MOST_OF_A_VISIT, ", ".join(sorted(of_visit))


def test_quickstart_runs_through_few_files_from_the_command_to_the_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_CHECK_ALWAYS", "0")
    keys = ("engine.backend=local", f"run.root={tmp_path}", "rounds=2", "evaluation.every=1")
    traced: list[tuple[set[str], set[str]]] = []

    def round_traced(self: LocalBackend, watch: Watch, before: Any = LocalBackend.round) -> dict[str, Any]:
        line: dict[str, Any] = {}
        traced.append(trace(lambda: line.update(before(self, watch))))
        return line

    monkeypatch.setattr(LocalBackend, "round", round_traced)
    done = CliRunner().invoke(app, ["run", "quickstart", *keys])
    assert done.exit_code == 0, done.output
    _, (of_round, of_visit) = traced
    # What scores, and what shows a round under way, is among them.
    assert of_round >= {"engine/scores/counts.py", "engine/screen/live_view.py", "algorithms/methods/fedgta/fedgta.py"}
    assert len(of_round) <= MOST_OF_QUICKSTART, ", ".join(sorted(of_round))
    assert len(of_visit) <= MOST_OF_ITS_VISIT, ", ".join(sorted(of_visit))


def trace(work: Callable[[], object]) -> tuple[set[str], set[str]]:
    """Lists the product files that some work runs through, and those of the visits in it."""
    of_round, of_visit = set[str](), set[str]()
    visits = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal visits
        file = frame.f_code.co_filename
        if event not in ("call", "return") or not file.startswith(PRODUCT):
            return
        if frame.f_code.co_qualname == VISIT:
            visits += 1 if event == "call" else -1
        file = str(Path(os.path.realpath(file)).relative_to(ROOT))
        of_round.add(file)
        if visits:
            of_visit.add(file)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    assert of_visit
    print(f"a round: {len(of_round)}", *sorted(of_round), f"a visit: {len(of_visit)}", *sorted(of_visit), sep="\n")
    return of_round, of_visit


def test_run_imports_few_files_before_round_1_and_no_library_that_it_does_not_use(
    make_config: Configure, tmp_path: Path
) -> None:
    keys = {"partition__method": "random", "run__root": str(tmp_path / "runs"), "engine__backend": "local"}
    config = make_config(partition__clients=10, model__name="sgc", **keys)
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({**config.plain(), "rounds": 1}))
    done = subprocess.run([sys.executable, "-c", IMPORTED, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    named = [line for line in done.stdout.splitlines() if line.endswith(".py") and not line.endswith("__init__.py")]
    files = {str(Path(os.path.realpath(file)).relative_to(ROOT)) for file in named}
    assert 50 < len(files) <= MOST_IMPORTED, f"{len(files)} files: {sorted(files)}"
    assert list((tmp_path / "runs").glob("*/summary.json"))
