"""Coupled backbones in the trainer, on clients and in whole rounds; decoupled ones are tested with the trainer."""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import Client, ClientModel, FlatModel, random_of
from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, all_nodes, sampled
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import key
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer, batches
from shoal.engine.rounds.server import Server
from shoal.storage.store.view import View

MakeClient = Callable[..., Client]
NAMES = ("gcn", "sage", "gat", "gin", "gcnii", "transformer")
every_backbone = pytest.mark.parametrize("name", NAMES)


def module(name: str, dropout: float = 0.5, **options: Any) -> nn.Module:
    torch.manual_seed(1)
    return build(name, 4, 3, 0, dropout, {"hidden": 8, **options})


@pytest.fixture
def view(make_view: Callable[..., View]) -> View:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 4)).astype(np.float32)
    edges = np.argwhere(np.triu(rng.random((20, 20)) < 0.2, 1))
    return make_view(20, edges, rng.integers(3, size=20), range(0, 20, 2), 3, x)


@every_backbone
@pytest.mark.parametrize("batch_size", [None, 4])
def test_equals_a_plain_loop(name: str, batch_size: int | None, view: View, make_client: MakeClient) -> None:
    client = make_client(view, module(name))
    twin = copy.deepcopy(client.model.module)
    LocalTrainer(
        {MODEL: client.model.flat}, TrainOptions(3, "adam", 0.02, 0.01, batch_size=batch_size), Algorithm()
    ).fit(client, {})
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.02, weight_decay=0.01)
    torch.manual_seed(key(0, 1, 0, "train"))
    for _ in range(3):
        order = torch.randperm(10) if batch_size else torch.arange(10)
        for rows in view.train[order].split(batch_size or 10):
            optimizer.zero_grad()
            out = twin(all_nodes(view, twin.operator, 2)._replace(rows=rows))
            F.cross_entropy(out.logits_NC, view.label[rows]).backward()
            optimizer.step()
    expected = nn.utils.parameters_to_vector(twin.parameters())
    torch.testing.assert_close(client.model.w, expected.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["sage", "gat"])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_step_reads_neighbours_drawn_for_its_rows(
    name: str, batch_size: int | None, view: View, make_client: MakeClient
) -> None:
    """A plain loop over the same draws: every step its own, the last layer's fanout first."""
    client = make_client(view, module(name, fanouts=[1, 2]))
    twin = copy.deepcopy(client.model.module).train()
    settings = TrainOptions(2, "adam", 0.02, 0.01, batch_size=batch_size)
    LocalTrainer({MODEL: client.model.flat}, settings, Algorithm()).fit(client, {})
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.02, weight_decay=0.01)
    rng = np.random.default_rng(key(0, 1, 0, "neighbours"))
    torch.manual_seed(key(0, 1, 0, "train"))
    for _ in range(2):
        order = torch.randperm(10) if batch_size else torch.arange(10)
        for rows in view.train[order].split(batch_size or 10):
            optimizer.zero_grad()
            out = twin(sampled(view, twin.operator, [1, 2], rows, rng))
            F.cross_entropy(out.logits_NC, view.label[rows]).backward()
            optimizer.step()
    expected = nn.utils.parameters_to_vector(twin.parameters())
    torch.testing.assert_close(client.model.w, expected.detach(), rtol=1e-4, atol=1e-5)


def test_every_named_model_reads_what_it_needs(view: View, make_client: MakeClient) -> None:
    own = make_client(view, module("gcn"))
    models = {MODEL: own.model}
    for name, made in (("rows", build("mlp", 4, 3, 0, 0.0, {})), ("drawn", module("sage", fanouts=[1, 2]))):
        models[name] = ClientModel(FlatModel(made), view, random_of(own.random, name))
    client = Client(own.info, view, models, {}, {}, own.random)
    places = torch.tensor([3, 0])
    rows = view.train[places]
    whole = batches(client)
    for asked, expected in ((places, rows), (None, view.train)):
        around = whole(asked)
        assert isinstance(around, Neighbourhood)
        assert around.rows is not None
        assert torch.equal(around.rows, expected)
        assert len(around.x_NF) == view.nodes
        (hop,) = batches(client, "rows")(asked)
        assert torch.equal(hop, view.x[expected])
    drawn = batches(client, "drawn")
    rng = np.random.default_rng(key(0, 1, 0, "drawn/neighbours"))
    for asked, expected in ((places, rows), (None, view.train)):
        around, truth = drawn(asked), sampled(view, "mean", [1, 2], expected, rng)
        assert torch.equal(around.x_NF, truth.x_NF)
        for a, b in zip(around.operators, truth.operators, strict=True):
            assert torch.equal(a.to_dense(), b.to_dense())


@every_backbone
@pytest.mark.parametrize("batch_size", [None, 4])
def test_drawing_all_neighbours_trains_like_the_whole_graph(
    name: str, batch_size: int | None, view: View, make_client: MakeClient
) -> None:
    trained = []
    for fanouts in (None, [-1, 50]):
        client = make_client(view, module(name, dropout=0.0, fanouts=fanouts))
        options = TrainOptions(3, "sgd", 0.05, batch_size=batch_size)
        loss = LocalTrainer({MODEL: client.model.flat}, options, Algorithm()).fit(client, {})
        trained.append((client.model.w.clone(), torch.tensor(loss)))
    for a, b in zip(*trained):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@every_backbone
@pytest.mark.parametrize("fanouts", [None, [2, 2]])
def test_the_same_seed_gives_the_same_bits(
    name: str, fanouts: list[int] | None, view: View, make_client: MakeClient
) -> None:
    def bits(round_number: int) -> Tensor:
        client = make_client(view, module(name, dropout=0.0, fanouts=fanouts), round_number)
        LocalTrainer({MODEL: client.model.flat}, TrainOptions(4), Algorithm()).fit(client, {})
        return torch.cat([client.model.w, client.model.logits().flatten()])

    assert torch.equal(bits(1), bits(1))
    # Another round draws other neighbours; nothing else is random here.
    assert torch.equal(bits(1), bits(2)) == (fanouts is None)


@every_backbone
def test_parts_are_rows_of_the_whole_graph(name: str, view: View, make_client: MakeClient) -> None:
    client = make_client(view, module(name, fanouts=[1, 1]))
    client.model.module.train()
    alone = client.model.logits_of("test")
    everything = client.model.module.eval()(all_nodes(view, client.model.module.operator, 2))
    assert torch.equal(client.model.logits(), everything.logits_NC)
    assert torch.equal(alone, everything.logits_NC[view.test])
    embedding = client.model.output(client.model.gathered("train")).embedding_NH
    assert torch.equal(embedding, everything.embedding_NH[view.train])
    client.model.load(client.model.w * 0)
    assert torch.equal(client.model.logits_of("test"), torch.zeros_like(alone))


@pytest.mark.exhaustive
@every_backbone
@pytest.mark.parametrize("method", ["local", "global", "fedavg", "fedgta"])
def test_any_method_learns_with_any_backbone(start: Callable[..., Server], name: str, method: str) -> None:
    keys = {"rounds": 10, "evaluation.every": 10, "train.dropout": 0.2}
    server = start({**keys, "model.name": name, "algorithm.name": method})
    lines = [server.round() for _ in range(10)]
    assert lines[-1]["loss"] < 0.85 * lines[0]["loss"]
    counts = np.sum(list(server.state.scores["served"].values()), axis=0)
    # The labels in use are three, and skewed: chance is a third.
    assert counts[:, 2].sum() > 0.4 * counts[:, 0].sum()


@pytest.mark.parametrize("fanouts", [[3, 3], None])
def test_any_cells_give_the_same_numbers(run: Callable[..., Server], fanouts: list[int] | None) -> None:
    train = partial(run, rounds=3)
    keys = {"model.name": "gat", "model.fanouts": fanouts, "train.batch_size": 4, "algorithm.name": "local"}
    one, other = (train({**keys, "engine.cell_size": size}) for size in (1, 4))
    for client, state in one.state.clients.items():
        assert all(torch.equal(t, other.state.clients[client][name]) for name, t in state.items())
