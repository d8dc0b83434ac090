"""FedPG's rounds through the engine: its controls to the bit, brute force, absent classes and clients."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.base import Client, Tree
from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.methods.fedpg.fedpg import FedPG
from shoal.algorithms.methods.fedpg.hop_prototypes import annotate
from shoal.algorithms.models.build import build
from shoal.engine.config.config import Config
from shoal.engine.messages.models import require_mixable
from shoal.engine.rounds.reduction import upload_bytes
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.engine.runs.run import run as run_config
from shoal.storage.store.view import View

Run = Callable[..., Server]
Views = Callable[..., list[View]]
MakeView = Callable[..., View]
MakeClient = Callable[..., Client]
PG = {"algorithm.name": "fedpg"}
MLP = {"model.name": "mlp", "model.hidden": 8, "train.dropout": 0.0}
SGD = {"train.optimizer": "sgd", "train.lr": 0.1, "train.weight_decay": 0.0, "train.epochs": 2}


def assert_same_clients(left: Server, right: Server) -> None:
    for i in left.state.clients:
        for name, tensor in left.state.clients[i].items():
            assert torch.equal(right.state.clients[i][name], tensor), (i, name)
    for scope in ("trained", "served"):
        for i in range(6):
            np.testing.assert_array_equal(left.state.scores[scope][i], right.state.scores[scope][i])


def test_without_alignment_it_is_local_to_the_last_bit(run: Run) -> None:
    keys = {"train.dropout": 0.5, "train.weight_decay": 0.01, "participation.ratio": 0.7}
    local = run({**keys, "algorithm.name": "local", "engine.trainer": "autograd"})
    assert_same_clients(local, run({**keys, **PG, "algorithm.mu": 0}))
    aligned = run({**keys, **PG})
    assert not torch.equal(aligned.state.clients[0]["model.w"], local.state.clients[0]["model.w"])


@pytest.mark.parametrize("alignment", ["node", "prototype"])
def test_own_targets_equal_federated_with_alpha_0_lam_above_1(run: Run, alignment: str) -> None:
    keys = {**PG, "train.dropout": 0.5, "algorithm.alignment": alignment}
    alone = run({**keys, "algorithm.alpha": 0, "algorithm.lam": 1.1})
    own = run({**keys, "algorithm.targets": "own"})
    assert_same_clients(alone, own)
    for i in range(6):
        assert torch.equal(own.state.clients[i]["proto"], alone.state.server["proto"][i])
    assert own.state.server == {}


def test_the_self_control_sends_nothing(start: Run) -> None:
    server = start({**PG, "algorithm.targets": "own"})
    for _ in range(2):
        line = server.round()
        assert (line["bytes_up"], line["bytes_down"]) == (0, 0)


def loop_prototypes(
    z: Tensor, view: View, annotation: Tensor, train: list[int], classes: int
) -> tuple[dict[tuple[int, int], list[Tensor]], dict[tuple[int, int], Tensor]]:
    """Means of every centre and prototypes, by (hop, class), from loops over nodes and walks."""
    dense = view.adjacency.to_dense()
    near = [dense[v].nonzero()[:, 0].tolist() for v in range(view.nodes)]
    means: dict[tuple[int, int], list[Tensor]] = {}
    for v in train:
        walks = [[v], near[v], [u for w in near[v] for u in near[w] if u != v]]
        for hop, ends in enumerate(walks):
            if alike := [u for u in ends if annotation[u] == annotation[v]]:
                means.setdefault((hop, int(annotation[v])), []).append(z[alike].mean(0))
    return means, {key: torch.stack(found).mean(0) for key, found in means.items()}


def seen(module: nn.Module, view: View) -> tuple[Tensor, Tensor]:
    """Unit embeddings and annotation of all nodes."""
    out = module([view.hop(k) for k in module.inputs])
    annotation = out.logits_NC.argmax(1)
    annotation[view.train] = view.label[view.train]
    return F.normalize(out.embedding_NH, dim=1), annotation


def test_uploads_equal_loops(run: Run, views: Views, module_of: Callable[..., nn.Module]) -> None:
    server = run({**PG, **MLP}, rounds=2)
    held = server.state.server
    for i, view in enumerate(views(server)):
        z, annotation = seen(module_of(server, server.state.clients[i]["model.w"]).eval(), view)
        means, proto = loop_prototypes(z, view, annotation, view.train.tolist(), 4)
        assert held["present"][i].nonzero().tolist() == sorted(list(key) for key in proto)
        for (hop, c), expected in proto.items():
            torch.testing.assert_close(held["proto"][i, hop, c], expected.detach(), rtol=1e-4, atol=1e-5)
        assert held["counts"][i].tolist() == [len(means.get((0, c), [])) for c in range(4)]
    assert held["present"][0].any(1).all()
    assert not held["present"][0, :, :3].all()
    assert not held["present"][5].any()
    # Class 3 occurs among test nodes only.
    assert not held["known"][:, 3].any()


@pytest.mark.parametrize("alignment", ["node", "prototype"])
def test_a_second_round_is_plain_descent_towards_the_targets(
    start: Run, views: Views, module_of: Callable[..., nn.Module], alignment: str
) -> None:
    server = start({**PG, **MLP, **SGD, "algorithm.alignment": alignment, "algorithm.alpha": 1.0, "algorithm.mu": 0.7})
    server.round()
    before = server.state
    server.round()
    anchors, known = before.server["anchor"], before.server["known"]
    for i, view in enumerate(views(server)[:5]):
        module = module_of(server, before.clients[i]["model.w"])
        _, annotation = seen(module, view)
        for _ in range(2):
            module.zero_grad()
            z, _ = seen(module, view)
            out = module([view.hop(k)[view.train] for k in module.inputs])
            loss = F.cross_entropy(out.logits_NC, view.label[view.train])
            means, proto = loop_prototypes(z, view, annotation, view.train.tolist(), 4)
            usable = [key for key in proto if known[key]]
            for key in usable:
                if alignment == "prototype":
                    loss = loss + 0.7 * (proto[key] - anchors[key]).norm()
                elif key[0] == 2:
                    loss = loss + 0.7 / len(usable) * (proto[key] - anchors[key]).square().sum()
                else:
                    distances = [(mean - anchors[key]).square().sum() for mean in means[key]]
                    loss = loss + 0.7 / len(usable) * sum(distances) / len(distances)
            loss.backward()
            for p in module.parameters():
                p.data -= 0.1 * p.grad
        w = nn.utils.parameters_to_vector(module.parameters()).detach()
        torch.testing.assert_close(server.state.clients[i]["model.w"], w, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("server_loss", ["margin", "contrast"])
def test_partial_participation(start: Run, server_loss: str) -> None:
    server = start({**PG, "participation.ratio": 0.34, "algorithm.server_loss": server_loss, "rounds": 8})
    uploaded: Tree = {}
    returned = 0
    for number in range(1, 9):
        before = server.state
        server.round()
        cohort, held = server.cohort(number), server.state.server
        assert held["fresh"].nonzero()[:, 0].tolist() == cohort
        for i in range(6):
            if i not in cohort:
                assert server.state.clients.get(i) is before.clients.get(i)
                assert torch.equal(held["proto"][i], uploaded.get(str(i), torch.zeros_like(held["proto"][i])))
            returned += i in cohort and str(i) in uploaded
            uploaded[str(i)] = held["proto"][i].clone()
        if "known" in before.server:
            assert (held["known"] | before.server["known"]).equal(held["known"])
        assert torch.isfinite(held["generator"]).all()
    assert returned > 3


def test_clients_may_train_different_models(configure: Callable[..., Config]) -> None:
    models = [{"name": "mlp", "hidden": 8}, {"name": "sgc"}]
    heterogeneous = {"heterogeneity.rule": "round-robin", "heterogeneity.embedding": 8}
    require_mixable(configure({**PG, "model": models, **heterogeneous}), FedPG())


def test_a_cohort_of_one(run: Run) -> None:
    server = run({**PG, "participation.ratio": 0.1}, rounds=3)
    assert [len(server.cohort(number)) for number in (1, 2, 3)] == [1, 1, 1]
    assert torch.equal(server.state.server["known"], server.state.server["present"].any(0))
    assert server.state.server["known"].any()


ATTENTIVE = {"algorithm.attention": "node", "algorithm.alignment": "prototype", "algorithm.noise": 0.1}


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize(
    ("method", "options"),
    [("fedproto", {}), ("fedtgp", {}), ("fedpg", {}), ("fedpg", ATTENTIVE), ("class_means", {})],
)
def test_a_resumed_run_goes_on_to_the_bit(start: Run, method: str, options: dict[str, Any]) -> None:
    keys = {"algorithm.name": method, **options, "participation.ratio": 0.7, "train.dropout": 0.5}
    undisturbed, first = start(keys), start(keys)
    for _ in range(2):
        first.round()
    second = start(keys, state=FederationState.from_tensors(*first.state.to_tensors()))
    for _ in range(3):
        second.round()
    for _ in range(5):
        undisturbed.round()
    expected, found = undisturbed.state.to_tensors()[0], second.state.to_tensors()[0]
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("cell_size", [1, 4])
def test_cells_change_nothing(run: Run, cell_size: int) -> None:
    expected, found = (run({**PG, "engine.cell_size": size}, rounds=3) for size in ("auto", cell_size))
    for name, tensor in expected.state.server.items():
        assert torch.equal(found.state.server[name], tensor), name


def test_labels_outside_the_training_rows_change_nothing(run: Run) -> None:
    keys = {**PG, "algorithm.pseudo_centres": 0.5}
    plain, shuffled = (run(keys, rounds=3, graph=graph) for graph in ("plain", "shuffled"))
    for name, tensor in plain.state.server.items():
        assert torch.equal(tensor, shuffled.state.server[name]), name


def test_messages(configure: Callable[..., Any], run: Run, tmp_path: Path) -> None:
    """Bytes of metrics and summary: rows that exist, counts, a bit for every row that could exist."""
    keys = {**PG, **MLP, "rounds": 3, "run.root": str(tmp_path), "run.tensorboard": False}
    folder = run_config(configure(keys))
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    up, down = [], [0]
    for rounds in range(1, 4):
        held = run({**PG, **MLP}, rounds=rounds).state.server
        up.append(4 * 8 * int(held["present"].sum()) + 6 * (4 * 4 + 2))
        down.append(6 * (4 * 8 * int(held["known"].sum()) + 2))
    assert [line["bytes_up"] for line in lines] == up
    assert [line["bytes_down"] for line in lines] == down[:3]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["bytes"]["up_per_client_round"] == sum(up) / 18
    assert summary["scalars"]["up_per_client_round"] == sum(up) / 18 / 4
    assert summary["bytes"]["down_per_client_round"] == sum(down[:3]) / 18


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
    # Annotation by the model as it is; hop 1 and 2 as loops see them.
    z, annotation = seen(client.model.module, view)
    means, proto = loop_prototypes(z, view, annotation, train, 3)
    usable = [key for key in proto if key[0] <= hops]
    if alignment == "prototype":
        expected = sum((proto[key] - target[key]).norm() for key in usable)
    else:
        of_nodes = [torch.stack(means[key]) if key[0] < 2 else proto[key][None] for key in usable]
        distances = [(rows - target[key]).square().sum(1).mean() for key, rows in zip(usable, of_nodes)]
        expected = sum(distances) / len(usable)
    torch.testing.assert_close(term(), 0.5 * expected, rtol=1e-4, atol=1e-6)
    term().backward()
    assert torch.isfinite(client.model.flat.w.grad).all()
    nothing = torch.zeros(hops + 1, 3, dtype=torch.bool)
    assert algorithm._term(client, (target, nothing)) is None


def test_the_order_of_nodes_changes_nothing(make_view: MakeView, make_client: MakeClient) -> None:
    rng = np.random.default_rng(0)
    x, label, edges = (
        rng.standard_normal((20, 5)).astype(np.float32),
        rng.integers(3, size=20),
        rng.integers(20, size=(30, 2)),
    )
    order = rng.permutation(20)
    place = np.argsort(order)
    there = upload_of(make_client, make_view(20, edges, label, range(8), 3, x))
    moved = upload_of(make_client, make_view(20, place[edges], label[order], sorted(place[:8]), 3, x[order]))
    torch.testing.assert_close(moved["proto"], there["proto"])
    for name in ("present", "counts"):
        assert torch.equal(moved[name], there[name])


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


def test_noise_is_drawn_anew_and_from_a_stream_of_its_own(run: Run) -> None:
    keys = {**PG, "algorithm.mu": 0}
    plain, noised = run(keys, rounds=2), run({**keys, "algorithm.noise": 0.25}, rounds=2)
    assert_same_clients(plain, noised)
    difference = noised.state.server["proto"] - plain.state.server["proto"]
    assert [len(set(rows.nonzero()[:, 2].tolist())) for rows in difference[:5]] == [2] * 5
    assert len({tuple(rows.abs().sum((0, 1)).nonzero()[:, 0].tolist()) for rows in difference[:5]}) > 1


@pytest.mark.parametrize(
    "options",
    [
        {"hops": 3},
        {"hops": -1},
        {"similar": 0},
        {"alpha": 1.5},
        {"noise": -0.1},
        {"cross_hop": 2.0},
        {"mu": -1.0},
        {"margin_cap": -0.1},
        {"temperature": 0.0},
        {"server_steps": 0},
        {"server_lr": 0.0},
        {"attention_lr": 0.0},
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        FedPG(**options)


def test_the_bounds_themselves_are_allowed() -> None:
    low = {
        "hops": 0,
        "similar": 1,
        "mu": 0.0,
        "alpha": 0.0,
        "noise": 0.0,
        "cross_hop": 0.0,
        "margin_cap": 0.0,
        "server_steps": 1,
    }
    high = {"hops": 2, "alpha": 1.0, "noise": 1.0, "cross_hop": 1.0}
    small = {"temperature": 0.01, "server_lr": 1e-4, "attention_lr": 1e-4}
    for options in (low, high, small, {"hops": 1, "attention": "node", "alignment": "prototype"}):
        assert {name: getattr(FedPG(**options), name) for name in options} == options  # type: ignore[arg-type]
