"""Labels that propagate over edges between clients of the cohort, against dense matrices of the whole graph."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from integration.runs import ROUNDS, assert_same_numbers
from support.dense_graphs import smoothing
from support.errors import refused
from support.fixtures import Start, Views
from support.plain_fedgta import DEFAULTS
from support.recorded_pool import Recorded
from support.same_bits import assert_same_runs

from shoal.algorithms.base import Client, Received, Upload
from shoal.algorithms.methods.fedgta.cross_labels import added_up
from shoal.algorithms.methods.fedgta.fedgta import FedGTA, mixing_rows
from shoal.algorithms.rng import key
from shoal.engine.rounds.server import Server
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import run as run_config
from shoal.storage.shards.view import View

CLIENTS, CLASSES = 6, 4
OPTIONS = {"lp_steps": 3, "lp_seed_weight": 0.3, "orders": 3, "eps": 0.9}


def keys(**options: Any) -> dict[str, Any]:
    of_method = {f"algorithm.{name}": value for name, value in {**OPTIONS, "cross_edges": True, **options}.items()}
    plain = {"data.cross_edges": "hops", "model.name": "sgc", "algorithm.name": "fedgta"}
    return plain | of_method


def whole_graph(path: Path) -> np.ndarray:
    """The adjacency of a graph in files, with the weights of its edges, float64 `[N, N]`."""
    source, target = np.load(path / "edge_index.npy")
    nodes, weighs = len(np.load(path / "y.npy")), path / "edge_weight.npy"
    found = np.zeros((nodes, nodes), dtype=np.float32)
    found[source, target] = found[target, source] = np.load(weighs) if weighs.exists() else 1
    np.fill_diagonal(found, 0)
    return found.astype(np.float64)


def predicted(view: View, w: torch.Tensor) -> np.ndarray:
    """What SGC predicts of all rows, float64 `[N, C]`."""
    weight, bias = w.double().numpy()[: CLASSES * 5].reshape(CLASSES, 5), w.double().numpy()[CLASSES * 5 :]
    logits = np.exp(view.hop(2).double().numpy() @ weight.T + bias)
    return logits / logits.sum(1, keepdims=True)


def sketches(
    edges: np.ndarray, views: Mapping[int, View], w: Mapping[int, torch.Tensor], options: Mapping[str, Any]
) -> dict[int, tuple[float, np.ndarray]]:
    """Confidence and moments of clients whose labels propagate over the edges inside and between them, float64."""
    node = np.concatenate([view.node for view in views.values()])
    a = edges[np.ix_(node, node)]
    degree, operator = a.sum(1) + 1, smoothing(a)
    seeds = []
    for i, view in views.items():
        seed = predicted(view, w[i])
        if options["lp_seed"] == "labels":
            seed[view.train] = np.eye(CLASSES)[view.label[view.train]]
        seeds.append(seed)
    seed = y = np.concatenate(seeds)
    orders, found = range(1, options["orders"] + 1), {i: list[np.ndarray]() for i in views}
    ends = np.cumsum([0, *(view.nodes for view in views.values())])
    parts = {i: slice(start, stop) for i, start, stop in zip(views, ends, ends[1:])}
    for _ in range(options["lp_steps"]):
        y = options["lp_seed_weight"] * seed + (1 - options["lp_seed_weight"]) * operator @ y
        rows = y / y.sum(1, keepdims=True) if options["rows"] == "stochastic" else y
        for i, part in parts.items():
            raw = [np.mean(rows[part] ** q, axis=0) for q in orders]
            central = [np.mean((rows[part] - rows[part].mean(0)) ** q, axis=0) for q in orders]
            found[i].append(
                np.concatenate({"raw": raw, "central": central, "hybrid": raw + central}[options["moments"]])
            )
    inner = CLASSES / np.e + (rows * np.log(np.where(rows > 0, rows, 1))).sum(1)
    steps = slice(None) if options["moment_steps"] == "all" else slice(-1, None)
    return {
        i: (
            max(float(degree[part] @ inner[part]), 1e-12) if len(views[i].train) else 1e-12,
            np.concatenate(found[i][steps]),
        )
        for i, part in parts.items()
    }


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("weighs", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lp_seed": "predictions", "rows": "raw", "moments": "central", "lp_steps": 1},
        {"moment_steps": "last", "moments": "raw", "lp_steps": 4},
    ],
)
def test_whole_rounds(
    start: Start, views: Views, weighted: dict[str, Any], configure: Any, weighs: bool, options: dict[str, Any]
) -> None:
    """Cohorts of four of six clients; what is sent, and how it is mixed."""
    places, phases = weighted if weighs else {}, Recorded()
    given = {**keys(**options), **places, "participation.ratio": 0.67, "rounds": 3}
    server, all_options = start(given, pool=phases.on), {**DEFAULTS, **OPTIONS, **options}
    edges, of_clients = whole_graph(Path(configure(given).data.path)), views(server)
    for number in range(1, 4):
        phases.sent.clear()
        server.round()
        cohort = server.cohort(number)
        assert len(cohort) == 4
        steps = all_options["lp_steps"]
        assert set(phases.sent) == {"train", "sketch"} | ({"spread"} if steps > 1 else set())
        w = {i: phases.sent["train"][i]["w"] for i in cohort}
        expected = sketches(edges, {i: of_clients[i] for i in cohort}, w, all_options)
        for i, (h, m) in expected.items():
            np.testing.assert_allclose(phases.sent["sketch"][i]["h"], h, rtol=1e-4)
            np.testing.assert_allclose(phases.sent["sketch"][i]["m"], m, rtol=1e-3, atol=1e-6)
        h, m = (np.array(column) for column in zip(*expected.values()))
        rows = mixing_rows(torch.from_numpy(m).float(), torch.from_numpy(h).float(), all_options["eps"])
        mixed = rows @ torch.stack(list(w.values()))
        for i, own in zip(cohort, mixed):
            torch.testing.assert_close(server.state.inboxes[i]["w"], own, rtol=1e-4, atol=1e-5)
        # Nothing of the exchange is kept beyond the round.
        assert not any({"seed", "labels", "moments"} & tree.keys() for tree in server.state.clients.values())


def test_bytes_of_the_exchange_are_counted(start: Start, views: Views) -> None:
    server = start(keys())
    line, of_clients = server.round(), views(server)
    sums = sum(len(np.unique(np.stack([v.boundary.client, v.boundary.other]), axis=1).T) for v in of_clients)
    rows = sum(len(np.unique(v.boundary.row)) for v in of_clients)
    p, moments, steps = len(server._initial), 3 * 2 * 3 * CLASSES, 3
    assert sums > rows > 0
    assert line["bytes_up"] == 4 * (CLIENTS * (p + moments + 1) + steps * sums * CLASSES + 2 * sums)
    ids = 4 * CLIENTS * CLIENTS * (steps + 1)
    # The start of every newcomer, the mix, ids of the cohort, and sums with their rows.
    assert line["bytes_down"] == 4 * 2 * CLIENTS * p + ids + 4 * steps * rows * (CLASSES + 1)


def test_a_resume_and_other_cells_change_no_bit(run: Start, start: Start) -> None:
    given = {**keys(), "train.dropout": 0.5, "participation.ratio": 0.7}
    whole, state = run(given, rounds=4), run(given, rounds=2).state
    resumed = start(given, state=type(state).from_tensors(*state.to_tensors()))
    for _ in range(2):
        resumed.round()
    assert_same_runs(whole, resumed)
    assert_same_runs(whole, run({**given, "engine.cell_size": 1}, rounds=4))


@pytest.mark.slow
def test_two_hosts_give_the_bits_of_one_process(configure: Any, tmp_path: Path) -> None:
    folders = []
    for name, engine in (("here", {}), ("there", {"engine.backend": "ray", "engine.hosts": 2})):
        given = {**keys(), "rounds": ROUNDS, "participation.ratio": 0.7, "run.root": str(tmp_path / name), **engine}
        folders.append(run_config(configure(given)))
    assert_same_numbers(*folders)


@dataclass(frozen=True)
class Flaky(FedGTA):
    """Client 2 fails in the second exchange of round 1, and client 4 as it trains."""

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        first = client.random("train") in (key(0, 1, i, "train") for i in (2, 4))
        if first and phase == ("spread" if client.info.client == 2 else "train"):
            raise RuntimeError("no luck")
        return super().upload(client, received, phase)


def test_a_client_that_fails_in_the_exchange_takes_no_part(start: Start) -> None:
    """Others get its first sums, and zeros of the one that never answered; edges to both still count."""
    phases = Recorded()
    given = {**keys(), "algorithm.name": f"{__file__}:Flaky", "engine.on_client_error": "skip"}
    server: Server = start(given, pool=phases.on)
    line = server.round()
    assert sorted(line["cohort"]) == [0, 1, 3, 5]
    assert phases.sent["train"].keys() == {0, 1, 2, 3, 5}
    assert phases.sent["sketch"].keys() == server.state.inboxes.keys() == {0, 1, 3, 5}
    h, m = (torch.stack([phases.sent["sketch"][i][name] for i in (0, 1, 3, 5)]) for name in "hm")
    w = torch.stack([phases.sent["train"][i]["w"] for i in (0, 1, 3, 5)])
    for i, mixed in zip((0, 1, 3, 5), mixing_rows(m, h, OPTIONS["eps"]) @ w):
        torch.testing.assert_close(server.state.inboxes[i]["w"], mixed, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(server.state.server["warm"], (h / h.sum()) @ w, rtol=1e-5, atol=1e-6)
    assert 2 not in server.state.clients
    server.round()
    assert len(server.state.inboxes) == 6


def test_sums_for_one_row_are_added_up() -> None:
    place = torch.tensor([[1, 0], [4, 2], [1, 0], [1, 3], [4, 2]], dtype=torch.int32)
    sums = torch.tensor([[1.0, 2], [10, 20], [3, 4], [5, 6], [30, 40]])
    found = added_up(place, sums)
    assert found.keys() == {1, 4}
    assert found[1]["row"].tolist() == [0, 3]
    assert found[1]["received"].tolist() == [[4, 6], [5, 6]]
    assert found[4]["received"].tolist() == [[40, 60]]
    assert added_up(place[:0], sums[:0]) == {}


def test_what_cannot_be_is_refused(configure: Any) -> None:
    with refused("data.cross_edges", says="fedgta with its options reads hops, found drop; set it, or algorithm."):
        RunPlan.of(configure({**keys(), "data.cross_edges": "drop"}))
    for idle in ({"data.cross_min_neighbours": 2}, {"data.cross_hidden": True}, {"propagation.rows": "labelled"}):
        with refused("algorithm.cross_edges", says="set data.cross_min_neighbours to 1"):
            RunPlan.of(configure({**keys(), **idle}))
    for wrong in ({"form": "code"}, {"sketch_every": 2}):
        with refused("algorithm", "fedgta", says="cross_edges: true is for rows: stochastic or raw"):
            RunPlan.of(configure({**keys(), **{f"algorithm.{name}": value for name, value in wrong.items()}}))
