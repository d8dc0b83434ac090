"""FedPG's rounds through the engine: its controls to the bit, brute force, absent classes and clients."""

from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import MakeClient, MakeView, Start
from support.same_bits import assert_same_runs, assert_same_scores, assert_same_trees

from shoal.algorithms.base import Tree
from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.methods.fedpg.fedpg import FedPG
from shoal.algorithms.methods.fedpg.hop_prototypes import annotate
from shoal.algorithms.models.build import build
from shoal.engine.rounds.reduction import upload_bytes
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.storage.store.view import View

PG = {"algorithm.name": "fedpg"}


def assert_same_local(one: Server, other: Server) -> None:
    """In all that the first keeps, which may be less."""
    for i, tree in one.state.clients.items():
        assert_same_trees({i: tree}, {i: {name: other.state.clients[i][name] for name in tree}})
    assert_same_scores(one, other, "trained", "served")


def test_without_alignment_it_is_local_to_the_last_bit(run: Start) -> None:
    keys = {"train.dropout": 0.5, "train.weight_decay": 0.01, "participation.ratio": 0.7}
    local = run({**keys, "algorithm.name": "local", "engine.trainer": "autograd"})
    assert_same_local(local, run({**keys, **PG, "algorithm.mu": 0}))
    aligned = run({**keys, **PG})
    assert not torch.equal(aligned.state.clients[0]["model.w"], local.state.clients[0]["model.w"])


@pytest.mark.parametrize("alignment", ["node", "prototype"])
def test_own_targets_equal_federated_with_alpha_0_lam_above_1(run: Start, alignment: str) -> None:
    keys = {**PG, "train.dropout": 0.5, "algorithm.alignment": alignment}
    alone = run({**keys, "algorithm.alpha": 0, "algorithm.lam": 1.1})
    own = run({**keys, "algorithm.targets": "own"})
    assert_same_local(alone, own)
    for i in range(6):
        assert torch.equal(own.state.clients[i]["proto"], alone.state.server["proto"][i])
    assert own.state.server == {}


ATTENTIVE = {"algorithm.attention": "node", "algorithm.alignment": "prototype", "algorithm.noise": 0.1}


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize(
    ("method", "options"), [("fedproto", {}), ("fedtgp", {}), ("fedpg", {}), ("fedpg", ATTENTIVE), ("class_means", {})]
)
def test_a_resumed_run_goes_on_to_the_bit(start: Start, method: str, options: dict[str, Any]) -> None:
    keys = {"algorithm.name": method, **options, "participation.ratio": 0.7, "train.dropout": 0.5}
    undisturbed, first = start(keys), start(keys)
    for _ in range(2):
        first.round()
    second = start(keys, state=FederationState.from_tensors(*first.state.to_tensors()))
    for _ in range(3):
        second.round()
    for _ in range(5):
        undisturbed.round()
    assert_same_trees({0: undisturbed.state.to_tensors()[0]}, {0: second.state.to_tensors()[0]})


@pytest.mark.parametrize("cell_size", [1, 4])
def test_cells_change_nothing(run: Start, cell_size: int) -> None:
    assert_same_runs(*(run({**PG, "engine.cell_size": size}, rounds=3) for size in ("auto", cell_size)))


def test_labels_outside_the_training_rows_change_nothing(run: Start) -> None:
    keys = {**PG, "algorithm.pseudo_centres": 0.5}
    assert_same_runs(*(run(keys, rounds=3, graph=graph) for graph in ("plain", "shuffled")))


# Single clients


def upload_of(make_client: MakeClient, view: View, **options: Any) -> Tree:
    torch.manual_seed(0)
    client = make_client(view, build("mlp", view.features, view.classes, 0, 0.5, {"hidden": 6}))
    upload = FedPG(**options).upload(client, {}, "train")
    present = upload.entries["present"]
    assert upload_bytes(upload) == 4 * 6 * int(present.sum()) + 4 * view.classes + -(-present.numel() // 8)
    assert torch.equal(upload.entries["proto"][~present], torch.zeros(int((~present).sum()), 6))
    return upload.entries


def test_one_class(make_view: MakeView, make_client: MakeClient) -> None:
    entries = upload_of(make_client, make_view(4, [(0, 1), (1, 2), (2, 3)], [1] * 4, [0, 1, 2, 3], 3))
    assert entries["present"].tolist() == [[False, True, False]] * 3
    assert entries["counts"].tolist() == [0, 4, 0]


def test_no_training_nodes_and_no_edges(make_view: MakeView, make_client: MakeClient) -> None:
    assert not upload_of(make_client, make_view(4, [(0, 1)], [1] * 4, [], 3))["present"].any()
    alone = upload_of(make_client, make_view(4, [], [0, 1, 1, 2], [0, 1], 3))
    assert alone["present"].tolist() == [[True, True, False], [False] * 3, [False] * 3]
    assert upload_of(make_client, make_view(1, [], [0], [0], 3))["present"].sum() == 1


@pytest.mark.parametrize("alignment", ["node", "prototype"])
@pytest.mark.parametrize("hops", [0, 1, 2])
@pytest.mark.parametrize(
    ("edges", "label", "train"),
    [
        ([], [0, 1, 1, 2], [0, 1]),
        ([(0, 1)], [1, 1, 1, 1], [0, 1]),
        ([(0, 1)], [0, 1, 1, 1], [0, 1]),
        ([], [0] * 4, [3]),
    ],
    ids=["no edges", "one class", "hops without neighbours", "one node"],
)
def test_the_term_of_clients_that_lack_something(
    make_view: MakeView, make_client: MakeClient, alignment: Any, hops: int, edges: Any, label: Any, train: Any
) -> None:
    view = make_view(4, edges, label, train, 3)
    torch.manual_seed(0)
    client = make_client(view, build("mlp", view.features, 3, 0, 0.0, {"hidden": 6}))
    target = unit(torch.randn(hops + 1, 3, 6, generator=torch.Generator().manual_seed(1)))
    algorithm = FedPG(alignment=alignment, hops=hops)
    term = algorithm._term(client, (target, torch.ones(hops + 1, 3, dtype=torch.bool)))
    assert term is not None
    loss = term()
    loss.backward()
    assert loss > 0
    assert torch.isfinite(client.model.flat.w.grad).all()
    nothing = torch.zeros(hops + 1, 3, dtype=torch.bool)
    assert algorithm._term(client, (target, nothing)) is None


def test_annotation(make_view: MakeView, make_client: MakeClient) -> None:
    x = np.array([[4, 0], [0, 4], [0.1, 0], [3, 0], [0, 0]], dtype=np.float32)
    view = make_view(5, [], [1, 1, 1, 1, 1], [0], 2, x)
    module = build("sgc", 2, 2, 0, 0.5, {})
    with torch.no_grad():
        module.head.linears[0].weight.copy_(torch.eye(2))
    client = make_client(view, module)
    found = annotate(client)
    # Row 0 is trained on and keeps its label, whatever the model says.
    assert found.class_N.tolist() == [1, 1, 0, 0, 0]
    assert found.centre_N.tolist() == [True, False, False, False, False]
    assert annotate(client, confident=0.8).centre_N.tolist() == [True, True, False, True, False]
    # Of two classes with the same logit each has a probability of just one half.
    assert annotate(client, confident=0.5).centre_N.all()
    torch.testing.assert_close(found.z_NH, unit(torch.from_numpy(x)))
