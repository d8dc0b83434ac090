"""Losses of methods, drawn once and computed in compiled steps, beside the same runs by autograd."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import MakeView, Start
from support.one_call import CLASSES, VISITS, client_of, model_of, view_of
from support.user_graph import sparse_features
from support.written_rounds import require_close_runs
from torch import Tensor

from shoal.algorithms.base import Algorithm, Loss, Output, Pull, Received, Term, pure
from shoal.algorithms.client import Client
from shoal.algorithms.losses.distillation import distillation_loss, distilled_by_class
from shoal.algorithms.losses.prototype_losses import SumAlignment, contrast, mean_square, softplus_of_cosines
from shoal.algorithms.models.compiled.passes import MOST_CALLS
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic import joint_call
from shoal.algorithms.training.analytic.choice import analytic
from shoal.algorithms.training.analytic.small_heads import LossOf
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.storage.graph.sparse_matrix import SparseMatrix

SAME_WIDTH = {"name": "gcn", "hidden": 8}
# Methods whose clients train in one call, and options that make every term of their losses count.
METHODS: dict[str, dict[str, Any]] = {
    "moon": {},
    "moon, all rows": {"algorithm.rows": "all"},
    "fpl": {"algorithm.cluster_from": 1},
    "fedproc": {},
    "fednh": {},
    "fedproto": {},
    "fedproto_averaged": {},
    "feddistill": {},
    "class_means": {},
    "fml": {},
    "fml, training rows": {"algorithm.rows": "train"},
    "fedkd": {},
    "fedkd, training rows": {"algorithm.rows": "train", "algorithm.copilot": {"name": "gcn", "hidden": 6}},
    "fgssl": {},
    "fedgkc": {"algorithm.copilot": SAME_WIDTH},
    "fedgkc, sums": {"algorithm.copilot": SAME_WIDTH, "algorithm.neigh_norm": "sum"},
}


@pytest.fixture
def sparse(graphs: Mapping[str, Path], tmp_path: Path) -> dict[str, Any]:
    """Keys of a graph with sparse features."""
    arrays = {file.stem: np.load(file) for file in graphs["plain"].glob("*.npy")}
    np.savez(tmp_path / "graph.npz", **{**arrays, "x": sparse_features(len(arrays["y"]), 40, 0.1)})
    return {"data.path": str(tmp_path / "graph.npz"), "data.layout": "sparse", "data.store": str(tmp_path / "store")}


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize("name", METHODS)
def test_whole_runs_are_those_of_autograd_without_it(run: Start, sparse: dict[str, Any], name: str) -> None:
    keys: dict[str, Any] = {
        "model": {"name": "gcn", "hidden": 8, "head": "linear"},
        "train.dropout": 0.3,
        "participation.ratio": 0.7,
    }
    keys |= {"algorithm.name": name.split(",")[0], **METHODS[name]}
    # Masked features have passes where they are sparse.
    keys |= sparse if name.startswith(("fedgkc", "fgssl")) else {}
    by_autograd = run({**keys, "engine.trainer": "autograd"}, rounds=3)
    refused = AssertionError("a backward pass of autograd")
    with patch.object(torch.Tensor, "backward", side_effect=refused):
        in_one_call = run(keys, rounds=3)
    require_close_runs(by_autograd, in_one_call, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["fedgkc", "fgssl"])
def test_views_without_passes_are_those_of_autograd_to_the_bit(run: Start, name: str) -> None:
    """Of dense features there are none: views that a look for passes draws are those of the first steps."""
    keys = {"model": {"name": "gcn", "hidden": 8, "head": "linear"}, "algorithm": {"name": name}}
    keys |= {"algorithm.copilot": SAME_WIDTH} if name == "fedgkc" else {}
    one, other = (run({**keys, "engine.trainer": trainer}, rounds=2) for trainer in ("autograd", "auto"))
    assert one.state.clients.keys() == other.state.clients.keys()
    for tree, twin in [
        (one.state.server, other.state.server),
        *zip(one.state.clients.values(), other.state.clients.values()),
    ]:
        assert all(torch.equal(tensor, twin[entry]) for entry, tensor in tree.items())


@pytest.mark.parametrize("embedding", ["unit", "raw"])
def test_alignment_of_hop_prototypes_in_one_call(run: Start, embedding: str) -> None:
    keys = {"model": {"name": "gcn", "hidden": 8}, "train.dropout": 0.3, "participation.ratio": 0.7}
    keys |= {"algorithm": {"name": "fedpg", "embedding": embedding, "mu": 2.0}}
    by_autograd = run({**keys, "engine.trainer": "autograd"}, rounds=3)
    with patch.object(joint_call, "train_in_turns", side_effect=joint_call.train_in_turns) as call:
        in_one_call = run(keys, rounds=3)
    assert call.call_count
    require_close_runs(by_autograd, in_one_call, rtol=1e-4, atol=1e-5)


def of_all_terms(out: Output, y: Tensor, w: Tensor, received: Received) -> Tensor:
    """Adds every loss that is compiled, several on the same rows."""
    target_CH, target_CC, known_C, apart_NH = received
    total = 2 - 0.5 * F.cross_entropy(out.logits_NC, y) / -2
    total = total + 0.3 * contrast(out.embedding_NH, y, target_CH, torch.arange(CLASSES), 0.5, 0.1)
    total = total + mean_square(out.embedding_NH, y, target_CH, known_C, 0.7)
    total = total + softplus_of_cosines(out.embedding_NH, apart_NH, 0.5) * torch.tensor(0.4)
    total = total + distilled_by_class(target_CC, known_C, y, out.logits_NC)
    return total + distillation_loss(apart_NH[:, :CLASSES], out.logits_NC)


class Plain(Algorithm):
    pass


@pytest.mark.parametrize("options", VISITS)
@pytest.mark.parametrize("term", [False, True])
def test_every_compiled_loss_and_terms_that_ask_again(term: bool, options: str, make_view: MakeView) -> None:
    generator = torch.Generator().manual_seed(3)
    view = view_of(make_view)
    target_CH, apart_NH = (torch.randn(rows, 6, generator=generator) for rows in (CLASSES, len(view.train)))
    received = target_CH, target_CH[:, :CLASSES].contiguous(), torch.tensor([True, False, True]), apart_NH
    ends = []
    for by_call in (False, True):
        client = client_of(model_of("gcn", 0.4, head="linear"), view)
        loss: Loss = pure(of_all_terms) if by_call else partial(of_all_terms)
        rows = client.model.standalone(torch.ones(2, 11))
        more: Term = lambda: 0.2 * F.cross_entropy(client.model(rows).logits_NC, torch.tensor([1, 2]))  # noqa: B023, E731
        flat = client.model.flat
        trainer = LocalTrainer({MODEL: flat}, TrainOptions(**VISITS[options]), Plain(), analytic(flat))
        with patch.object(torch.Tensor, "backward", autospec=True, side_effect=torch.Tensor.backward) as back:
            terms: dict[str, Any] = {"term": pure(more) if by_call else more} if term else {}
            lasts = [trainer.fit(client, received, loss=loss, **terms) for _ in range(2)]
        assert bool(back.call_count) is not by_call
        ends.append((lasts, client.model.w.clone(), client.state))
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-4, atol=1e-5)


def without_gradient(out: Output, y: Tensor) -> Tensor:
    with torch.no_grad():
        return F.cross_entropy(out.logits_NC, y)


def again(client: Client) -> Tensor:
    return client.model(client.model.gathered("train")).logits_NC


# What is added to the cross-entropy of a client's model.
MORE: dict[str, Callable[[Client, Output, Tensor], Any]] = {
    "without a gradient": lambda client, out, y: -0.5 * without_gradient(out, y),
    "a choice": lambda client, out, y: F.cross_entropy(out.logits_NC, y) if 0 * without_gradient(out, y) else 0,
    "no operator": lambda client, out, y: F.cross_entropy(out.logits_NC, y).clamp(max=9.0),
    "a comparison": lambda client, out, y: (out.logits_NC == 0).float().mean(),
    "ignored": lambda client, out, y: F.cross_entropy(out.logits_NC, y, ignore_index=1),
    "ignored by default": lambda client, out, y: F.cross_entropy(out.logits_NC, y.where(y == 2, -100)),
    "the last row": lambda client, out, y: F.cross_entropy(out.logits_NC[y[:1] * 0 - 1], y[-1:]),
    "detached twice": lambda client, out, y: distillation_loss(again(client).detach(), out.logits_NC),
    "a scaled teacher": lambda client, out, y: distillation_loss(0.5 * again(client), out.logits_NC),
    "a teacher's rows": lambda client, out, y: distillation_loss(again(client)[y.argsort()], out.logits_NC),
    "in evaluation mode": lambda client, out, y: distillation_loss(
        client.model.output(client.model.gathered("train")).logits_NC, out.logits_NC
    ),
}


def fit_once(client: Client, method: Algorithm, form: Any, **loss: Any) -> tuple[float, Tensor]:
    flat = client.model.flat
    last = LocalTrainer({MODEL: flat}, TrainOptions(epochs=4), method, form).fit(client, None, **loss)
    return last, client.model.w.clone()


@pytest.mark.parametrize("name", MORE)
def test_a_marked_loss_is_what_it_is_unmarked(name: str, make_view: MakeView) -> None:
    ends = []
    for marks in (False, True):
        client = client_of(model_of("gcn", 0.4, head="linear"), view_of(make_view))
        loss: Loss = lambda out, y, w, received: F.cross_entropy(out.logits_NC, y) + MORE[name](client, out, y)  # noqa: B023, E731
        ends.append(fit_once(client, Plain(), analytic(client.model.flat), loss=pure(loss) if marks else loss))
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-4, atol=1e-5)


@dataclass(frozen=True)
class Pulled(Algorithm):
    pulled: Pull

    def pull(self, client: Client, received: Received, options: TrainOptions) -> Pull:
        return self.pulled


@pytest.mark.parametrize("name", ["linear", "origin", "total"])
def test_vectors_with_gaps_pull_as_others(name: str, make_view: MakeView) -> None:
    ends = []
    for gaps in (False, True):
        client = client_of(model_of("gcn", head="linear"), view_of(make_view))
        columns = torch.randn(len(client.model.w), 2, generator=torch.Generator().manual_seed(5))
        vector = columns[:, 0] if gaps else columns[:, 0].contiguous()
        method = Pulled(Pull(**{name: vector}, mu=0.5 * (name == "origin")))
        ends.append((*fit_once(client, method, analytic(client.model.flat)), vector))
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-4, atol=1e-5)


def test_passes_of_a_step_are_limited(make_view: MakeView) -> None:
    client = client_of(model_of("gcn", head="linear"), view_of(make_view))
    client.model.flat.set_training(True)
    inputs, small = client.model.gathered("train"), analytic(client.model.flat).one_call
    assert small is not None
    for count, fits in ((MOST_CALLS, True), (MOST_CALLS + 1, False)):
        loss: LossOf = lambda w: sum(F.cross_entropy(again(client), client.data.train_label) for _ in range(count))  # noqa: B023, E731
        assert (small.plan(inputs, client.data.train_label, loss) is not None) is fits


def test_frozen_parameters_stay(make_view: MakeView) -> None:
    ends = []
    for forms in (False, True):
        flat = model_of("gcn", head="linear")
        next(iter(flat.module.parameters())).requires_grad_(False)
        ends.append(fit_once(client_of(flat, view_of(make_view)), Plain(), analytic(flat) if forms else None))
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-4, atol=1e-5)


def untraced(change: Callable[[Output, Tensor], Tensor]) -> Loss:
    return pure(lambda out, y, w, received: F.cross_entropy(out.logits_NC, y) + 0 * change(out, w))


@pytest.mark.parametrize(
    "loss",
    [
        untraced(lambda out, w: out.logits_NC.exp().sum()),
        untraced(lambda out, w: w.square().sum()),
        untraced(lambda out, w: F.cross_entropy(out.logits_NC, torch.zeros(8, 3))),
        untraced(lambda out, w: F.cross_entropy(out.logits_NC, torch.zeros(8).long(), label_smoothing=0.1)),
        untraced(lambda out, w: F.cross_entropy(out.logits_NC, torch.zeros(8).long(), weight=torch.ones(3))),
        untraced(lambda out, w: F.cross_entropy(out.logits_NC, torch.zeros(8).long(), reduction="sum")),
        untraced(lambda out, w: (out.embedding_NH / 2).mean()),
    ],
)
def test_a_loss_that_is_more_than_losses_of_rows_is_left_to_autograd(loss: Loss, make_view: MakeView) -> None:
    client = client_of(model_of("gcn", head="linear"), view_of(make_view))
    flat = client.model.flat
    trainer = LocalTrainer({MODEL: flat}, TrainOptions(), Plain(), analytic(flat))
    with patch.object(torch.Tensor, "backward", autospec=True, side_effect=torch.Tensor.backward) as back:
        trainer.fit(client, None, loss=loss)
    assert back.call_count == TrainOptions().epochs


def sum_of_one(z_NH: Tensor, places: Tensor) -> Tensor:
    ones = SparseMatrix.of(torch.arange(2).int(), torch.zeros(1).int(), torch.ones(1), 1)
    return SumAlignment(ones, torch.ones(1, z_NH.shape[1]), torch.ones(1), True)(z_NH, places)


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y, w, received: mean_square(out.embedding_NH, y, torch.ones(2, 6), torch.ones(3).bool()),
        lambda out, y, w, received: mean_square(out.embedding_NH, y, torch.ones(3, 6), torch.ones(2).bool()),
        lambda out, y, w, received: sum_of_one(out.embedding_NH, y[:1] * 0 - 1),
        lambda out, y, w, received: sum_of_one(out.embedding_NH, y[:1] * 0 + 8),
        lambda out, y, w, received: F.cross_entropy(out.logits_NC, y + 1),
        lambda out, y, w, received: F.cross_entropy(out.logits_NC[y + 6], y),
    ],
)
def test_places_that_are_not_there_are_refused(loss: Loss, make_view: MakeView) -> None:
    """Compiled code would read what lies behind a tensor."""
    client = client_of(model_of("gcn", head="linear"), view_of(make_view))
    flat = client.model.flat
    with pytest.raises(IndexError):
        LocalTrainer({MODEL: flat}, TrainOptions(), Plain(), analytic(flat)).fit(client, None, loss=pure(loss))
