"""FedDEP in whole rounds written out in plain torch: dense matrices, loops over nodes, networks by their parameters."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from support.fixtures import Keys, MakeView, Start, Views
from support.plain_clients import sgd
from support.plain_fedavg import row_counts
from support.small_fedgkc import dense_operator
from support.written_rounds import cohorts_of, require_counts, require_mean_loss
from torch import Tensor

from shoal.algorithms.methods.feddep.encoder import Encoder, summarise
from shoal.algorithms.methods.feddep.fused_nodes import FusedNodes
from shoal.algorithms.methods.feddep.generator import DeepGenerator, others_loss, own_loss
from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import draw_neighbours
from shoal.algorithms.rng import key
from shoal.engine.rounds.server import Server
from shoal.storage.shards.view import View

Named = dict[str, Tensor]
DEFAULTS: dict[str, Any] = {
    "hide": 0.5, "most_neighbours": 5, "hidden": 6, "degree": 1.0, "feature": 1.0, "label": 1.0, "across": 1.0,
    "clusters": 5, "peers": 20, "encoder_epochs": 3, "generator_epochs": 8, "neighbours": 5,
}  # fmt: skip
CLASSES = 4
KEPT = {"generator", "noise", "model.opt.momentum_buffer", "fusion.opt.momentum_buffer"}


def named(module: torch.nn.Module, w: Tensor | None = None) -> Named:
    """Parameters by name, of the module or of a vector of all."""
    p = {name: t.detach().clone() for name, t in module.named_parameters()}
    if w is not None:
        parts = w.split([t.numel() for t in p.values()])
        p = {name: part.clone().view(t.shape) for (name, t), part in zip(p.items(), parts)}
    return p


def flat(p: Named) -> Tensor:
    return torch.cat([t.detach().flatten() for t in p.values()])


def leaves(p: Named) -> Named:
    return {name: t.clone().requires_grad_() for name, t in p.items()}


def below(p: Named, prefix: str) -> Named:
    return {name.removeprefix(prefix): t for name, t in p.items() if name.startswith(prefix)}


def network(kind: str, p: Named, tables: list[Tensor], x: Tensor, e: Tensor, fusion: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and the output of the last layer before the classifier; layer l adds U_l e of every node."""
    width = e.shape[1]

    def add() -> Tensor:
        nonlocal fusion
        u, fusion = fusion[: out * width].view(out, width), fusion[out * width :]
        return e @ u.T

    h, number = x, 0
    while f"convs.{number}.{'lin_l' if kind == 'sage' else 'lin'}.weight" in p:
        of = f"convs.{number}."
        h = F.relu(h) if number else h
        if kind == "sage":
            out = len(p[of + "lin_l.weight"])
            h = tables[number] @ h @ p[of + "lin_l.weight"].T + p[of + "lin_l.bias"] + h @ p[of + "lin_r.weight"].T
        else:
            out = len(p[of + "lin.weight"])
            h = tables[number] @ h @ p[of + "lin.weight"].T + p[of + "bias"]
        h, number = h + add(), number + 1
    weight, bias = p["head.linears.0.weight"], p["head.linears.0.bias"]
    if number == 2:
        return h @ weight.T + bias, h
    # The second layer is the classifier.
    read, out = F.relu(h), len(weight)
    if kind == "gcn":
        return tables[1] @ read @ weight.T + bias + add(), h
    return tables[1] @ read @ p["head.messages.weight"].T + read @ weight.T + bias + add(), h


def nothing(nodes: int, width: int) -> tuple[Tensor, Tensor]:
    """No embeddings, and weights of them."""
    return torch.zeros(nodes, width), torch.zeros(2 * 64 * width)


@dataclass
class Person:
    """A client."""

    view: View
    options: dict[str, Any]
    kind: str
    prototypes: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    terms: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.number, self.n, self.width = self.view.client, self.view.nodes, self.options["hidden"]
        self.a, self.x = self.view.adjacency.to_dense().float(), self.view.whole(0).float()
        self.train, self.y = self.view.train.tolist(), self.view.label[self.view.train]
        self.e = torch.zeros(self.n, self.width)
        self.momentum: list[Tensor] = []

    def seed(self, number: int, purpose: str) -> int:
        return key(0, number, self.number, purpose)

    def draw(self, rng: np.random.Generator, rows: list[int], kind: str, depth: int) -> list[Tensor]:
        """Matrices of all layers, whose rows of nodes that nobody reads are empty."""
        nodes, tables = np.array(rows), []
        for _ in range(depth):
            drawn = draw_neighbours(*self.view.csr, nodes, self.options["neighbours"] or -1, rng)
            a = torch.zeros(self.n, self.n)
            for place, v in enumerate(nodes.tolist()):
                a[v, drawn.nodes[drawn.indices[drawn.indptr[place] : drawn.indptr[place + 1]]]] = 1
            if kind == "symmetric":
                degree, full = self.a.sum(1), dense_operator("symmetric", self.a).float()
                scale = degree / a.sum(1).clamp_min(1)
                a = full * torch.eye(self.n) + full * a * scale[:, None]
            else:
                a = a / a.sum(1, keepdim=True).clamp_min(1)
            tables.insert(0, a)
            nodes = drawn.nodes
        return tables

    def encode(self, number: int, start: Named) -> None:
        """Trains the encoder, and keeps prototypes and clusters."""
        p, rng = leaves(start), np.random.default_rng(self.seed(number, "neighbours of the encoder"))
        optimizer, none = sgd(p.values()), nothing(self.n, self.width)

        def embed(rows: list[int]) -> Tensor:
            tables = self.draw(rng, rows, "mean", 2)
            return torch.tanh(network("sage", below(p, "sage."), tables, self.x, *none)[1])

        for _ in range(self.options["encoder_epochs"]):
            optimizer.zero_grad()
            z = embed(self.train)[self.train]
            logits = z @ p["sage.head.linears.0.weight"].T + p["sage.head.linears.0.bias"]
            F.cross_entropy(logits, self.y).backward()
            optimizer.step()
        with torch.no_grad():
            z = embed(list(range(self.n)))
        seed = self.seed(number, "clusters") % 2**32
        found = KMeans(self.options["clusters"], n_init=10, random_state=seed).fit_predict(z.numpy())
        self.cluster = found.tolist()
        means = [z[[v for v in range(self.n) if found[v] == k]].mean(0) for k in range(self.options["clusters"])]
        self.prototypes = torch.stack(means)

    def made(self, p: Named, z: Tensor) -> list[list[Tensor]]:
        """Embeddings of P neighbours of every node, from its own with noise."""
        deep = F.relu(z @ p["maker.linears.0.weight"].T + p["maker.linears.0.bias"])
        wide = torch.tanh(deep @ p["maker.linears.1.weight"].T + p["maker.linears.1.bias"])
        return [[*row.split(self.width)] for row in wide]

    def guess(self, p: Named, a: Tensor, x: Tensor, rng: torch.Generator) -> tuple[Tensor, list[list[Tensor]]]:
        """Guesses neighbours that nodes miss, and makes embeddings of as many."""
        tables = [dense_operator("mean", a)] * 2
        out, z = network("sage", below(p, "encoder."), tables, x, *nothing(len(x), self.width))
        made = self.made(p, z + torch.randn(z.shape, generator=rng))
        count = [min(max(round(s), 0), self.options["most_neighbours"]) for s in out[:, 0].tolist()]
        return out[:, 0], [of_node[:n] for of_node, n in zip(made, count)]

    def mean(self, made: list[list[Tensor]]) -> Tensor:
        zero = torch.zeros(self.width)
        return torch.stack([sum(of_node, zero) / self.options["most_neighbours"] for of_node in made])

    def generate(self, number: int, start: Named, protos: list[Tensor]) -> None:
        """Trains the generator, then generates for all nodes."""
        order = np.random.default_rng(self.seed(number, "hidden")).permutation(self.n)
        hidden = set(order[: int(self.options["hide"] * self.n)].tolist())
        shown = [v for v in range(self.n) if v not in hidden]
        p, rng = leaves(start), torch.Generator().manual_seed(self.seed(number, "noise"))
        optimizer = sgd(p.values())
        for _ in range(self.options["generator_epochs"]):
            for t in p.values():
                t.grad = torch.zeros_like(t)
            self.objective(p, shown, hidden, protos, rng).backward()
            optimizer.step()
        self.generator = {name: t.detach() for name, t in below(p, "guesser.").items()}
        rng = torch.Generator().manual_seed(self.seed(number, "noise"))
        self.e = self.mean(self.guess(self.generator, self.a, self.x, rng)[1])

    def objective(
        self, p: Named, shown: list[int], hidden: set[int], protos: list[Tensor], rng: torch.Generator
    ) -> Tensor:
        options, a, x = self.options, self.a[shown][:, shown], self.x[shown]
        missing, made = self.guess(below(p, "guesser."), a, x, rng)
        places = len(shown) * options["most_neighbours"]
        degree = feature = label = across = torch.zeros(())
        for place, v in enumerate(shown):
            lost = [u for u in hidden if self.a[v, u]]
            degree = degree + F.smooth_l1_loss(missing[place], torch.tensor(float(len(lost)))) / len(shown)
            for one in made[place]:
                if lost:
                    feature = (
                        feature + min((one - self.prototypes[self.cluster[u]]).square().mean() for u in lost) / places
                    )
                for of_other in protos:
                    across = across + min((one - c).square().mean() for c in of_other) / places / len(protos)
        train = [v for v in self.train if v in shown]
        if train:
            tables = [dense_operator("mean", a)] * 2
            logits, _ = network(
                "sage", below(p, "classifier.sage."), tables, x, self.mean(made), p["classifier.fusion"]
            )
            label = F.cross_entropy(logits[[shown.index(v) for v in train]], self.view.label[train])
        terms = {"degree": degree, "feature": feature, "label": label, "across": across}
        self.terms.append([float(term.detach()) for term in terms.values()])
        return sum((options[name] * term for name, term in terms.items()), torch.zeros(()))

    def visit(self, number: int, w: Named, fusion: Tensor) -> float:
        """Trains the model and the weights of embeddings; returns the last loss."""
        self.p = leaves({**w, "fusion": fusion})
        optimizer = sgd(self.p.values())
        for t, kept in zip(self.p.values(), self.momentum):
            optimizer.state[t]["momentum_buffer"] = kept
        loss, rng = torch.tensor(torch.nan), np.random.default_rng(self.seed(number, "neighbours"))
        for _ in range(2) if self.train else ():
            tables = self.draw(rng, self.train, "mean" if self.kind == "sage" else "symmetric", 2)
            for t in self.p.values():
                t.grad = torch.zeros_like(t)
            logits, _ = network(self.kind, self.p, tables, self.x, self.e, self.p["fusion"])
            loss = F.cross_entropy(logits[self.train], self.y)
            loss.backward()
            optimizer.step()
            self.momentum = [optimizer.state[t]["momentum_buffer"] for t in self.p.values()]
        return float(loss.detach())

    def counts(self, p: Named, fusion: Tensor, fused: bool = True) -> np.ndarray:
        tables = [dense_operator("mean" if self.kind == "sage" else "symmetric", self.a).float()] * 2
        e = self.e if fused else torch.zeros_like(self.e)
        with torch.no_grad():
            logits, _ = network(self.kind, p, tables, self.x, e, fusion)
        return row_counts(self.view, logits.argmax(1).tolist())


def fresh_generator(person: Person, number: int) -> Named:
    """Draws what a client's generator starts from."""
    torch.manual_seed(person.seed(number, "generator"))
    rng = torch.Generator().manual_seed(person.seed(number, "fusion"))
    options = person.options
    module = DeepGenerator(person.x.shape[1], CLASSES, options["hidden"], options["most_neighbours"], rng)
    # An independent draw of the weights of embeddings.
    torch.testing.assert_close(
        module.classifier.fusion.detach(),
        (torch.rand(
            (options["hidden"] + CLASSES) * options["hidden"],
            generator=torch.Generator().manual_seed(person.seed(number, "fusion")),
        ) * 2 - 1) / options["hidden"] ** 0.5,
    )  # fmt: skip
    return named(module)


def others_of(bank: dict[int, Tensor], client: int, peers: int, rng: torch.Generator) -> list[Tensor]:
    ids = [i for i in sorted(bank) if i != client]
    return [bank[ids[place]] for place in torch.randperm(len(ids), generator=rng)[:peers].tolist()]


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    ("model", "options"),
    [
        ({"name": "sage", "hidden": 7}, {"neighbours": 2, "clusters": 3, "degree": 3.0, "label": 0.5}),
        (
            {"name": "gcn", "hidden": 5, "head": "linear"},
            {"neighbours": 1, "peers": 1, "hide": 0.3, "most_neighbours": 2, "across": 3.0, "feature": 2.0},
        ),
        ({"name": "sage", "hidden": 4, "head": "linear"}, {"neighbours": 0, "across": 0.0, "generator_epochs": 12}),
        ({"name": "gcn", "hidden": 6}, {"hidden": 3, "label": 0.0, "feature": 0.0, "generator_epochs": 12}),
    ],
    ids=["sage", "one peer", "alone", "others alone"],
)
def test_rounds_written_out(start: Start, views: Views, unequal: Keys, model: Any, options: dict[str, Any]) -> None:
    options = {**DEFAULTS, **options}
    algorithm = {"algorithm.name": "feddep", **{f"algorithm.{name}": value for name, value in options.items()}}
    server = start({**unequal, **algorithm, "model": model, "train.dropout": 0.0, "evaluation.every": 1})
    module, width = server.context(1).build("model", 0).module, options["hidden"]
    people = [Person(view, options, model["name"]) for view in views(server)]
    held = server.state.server
    w, fusion, encoder = named(module, server._initial), held["fusion"], held["encoder"]
    start_of_encoders = named(Encoder(people[0].x.shape[1], CLASSES, width), encoder)
    bank: dict[int, Tensor] = {}
    met, given = set[int](), dict.fromkeys(range(len(people)), (w, fusion))
    for number in range(1, server.plan.rounds + 1):
        line, cohort = server.round(), list(server.cohort(number))
        up = down = 0
        new = [i for i in cohort if i not in met]
        for i in (i for i in new if people[i].train):
            people[i].encode(number, start_of_encoders)
            if options["across"]:
                bank[i] = people[i].prototypes
                up += bank[i].numel()
        down += len(new) * len(encoder)
        rng = torch.Generator().manual_seed(key(0, number, "server", "peers"))
        for i in new:
            protos = others_of(bank, i, options["peers"], rng)
            down += sum(len(of_other) * width + 1 for of_other in protos)
            if people[i].train:
                people[i].generate(number, fresh_generator(people[i], number), protos)
        met |= set(new)
        losses, total, nodes = {}, torch.zeros(()), 0
        for i in cohort:
            losses[i] = people[i].visit(number, w, fusion)
            if people[i].train:
                total, nodes = total + people[i].n * flat(people[i].p), nodes + people[i].n
        size = len(flat(w)) + len(fusion)
        up, down = up + len(cohort) * (size + 2), down + len(cohort) * size
        if nodes:
            w, fusion = named(module, (total / nodes)[: -len(fusion)]), (total / nodes)[-len(fusion) :]
        require(server, people, w, fusion, cohort, given)
        require_mean_loss(line, losses, [person.view for person in people])
        assert (line["bytes_up"], line["bytes_down"]) == (4 * up, 4 * down)
        assert server.state.server["met"].nonzero()[:, 0].tolist() == sorted(met)
    terms = np.array([term for person in people for term in person.terms])
    assert (terms.max(0) > 0).tolist() == [True, True, True, options["across"] > 0]
    assert sum(int(person.e.any(1).sum()) for person in people) > 20


def require(
    server: Server, people: list[Person], w: Named, fusion: Tensor, cohort: list[int], given: dict[int, Any]
) -> None:
    """Compares what server and clients have, and scores."""
    held, near = server.state.server, {"rtol": 1e-3, "atol": 1e-5}
    torch.testing.assert_close(held["w"], flat(w), **near)
    torch.testing.assert_close(held["fusion"], fusion, **near)
    for i in held["owners"].unique().tolist():
        torch.testing.assert_close(held["prototypes"][held["owners"] == i], people[i].prototypes, **near)
    counts: dict[str, dict[int, Any]] = {"trained": {}, "global": {}, "deployed": {}}
    for i, person in enumerate(people):
        if i in cohort:
            given[i] = w, fusion
            p = {name: t.detach() for name, t in person.p.items()}
            counts["trained"][i] = person.counts(p, p["fusion"])
        counts["global"][i] = person.counts(w, fusion, fused=False)
        counts["deployed"][i] = person.counts(*given[i])
        kept = server.state.clients.get(i, {})
        assert set(kept) == (KEPT if person.momentum else set())
        if person.momentum:
            torch.testing.assert_close(kept["generator"], flat(person.generator), **near)
            torch.testing.assert_close(kept["fusion.opt.momentum_buffer"], person.momentum[-1], **near)
    for scope, of_clients in counts.items():
        require_counts(server, scope, of_clients)


FEW: dict[str, Any] = {
    "algorithm": {"name": "feddep", "hidden": 4, "encoder_epochs": 2, "generator_epochs": 3, "clusters": 2},
    "model": {"name": "sage", "hidden": 8},
}


def test_a_client_alone_learns_from_itself(start: Start, tmp_path: Any) -> None:
    """Nobody else takes part in the first round; who comes in the second is given what came before."""
    server = start({**FEW, **cohorts_of(tmp_path, [[0], [0, 1], [1]]), "evaluation.every": 1})
    assert np.isfinite(server.round()["loss"])
    assert server.state.server["owners"].unique().tolist() == [0]
    first = server.state.clients[0]["generator"]
    for _ in range(2):
        server.round()
    assert server.state.server["owners"].unique().tolist() == [0, 1]
    assert server.state.server["met"].tolist() == [True, True, *[False] * 4]
    assert torch.equal(server.state.clients[0]["generator"], first)


def test_a_single_client(start: Start) -> None:
    server = start({**FEW, "partition": {"clients": 1, "method": "random"}, "data.store": None})
    assert np.isfinite([server.round()["loss"] for _ in range(2)]).all()


def test_rounds_without_training_nodes_change_nothing(start: Start, unequal: Keys, tmp_path: Any) -> None:
    server = start({**unequal, **cohorts_of(tmp_path, [[5], [5], [0, 5]]), **FEW})
    before = server.state.server
    for _ in range(2):
        assert server.round()["loss"] is None
    for name, t in server.state.server.items():
        assert torch.equal(t, before[name]) or name == "met", name
    assert not server.state.clients.get(5)
    assert np.isfinite(server.round()["loss"])


def test_inductive_run_generates_for_all_nodes(start: Start, unequal: Keys, views: Views) -> None:
    """By the generator that learnt on training nodes."""
    options = {**DEFAULTS, "generator_epochs": 12, "degree": 3.0}
    algorithm = {"algorithm.name": "feddep", **{f"algorithm.{name}": value for name, value in options.items()}}
    keys = {**unequal, **algorithm, "model": {"name": "sage", "hidden": 7}, "data.inductive": True, "rounds": 2}
    server = start({name: value for name, value in keys.items() if name != "participation.trace"})
    for _ in range(2):
        server.round()
    w, generated = named(server.context(1).build("model", 0).module, server.state.server["w"]), 0
    for view in views(server):
        person, kept = Person(view, options, "sage"), server.state.clients.get(view.client, {})
        if "generator" in kept:
            start_of = below(fresh_generator(person, 1), "guesser.")
            parts = kept["generator"].split([t.numel() for t in start_of.values()])
            p = {name: part.view(t.shape) for (name, t), part in zip(start_of.items(), parts)}
            person.e = person.mean(
                person.guess(p, person.a, person.x, torch.Generator().manual_seed(int(kept["noise"])))[1]
            )
            generated += int(person.e.any(1).sum())
        expected = person.counts(w, server.state.server["fusion"])
        np.testing.assert_array_equal(server.state.scores["deployed"][view.client], expected)
    assert generated > 20


def test_losses_by_hand() -> None:
    """Three nodes with two places each; prototypes 0, 1 and 3 in one dimension."""
    made = torch.tensor([[[0.5], [2.0]], [[1.0], [0.0]], [[0.9], [0.8]]])
    count, protos = torch.tensor([2, 1, 2]), torch.tensor([[0.0], [1.0], [3.0]])
    lost = torch.tensor([[True, False, True], [False, True, False], [False, False, False]])
    # 0.5 is nearest to 0, and 2 to 3; 1 is a prototype; the third node lost none.
    torch.testing.assert_close(own_loss(made, count, protos, lost), torch.tensor((0.25 + 1.0 + 0.0) / 6))
    alone = (0.25 + 1.0 + 0.0 + 0.01 + 0.04) / 6
    far = (2.5**2 + 1.0 + 4.0 + 2.1**2 + 2.2**2) / 6
    torch.testing.assert_close(others_loss(made, count, [protos]), torch.tensor(alone))
    torch.testing.assert_close(others_loss(made, count, [protos, protos[2:]]), torch.tensor((alone + far) / 2))
    assert others_loss(made, count, []).item() == 0


def test_equal_embeddings_have_one_prototype() -> None:
    proto, found = summarise(torch.ones(4, 3), 5, 0)
    assert proto.tolist() == [[1.0] * 3]
    assert found.tolist() == [0] * 4
    proto, found = summarise(torch.tensor([[0.0], [0.2], [5.0]]), 2, 0)
    torch.testing.assert_close(proto[found][:, 0], torch.tensor([0.1, 0.1, 5.0]))


@pytest.mark.parametrize("head", ["linear", "conv"])
@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_nodes_without_embeddings_answer_as_they_are(make_view: MakeView, name: str, head: str) -> None:
    """All of them, or some, drawn or not; one has no neighbour."""
    view = make_view(5, [(0, 1), (1, 2), (2, 3)], [0, 1, 0, 1, 0], [0, 2, 4], 2)
    module = build(name, view.features, 2, 0, 0.0, {"hidden": 6, "head": head}).eval()
    fusion = torch.randn((6 + (2 if head == "conv" else 6)) * 3)
    plain = FusedNodes(view, torch.zeros(5, 3), fusion, module)
    rng = np.random.default_rng(0)
    with torch.no_grad():
        whole = module(plain.all()).logits_NC
        torch.testing.assert_close(module(plain.drawn(0, rng)).logits_NC, whole[view.train])
        torch.testing.assert_close(module(plain.part("train")).logits_NC, whole[view.train])
        fused = FusedNodes(view, torch.ones(5, 3), fusion, module)
        assert not torch.isclose(module(fused.all()).logits_NC, whole).any()
        torch.testing.assert_close(module(fused.drawn(9, rng)).logits_NC, module(fused.part("train")).logits_NC)
