"""Counts by compiled passes beside rows counted one by one, of logits that models compute of dense features."""

from typing import Any

import numpy as np
import pytest
import torch
from support.dense_graphs import join, rows_of, smoothing
from support.errors import refused
from torch import Tensor

from shoal.algorithms.client import Client, ClientInfo, ClientModel, FlatModel
from shoal.algorithms.methods.local import Local
from shoal.algorithms.models.build import build
from shoal.algorithms.models.compiled import counting, kept_by_view
from shoal.algorithms.models.inputs import masked_features
from shoal.algorithms.models.inputs.neighbourhood import all_nodes
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.protocol import MODEL
from shoal.engine.scores.counts import CORRECT, PREDICTED, SUPPORT, score
from shoal.storage.graph.rows import CsrRows
from shoal.storage.options.propagation import PropagationOptions
from shoal.storage.shards.shard import Shard
from shoal.storage.shards.split import Split
from shoal.storage.shards.view import Cache, View

NODES, FEATURES, CLASSES, HOPS = 60, 12, 4, 2
PARTS = {"val": np.arange(5, 40, 3), "test": np.arange(59, 20, -2)}
MODELS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ("gcn", "sage", "gin", "gcnii", "transformer")),
    ("gat", {"heads": 2}),
    *((name, {"layers": layers}) for name in ("sgc", "gbp", "s2gc") for layers in (1, 2)),
    *((name, {}) for name in ("mlp", "gamlp", "sign")),
]


def sparse_rows(x: np.ndarray) -> CsrRows:
    indptr, columns = rows_of(x)
    return CsrRows(indptr, columns, x[x != 0].astype(np.float32), x.shape[1])


@pytest.fixture(scope="module")
def view() -> View:
    """A client with sparse hops, of dense algebra in double precision."""
    rng = np.random.default_rng(3)
    a = join(NODES, np.argwhere(np.triu(rng.random((NODES, NODES)) < 0.06, 1)))
    x = rng.standard_normal((NODES, FEATURES)) * (rng.random((NODES, FEATURES)) < 0.3)
    hops = [x]
    for _ in range(HOPS):
        hops.append(smoothing(a) @ hops[-1])
    label = rng.integers(CLASSES, size=NODES).astype(np.int32)
    shard = Shard(0, np.arange(NODES), label, *rows_of(a), sparse_rows(x))
    split = Split(*(part.astype(np.int32) for part in (np.arange(5), *PARTS.values())))
    return View(
        "client", shard, split, [sparse_rows(hop) for hop in hops[1:]], CLASSES, Cache(2**24),
        propagation=PropagationOptions(HOPS, 0.5),
    )  # fmt: skip


def client_of(view: View, name: str, **options: Any) -> Client:
    hidden = {} if options.get("layers") == 1 else {"hidden": 6}
    flat = FlatModel(build(name, FEATURES, CLASSES, HOPS, 0.3, {**hidden, **options}), sparse=True)
    model = ClientModel(flat, view, lambda purpose: 0)
    return Client(ClientInfo(0, NODES, 5, CLASSES), view, {MODEL: model}, {}, {}, lambda purpose: 0)


def parameters(client: Client, seed: int) -> Tensor:
    flat = client.model.pattern
    return flat.initial(seed) + 0.2 * torch.randn(len(flat.w), generator=torch.Generator().manual_seed(seed))


def counted(view: View, module: torch.nn.Module) -> np.ndarray:
    """Counts one row after another, by dense features."""
    module.eval()
    hops: Any = [view.whole(k).to_dense() for k in getattr(module, "inputs", ())]
    if isinstance(module, Coupled):
        around = all_nodes(view, module.operator, module.depth)
        hops = around._replace(x_NF=view.whole(0).to_dense())
    with torch.no_grad():
        logits_NC = module(hops).logits_NC
    counts = np.zeros((2, 3, CLASSES), dtype=np.int64)
    for part, rows in enumerate(PARTS.values()):
        for row in rows:
            label, said = int(view.label[row]), int(logits_NC[row].argmax())
            counts[part, SUPPORT, label] += 1
            counts[part, PREDICTED, said] += 1
            counts[part, CORRECT, label] += label == said
    return counts


@pytest.mark.parametrize("smoothed", [False, True])
@pytest.mark.parametrize(("name", "options"), MODELS)
def test_counts_are_those_of_rows(
    name: str, options: dict[str, Any], smoothed: bool, view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masked_features, "GAIN", 0 if smoothed else 10**9)
    client = client_of(view, name, **options)
    module = client.model.module
    made: list[np.ndarray] = []
    for seed in range(3):
        # Parameters are borrowed, taken, or those of the host's model.
        (client.model.borrow, client.model.take, client.model.load)[seed](parameters(client, seed))
        made.append(score(Local(), client, None))
        if not seed and (name != "gamlp" or not smoothed):
            # From the second time on, no module is called; none traces how a GAMLP weighs products that are smoothed.
            monkeypatch.setattr(module, "forward", None)
    monkeypatch.undo()
    for seed, counts in enumerate(made):
        other = client_of(view, name, **options)
        other.model.load(parameters(client, seed))
        np.testing.assert_array_equal(counts, counted(view, other.model.module))
    assert len({counts.tobytes() for counts in made}) == 3


def test_logits_that_are_known_are_counted(view: View) -> None:
    client = client_of(view, "gcn")
    client.model.load(parameters(client, 1))
    client.model.logits()
    np.testing.assert_array_equal(score(Local(), client, None), counted(view, client.model.module))
    # They are those of these parameters until others come.
    client.model.load(parameters(client, 2))
    np.testing.assert_array_equal(score(Local(), client, None), counted(view, client.model.module))


def test_winners_are_first_and_finite() -> None:
    inf, nan = float("inf"), float("nan")
    rows = np.array([[1, 2, 2], [-inf, -5, -inf], [3, 3, 3], [0, nan, inf], [nan, 1, 2], [-inf] * 3, [inf, 0, 1]])
    logits_NC, ends = torch.tensor(rows, dtype=torch.float32), np.array([2, 3])
    counts = np.zeros((2, 3, 3), np.int64)
    asked = np.arange(3), np.array([1, 0, 2]), ends
    assert counting.count_logits(logits_NC.data_ptr(), 3, *asked, counts) == -1
    np.testing.assert_array_equal(counts, [[[1, 1, 0], [0, 2, 0], [0, 1, 0]], [[0, 0, 1], [1, 0, 0], [0, 0, 0]]])
    for row in range(3, 7):
        asked = np.array([0, 1, row]), np.array([1, 0, 2]), ends
        assert counting.count_logits(logits_NC.data_ptr(), 3, *asked, np.zeros_like(counts)) == 1


def test_models_that_have_diverged_are_named_by_part(view: View) -> None:
    client = client_of(view, "gcn")
    client.model.load(torch.full_like(client.model.w, float("nan")))
    with refused(says="predictions of 'val' are NaN or infinite"):
        score(Local(), client, None)


def test_no_more_is_kept_than_there_is_room_for(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(view, "gcn")
    size = sum(part.most_bytes for part in (view.whole(0), client.model.gathered("all").operators[0]))  # type: ignore
    passes = client.model.pattern.passes
    assert passes is not None
    for room, kept in ((size, 0), (10 * size, 1)):
        monkeypatch.setattr(kept_by_view, "MOST_BYTES", room)
        client.model.load(parameters(client, 1))
        np.testing.assert_array_equal(score(Local(), client, None), counted(view, client.model.module))
        assert len(counting._COUNTERS[passes]._kept) == kept
