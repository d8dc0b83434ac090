"""FedSage+ in whole rounds written out, without its generators, and clients that have nearly nothing."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import Keys, MakeClient, MakeContext, MakeView, Start, Views
from support.plain_fedavg import row_counts
from support.plain_fedgta import DEFAULTS as FEDGTA
from support.plain_fedgta import equations_3_to_5
from support.same_bits import assert_same_runs, assert_same_scores
from support.small_fedsage_plus import DEFAULTS, Person, of_others
from support.sparse_rows import sparse as as_sparse
from support.written_rounds import require_mean_loss, require_model_bytes

from shoal.algorithms.base import Client, Replies, Upload
from shoal.algorithms.graphs.impaired_graph import impair
from shoal.algorithms.methods.fedsage_plus import client_generator
from shoal.algorithms.methods.fedsage_plus.client_generator import (
    ClientGenerator,
    GeneratorOptions,
    nearest_hidden,
    nearest_lost,
    others_loss,
    own_loss,
)
from shoal.algorithms.methods.fedsage_plus.fedsage_plus import FedSagePlus, draw_peers
from shoal.algorithms.methods.fedsage_plus.generator import GeneratedFeatures, fresh_generator
from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import all_nodes
from shoal.algorithms.rng import key
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.engine.rounds.server import Server
from shoal.storage.shards.view import View

KEYS: dict[str, Any] = {
    "algorithm.name": "fedsage_plus",
    "algorithm.generator_rounds": 2,
    "algorithm.hidden": 6,
    "model.name": "sage",
}
FEW = {"participation.ratio": 0.7, "train.dropout": 0.5}


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("fedsage_plus", "fedavg"),
        ("fedsage_plus_fedgta", "fedgta"),
        ("fedsage_plus_moon", "moon"),
        ("fedsage_plus_feddc", "feddc"),
    ],
)
@pytest.mark.parametrize("model", ["sage", "gamlp"])
def test_without_generators_it_is_the_plain_method(run: Start, name: str, plain: str, model: str) -> None:
    keys = {**FEW, "engine.trainer": "autograd", "model.name": model}
    expected = run({**keys, "algorithm.name": plain})
    off = run({**keys, "algorithm.name": name, "algorithm.generator_rounds": 0})
    assert_same_runs(off, expected)
    assert_same_scores(expected, off)


def test_who_is_sent_what_of_whom(make_context: MakeContext) -> None:
    """Clients 3, 5, 6 and 9 show what is theirs; of those that judge, 5 does not come back."""
    ids, size = [3, 5, 6, 9], {3: 2, 5: 1, 6: 4, 9: 3}
    steps = FedSagePlus(peers=2)._judge(make_context(10, 3))
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
def little(make_view: MakeView, make_client: MakeClient) -> MakeClient:
    def little(nodes: int, edges: list[tuple[int, int]], train: list[int]) -> Client:
        view = make_view(nodes, edges, [i % 2 for i in range(nodes)], train, 3)
        return make_client(view, build("gcn", view.features, 3, 0, 0.3, {"hidden": 8}))

    return little


def test_augmented_graph_of_another_seed_is_not_reused(little: MakeClient) -> None:
    client, method = little(6, [(0, 1), (1, 2), (3, 4), (4, 5)], [0, 1, 4]), FedSagePlus(hidden=5, generator_rounds=1)
    trainer = LocalTrainer({"model": client.model.flat}, TrainOptions(), method)
    method.train(client, {}, trainer, "train")
    scores = []
    for of_generator, of_seed in ((1.0, 0), (3.0, 0), (3.0, 1)):
        client.state["generator"] = client.state["generator"] * of_generator
        client.state["mended"] = client.state["mended"] + of_seed
        method.receive(client, {})
        client.model.drop_logits()
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
    augmented = ClientGenerator(client, options).augment(client.model.coupled)  # type: ignore[arg-type]
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
        found = draw_peers(clients, peers, torch.Generator().manual_seed(seed), torch.device("cpu"))
        k = min(peers, clients - 1)
        assert found.shape == (clients, k)
        assert torch.bincount(found.flatten(), minlength=clients).tolist() == [k] * clients
        assert all(i not in row and len(set(row)) == k for i, row in enumerate(found.tolist()))
        seen.add(str(found.tolist()))
    assert len(seen) > 1 or clients < 3


MODEL = {"name": "sage", "hidden": 7, "head": "linear"}


def initial_of(view: View, round_number: int, options: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What a client's generator starts from, by the names of its parameters."""
    seed = key(0, round_number, view.client, "generator")
    module = fresh_generator(view, options["hidden"], options["most_neighbours"], seed).module
    return {name: t.detach().clone() for name, t in module.named_parameters()}


def by_name(server: Server, w: torch.Tensor) -> dict[str, torch.Tensor]:
    module = server.context(1).build("model", 0).module
    torch.nn.utils.vector_to_parameters(w.clone(), module.parameters())
    return {name: t.detach().clone() for name, t in module.named_parameters()}


def flat(p: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([t.detach().flatten() for t in p.values()])


def counts_of(person: Person, w: dict[str, torch.Tensor], augmented: bool = True) -> np.ndarray:
    with torch.no_grad():
        predicted = person.logits(w, augmented).argmax(1).tolist()
    return row_counts(person.view, predicted)


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize(
    "options",
    [
        {"hidden": 6},
        {"hidden": 5, "hide": 0.3, "most_neighbours": 2, "peers": 2, "sampled_nodes": 4, "across": 3.0},
        {"hidden": 4, "degree": 0.5, "feature": 2.0, "label": 0.0, "across": 0.0},
        {"hidden": 4, "degree": 2.0, "feature": 0.0, "label": 3.0, "peers": 1},
        {"hidden": 6, "inside": "_moon"},
        {"hidden": 6, "inside": "_feddc"},
    ],
    ids=["defaults", "few", "alone", "labels", "moon", "feddc"],
)
def test_rounds_written_out(start: Start, unequal: Keys, views: Views, options: Keys) -> None:
    """Two rounds of generators: clients 2 and 3 miss one of them and client 4 both, and catch up when they come."""
    inside = options.get("inside", "")
    options = {name: value for name, value in options.items() if name != "inside"}
    chosen = {**DEFAULTS, **options}
    keys = {"algorithm.name": f"fedsage_plus{inside}", "train.dropout": 0.0, "model": MODEL}
    keys |= {f"algorithm.{name}": chosen[name] for name in ("generator_rounds", *options)}
    server = start({**{k: v for k, v in unequal.items() if not k.startswith("model.")}, **keys})
    everybody = views(server)
    people = {i: Person(view, chosen, 2) for i, view in enumerate(everybody)}
    w, generated = by_name(server, server._initial), 0
    deployed, g = dict.fromkeys(people, w), torch.zeros_like(flat(w))
    for number in range(1, server.plan.rounds + 1):
        line, cohort = server.round(), list(server.cohort(number))
        for i in cohort:
            if not people[i].p:
                people[i].meet(number, initial_of(everybody[i], number, chosen))
        losses = {}
        if number <= 2:
            judged = of_others(people, cohort, number) if chosen["across"] else {}
            for i in cohort:
                losses[i] = people[i].learn(number, 2, judged.get(i))
                people[i].rounds += 1
            assert (line["bytes_up"], line["bytes_down"]) == bytes_of(people, cohort, chosen)
        else:
            total, updates, count = torch.zeros_like(flat(w)), torch.zeros_like(g), 0
            for i in cohort:
                if people[i].graph is None:
                    people[i].learn(number, 2 * (2 - people[i].rounds))
                    people[i].repair(number)
                    generated += len(people[i].graph[0]) - everybody[i].nodes  # type: ignore[index]
                term = people[i].contrast(w) if inside == "_moon" else None
                term = people[i].correction(w, g) if inside == "_feddc" else term
                own = people[i].train(w, getattr(people[i], "momentum", None), term)
                losses[i] = people[i].loss
                if len(everybody[i].train):
                    people[i].previous = own
                    people[i].drift = people[i].drift + flat(own) - flat(w)
                    people[i].update = -people[i].mean_gradient
                    updates += people[i].update
                np.testing.assert_array_equal(server.state.scores["trained"][i], counts_of(people[i], own))
                n = (1 if inside == "_feddc" else everybody[i].nodes) * (len(everybody[i].train) > 0)
                total, count = total + n * flat(own), count + n
            w, g = (by_name(server, total / count), updates / count) if count else (w, g)
            if inside == "_feddc":
                assert (line["bytes_up"], line["bytes_down"]) == (
                    8 * len(cohort) * (len(g) + 1),
                    8 * len(cohort) * len(g),
                )
                torch.testing.assert_close(server.state.server["g"], g, rtol=1e-3, atol=1e-5)
            else:
                require_model_bytes(line, len(flat(w)))
        require_mean_loss(line, losses, everybody)
        torch.testing.assert_close(server.state.server["w"], flat(w), rtol=1e-3, atol=1e-5)
        for i, person in people.items():
            deployed[i] = w if i in cohort else deployed[i]
            np.testing.assert_array_equal(server.state.scores["global"][i], counts_of(person, w, augmented=False))
            np.testing.assert_array_equal(server.state.scores["deployed"][i], counts_of(person, deployed[i]))
            if person.p:
                kept = server.state.clients[i]
                torch.testing.assert_close(kept["generator"], flat(person.p), rtol=1e-3, atol=1e-5)
                assert ("mended" in kept) == (person.graph is not None)
                assert ("generator.opt.momentum_buffer" in kept) == (person.graph is None)
    assert all(person.graph is not None for person in people.values())
    assert generated > 20


def test_inductive_run_augments_all_nodes_for_scores(start: Start, unequal: dict[str, Any], views: Views) -> None:
    """By the generator that learnt on these; client 5 has none, and is scored on its graph as it is."""
    keys = {"algorithm.name": "fedsage_plus", "algorithm.generator_rounds": 1, "algorithm.hidden": 6, "model": MODEL}
    keys |= {"data.inductive": True, "participation.ratio": 1.0, "rounds": 3}
    without = "participation.trace", "model.name", "model.hidden"
    server = start({k: v for k, v in {**unequal, **keys}.items() if k not in without})
    for _ in range(3):
        server.round()
    w, generated, scores = by_name(server, server.state.server["w"]), 0, server.state.scores
    for i, view in enumerate(views(server)):
        kept, person = server.state.clients[i], Person(view, {**DEFAULTS, "hidden": 6}, 2)
        assert view.nodes > len(view.train)
        if len(view.train):
            names = initial_of(view, 2, person.options)
            parts = kept["generator"].split([t.numel() for t in names.values()])
            person.p = {name: part.view(t.shape) for (name, t), part in zip(names.items(), parts)}
            assert int(kept["mended"]) == key(0, 2, i, "mended")
            person.repair(2)
            generated += len(person.graph[0]) - view.nodes  # type: ignore[index]
        assert ("mended" in kept) == (i != 5)
        np.testing.assert_array_equal(scores["deployed"][i], counts_of(person, w))
        np.testing.assert_array_equal(scores["global"][i], counts_of(person, w, augmented=False))
    assert generated >= 10
    assert any(not np.array_equal(scores["deployed"][i], scores["global"][i]) for i in range(5))


def test_fedgta_sketches_answers_of_augmented_graphs(start: Start, unequal: Keys, views: Views, recorded: Any) -> None:
    """Labels spread over the graph as it is."""
    keys = {"algorithm.name": "fedsage_plus_fedgta", "algorithm.generator_rounds": 1, "algorithm.hidden": 6}
    keys |= {"model": MODEL, "participation.ratio": 1.0, "rounds": 2}
    without = "participation.trace", "model.name", "model.hidden"
    server = start({k: v for k, v in {**unequal, **keys}.items() if k not in without}, pool=recorded.on)
    for _ in range(2):
        server.round()
    apart = 0
    for i, view in enumerate(views(server)):
        kept, person = server.state.clients[i], Person(view, {**DEFAULTS, "hidden": 6}, 2)
        names = initial_of(view, 1, person.options)
        parts = kept["generator"].split([t.numel() for t in names.values()])
        person.p = {name: part.view(t.shape) for (name, t), part in zip(names.items(), parts)}
        person.repair(2)
        sent = recorded.uploads[i]
        w = by_name(server, sent["w"])
        found = {}
        for augmented in (True, False):
            with torch.no_grad():
                said = person.logits(w, augmented).double().softmax(1).numpy()
            found[augmented] = equations_3_to_5(view, said, FEDGTA)
        np.testing.assert_allclose(sent["h"], found[True][0], rtol=1e-4)
        np.testing.assert_allclose(sent["m"], found[True][1], rtol=1e-3, atol=1e-5)
        apart += not np.allclose(found[False][1], found[True][1], rtol=1e-2, atol=1e-4)
    assert apart > 2


def bytes_of(people: dict[int, Person], cohort: list[int], options: dict[str, Any]) -> tuple[int, int]:
    """Of a round of generators, by the formulas of the docs."""
    if not options["across"]:
        return 0, 0
    k, h = min(options["peers"], len(cohort) - 1), options["hidden"]
    q = h * (h + 1) + options["most_neighbours"] * 5 * (h + 1)
    m = {i: min(options["sampled_nodes"], len(people[i].shown)) for i in cohort}
    up = sum(4 * q + 4 * m[i] * (h + 1) + 4 * k * q for i in cohort)
    down = sum(k * (4 * q + 4 * m[i] * (h + 1) + 4) + 4 * q for i in cohort)
    return up, down


def test_losses_depend_neither_on_blocks_of_pairs_nor_on_the_layout(
    make_view: MakeView, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and gradients; rounds written out have few pairs of dense rows."""
    rng = np.random.default_rng(2)
    edges = [(i, j) for i in range(12) for j in range(i) if rng.random() < 0.4]
    x = rng.standard_normal((14, 3)).astype(np.float32)
    shown = impair(make_view(14, edges, [0] * 14, [0, 3, 5], 1, x), 0.5, 0)
    count = torch.from_numpy(rng.integers(4, size=14 - len(shown.hidden_H)))
    drawn, ends = [torch.randn(len(count), 2), torch.randn(3, 4, 2)], []
    for block, layout in itertools.product((client_generator.BLOCK, 10, 1), (torch.Tensor.clone, as_sparse)):
        monkeypatch.setattr(client_generator, "BLOCK", block)
        parts = [part.clone().requires_grad_() for part in drawn]
        made = GeneratedFeatures(*parts, count)
        hidden = shown._replace(x_HF=layout(shown.x_HF))
        loss = own_loss(made, hidden) + others_loss(made, len(count), hidden)
        loss.backward()
        ends.append([loss.detach(), *(part.grad for part in parts)])
    for other in ends[1:]:
        torch.testing.assert_close(other, ends[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("block", [client_generator.BLOCK, 1])
def test_of_two_equally_near_the_first_counts(make_view: MakeView, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr(client_generator, "BLOCK", block)
    x = np.array([[0.0], [1.0], [-1.0], [1.0], [5.0]], dtype=np.float32)
    view = make_view(5, [(4, 1), (4, 2), (4, 3), (0, 3)], [0] * 5, [4], 1, x)
    seed = next(s for s in range(2000) if impair(view, 0.79, s).hidden_H.tolist() == [1, 2, 3])
    shown = impair(view, 0.79, seed)
    # The nodes that are shown are 0 and 4; of equally near ones 3 is never the first of node 4's.
    new = GeneratedFeatures(torch.ones(2, 1), torch.tensor([[[0.2], [0.0], [-0.1]]]), torch.tensor([1, 3]))
    found, hidden = nearest_lost(new, new.project(shown.x_HF), shown)
    assert (found.tolist(), shown.hidden_H[hidden].tolist()) == ([0, 1, 2, 3], [3, 1, 1, 2])
    of_all = nearest_hidden(new, new.project(shown.x_HF), shown)
    assert shown.hidden_H[of_all].tolist() == [1, 1, 1, 2]
