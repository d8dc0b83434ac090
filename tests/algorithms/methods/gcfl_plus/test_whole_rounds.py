"""GCFL+ in whole rounds against plain torch, loops over every pair and path, and the cut of networkx."""

from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import CountsOf, Keys, PlainClients, Start
from torch import Tensor, nn

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
    """The server's part of GCFL+ on plain clients.

    Attributes:
        clients: All of them.
        options: Of the method.
        members: Clients of every cluster; those without training rows come last.
        models: Shared parameters of every cluster, in the order of a module's.
        series: Norms of every client's gradients since its cluster was divided.
    """

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


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("case", CASES)
def test_rounds_written_out(
    start: Start, patchy: Keys, plain_clients: PlainClients, counts_of: CountsOf, case: str
) -> None:
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
        assert line["scopes"].keys() == {"trained", "served"}
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
            np.testing.assert_array_equal(server.state.scores["served"][i], now)
            own = {name for name in server.state.clients.get(i, {}) if ".opt." not in name}
            assert own == ({"classifier"} if i in deployed and options["share"] == "body" else set())
            length = options["window"]
            found = state["norms"][i, -min(length, int(state["known"][i])) or length :].tolist()
            assert int(state["known"][i]) == len(plain.series[i])
            if plain.series[i]:
                assert found == pytest.approx(plain.series[i][-length:], rel=1e-3)
    assert divided == expected


def test_without_a_division_it_is_fedavg(run: Start, patchy: Keys) -> None:
    """Of whole models, to rounding; nobody's series matters."""
    fedavg = run({**patchy, "model.hidden": 8, "engine.trainer": "autograd"})
    server = run({**patchy, **NAME, "algorithm.share": "all"})
    (w,) = server.state.server["models"]
    torch.testing.assert_close(w, fedavg.state.server["w"], rtol=1e-3, atol=1e-5)
    for i, counts in fedavg.state.scores["served"].items():
        np.testing.assert_array_equal(server.state.scores["served"][i], counts)
