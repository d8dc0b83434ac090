"""Two models at a client, a cut model, a server that learns: host and driver killed, resumed without hosts."""

import ast
import json
import signal
from pathlib import Path

import pytest
from integration import methods_to_come
from integration.runs import PATIENCE, Runs, assert_same_numbers, until, working
from safetensors import safe_open

FILE = Path(methods_to_come.__file__)
METHODS = [node for node in ast.parse(FILE.read_text()).body if isinstance(node, ast.ClassDef)]
# An epoch of FedGKC takes as long as several of the others.
FEDGKC = {"algorithm": {"name": "fedgkc", "copilot": {"name": "gcn", "hidden": 32}}, "train": {"epochs": 12}}
# Thirty messages a round.
FEDGPL = {
    "task": "graph",
    "data": {"dataset": "sbm-graphs", "options": {"graphs": 600, "nodes": 9000, "classes": 3, "features": 24}},
    "partition": {"method": "random", "clients": 12},
    "propagation": {"hops": 0},
    "model": {"name": "gcn", "hidden": 32, "prompt": "vpg"},
    "train": {"epochs": 3, "batch_size": 8},
    "algorithm": {"name": "fedgpl", "gnn": "per_client_avg"},
    "seed": 2,
}
CASES = {
    **{method.name: {"algorithm": f"{FILE}:{method.name}"} for method in METHODS},
    "fedgkc": FEDGKC,
    "fedgpl": FEDGPL,
}
# A minute each: rounds of FedGKC on hosts and its resumes are tested elsewhere, and FedGPL is a method whose server
# learns, too.
SLOW = {"fedgkc", "ServerModel"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES])
def test_killed_and_resumed(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    data = tmp_path_factory.getbasetemp() / "data"
    expected = Runs(tmp_path_factory.mktemp("undisturbed"), data, **CASES[name]).here()
    runs = Runs(tmp_path_factory.mktemp("disturbed"), data, **CASES[name])
    process = runs.start("engine.backend=ray", "engine.hosts=2")
    until(lambda: runs.rounds() >= 1, process)
    until(lambda: next(working(process, "ray::HostActor.run"), None), process).kill()
    until(lambda: runs.rounds() >= 3, process)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=PATIENCE)
    assert_same_numbers(runs.here(resume=True), expected)
    *_, last = [json.loads(line) for line in (expected / "metrics.jsonl").read_text().splitlines()]
    # Each of them learns: three or six classes.
    assert last["scopes"]["served"]["test"]["nodes"] > (0.5 if name == "fedgpl" else 0.3)


def test_they_are_short() -> None:
    assert len(METHODS) == 1
    assert all((method.end_lineno or 0) - method.lineno <= 40 for method in METHODS)


def test_export_writes_both_models(tmp_path_factory: pytest.TempPathFactory) -> None:
    from shoal.engine.runs.export import export

    data = tmp_path_factory.getbasetemp() / "data"
    run = Runs(tmp_path_factory.mktemp("both"), data, **FEDGKC, rounds=2).here()
    with safe_open(export(run) / "models.safetensors", "pt") as models:
        names = set(models.keys())
    own = {name for name in names if name.startswith("client/00003/") and "copilot" not in name}
    assert {name.rpartition("/")[2] for name in own} >= {"score.weight", "head.linears.0.weight"}
    assert "client/00003/copilot/head.linears.0.weight" in names
    assert not any(name.startswith("global/") for name in names)
