"""First layers that read sums of neighbours at all clients, against dense matrices of the whole graph in float64."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.dense_graphs import operator_of
from support.fixtures import Start
from support.same_bits import assert_same_runs
from support.shards import flip
from support.user_graph import write_arrays

from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import all_nodes, receptive_field
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.storage.options.split_codes import TEST, TRAIN
from shoal.storage.shards.cache import Cache
from shoal.storage.shards.view import View
from shoal.storage.store.store import Store
from shoal.storage.store.verify import unnamed_files, verify

OPERATOR = {"gcn": "symmetric", "sage": "mean"}
FORMS = [("gcn", "one_hop"), ("sage", "one_hop"), ("gcn", "two_hop")]


def views_of(configure: Any, folder: Path, graph: dict[str, np.ndarray], model: str, edges: str) -> list[View]:
    """Clients of an undirected graph, with weights of edges `[N, N]`; layers read edges between them."""
    nodes, clients = len(graph["x"]), int(graph["own"].max()) + 1
    split = np.where(np.arange(nodes) % 2, TEST, TRAIN).astype(np.int8)
    ends = np.nonzero(graph["edges"])
    arrays = {"edge_index": np.stack(ends), "x": graph["x"], "y": np.arange(nodes) % 3}
    if (graph["edges"][ends] != 1).any():
        arrays["edge_weight"] = graph["edges"][ends]
    path = write_arrays(folder / "graph", **arrays, split=split, assignment=graph["own"])
    places = {"data.path": str(path), "data.store": str(folder / "store"), "partition.clients": clients}
    config = configure({**places, "model.name": model, "data.cross_edges": edges})
    store = prepare(config)
    assert (verify(store), unnamed_files(store)) == ([], [])
    job = make_job(config, store, "test")
    return [job.view(store, client, Cache(0)) for client in range(clients)]


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10**6), st.integers(6, 24), st.integers(2, 4), st.sampled_from(FORMS), st.booleans())
def test_the_first_layer_is_that_of_the_whole_graph(
    configure: Any, seed: int, nodes: int, clients: int, form: tuple[str, str], weighted: bool
) -> None:
    """Isolated nodes, nodes with foreign neighbours alone, and clients without any cut edge among them."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((nodes, nodes)) < rng.choice([0.1, 0.3]), 1)
    upper[0, 1] = True
    own = np.concatenate([np.arange(clients), rng.integers(clients, size=nodes - clients)]).astype(np.int32)
    x = rng.standard_normal((nodes, 5)).astype(np.float32)
    name, edges = form
    drawn = rng.uniform(0.05, 4, upper.shape).astype(np.float32) if weighted and name == "gcn" else 1.0
    one_way = (upper * drawn).astype(np.float64)
    graph = {"edges": one_way + one_way.T, "own": own, "x": x}
    module = build(name, 5, 3, 0, 0.0, {"hidden": 4})
    weights = {key: p.detach().double().numpy() for key, p in module.convs[0].named_parameters()}
    matrix = operator_of(OPERATOR[name], graph["edges"])
    sums, bias = matrix @ x.astype(np.float64), weights["lin_l.bias" if name == "sage" else "bias"]
    if name == "sage":
        expected = sums @ weights["lin_l.weight"].T + x @ weights["lin_r.weight"].T + bias
    else:
        expected = sums @ weights["lin.weight"].T + bias
    with tempfile.TemporaryDirectory() as folder:
        views = views_of(configure, Path(folder), graph, name, edges)
        order = np.concatenate([view.node for view in views])
        place = np.argsort(order)
        for client, view in enumerate(views):
            around = all_nodes(view, OPERATOR[name], 2)  # type: ignore[arg-type]
            with torch.no_grad():
                found = module.convolve(module.convs[0], around.operators[0], around.x_NF).numpy()
            seen = view.node
            if edges == "two_hop":
                beyond = np.flatnonzero(graph["edges"][view.node].any(0) & (own != client))
                seen = np.concatenate([view.node, beyond[np.argsort(place[beyond])]])
                second = around.operators[1].to_dense().numpy()
                np.testing.assert_allclose(second, matrix[view.node][:, seen], rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(found, expected[seen], rtol=2e-5, atol=2e-6)
            # Sums are exact, and rounded once.
            read = around.x_NF[len(view.node) :] if name == "sage" else around.x_NF
            np.testing.assert_allclose(read, sums[seen], rtol=2e-7, atol=1e-12)
            trains = receptive_field(view, OPERATOR[name], 2)  # type: ignore[arg-type]
            assert trains.rows is view.train


def test_two_clients_by_hand(configure: Any, tmp_path: Path) -> None:
    """The path 0 - 1 - 2 - 3 of weights 3, 12 and 3: degrees with loops are 4, 16, 16 and 4."""
    edges = np.diag([3.0, 12, 3], 1) + np.diag([3.0, 12, 3], -1)
    graph = {"edges": edges, "own": np.array([0, 0, 1, 1], np.int32), "x": np.eye(4, dtype=np.float32)}
    left, _ = views_of(configure, tmp_path, graph, "gcn", "two_hop")
    around = all_nodes(left, "symmetric", 2)
    rows = np.array([[1 / 4, 3 / 8, 0, 0], [3 / 8, 1 / 16, 3 / 4, 0], [0, 3 / 4, 1 / 16, 3 / 8]], dtype=np.float32)
    np.testing.assert_array_equal(around.x_NF, rows)
    np.testing.assert_array_equal(around.operators[1].to_dense(), rows[:2, :3])
    # What is damaged is found.
    path = next((tmp_path / "store" / "hops").rglob("*.arrow"))
    flip(path, path.stat().st_size // 2)
    assert verify(Store(tmp_path / "store"))


@pytest.mark.parametrize("trainer", ["analytic", "batched"])
@pytest.mark.parametrize(("model", "edges"), FORMS)
def test_trainers_agree(run: Start, model: str, edges: str, trainer: str) -> None:
    keys = {"model.name": model, "data.cross_edges": edges, "train.dropout": 0.0, "train.optimizer": "sgd"}
    one, other = (run({**keys, "engine.trainer": each}, rounds=3) for each in ("autograd", trainer))
    torch.testing.assert_close(one.state.server["w"], other.state.server["w"], rtol=1e-4, atol=1e-5)


def test_a_smaller_share_changes_what_is_learnt(run: Start) -> None:
    keys = {"model.name": "gcn", "data.cross_edges": "one_hop"}
    plain, whole, half = (
        run({**keys, **more}, rounds=1) for more in ({"data.cross_edges": "drop"}, {}, {"data.cross_share": 0.5})
    )
    assert_same_runs(whole, run(keys, rounds=1))
    ends = [each.state.server["w"] for each in (plain, whole, half)]
    assert not any(torch.equal(one, other) for one, other in zip(ends, ends[1:] + ends[:1]))
