"""FedSage+ without its generators, clients that have nearly nothing, what stays where, and what it refuses."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.both_layouts import both_layouts
from support.fixtures import MakeClient, MakeContext, MakeView, Start
from support.same_bits import assert_same_runs, assert_same_scores

from shoal.algorithms.base import Client, Replies, Upload
from shoal.algorithms.methods.fedsage_plus.client_generator import ClientGenerator, GeneratorOptions
from shoal.algorithms.methods.fedsage_plus.fedsage_plus import FedSagePlus, drawn_peers
from shoal.algorithms.methods.fedsage_plus.generator import fresh_generator
from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import all_nodes
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer

KEYS: dict[str, Any] = {
    "algorithm.name": "fedsage_plus",
    "algorithm.generator_rounds": 2,
    "algorithm.hidden": 6,
    "model.name": "sage",
}
FEW = {"participation.ratio": 0.7, "train.dropout": 0.5}


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize(("name", "plain"), [("fedsage_plus", "fedavg"), ("fedsage_plus_fedgta", "fedgta")])
@pytest.mark.parametrize("model", ["sage", "gamlp"])
def test_without_generators_it_is_the_method_beside_it_to_the_last_bit(
    run: Start, name: str, plain: str, model: str
) -> None:
    keys = {**FEW, "engine.trainer": "autograd", "model.name": model}
    expected = run({**keys, "algorithm.name": plain})
    off = run({**keys, "algorithm.name": name, "algorithm.generator_rounds": 0})
    assert_same_runs(off, expected)
    assert_same_scores(expected, off)


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("name", ["fedsage_plus", "fedsage_plus_fedgta"])
def test_cells_and_a_resume_change_no_bit(start: Start, run: Start, name: str) -> None:
    keys = {**KEYS, **FEW, "train.epochs": 1, "algorithm.name": name}
    whole = run(keys, rounds=4)
    for done in (1, 3):
        resumed = start(keys, state=run(keys, rounds=done).state)
        for _ in range(4 - done):
            resumed.round()
        assert_same_runs(whole, resumed)
    cells = run({**keys, "engine.cell_size": 3}, rounds=4)
    assert_same_runs(whole, cells, server=False)
    if name == "fedsage_plus":
        torch.testing.assert_close(whole.state.server["w"], cells.state.server["w"])


@pytest.mark.parametrize("model", ["gcn", "gat", {"name": "gin", "hidden": 8, "layers": 2, "head": "conv"}])
def test_models_that_are_averaged_may_be_others(run: Start, model: Any) -> None:
    keys = {name: value for name, value in KEYS.items() if name != "model.name"}
    keys |= {"model": {"name": model, "hidden": 8} if isinstance(model, str) else model, "train.batch_size": 4}
    server = run(keys, rounds=3)
    first = run({**keys, "algorithm.generator_rounds": 0}, rounds=1)
    assert server.state.server["w"].isfinite().all()
    # They were trained in another graph.
    assert not torch.allclose(server.state.server["w"], first.state.server["w"], atol=1e-4)


def test_sparse_features(run: Start, graphs: Mapping[str, Path], tmp_path: Path) -> None:
    keys = {**KEYS, "train.optimizer": "sgd", "train.lr": 0.05, "model.hidden": 8}
    found = [run({**keys, **data}, rounds=3).state for data in both_layouts(graphs["plain"], tmp_path)]
    for i in range(6):
        torch.testing.assert_close(
            found[1].clients[i]["generator"], found[0].clients[i]["generator"], rtol=1e-3, atol=1e-4
        )
    torch.testing.assert_close(found[1].server["w"].sum(), found[0].server["w"].sum(), rtol=1e-3, atol=1e-3)


def test_who_is_sent_what_of_whom(make_context: MakeContext) -> None:
    """Clients 3, 5, 6 and 9 show what is theirs; of those that judge, 5 does not come back."""
    ids, size = [3, 5, 6, 9], {3: 2, 5: 1, 6: 4, 9: 3}
    steps = FedSagePlus(peers=2)._judged(make_context(10, 3))
    assert next(steps).to is None
    maker, z = torch.arange(4.0)[:, None].expand(4, 6), [torch.full((size[i], 2), float(i)) for i in ids]
    count = [torch.full((size[i],), i, dtype=torch.int32) for i in ids]
    ask = steps.send(Replies(ids, {"maker": maker}, {}, {"z": z, "count": count}))
    assert ask.to == ids
    judges: dict[int, list[int]] = {i: [] for i in ids}
    for judge, sent in ask.private.items():
        whose = [ids[int(row[0])] for row in sent["maker"]]
        assert len(set(whose) - {judge}) == 2
        assert sent["size"].tolist() == [size[i] for i in whose]
        assert sent["z"][:, 1].tolist() == sent["count"].tolist() == [i for i in whose for _ in range(size[i])]
        for i in whose:
            judges[i].append(judge)
    back = [3, 6, 9]
    # What one says of another: ten times its own number and that of the other.
    said = {
        judge: torch.stack([torch.full((6,), 10.0 * judge + ids[int(row[0])]) for row in sent["maker"]])
        for judge, sent in ask.private.items()
    }
    with pytest.raises(StopIteration) as end:
        steps.send(Replies(back, {"gradient": torch.stack([said[judge] for judge in back])}, {}))
    found = end.value.value
    expected = {i: [10.0 * judge + i for judge in judges[i] if judge in back] for i in ids}
    assert any(len(of_client) == 1 for of_client in expected.values())
    assert {i: tree["gradient"].tolist() for i, tree in found.items()} == {
        i: [sum(numbers) / len(numbers)] * 6 for i, numbers in expected.items()
    }


@dataclass(frozen=True)
class Failing(FedSagePlus):
    """Client 2 fails in one phase of round 1."""

    phase: str = "show"

    def upload(self, client: Client, received: Any, phase: str) -> Upload:
        if client.info.client == 2 and phase == self.phase:
            raise ValueError
        return super().upload(client, received, phase)


@pytest.mark.parametrize("phase", ["show", "judge", "learn"])
def test_a_client_that_fails_is_as_it_was_and_the_others_go_on(start: Start, phase: str) -> None:
    me = {"algorithm.name": f"{__file__}:Failing", "algorithm.phase": phase, "engine.on_client_error": "skip"}
    server = start({**KEYS, **me, "algorithm.peers": 1})
    assert server.round()["failures"].keys() == {"2"}
    assert server.state.clients.keys() >= {0, 1, 3, 4, 5}
    assert all(int(tree["rounds"]) == 1 for i, tree in server.state.clients.items() if i != 2)
    assert "generator" not in server.state.clients.get(2, {})


@pytest.fixture
def little(make_view: MakeView, make_client: MakeClient) -> Callable[..., Client]:
    def little(nodes: int, edges: list[tuple[int, int]], train: list[int]) -> Client:
        view = make_view(nodes, edges, [i % 2 for i in range(nodes)], train, 3)
        return make_client(view, build("gcn", view.features, 3, 0, 0.3, {"hidden": 8}))

    return little


@pytest.mark.parametrize(
    ("nodes", "edges", "train"),
    [(1, [], [0]), (4, [], [0, 1, 2]), (5, [(0, 1), (1, 2)], []), (2, [(0, 1)], [0]), (5, [(0, 1)], [3])],
)
def test_graphs_that_have_nearly_nothing(
    little: MakeClient, nodes: int, edges: list[tuple[int, int]], train: list[int]
) -> None:
    """One node, no edges, no training node: all phases, and then an augmented graph of the client's own nodes."""
    torch.manual_seed(0)
    client, method = little(nodes, edges, train), FedSagePlus(hidden=5, generator_rounds=2)
    trainer = LocalTrainer({"model": client.model.flat}, TrainOptions(epochs=3), method)
    sent = method.upload(client, {}, "show").entries
    assert [len(sent[name]) for name in ("z", "count")] == [nodes - nodes // 2] * 2
    size = torch.tensor([len(sent["z"])], dtype=torch.int32)
    shown = {**sent, "count": torch.ones_like(sent["count"]), "maker": sent["maker"][None], "size": size}
    gradient = method.upload(client, shown, "judge").entries["gradient"]
    assert gradient.shape == (1, len(sent["maker"]))
    assert gradient.any() == (nodes > 1)
    assert np.isfinite(method.train(client, {"gradient": gradient[0]}, trainer, "learn"))
    loss = method.train(client, {}, trainer, "train")
    assert np.isfinite(loss) == bool(train)
    assert client.state["generator"].isfinite().all()
    scores = method.predict(client, {}, "all")
    assert scores.shape == (nodes, 3)
    assert torch.equal(method.predict(client, {}, "test"), scores[client.data.test])


def test_a_client_that_comes_late_takes_the_steps_that_it_missed(little: MakeClient) -> None:
    found = []
    for visits in (0, 1, 2):
        client, method = little(6, [(0, 1), (1, 2), (3, 4), (4, 5)], [0, 1, 4]), FedSagePlus(hidden=5, across=0.0)
        method = FedSagePlus(hidden=5, generator_rounds=2)
        trainer = LocalTrainer({"model": client.model.flat}, TrainOptions(epochs=2, opt_state="keep"), method)
        for _ in range(visits):
            method.train(client, {}, trainer, "learn")
        before = client.state.get("generator")
        method.train(client, {}, trainer, "train")
        steps = client.state["generator"]
        assert before is None or torch.equal(before, steps) == (visits == 2)
        before = client.state["mended"]
        method.train(client, {}, trainer, "train")
        assert torch.equal(client.state["generator"], steps)
        assert torch.equal(client.state["mended"], before)
        found.append(client.state.keys() & {"rounds", "hidden", "generator", "mended"})
    assert found == [{"hidden", "generator", "mended"}, *[{"rounds", "hidden", "generator", "mended"}] * 2]


def test_augmented_graph_of_another_seed_is_not_reused(little: MakeClient) -> None:
    client, method = little(6, [(0, 1), (1, 2), (3, 4), (4, 5)], [0, 1, 4]), FedSagePlus(hidden=5, generator_rounds=1)
    trainer = LocalTrainer({"model": client.model.flat}, TrainOptions(), method)
    method.train(client, {}, trainer, "train")
    scores = []
    for of_generator, of_seed in ((1.0, 0), (3.0, 0), (3.0, 1)):
        client.state["generator"] = client.state["generator"] * of_generator
        client.state["mended"] = client.state["mended"] + of_seed
        method.receive(client, {})
        client.model.changed()
        scores.append(method.predict(client, {}, "all"))
    assert not torch.equal(scores[0], scores[1])
    assert not torch.equal(scores[1], scores[2])


@pytest.mark.parametrize(("hidden", "written"), [(1, False), (9, True)])
def test_features_that_are_made_of_less_are_not_written_out(little: MakeClient, hidden: int, written: bool) -> None:
    """Of 12 nodes with 12 features two neighbours each; what a client is scored by is the same in both forms."""
    client = little(12, [(i, i + 1) for i in range(11)], [0, 4])
    options = GeneratorOptions(0.5, 2, hidden, across=0.0)
    flat = fresh_generator(client.data, hidden, 2, 0)
    with torch.no_grad():
        flat.module.encoder.head.linears[0].bias.fill_(9.0)  # type: ignore[union-attr]
    client.state |= {"generator": flat.w.detach().clone(), "mended": torch.tensor(3)}
    augmented = ClientGenerator(client, options).augmented(client.model.coupled)  # type: ignore[arg-type]
    assert augmented.x.shape == (36, 12)
    assert isinstance(augmented.x._new, torch.Tensor) == written
    guess = flat.module.guess(all_nodes(client.data, "mean", 2))  # type: ignore[operator]
    noisy = guess.z_NH + torch.randn(12, hidden, generator=torch.Generator().manual_seed(3))
    made = flat.module.maker(noisy).logits_NC.view(24, 12)  # type: ignore[operator]
    torch.testing.assert_close(augmented.x.to_dense()[12:], made)
    weight = torch.randn(12, 4)
    torch.testing.assert_close(augmented.x @ weight, torch.cat([client.data.x, made]) @ weight)


@pytest.mark.parametrize(("clients", "peers"), [(1, 3), (2, 3), (6, 2), (6, 5), (6, 9)])
def test_drawn_peers_judge_as_many_as_judge_them(clients: int, peers: int) -> None:
    seen = set()
    for seed in range(5):
        found = drawn_peers(clients, peers, torch.Generator().manual_seed(seed), torch.device("cpu"))
        k = min(peers, clients - 1)
        assert found.shape == (clients, k)
        assert torch.bincount(found.flatten(), minlength=clients).tolist() == [k] * clients
        assert all(i not in row and len(set(row)) == k for i, row in enumerate(found.tolist()))
        seen.add(str(found.tolist()))
    assert len(seen) > 1 or clients < 3
