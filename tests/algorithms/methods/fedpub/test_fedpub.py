"""Fed-PUB's proxy graph and rows, what it is without its parts, who comes late, and what it refuses."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from support.both_layouts import both_layouts
from support.fixtures import Start
from support.same_bits import assert_same_runs

from shoal.algorithms.methods.fedpub.fedpub import mixing_rows, proxy_graph

KEYS: dict[str, Any] = {"algorithm.name": "fedpub", "train.dropout": 0.5}


def test_the_proxy_graph_is_five_random_blocks() -> None:
    starts, columns, x = proxy_graph(3, 40)
    a = csr_array((np.ones(len(columns)), columns, starts), (500, 500)).toarray()
    assert (a == a.T).all()
    assert not a.diagonal().any()
    count, block = connected_components(csr_array(a))
    assert count == 5
    assert (block.reshape(5, 100) == block[::100, None]).all()
    assert abs(a.sum() / (5 * 100 * 99) - 0.1) < 0.01
    assert x.shape == (500, 40)
    assert x.dtype == np.float32
    assert abs(x.mean()) < 0.03
    assert abs(x.std() - 1) < 0.03
    for found, again, other in zip((starts, columns, x), proxy_graph(3, 40), proxy_graph(4, 40)):
        np.testing.assert_array_equal(found, again)
        assert found.shape != other.shape or (found != other).any()


def test_rows_by_hand() -> None:
    sketches = torch.tensor([[2.0, 0.0], [0.0, 1.0], [-3.0, 0.0]])
    some = mixing_rows(sketches, torch.tensor([True, False, True]), 2.0)
    np.testing.assert_allclose(some[1], [0.5, 0, 0.5], rtol=1e-6)
    assert torch.equal(mixing_rows(sketches, torch.tensor([False] * 3), 2.0), torch.eye(3))
    assert torch.equal(mixing_rows(sketches, torch.tensor([True] * 3), 1e9), torch.eye(3))


@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_without_its_parts_it_is_local_to_the_last_bit(run: Start, ratio: float) -> None:
    keys = {"train.dropout": 0.5, "participation.ratio": ratio, "engine.trainer": "autograd"}
    local = run({**keys, "algorithm.name": "local"})
    off = {"masks": False, "proximal": 0.0, "tau": 1e12}
    alone = run({**keys, "algorithm.name": "fedpub", **{f"algorithm.{k}": v for k, v in off.items()}})
    trained = {i for i, kept in local.state.clients.items() if "model.w" in kept}
    assert alone.state.inboxes.keys() == trained
    for i in trained - {5}:
        assert torch.equal(alone.state.inboxes[i]["w"], local.state.clients[i]["model.w"])
        for scope in ("trained", "served"):
            np.testing.assert_array_equal(alone.state.scores[scope][i], local.state.scores[scope][i])


def test_a_tau_of_zero_without_its_parts_is_fedavg(run: Start) -> None:
    keys = {"train.optimizer": "sgd", "train.lr": 0.1, "engine.trainer": "autograd"}
    mean = run({**keys, "algorithm.name": "fedavg", "algorithm.weight": "uniform"}, rounds=4).state.server["w"]
    off = {"algorithm.masks": False, "algorithm.proximal": 0.0, "algorithm.tau": 0.0}
    server = run({**keys, **off, "algorithm.name": "fedpub"}, rounds=4)
    for inbox in server.state.inboxes.values():
        torch.testing.assert_close(inbox["w"], mean, rtol=1e-4, atol=1e-6)


def test_cells_and_a_resume_change_no_bit(start: Start, run: Start) -> None:
    keys = {**KEYS, "participation.ratio": 0.7, "model.name": "gcn", "train.epochs": 1}
    whole = run(keys, rounds=3)
    resumed = start(keys, state=run(keys, rounds=2).state)
    resumed.round()
    for other in (resumed, run({**keys, "engine.cell_size": 3}, rounds=3)):
        assert_same_runs(whole, other, server=False)


def test_moments_of_masks_are_kept_or_reset(run: Start) -> None:
    kept = run(KEYS, rounds=2).state.clients[0]
    moments = {name for name in kept if name.startswith("mask.opt.")}
    assert moments == {"mask.opt.step", "mask.opt.exp_avg", "mask.opt.exp_avg_sq"}
    assert float(kept["mask.opt.step"]) == 6
    reset = run({**KEYS, "train.opt_state": "reset"}, rounds=2).state.clients[0]
    assert set(reset) == {"mask"}


@pytest.mark.parametrize("model", ["sage", "gat", "gin", "gcnii", "transformer", "gcn"])
def test_every_backbone_is_masked(run: Start, model: str) -> None:
    more = {"model.fanouts": [3, 2], "train.batch_size": 4} if model == "sage" else {}
    server = run({**KEYS, **more, "model.name": model}, rounds=2)
    for i in range(5):
        mask = server.state.clients[i]["mask"]
        assert mask.isfinite().all()
        assert (mask != 1).float().mean() > 0.5


def test_sparse_features_give_the_same_numbers(run: Start, graphs: Mapping[str, Path], tmp_path: Path) -> None:
    """Their weights lie column by column, and so do the masks of these."""
    keys = {**KEYS, "model.name": "sgc", "model.layers": 2}
    dense, sparse = (run({**keys, **data}, rounds=2) for data in both_layouts(graphs["plain"], tmp_path))
    columns = torch.arange(8 * 5).view(8, 5).t().flatten()
    for i in range(5):
        mask = dense.state.clients[i]["mask"]
        turned = torch.cat([mask[columns], mask[40:]])
        torch.testing.assert_close(sparse.state.clients[i]["mask"], turned, rtol=1e-3, atol=1e-4)
