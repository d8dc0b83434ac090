"""Rounds of methods written out: a federation whose classes come and go, and clients trained by plain torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import CountsOf, MakeClient, MakeView, ModuleOf, Views
from support.plain_clients import DECAY, EPOCHS, LR, PlainClient
from support.user_graph import write_arrays
from support.written_rounds import cohorts_of
from torch import Tensor, nn

from shoal.algorithms.client import Client, ClientInfo, ClientModel, FlatModel
from shoal.algorithms.context import Context
from shoal.algorithms.models.build import build
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import key, random_of
from shoal.algorithms.train_options import TrainOptions
from shoal.engine.rounds.server import Server
from shoal.storage.options.split_codes import TEST, TRAIN, VAL

# Labels of the training rows of every client. Client 3 has none; class 3 has one, at client 5.
TRAINED = [[0, 0, 0, 1, 1], [1, 2, 2, 2, 2, 1, 2], [0, 0, 0], [], [2, 2, 0, 2], [3, 1]]
# Round 3 has class 0 only and round 4 none, round 5 no newcomer; client 5 and class 3 come in round 6.
ONLINE = [[0, 2], [1, 4], [2], [3], [2, 4], [0, 3, 5], [0, 1, 2, 5]]
# Options of the copilot, which is an SGC.
OPTIONS = {"layers": 2, "hidden": 6}


def context(clients: int, classes: int) -> Context:
    """What a server is told in round 1 of 2, as far as methods of prototypes ask."""
    infos = [ClientInfo(i, 5, 3, classes) for i in range(clients)]
    return Context(
        clients=infos,
        scored=infos,
        classes=classes,
        features=2,
        hops=0,
        train=TrainOptions(),
        models={},
        initial=torch.zeros(1),
        build=lambda name, number: pytest.fail("no model is asked for"),
        device=torch.device("cpu"),
        round=1,
        rounds=2,
        seed=0,
        random=lambda purpose: 1,
    )


@pytest.fixture(scope="session")
def patchy(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """Keys of a config for seven rounds on six clients of 14 nodes; half of all activations are dropped."""
    folder = tmp_path_factory.mktemp("patchy")
    rng = np.random.default_rng(5)
    rest = [rng.integers(4, size=14 - len(labels)) for labels in TRAINED]
    y = np.concatenate([[*labels, *others] for labels, others in zip(TRAINED, rest)]).astype(np.int64)
    split = np.concatenate(
        [[TRAIN] * len(labels) + [VAL] * 3 + [TEST] * (11 - len(labels)) for labels in TRAINED]
    ).astype(np.int8)
    nodes = np.arange(len(y))
    arrays = {
        "x": (np.eye(4, 5)[y] + 0.7 * rng.standard_normal((len(y), 5))).astype(np.float32),
        "y": y,
        "split": split,
        "assignment": nodes // 14,
        "edge_index": np.stack([nodes, np.roll(nodes, 1)]),
    }
    return {
        "data.path": str(write_arrays(folder / "graph", **arrays)),
        "data.store": str(folder / "store"),
        **cohorts_of(folder, ONLINE),
        "model.name": "mlp",
        "train.dropout": 0.5,
        "train.epochs": EPOCHS,
        "train.lr": LR,
        "train.weight_decay": DECAY,
        "engine.cell_size": 2,
    }


@dataclass
class PlainAverage:
    """FedAvg's part of a round, on plain clients; `previous` is what each had when it last trained."""

    clients: list[PlainClient]
    w: Tensor
    weight: str = "nodes"
    previous: dict[int, Tensor] = field(default_factory=dict)

    def round(
        self, number: int, cohort: list[int], loss: Callable[[nn.Module, Output, Tensor], Tensor], batch: int = 100
    ) -> None:
        """Trains a cohort on `loss(module, output, labels)` and moves w; it stays if nobody trained."""
        total, count = torch.zeros_like(self.w), 0
        for client in (self.clients[i] for i in cohort):
            client.load(self.w)
            client.train(number, partial(loss, client.module), batch)
            n = {"nodes": 14, "train": len(client.y), "uniform": 1}[self.weight] * (len(client.y) > 0)
            total, count = total + n * client.w, count + n
            self.previous |= {client.number: client.w} if len(client.y) else {}
        self.w = total / count if count else self.w

    def require_previous(self, server: Server) -> None:
        """Asserts that clients keep what they had, and no others do."""
        kept = {i: tree["previous"] for i, tree in server.state.clients.items() if "previous" in tree}
        assert kept.keys() == self.previous.keys()
        for i, w in self.previous.items():
            torch.testing.assert_close(kept[i], w, rtol=1e-3, atol=1e-4)


@dataclass
class PlainPair(PlainClient):
    """A client with a copilot: two modules, Adam on each, a stream of random numbers for each."""

    copilot: nn.Module

    def __post_init__(self) -> None:
        super().__post_init__()
        self.modules = {"model": self.module, "copilot": self.copilot}
        self.optimizers = {"model": self.optimizer, "copilot": self.make_optimizer(self.copilot.parameters())}

    @property
    def copilot_w(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.copilot.parameters()).detach()

    def receive(self, w: Tensor) -> None:
        nn.utils.vector_to_parameters(w.clone(), self.copilot.parameters())

    def train(  # type: ignore[override]
        self,
        round_number: int,
        rows: str,
        losses: Callable[[dict[str, Output]], dict[str, Tensor]],
        before_steps: Callable[[dict[str, Tensor]], None] = lambda losses: None,
    ) -> None:
        """Each model descends on its own of the `losses`, on rows `train` or `all`; all gradients before any step."""
        streams = {}
        for name, purpose in (("model", "train"), ("copilot", "copilot/train")):
            torch.manual_seed(key(0, round_number, self.number, purpose))
            streams[name] = torch.get_rng_state()
        chosen = self.view.train if rows == "train" else torch.arange(self.view.nodes)
        for _ in range(EPOCHS):
            out = {}
            for name, module in self.modules.items():
                torch.set_rng_state(streams[name])
                out[name] = module.train()([self.view.hop(k)[chosen] for k in module.inputs])
                streams[name] = torch.get_rng_state()
            values = losses(out)
            before_steps(values)
            for name, loss in values.items():
                parameters = list(self.modules[name].parameters())
                for p, gradient in zip(parameters, torch.autograd.grad(loss, parameters, retain_graph=True)):
                    p.grad = gradient
            for name in values:
                self.optimizers[name].step()


@pytest.fixture(scope="session")
def plain_pairs(views: Views, module_of: ModuleOf) -> Callable[[Server], list[PlainPair]]:
    """The clients, each with its copilot, of a server before its first round."""

    def plain_pairs(server: Server) -> list[PlainPair]:
        pairs = []
        for number, view in enumerate(views(server)):
            copilot = build("sgc", view.features, view.classes, server.job.hops, server.job.train.dropout, OPTIONS)
            pairs.append(PlainPair(number, view, module_of(server, server._initial), copilot))
        return pairs

    return plain_pairs


@pytest.fixture(scope="session")
def pair_of_tables(make_view: MakeView, make_client: MakeClient) -> Callable[..., Client]:
    """A client of three nodes whose own model and copilot give node i the i-th row of a table of probabilities.

    Their embeddings are the features, which are rows of the identity. Labels are 1, 0, 0.
    """

    def pair_of_tables(train: list[int], own_NC: Tensor, copilot_NC: Tensor) -> Client:
        view = make_view(3, [], [1, 0, 0], train, 3)
        client = make_client(view, build("sgc", 3, 3, 0, 0.0, {"layers": 1}))
        flat = FlatModel(build("sgc", 3, 3, 0, 0.0, {"layers": 1}))
        copilot = ClientModel(flat, view, random_of(client.random, "copilot"))
        for model, p_NC in ((client.model, own_NC), (copilot, copilot_NC)):
            model.load(torch.cat([p_NC.log().t().flatten(), torch.zeros(3)]))
        return Client(client.info, view, {MODEL: client.model, "copilot": copilot}, {}, {}, client.random)

    return pair_of_tables


@pytest.fixture(scope="session")
def with_copilots(patchy: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keys of the same rounds for a method whose clients have copilots."""
    return {**patchy, "model.hidden": 8, "algorithm.copilot": {"name": "sgc", **OPTIONS}}


@pytest.fixture(scope="session")
def plain_clients(views: Views, module_of: ModuleOf) -> Callable[[Server], list[PlainClient]]:
    """The clients of a server before its first round."""

    def plain_clients(server: Server) -> list[PlainClient]:
        start = partial(module_of, server, server._initial)
        return [PlainClient(number, view, start()) for number, view in enumerate(views(server))]

    return plain_clients


@pytest.fixture(scope="session")
def make_context() -> Callable[..., Context]:
    """Gives `context`."""
    return context


@pytest.fixture(scope="session")
def plain_average(plain_clients: Callable[[Server], list[PlainClient]]) -> Callable[..., PlainAverage]:
    """FedAvg, by some weights, of a server before its first round."""

    def plain_average(server: Server, weight: str = "nodes") -> PlainAverage:
        return PlainAverage(plain_clients(server), server._initial, weight)

    return plain_average


@pytest.fixture(scope="session")
def assert_averaged(counts_of: CountsOf) -> Callable[[Server, PlainAverage], None]:
    """Asserts that a server has the parameters of FedAvg written out, and that everybody was scored with them."""

    def assert_averaged(server: Server, plain: PlainAverage) -> None:
        w = server.state.server["w"]
        torch.testing.assert_close(w, plain.w, rtol=1e-3, atol=1e-4)
        for i, client in enumerate(plain.clients):
            np.testing.assert_array_equal(server.state.scores["global"][i], counts_of(server, client.view, w))
        assert not any(name == "model.w" for kept in server.state.clients.values() for name in kept)

    return assert_averaged


@pytest.fixture(scope="session")
def assert_holds(counts_of: CountsOf) -> Callable[[Server, list[PlainClient]], None]:
    """Asserts that a server's clients have the parameters of plain ones, and that their classifiers were scored."""

    def assert_holds(server: Server, clients: list[PlainClient]) -> None:
        for i, kept in server.state.clients.items():
            # Adam amplifies rounding, and processors round apart: 2e-5 was seen on one; a wrong term moves far more.
            torch.testing.assert_close(kept["model.w"], clients[i].w, rtol=1e-3, atol=1e-4)
            now = counts_of(server, clients[i].view, kept["model.w"])
            np.testing.assert_array_equal(server.state.scores["deployed"][i], now)

    return assert_holds
