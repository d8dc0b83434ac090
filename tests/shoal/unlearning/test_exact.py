"""Exact removals are, to the bit, runs that never had what is removed."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support.small_runs import run_small
from support.user_graph import user_graph
from torch import Tensor

from shoal.engine.preparing import store_builder
from shoal.engine.records.checkpoint import CHECKPOINTS, load_last
from shoal.engine.records.metrics import read_metrics
from shoal.past.rewind import PastRun
from shoal.storage.graph.induced import Induced
from shoal.storage.options.split_codes import TEST, TRAIN, UNASSIGNED
from shoal.storage.shards.shard import Shard
from shoal.storage.shards.split import Split
from shoal.unlearning.table import EXACT, Unlearned
from shoal.unlearning.targets import Asked
from shoal.unlearning.unlearn import unlearn

NODES, CLIENTS = 48, 3
HALF = {"participation": {"ratio": 0.5}, "rounds": 5, "train": {"lr": 0.1, "dropout": 0.0}}


def model_of(run: Path) -> Tensor:
    w = load_last(run / CHECKPOINTS, len(read_metrics(run))).state.server["w"]
    return torch.as_tensor(w)


def remove(run: Path, methods: str = "none", rounds: int | None = None, **asked: Any) -> tuple[Unlearned, list[Tensor]]:
    """The result, and the exact models that are kept, in their order of time."""
    found = unlearn([PastRun(run)], Asked(**asked), methods, rounds)
    files = sorted((run / "unlearned").iterdir(), key=lambda file: file.stat().st_mtime_ns)
    return found, [load_file(file)["w"] for file in files]


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_without_a_client_it_is_the_run_in_which_it_never_answers(method: str, tmp_path: Path) -> None:
    whole = run_small(tmp_path, **HALF, algorithm={"name": method})
    found, models = remove(whole, client="all")
    firsts = {
        client: next(n for n, line in enumerate(read_metrics(whole), 1) if client in line["cohort"])
        for client in range(4)
    }
    assert len({*firsts.values()}) > 1
    exact = [each for each in found.scored if each.model == EXACT]
    assert [each.first for each in exact] == sorted(firsts.values())
    for each, w in zip(exact, models):
        client = int(each.removed.split()[1])
        alone = {**HALF, "participation": {"ratio": 0.5, "without": [client]}, "algorithm": {"name": method}}
        scratch = run_small(tmp_path, **alone, name=f"without-{client}")
        assert torch.equal(w, model_of(scratch))
        assert not torch.equal(w, model_of(whole))
        assert each.rounds == 5 - firsts[client] + 1
        assert each.visits == sum(len(line["cohort"]) for line in read_metrics(scratch)[firsts[client] - 1 :])
    assert found.trainings == sum(each.rounds for each in exact) / 5
    # Scores of the exact model are those of the run from scratch.
    last = read_metrics(scratch)[-1]["scopes"]["global"]["test"]
    assert exact[-1].figures.rest == pytest.approx(100 * rest_of(scratch, client), abs=1e-9)
    assert last["rows"] > 0


def rest_of(run: Path, client: int) -> float:
    """The test accuracy of the server's model on the items of all clients but one, by the run's own counts."""
    table = load_last(run / CHECKPOINTS, 5).state.scores["global"]
    counts = {i: table[i][1] for i in range(4) if i != client}
    return float(sum(c[2].sum() for c in counts.values()) / sum(c[0].sum() for c in counts.values()))


def graph(folder: Path, name: str, code: np.ndarray, **changes: Any) -> dict[str, Any]:
    """Keys of a run on the same drawn graph with other codes of its split, or other edges or features."""
    path = user_graph(folder, NODES, name, assignment=np.arange(NODES) % CLIENTS, split=code.astype(np.int8), **changes)
    data = {"dataset": "files", "path": path, "split": "public", "options": {}}
    model = {"name": "gcn", "hidden": 8}
    return {**HALF, "name": name, "data": data, "model": model, "partition": {"method": "file", "clients": CLIENTS}}


def drawn() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    edges = np.unique(np.sort(rng.integers(NODES // CLIENTS, size=(2, 4 * NODES)), axis=0), axis=1)
    edges = np.concatenate([edges * CLIENTS + client for client in range(CLIENTS)], axis=1)
    x, y = rng.standard_normal((NODES, 4)).astype(np.float32), rng.integers(3, size=NODES)
    code = np.where(np.arange(NODES) % 4 == 3, TEST, TRAIN)
    return edges[:, edges[0] != edges[1]], x, y, code


@pytest.mark.parametrize("model", ["gcn", "sgc"])
def test_without_a_class_it_is_the_run_on_a_store_without_these_training_items(model: str, tmp_path: Path) -> None:
    edges, x, y, code = drawn()
    arrays = {"edge_index": edges, "x": x, "y": y}
    keys = {"algorithm": {"name": "fedavg", "weight": "train"}}
    whole = run_small(tmp_path, **(graph(tmp_path, "whole", code, **arrays) | keys | {"model": {"name": model}}))
    other = graph(tmp_path, "other", np.where((y == 1) & (code == TRAIN), UNASSIGNED, code), **arrays)
    scratch = run_small(tmp_path, **(other | keys | {"model": {"name": model}}))
    found, (w,) = remove(whole, label="1")
    assert torch.equal(w, model_of(scratch))
    assert not torch.equal(w, model_of(whole))
    exact = found.scored[0].figures
    assert exact.membership is not None
    assert (exact.weights, exact.equal, exact.variation) == (0, 100, 0)


GONE, NINTH = [4, 20, 9], 9


@pytest.mark.parametrize("what", ["nodes", "edges"])
def test_without_nodes_or_edges_it_is_the_run_on_a_graph_without_them(what: str, tmp_path: Path) -> None:
    edges, x, y, code = drawn()
    whole = run_small(tmp_path, **graph(tmp_path, "whole", code, edge_index=edges, x=x, y=y))
    keep, asked = leave(what, edges)
    if what == "nodes":
        x, code = x.copy(), code.copy()
        x[GONE], code[GONE] = 0, UNASSIGNED
    scratch = run_small(tmp_path, **graph(tmp_path, "other", code, edge_index=edges[:, keep], x=x, y=y))
    found, (w,) = remove(whole, **asked)
    # Rows lie in another order there, so that sums have other last bits.
    torch.testing.assert_close(w, model_of(scratch), rtol=1e-4, atol=1e-5)
    assert (w - model_of(whole)).norm() > 100 * (w - model_of(scratch)).norm()
    assert found.scored[0].first >= 1
    assert (found.scored[0].figures.forgotten is None) == (what == "edges")


@pytest.mark.parametrize("what", ["nodes", "edges"])
def test_without_nodes_or_edges_it_is_to_the_bit_the_run_on_a_store_without_them(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edges, x, y, code = drawn()
    keys = graph(tmp_path, "whole", code, edge_index=edges, x=x, y=y) | {"model": {"name": "sgc"}}
    whole = run_small(tmp_path, **keys)
    keep, asked = leave(what, edges)
    # Shards are written with their rows in the same order.
    altered = Without(GONE if what == "nodes" else [], {(int(a), int(b)) for a, b in edges[:, ~keep].T})
    monkeypatch.setattr(store_builder, "make_alterations", lambda *_: [altered])
    keys["data"] = {**keys["data"], "store": str(tmp_path / "altered")}
    scratch = run_small(tmp_path, **keys | {"name": "other"})
    _, (w,) = remove(whole, **asked)
    assert torch.equal(w, model_of(scratch))
    assert not torch.equal(w, model_of(whole))


def leave(what: str, edges: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
    """The edges that stay, and what is asked for."""
    if what == "nodes":
        return ~np.isin(edges, GONE).any(0), {"nodes": ",".join(map(str, GONE))}
    keep = np.arange(edges.shape[1]) % NINTH != 0
    return keep, {"edges": ",".join(f"{a}-{b}" for a, b in edges[:, ~keep].T)}


@dataclass(frozen=True)
class Without:
    """Shards without some nodes and edges, entry by entry."""

    nodes: list[int]
    edges: set[tuple[int, int]]

    def alter_shard(self, client: int, part: Induced, x: np.ndarray) -> tuple[Induced, np.ndarray]:
        indptr, indices = [0], list[int]()
        for row, node in enumerate(part.node.tolist()):
            for other in part.indices[part.indptr[row] : part.indptr[row + 1]].tolist():
                pair = node, int(part.node[other])
                if not ({pair, pair[::-1]} & self.edges or set(pair) & set(self.nodes)):
                    indices.append(other)
            indptr.append(len(indices))
            if node in self.nodes:
                x[row] = 0
        return Induced(part.node, np.array(indptr), np.array(indices, dtype=np.int32)), x

    def alter_split(self, shard: Shard, split: Split) -> Split:
        return replace(split, train=split.train[~np.isin(shard.node[split.train], self.nodes)])
