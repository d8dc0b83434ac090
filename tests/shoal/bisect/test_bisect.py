"""Planted faults are found with round, client, tensor and cause; equal runs are called equal, whatever they kept."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.needs import needs
from support.small_runs import run_small, small_run, stopped_after
from support.user_graph import write_arrays

from shoal.bisect.bisect import Bisection, bisect
from shoal.bisect.differences import UPLOAD
from shoal.bisect.sides import Side
from shoal.bisect.tracing import trace_round
from shoal.engine.config.config import parse_config
from shoal.engine.hosts.host import Visit
from shoal.engine.records.metrics import read_metrics
from shoal.engine.rounds import exchange, sampling
from shoal.engine.rounds.exchange import Exchange
from shoal.engine.runs.run import run
from shoal.past.fork import fork

pytestmark = needs("bisect", "digests")

METHOD = """
import random
from dataclasses import dataclass
import torch
import shoal

@dataclass(frozen=True)
class Mine(shoal.Algorithm):
    def setup(self, ctx):
        return {"w": ctx.initial}

    def round(self, server, ctx, cohort):
        down = {"w": server["w"], "round": torch.tensor(float(ctx.round))}
        got = yield shoal.Ask("train", {"w": shoal.Reduce.MEAN}, shared=down)
        server["w"] = got["w"]

    def global_model(self, server):
        return {"w": server["w"]}

    def receive(self, client, down):
        hit = client.info.client == 2 and float(down.get("round", 0)) == 3
        if "w" in down:
            client.model.borrow(down["w"])
        return {**down, "hit": hit}

    def train(self, client, received, trainer, phase):
        return trainer.fit(client, received)

    def upload(self, client, received, phase):
        noise = torch.rand(client.model.w.shape, generator=client.rng("noise"))
        return shoal.Upload({"w": client.model.w + 0.001 * noise}, {"w": float(client.info.train)})
"""
ALL = {"keep": 9, "checkpoint_every": 1, "keep_digests": True}
NO_DIGESTS = {**ALL, "keep_digests": False}


def made(folder: Path, **changes: Any) -> Path:
    """A run of five rounds that keeps all checkpoints, and digests, if nothing else is asked for."""
    return run_small(folder, **{"rounds": 5, **changes, "run": {**ALL, **changes.get("run", {})}})


def with_method(folder: Path, text: str, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.py").write_text(text)
    return made(folder, algorithm={"name": f"{folder / 'mine.py'}:Mine"}, **changes)


def planted(folder: Path, old: str, new: str, **changes: Any) -> tuple[Path, Path]:
    """Two runs of a method; in the text of the second something is replaced."""
    return with_method(folder / "a", METHOD, **changes), with_fault(folder / "b", old, new, **changes)


def with_fault(folder: Path, old: str, new: str, **changes: Any) -> Path:
    """A run of the method whose text has something replaced."""
    assert old in METHOD
    return with_method(folder, METHOD.replace(old, new), **changes)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the method as it is, which is read alone."""
    return with_method(tmp_path_factory.mktemp("sound"), METHOD)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the small config, which is read alone."""
    return made(tmp_path_factory.mktemp("plain"))


def store_of(run: Path) -> dict[str, Any]:
    """The key of a run's data folder: what has it, too, prepares no store."""
    return {"root": str(run.parent.parent)}


def require(result: Bisection, number: int, clients: list[int], cause: str, tensor: str) -> None:
    """The finding has a round, a client and a tensor; at most twelve visits were made again."""
    found = result.in_value
    assert found is not None, result.verdict
    assert (found.earliest, found.round, found.clients) == (number, number, clients), result.verdict
    assert cause in found.cause, result.verdict
    assert tensor in found.tensor, result.verdict
    assert result.visits <= 12


UPLOADED = "client.model.w + 0.001"
FAULTS = {
    "upload": (UPLOADED, 'client.model.w * (-1 if received["hit"] else 1) + 0.001', [2], "upload: w"),
    "weight": ("float(client.info.train)", 'float(client.info.train + received["hit"])', [2], "weight of w"),
    "training": (
        "trainer.fit(client, received)",
        'trainer.fit(client, received, term=lambda: client.model.flat.w.square().sum() * received["hit"])',
        [2],
        "trained model: model.w",
    ),
    "download": ('borrow(down["w"])', 'borrow(down["w"] * (0.5 if hit else 1))', [2], "received model: model.w"),
    "shared": ('"w": server["w"], "round"', '"w": server["w"] * (ctx.round == 3 or 0.99), "round"', [], "download: w"),
    "draw": ('client.rng("noise")', 'client.rng("other" if received["hit"] else "noise")', [2], "random stream: key"),
    "no key": (UPLOADED, 'client.model.w + random.random() * received["hit"] + 0.001', [2], "upload: w"),
    "reduction": ('= got["w"]', '= got["w"] * (0.9 if ctx.round == 3 else 1)', [], "server: w"),
}
CAUSES = {"weight": "upload", "shared": "download", "no key": "draw"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_method_is_found(sound: Path, tmp_path: Path, name: str) -> None:
    old, new, clients, tensor = FAULTS[name]
    number = 1 if name == "shared" else 3
    result = bisect(sound, with_fault(tmp_path, old, new, data=store_of(sound)))
    require(result, number, clients, CAUSES.get(name, name), tensor)
    # What is drawn without a key is made again by nobody.
    assert result.finding.reproduces == {"A": True, "B": name != "no key"}


@pytest.mark.parametrize("name", ["upload", "training", "reduction"])
def test_a_fault_is_found_without_digests_and_checkpoints(tmp_path: Path, name: str) -> None:
    old, new, clients, tensor = FAULTS[name]
    a, b = planted(tmp_path, old, new, run={**NO_DIGESTS, "keep": 1, "checkpoint_every": 5})
    before = {path: path.read_bytes() for run in (a, b) for path in run.rglob("*") if path.is_file()}
    found = bisect(a, b).in_value
    assert (found.round, found.clients, found.cause) == (3, clients, name)
    assert tensor in found.tensor
    assert {path: path.read_bytes() for path in before} == before


def test_losses_gradients_and_weights_stand_side_by_side(tmp_path: Path) -> None:
    """The term adds 2 w to the gradient of each step, and nothing to the loss of the first one but the term."""
    a, b = planted(tmp_path, *FAULTS["training"][:2], train={"epochs": 2, "dropout": 0.0})
    found = bisect(a, b).in_value
    both = [found.steps[label] for label in "AB"]
    assert [len(steps) for steps in both] == [2, 2]
    (cell_w,) = (t for t in [_model_before(a, 3)])
    gradient = both[0][0].gradients["model"] + 2 * cell_w
    torch.testing.assert_close(both[1][0].gradients["model"], gradient)
    assert both[1][0].norm == pytest.approx(float(gradient.norm()))
    assert found.weights["A"] == found.weights["B"]


def _model_before(folder: Path, number: int) -> torch.Tensor:
    from shoal.engine.records.checkpoint import load_round

    return load_round(folder / "checkpoints", number - 1).state.server["w"]


def mutate(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Changes the engine of this process: what a visit trains, what a round averages, or who takes part in round 3."""
    if kind == "training":
        plain = Visit.train

        def train(self: Visit) -> float:
            if (self._cell.round, self._id) == (3, 2):
                self.client.model.flat.w.data.add_(0.1)
            return plain(self)

        monkeypatch.setattr(Visit, "train", train)
    elif kind == "draw":
        drawn = sampling.draw_cohort
        monkeypatch.setattr(
            sampling,
            "draw_cohort",
            lambda clients, options, seed, number, *more: drawn(
                clients, options, seed + 5 * (number == 3), number, *more
            ),
        )
    else:
        combined, factor = exchange.combine, {"reduction": 1.01, "last bits": 1 + 2e-7}[kind]
        asked = Exchange.ask

        def ask(self: Exchange, *more: Any) -> Any:
            replies = asked(self, *more)
            if self.next_state.round == 3:
                replies.entries["w"].mul_(factor)
            return replies

        assert combined is not None
        monkeypatch.setattr(Exchange, "ask", ask)


@pytest.mark.parametrize("kind", ["training", "reduction", "draw"])
def test_a_fault_of_code_that_is_not_here_is_found_by_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    keys: dict[str, Any] = {"participation": {"ratio": 0.75}}
    a = made(tmp_path / "a", **keys)
    with monkeypatch.context() as patch:
        mutate(patch, kind)
        b = made(tmp_path / "b", **keys)
    result = bisect(a, b)
    cohorts = [{*read_metrics(folder)[2]["cohort"]} for folder in (a, b)]
    clients = {"training": [2], "reduction": [], "draw": sorted(cohorts[0] ^ cohorts[1])}[kind]
    assert clients or kind == "reduction"
    require(result, 3, clients, kind, {"reduction": "server: w", "draw": "cohort"}.get(kind, ""))
    assert result.finding.reproduces == {"A": True, "B": False}
    # The other way round it is A that the code here does not make.
    assert bisect(b, a).finding.reproduces == {"A": False, "B": True}


def test_last_bits_are_told_from_values(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        mutate(patch, "last bits")
        b = made(tmp_path / "b")
    result = bisect(plain, b)
    assert (result.finding.round, result.finding.cause, result.in_value) == (3, "reduction", None)
    assert "in last bits" in result.finding.difference.text(result.tolerance)
    assert "none is in value" in result.verdict
    (in_value,) = [bisect(plain, b, tolerance=0.0).in_value]
    assert in_value.round == 3


def test_a_value_behind_last_bits_is_found(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, *_ = FAULTS["upload"]
    with monkeypatch.context() as patch:
        plain = Exchange.ask

        def ask(self: Exchange, *more: Any) -> Any:
            replies = plain(self, *more)
            replies.entries["w"].mul_(1 + 2e-7 * (self.next_state.round == 1))
            return replies

        patch.setattr(Exchange, "ask", ask)
        b = with_fault(tmp_path, old, new, data=store_of(sound))
    result = bisect(sound, b)
    assert (result.finding.round, result.finding.cause) == (1, "reduction")
    assert (result.in_value.round, result.in_value.clients, result.in_value.cause) == (3, [2], "upload")


@pytest.mark.parametrize(
    ("changes", "acting"),
    [
        ({"train": {"lr": 0.02}}, {"train.lr"}),
        ({"train": {"epochs": 2, "lr": 0.01}, "evaluation": {"every": 2}}, {"train.epochs"}),
        ({"seed": 3}, {"seed"}),
        ({"model": {"name": "gamlp"}}, {"model.name"}),
        ({"partition": {"clients": 3}}, {"partition.clients"}),
        ({"algorithm": {"name": "fedprox", "mu": 1.0}}, {"algorithm.name", "algorithm.mu"}),
        ({"participation": {"ratio": 0.5}}, {"participation.ratio"}),
    ],
    ids=lambda value: ", ".join(sorted(value)),
)
def test_keys_that_act_are_named(plain: Path, tmp_path: Path, changes: dict[str, Any], acting: set[str]) -> None:
    found = bisect(plain, made(tmp_path, **{"data": store_of(plain), **changes})).in_value
    assert (found.round, found.cause) == (1, "config")
    assert {*found.keys} >= acting if "model.name" in acting else {*found.keys} == acting
    assert "evaluation.every" not in found.keys


def test_a_fork_parts_from_its_parent_by_its_key(tmp_path: Path) -> None:
    parent = made(tmp_path)
    forked = fork(parent, 3, ["train.lr=0.5"])
    found = bisect(parent, forked).in_value
    assert (found.round, found.cause, {*found.keys}) == (4, "config", {"train.lr"})
    assert bisect(parent, fork(parent, 2, ["name=same"])).finding is None


def graph_run(folder: Path, x: np.ndarray, more: Sequence[tuple[int, int]] = ()) -> Path:
    """A run on a ring a client, with some more edges."""
    node = np.arange(len(x))
    edges = np.concatenate([np.stack([node, (node + 4) % len(x)]), np.array(more, dtype=int).reshape(-1, 2).T], axis=1)
    folder.mkdir()
    graph = write_arrays(folder / "graph", x=x, y=node // 4 % 3, edge_index=edges, assignment=node % 4)
    return made(
        folder,
        data={"dataset": "files", "path": str(graph), "options": {}},
        partition={"method": "file", "clients": 4},
    )


def test_another_number_of_a_clients_data_is_found(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((120, 5), dtype=np.float32)
    a = graph_run(tmp_path / "a", x)
    x[4 * 7 + 3, 2] += 1
    b = graph_run(tmp_path / "b", x)
    require(bisect(a, b), 1, [3], "data", "features")
    found = bisect(a, b).in_value
    assert (found.difference.differing, found.difference.largest) == (1, pytest.approx(1.0))
    # The graph of A is gone: its records still tell that the data differ.
    np.save(tmp_path / "a" / "graph" / "x.npy", x)
    again = bisect(a, b)
    assert (again.in_value or again.finding).cause == "data"


def test_another_edge_is_called_so_though_rows_have_another_order(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random((120, 5), dtype=np.float32)
    a, b = graph_run(tmp_path / "a", x), graph_run(tmp_path / "b", x, [(3, 4 * k + 3) for k in range(2, 9)])
    require(bisect(a, b), 1, [3], "data", "edges")


def test_equal_runs_are_equal_whatever_they_kept(
    plain: Path, tmp_path: Path, status: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = plain, made(tmp_path / "b", run={"keep": 1, "checkpoint_every": 4, "keep_digests": False})
    for left, right in ((a, b), (b, a), (a, a)):
        result = bisect(left, right)
        assert (result.finding, result.visits, result.seen_to) == (None, 0, 5)
    assert status("bisect", a, b) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "equal in all 5 rounds"


def test_runs_of_other_lengths_are_compared_as_far_as_both_go(tmp_path: Path) -> None:
    short, long = (made(tmp_path, rounds=n, run={"keep": 1, "checkpoint_every": 9}) for n in (3, 5))
    result = bisect(short, long)
    assert result.finding is None
    assert result.verdict == "equal in their first 3 rounds; B has 5"
    # Each client trains in all rounds of the longer one that have no checkpoint, and again in the shorter one.
    assert result.visits == 4 * (2 * 2 + 1)


def test_a_resumed_run_is_equal(plain: Path, tmp_path: Path) -> None:
    keys = small_run(tmp_path / "b", rounds=5, run=ALL)
    with pytest.raises(KeyboardInterrupt), stopped_after(2, KeyboardInterrupt()):
        run(parse_config(keys, "test"))
    resumed = run(parse_config(keys, "test"), resume=True)
    assert bisect(plain, resumed).finding is None


@needs("asynchronous")
def test_an_asynchronous_fault_is_found(tmp_path: Path) -> None:
    schedule = {"name": "fedbuff", "buffer": 2, "concurrency": 3}
    text = METHOD.replace(', "round": torch.tensor(float(ctx.round))', "").replace(
        'hit = client.info.client == 2 and float(down.get("round", 0)) == 3', "hit = client.info.client == HIT"
    )
    a, b = (
        with_method(
            tmp_path / side, text.replace("HIT", client).replace(UPLOADED, FAULTS["upload"][1]), schedule=schedule
        )
        for side, client in (("a", "-1"), ("b", "2"))
    )
    first = next(line["round"] for line in read_metrics(b) if 2 in line["cohort"])
    found = bisect(a, b).in_value
    assert (found.round, found.clients, found.cause) == (first, [2], "upload")
    assert "upload: w" in found.tensor


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param({"communication": {"upload": "int8"}}, marks=needs("compression")),
        pytest.param({"secure": "masks", "run": NO_DIGESTS}, marks=needs("secure")),
        pytest.param({"privacy": {"unit": "client", "noise": 0.1}}, marks=needs("privacy")),
        pytest.param({"aggregation": {"kind": "median"}}, marks=needs("robust")),
    ],
    ids=lambda stage: next(iter(stage)),
)
def test_a_fault_before_stages_is_found(tmp_path: Path, stage: dict[str, Any]) -> None:
    old, new, clients, tensor = FAULTS["upload"]
    a, b = planted(tmp_path, old, new, **stage)
    require(bisect(a, b), 3, clients, "upload", tensor)
    assert bisect(a, a).finding is None


def test_records_that_are_damaged_are_named_or_passed_over(tmp_path: Path, capsys: Any) -> None:
    old, new, clients, _ = FAULTS["upload"]
    a, b = planted(tmp_path, old, new)
    (a / "uploads.arrows").write_bytes((a / "uploads.arrows").read_bytes()[:100])
    (b / "checkpoints/round-000002/state.safetensors").write_bytes(b"damaged")
    result = bisect(a, b)
    assert (result.in_value.round, result.in_value.clients) == (3, clients)
    said = " ".join(note for table in result.tables().values() for note in table.notes)
    assert "uploads.arrows" in said
    assert "round-000002" in said
    lines = (a / "metrics.jsonl").read_text().replace('"loss": ', '"loss": 1', 1)
    (a / "metrics.jsonl").write_text(lines)
    with refused(a / "metrics.jsonl"):
        bisect(a, b)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    a = made(tmp_path, rounds=1)
    (tmp_path / "empty").mkdir()
    with refused(tmp_path / "empty"):
        bisect(a, tmp_path / "empty")
    with refused(tmp_path / "none"):
        bisect(tmp_path / "none", a)
    with refused("--tolerance"):
        bisect(a, a, float("nan"))


def test_the_command_exits_with_1_and_writes_tables(
    sound: Path, tmp_path: Path, status: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    old, new, *_ = FAULTS["upload"]
    a, b = sound, with_fault(tmp_path, old, new, data=store_of(sound))
    assert status("bisect", a, b, "--out", tmp_path / "out") == 1
    printed = capsys.readouterr().out
    assert "first difference: round 3, phase train, client 2, upload: w" in printed
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"runs.csv", "first.csv", "steps.csv", "weights.csv"}
    assert status("bisect", a, b, "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert {row[""]: row["found"] for row in told["rows"]["first"]}["clients"] == 2


def test_uploads_of_another_program_are_compared(sound: Path, tmp_path: Path) -> None:
    """They are those of the run to seven digits, but for one number of two clients from round 4 on."""
    side = Side("A", sound)
    for number in range(1, 6):
        before = side.recorded(number - 1) if number > 1 else None
        trace = trace_round(side.program(number), before)
        (tmp_path / f"uploads/round-{number}").mkdir(parents=True)
        for point, value in trace.points.items():
            if (point.kind, point.step, point.name) == (UPLOAD, 0, "w"):
                noisy = value.double().numpy() * (1 + 1e-7)
                noisy[5] += 0.5 * (number >= 4 and point.client >= 2)
                np.savez(tmp_path / f"uploads/round-{number}/client-{point.client}.npz", w=noisy)
    result = bisect(sound, tmp_path / "uploads")
    found = result.in_value
    assert (found.round, found.clients, found.difference.differing > 0) == (4, [2, 3], True)
    assert "upload: w" in found.tensor
    assert found.difference.largest == pytest.approx(0.5)
    # Of five rounds three are made again, of four clients each.
    assert result.visits == 12
    for number in (4, 5):
        for file in (tmp_path / f"uploads/round-{number}").iterdir():
            file.unlink()
    assert bisect(sound, tmp_path / "uploads").finding is None
    damaged = tmp_path / "uploads/round-2/client-1.npz"
    damaged.write_bytes(damaged.read_bytes()[:50])
    with refused(damaged):
        bisect(sound, tmp_path / "uploads")
