"""GCFL+: when a cluster divides and how, cuts, time warping, and whole rounds against plain torch and networkx."""

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import CountsOf, Keys, MakeContext, PlainClients, Start
from torch import Tensor, nn

from shoal.algorithms.base import Ask, Context, Mix, Replies, Tree
from shoal.algorithms.client import ClientInfo
from shoal.algorithms.methods.gcfl_plus.gcfl_plus import GCFLPlus, minimum_cut, warping_distances

# Norms of the last gradients of five clients: two groups.
NORMS = [1.0, 3.0, 1.0, 3.0, 3.0]
EAGER = {"algorithm.eps1": 9.0, "algorithm.eps2": 0.0, "algorithm.window": 1, "algorithm.warmup": 0}
METHOD = GCFLPlus(eps1=0.5, eps2=2.0, window=2, warmup=3)


def context(make: MakeContext, trained: list[int], round_number: int = 4) -> Context:
    infos = [ClientInfo(i, 5, rows, 3) for i, rows in enumerate(trained)]
    return replace(make(len(trained), 3), clients=infos, round=round_number)


def state(norms: list[float], window: int = 2) -> Tree:
    """One cluster of clients whose series are full and constant, its model being 1, 1."""
    count = len(norms)
    return {
        "models": torch.ones(1, 2),
        "cluster": torch.zeros(count, dtype=torch.int64),
        "norms": torch.tensor(norms)[:, None].repeat(1, window),
        "known": torch.full((count,), window),
    }


def play(method: GCFLPlus, server: Tree, ctx: Context, change: dict[int, Tensor], norms: list[float]) -> list[Ask]:
    """A round in which some clients send a change each; those without training rows send zeros."""
    ids = sorted(change)
    trains = torch.tensor([float(ctx.clients[i].train > 0) for i in ids])
    held = torch.stack([change[i] for i in ids]) * trains[:, None]
    replies = Replies(
        ids,
        {"n": 5 * trains, "moved": held.norm(dim=1), "gradient": torch.tensor([norms[i] for i in ids]) * trains},
        {},
    )
    steps, asks = method.round(server, ctx, ids), []
    step = next(steps)
    try:
        while True:
            if isinstance(step, Ask):
                asks.append(step)
                step = steps.send(replies)
            else:
                assert isinstance(step, Mix)
                assert (step.entry, step.dst) == ("change", None)
                step = steps.send(step.rows @ held)
    except StopIteration:
        return asks


def opposed(count: int, far: float = 4.0) -> dict[int, Tensor]:
    """Changes whose mean is 0.25 in the second direction."""
    signs = [1.0, -1.0] * (count // 2) + [0.0] * (count % 2)
    return {i: torch.tensor([far * sign, 0.25]) for i, sign in enumerate(signs)}


@pytest.mark.parametrize(
    ("options", "changes", "divides"),
    [
        ({}, {}, True),
        ({"warmup": 4}, {}, False),
        # Not smaller, not larger, is not enough.
        ({"eps1": 0.25}, {}, False),
        ({"eps1": 0.2501}, {}, True),
        ({"eps2": float(torch.tensor([4.0, 0.25]).norm())}, {}, False),
        ({"eps2": 16.0625**0.5 - 1e-4}, {}, True),
        ({}, {"known": [2, 2, 2, 2, 0]}, False),
        # With this round's it is full.
        ({}, {"known": [1, 2, 1, 2, 2]}, True),
        ({}, {"trained": [3, 3, 0, 0, 0]}, False),
        ({}, {"trained": [3, 3, 3, 0, 0]}, True),
        ({}, {"norms": [1.0] * 5}, False),
    ],
)
def test_all_conditions_are_needed(make_context: MakeContext, options: Keys, changes: Keys, divides: bool) -> None:
    norms = changes.get("norms", NORMS)
    server = state(norms)
    server["known"] = torch.tensor(changes.get("known", [2] * 5))
    ctx = context(make_context, changes.get("trained", [3] * 5))
    even = {i: torch.tensor([4.0 if i == 0 else -4.0 if i == 1 else 0.0, 0.25]) for i in range(5)}
    play(replace(METHOD, **options), server, ctx, even, norms)
    assert len(server["models"]) == 1 + divides
    assert bool(server["cluster"].any()) == divides


def test_who_is_away_or_does_not_train(make_context: MakeContext) -> None:
    """Client 6, away, follows its series; 5, without training rows, stays with more clients."""
    norms = [*NORMS, 9.0, 1.0]
    server = state(norms)
    server["known"][5] = 0
    ctx = context(make_context, [3, 3, 3, 3, 3, 0, 3])
    change = {i: t for i, t in opposed(6).items() if i != 4}
    play(METHOD, server, ctx, change, norms)
    assert server["cluster"].tolist() == [0, 1, 0, 1, 1, 0, 0]
    # Of three and three the half without client 0 leaves; the new series of 6 begins with its next visit.
    assert server["known"].tolist() == [0] * 7
    assert server["norms"][5].tolist() == [9.0, 9.0]
    # Who comes alone moves its cluster alone, and nobody whose series is short is in the way of others.
    before = server["models"].clone()
    play(METHOD, server, ctx, {6: torch.tensor([1.0, 2.0])}, norms)
    torch.testing.assert_close(server["models"], before + torch.tensor([[1.0, 2.0], [0.0, 0.0]]))
    play(METHOD, server, ctx, {5: torch.tensor([1.0, 2.0])}, norms)
    torch.testing.assert_close(server["models"], before + torch.tensor([[1.0, 2.0], [0.0, 0.0]]))
    assert server["known"].tolist() == [0, 0, 0, 0, 0, 0, 1]


def test_a_single_client(make_context: MakeContext, run: Start, tmp_path: Path) -> None:
    server = state([1.0])
    play(METHOD, server, context(make_context, [3]), {0: torch.tensor([0.0, 0.25])}, [7.0])
    assert server["models"].tolist() == [[1.0, 1.25]]
    assert server["norms"].tolist() == [[1.0, 7.0]]
    one = {"partition.method": "random", "partition.clients": 1, "data.store": str(tmp_path / "store")}
    found = run({**one, "algorithm.name": "gcfl_plus", **EAGER}, rounds=3).state
    assert len(found.server["models"]) == 1
    assert found.server["known"].tolist() == [3]
    assert found.scores["deployed"][0][:, 0].any()


@pytest.mark.parametrize("share", ["body", "all"])
def test_clients_that_start_apart_share_what_is_shared(start: Start, patchy: Keys, recorded: Any, share: str) -> None:
    """All begin with client 0's; classifiers are their own."""
    own = {"algorithm.name": "gcfl_plus", "algorithm.share": share, "model.hidden": 8, "model.init": "own"}
    server = start({**patchy, **own}, pool=recorded.on)
    model = server._built["model"][0].flat
    head = model.classifier
    expected = server._initial
    expected = torch.cat([expected[: head.start], expected[head.stop :]]) if share == "body" else expected
    assert torch.equal(server.state.server["models"], expected[None])
    server.round()
    assert {i: tuple(down) for i, down in recorded.downloads.items()} == {0: ("w",), 2: ("w",)}
    kept = [server.state.clients[i].get("classifier") for i in (0, 2)]
    if share == "all":
        assert kept == [None, None]
    else:
        assert all(t is not None and t.shape == (4 * 9,) for t in kept)
        assert not torch.equal(kept[0], kept[1])


def symmetric(rng: np.random.Generator, count: int, zeros: float = 0.0) -> np.ndarray:
    weight = np.triu(rng.random((count, count)) * (rng.random((count, count)) >= zeros), 1)
    return weight + weight.T


def cut_of(weight: np.ndarray, side: np.ndarray) -> float:
    return float(weight[side][:, ~side].sum())


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("zeros", [0.0, 0.5])
def test_no_division_is_cheaper(count: int, zeros: float) -> None:
    rng = np.random.default_rng(count)
    for _ in range(20):
        weight = symmetric(rng, count, zeros)
        before = weight.copy()
        side = minimum_cut(weight)
        np.testing.assert_array_equal(weight, before)
        assert side.any()
        assert not side[0]
        sides = (np.array([False, *rest]) for rest in product([False, True], repeat=count - 1) if any(rest))
        assert cut_of(weight, side) == pytest.approx(min(cut_of(weight, other) for other in sides), abs=1e-12)


def test_of_two_nodes_one_is_alone() -> None:
    assert minimum_cut(np.array([[0.0, 0.0], [0.0, 0.0]])).sum() == 1
    assert minimum_cut(np.array([[0.0, 3.0], [3.0, 0.0]])).sum() == 1


@pytest.mark.parametrize("length", [1, 2, 4, 5])
def test_warping_distances_are_those_of_the_recursion(length: int) -> None:
    series = np.random.default_rng(length).standard_normal((6, length)).astype(np.float32)
    found = warping_distances(series)
    assert found.dtype == np.float64
    for a, x in enumerate(series.astype(np.float64)):
        for b, y in enumerate(series.astype(np.float64)):
            assert found[a, b] == pytest.approx(distance(x.tolist(), y.tolist()), abs=1e-12)
    np.testing.assert_array_equal(found, found.T)
    assert not found.diagonal().any()


NAME = {"algorithm.name": "gcfl_plus", "model.hidden": 8}
# Client 3 has no training rows.
TRAINS = [0, 1, 2, 4, 5]


def distance(x: list[float], y: list[float]) -> float:
    """Dynamic time warping by its recursion, a number at a time."""
    cost = {(-1, -1): 0.0}
    for i, a in enumerate(x):
        for j, b in enumerate(y):
            before = [cost.get(place, np.inf) for place in ((i - 1, j), (i, j - 1), (i - 1, j - 1))]
            cost[i, j] = (a - b) ** 2 + min(before)
    return float(np.sqrt(cost[len(x) - 1, len(y) - 1]))


@dataclass
class Clusters:
    """The server's part of GCFL+ on plain clients: members, models, and norms of gradients since a division."""

    clients: list[Any]
    options: Keys
    members: list[list[int]] = field(init=False)
    models: list[Tensor] = field(init=False)
    series: dict[int, list[float]] = field(init=False)
    moved: dict[int, float] = field(default_factory=dict)
    means: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.members = [list(range(6))]
        self.models = [self.read(self.clients[0].module)]
        self.series = {i: [] for i in range(6)}

    def parts(self, module: nn.Module) -> list[nn.Parameter]:
        top = module.head.linears[-1]  # type: ignore
        private = [id(p) for p in top.parameters()] if self.options["share"] == "body" else []
        return [p for p in module.parameters() if id(p) not in private]

    def read(self, module: nn.Module) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.parts(module)]).double()

    def write(self, module: nn.Module, w: Tensor) -> None:
        nn.utils.vector_to_parameters(w.float(), self.parts(module))

    def cluster_of(self, client: int) -> int:
        return next(k for k, members in enumerate(self.members) if client in members)

    def weight(self, client: Any) -> float:
        return {"nodes": 14, "train": len(client.y), "uniform": 1}[self.options["weight"]] * float(len(client.y) > 0)

    def round(self, number: int, cohort: list[int]) -> None:
        change = {}
        self.moved = {}
        for i in cohort:
            client = self.clients[i]
            start = self.models[self.cluster_of(i)]
            self.write(client.module, start)
            client.train(number, lambda out, y: F.cross_entropy(out.logits_NC, y))
            if len(client.y):
                change[i] = self.read(client.module) - start.float().double()
                self.moved[i] = float(change[i].norm())
                self.series[i].append(
                    float(sum(p.grad.double().square().sum() for p in self.parts(client.module)) ** 0.5)
                )

        def mean(members: list[int]) -> Tensor:
            here = [i for i in members if i in change]
            total = sum(self.weight(self.clients[i]) for i in here)
            return sum(
                (self.weight(self.clients[i]) / total * change[i] for i in here), torch.zeros_like(self.models[0])
            )

        self.means = [float(mean(members).norm()) for members in self.members]
        for k in range(len(self.members)):
            if number > self.options["warmup"] and self.goes_apart(k):
                self.divide(k)
        self.models = [w + mean(members) for w, members in zip(self.models, self.members)]

    def goes_apart(self, k: int) -> bool:
        counted = [i for i in self.members[k] if i in TRAINS]
        largest = max([self.moved[i] for i in counted if i in self.moved], default=0.0)
        full = all(len(self.series[i]) >= self.options["window"] for i in counted)
        still = self.means[k] < self.options["eps1"]
        return len(counted) > 2 and full and still and largest > self.options["eps2"]

    def divide(self, k: int) -> None:
        counted = sorted(i for i in self.members[k] if i in TRAINS)
        last = {i: self.series[i][-self.options["window"] :] for i in counted}
        apart = {pair: distance(last[pair[0]], last[pair[1]]) for pair in combinations(counted, 2)}
        graph = nx.Graph()
        for (i, j), d in apart.items():
            graph.add_edge(i, j, weight=max(apart.values()) - d)
        _, (one, other) = nx.stoer_wagner(graph)
        _, leaving = sorted((sorted(one), sorted(other)), key=lambda half: (-len(half), half[0]))
        self.members[k] = [i for i in self.members[k] if i not in leaving]
        self.members.append(leaving)
        self.models.append(self.models[k])
        for i in counted:
            self.series[i] = []


OPTIONS = {"weight": "nodes", "share": "body", "eps1": 0.05, "eps2": 0.1, "window": 5, "warmup": 20}
# What divides early, and often, and where all conditions let some rounds pass; whether the trace is followed; and how
# many clusters there are after every round.
CASES: dict[str, tuple[dict[str, Any], bool, list[int]]] = {
    "body": ({"eps1": 9.0, "eps2": 0.0, "window": 2, "warmup": 2}, False, [1, 1, 2, 2, 3, 3, 4]),
    "all, until nobody goes far": (
        {"share": "all", "eps1": 9.0, "eps2": 0.7, "window": 1, "warmup": 1}, False, [1, 2, 2, 2, 2, 2, 2],
    ),
    "train, once all go less far": (
        {"eps1": 0.26, "eps2": 0.0, "window": 3, "warmup": 0, "weight": "train"}, False, [1, 1, 1, 2, 2, 2, 3],
    ),
    "uniform": (
        {"eps1": 9.0, "eps2": 0.0, "window": 2, "warmup": 5, "weight": "uniform"}, False, [1, 1, 1, 1, 1, 2, 2],
    ),
    "away": ({"eps1": 9.0, "eps2": 0.0, "window": 1, "warmup": 0}, True, [1, 1, 1, 1, 1, 2, 2]),
}  # fmt: skip


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("case", CASES)
def test_whole_rounds(start: Start, patchy: Keys, plain_clients: PlainClients, counts_of: CountsOf, case: str) -> None:
    changes, away, expected = CASES[case]
    keys = {**patchy, **NAME, **{f"algorithm.{name}": value for name, value in changes.items()}}
    if not away:
        del keys["participation.trace"]
    server = start(keys)
    options = {**OPTIONS, **changes}
    plain = Clusters(plain_clients(server), options)
    near = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-4)
    deployed: dict[int, Tensor] = {}
    divided = []
    for number in range(1, 8):
        line = server.round()
        cohort = server.cohort(number)
        plain.round(number, cohort)
        state = server.state.server
        assert state["cluster"].tolist() == [plain.cluster_of(i) for i in range(6)]
        divided.append(len(plain.members))
        near(state["models"].double(), torch.stack(plain.models))
        size = len(plain.models[0])
        assert (line["bytes_up"], line["bytes_down"]) == (len(cohort) * 4 * (size + 3), len(cohort) * 4 * size)
        assert line["scopes"].keys() == {"trained", "deployed"}
        assert line["notes"]["clusters"] == len(plain.models)
        assert line["notes"]["least mean change"] == pytest.approx(min(plain.means), rel=1e-3, abs=1e-6)
        assert line["notes"]["largest change"] == pytest.approx(max(plain.moved.values(), default=0), rel=1e-3)
        for i, client in enumerate(plain.clients):
            if i in cohort:
                trained = counts_of(server, client.view, client.w)
                np.testing.assert_array_equal(server.state.scores["trained"][i], trained)
                plain.write(client.module, plain.models[plain.cluster_of(i)])
                deployed[i] = client.w
            now = counts_of(server, client.view, deployed.get(i, client.w))
            np.testing.assert_array_equal(server.state.scores["deployed"][i], now)
            own = {name for name in server.state.clients.get(i, {}) if ".opt." not in name}
            assert own == ({"classifier"} if i in deployed and options["share"] == "body" else set())
            length = options["window"]
            found = state["norms"][i, -min(length, int(state["known"][i])) or length :].tolist()
            assert int(state["known"][i]) == len(plain.series[i])
            if plain.series[i]:
                assert found == pytest.approx(plain.series[i][-length:], rel=1e-3)
    assert divided == expected
