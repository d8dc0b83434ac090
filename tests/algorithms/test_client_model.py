from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import MakeClient, MakeView, Views
from torch import Tensor

from shoal.algorithms import client as module_under_test
from shoal.algorithms.client import Client, ClientInfo, ClientModel, FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, all_nodes, sample_neighbourhood
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import key
from shoal.storage.graph.rows import CsrRows
from shoal.storage.shards.view import View


@pytest.fixture
def client(views: Views) -> Client:
    view = views()[0]
    torch.manual_seed(0)
    module = build("gamlp", 5, 4, 2, 0.5, {"hidden": 8})
    model = ClientModel(FlatModel(module), view, hash)
    return Client(ClientInfo(0, view.nodes, len(view.train), 4), view, {MODEL: model}, {}, {}, hash)


def test_logits_are_those_of_the_module_without_dropout(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.model.module.train()
    whole = client.model.logits()
    client.model.module.eval()
    with torch.no_grad():
        expected = client.model.module([client.data.hop(k) for k in range(3)]).logits_NC
    assert torch.equal(whole, expected)
    monkeypatch.setattr(module_under_test, "ROWS_AT_A_TIME", 7)
    client.model.drop_logits()
    torch.testing.assert_close(client.model.logits(), expected)


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_logits_of_a_part_are_rows_of_all(client: Client, part: str) -> None:
    alone = client.model.logits_of(part)
    torch.testing.assert_close(alone, client.model.logits()[getattr(client.data, part)])
    torch.testing.assert_close(client.model.logits_of(part), alone)


COUPLED = ("gcn", "sage", "gat", "gin", "gcnii")


def make_coupled(name: str, dropout: float = 0.5, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return build(name, 4, 3, 0, dropout, {"hidden": 8, **options})


@pytest.fixture
def graph(make_view: MakeView) -> View:
    rng = np.random.default_rng(0)
    edges = np.argwhere(np.triu(rng.random((20, 20)) < 0.3, 1))
    x = rng.standard_normal((20, 4)).astype(np.float32)
    return make_view(20, edges, rng.integers(3, size=20), range(0, 20, 3), 3, x)


@pytest.mark.parametrize("as_sparse", [False, True])
@pytest.mark.parametrize(("name", "head"), [*product(COUPLED, ["linear", "conv"]), ("transformer", None)])
def test_training_rows_depend_on_their_neighbourhood_alone(
    name: str, head: str | None, as_sparse: bool, make_view: MakeView
) -> None:
    """A path of thirty nodes, two of which are trained on: output and gradients are those of the whole graph."""
    edges = np.stack([np.arange(29), np.arange(1, 30)], 1)
    x = np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32)
    rows = CsrRows(np.arange(0, 121, 4, np.int32), np.tile(np.arange(4, dtype=np.int32), 30), x.flatten(), 4)
    view = make_view(30, edges, [0, 1, 2] * 10, [20, 4], 3, rows if as_sparse else x)
    options = {} if head is None else {"head": head}
    model = ClientModel(FlatModel(make_coupled(name, 0.0, layers=3, **options), sparse=as_sparse), view, hash)
    assert model.coupled is not None
    field, whole = model.gathered("train"), all_nodes(view, model.coupled.operator, model.coupled.depth)
    found = []
    for inputs, rows in ((field, slice(None)), (whole, view.train)):
        out = model(inputs)
        model.flat.w.grad.zero_()  # type: ignore[union-attr]
        (out.logits_NC[rows].square().sum() + out.embedding_NH[rows].exp().sum()).backward()
        found.append((out.logits_NC[rows], out.embedding_NH[rows], model.flat.w.grad.clone()))  # type: ignore[union-attr]
    for own, other in zip(*found):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)
    assert isinstance(field, Neighbourhood)
    assert [len(field.x_NF), *map(len, field.operators)] == [14, 10, 6, 2]


@pytest.mark.parametrize("how", ["borrow", "take"])
def test_parameters_are_copied_into_the_host_s_model_when_it_is_used(how: str, client: Client) -> None:
    model, pattern = client.model, client.model.pattern
    before, received = model.snapshot(), torch.full_like(model.w, 0.5)
    logits = model.logits()
    getattr(model, how)(received)
    assert model.received
    assert model.snapshot() is received
    assert torch.equal(pattern.w, before)
    # Of two that wait, each has its own.
    other = ClientModel(pattern, client.data, hash, before)
    assert not other.received
    assert torch.equal(other.logits(), logits)
    assert torch.equal(pattern.w, before)
    assert not torch.equal(model.logits(), logits)
    assert torch.equal(pattern.w, received)
    model.w.zero_()
    assert torch.equal(received, torch.full_like(received, 0.5))
    kept = model.snapshot()
    model.w.fill_(2.0)
    assert not kept.any()


@pytest.mark.parametrize("how", ["borrow", "take", "load"])
def test_parameters_of_half_the_bytes_are_widened(how: str, client: Client) -> None:
    """Also where nobody has the host's model hold them: clients that are trained in one batch."""
    half = torch.randn(len(client.model.w)).half()
    getattr(client.model, how)(half)
    assert torch.equal(client.model.snapshot(), half.float())
    assert torch.equal(client.model.w, half.float())
    begun = ClientModel(client.model.pattern, client.data, hash, half)
    assert begun.snapshot().dtype == torch.float32


def test_what_is_written_to_parameters_is_kept(client: Client) -> None:
    """Borrowed ones stay as they are; those that were taken are the client's own."""
    model = client.model
    lent, own = torch.ones_like(model.w), torch.ones_like(model.w)
    model.borrow(lent)
    model.w.add_(1.0)
    assert torch.equal(lent, torch.ones_like(lent))
    assert (model.flat.w == 2.0).all()
    model.take(own)
    assert model.w is own
    model.w.add_(2.0)
    assert (model.flat.w == 3.0).all()


def test_the_last_parameters_count(client: Client) -> None:
    model = client.model
    one, two = torch.ones_like(model.w), torch.full_like(model.w, 2.0)
    model.borrow(one)
    model.load(two)
    assert torch.equal(model.flat.w, two)
    model.borrow(two)
    model.take(one)
    assert torch.equal(model.flat.w, one)
    for put in (model.borrow, model.take, model.load):
        with pytest.raises(ValueError, match=r"^parameters of shape \[3\], the model has"):
            put(torch.ones(3))
    with pytest.raises(ValueError, match=r"^parameters of shape \[3\], the model has"):
        ClientModel(model.pattern, client.data, hash, torch.ones(3))
    assert torch.equal(model.flat.w, one)


def test_a_call_is_in_the_present_mode_and_has_gradients(client: Client) -> None:
    model = client.model
    inputs = model.gathered("train")
    for training in (True, False):
        model.module.train(training)
        torch.manual_seed(3)
        expected = model.module(inputs).logits_NC
        torch.manual_seed(3)
        found = model(inputs).logits_NC
        assert found.requires_grad
        assert torch.equal(found, expected)
        assert model.module.training == training
    model.module.train()
    assert not torch.equal(model(inputs).logits_NC, model(inputs).logits_NC)
    for out in (model.output(inputs), *model.outputs()):
        assert not out.logits_NC.requires_grad
    model.module.train()
    assert torch.equal(model.output(inputs).logits_NC, model.output(inputs).logits_NC)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_float32_rows_are_read_where_they_lie(dtype: type, make_view: MakeView, make_client: MakeClient) -> None:
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(dtype)
    client = make_client(make_view(5, [], [0] * 5, range(5), 2, x), build("mlp", 4, 2, 0, 0.0, {}))
    (rows,) = client.model.gathered("train")
    assert isinstance(rows, Tensor)
    assert (rows.data_ptr() == client.data.x.data_ptr()) == (dtype is np.float32)
    assert torch.equal(rows, torch.from_numpy(x).float())


@pytest.mark.parametrize("name", ["mlp", "gcn"])
def test_a_part_is_answered_from_its_rows_or_one_pass_for_all(name: str, graph: View, make_client: MakeClient) -> None:
    client = make_client(graph, make_coupled(name))
    answered: list[int] = []
    client.model.module.register_forward_hook(lambda module, inputs, out: answered.append(len(out.logits_NC)))
    for part in ("test", "train", "test"):
        client.model.logits_of(part)
    assert answered == ([len(graph.test), len(graph.train), len(graph.test)] if name == "mlp" else [graph.nodes])


@pytest.mark.parametrize("name", ["mlp", "gcn", "gat", "gin"])
def test_forward_has_gradients_and_the_present_mode(name: str, graph: View, make_client: MakeClient) -> None:
    client = make_client(graph, make_coupled(name))
    rows = torch.tensor([4, 19, 0])
    step = client.model.forward(rows)
    module = client.model.module
    coupled = client.model.coupled
    inputs = [graph.x] if coupled is None else all_nodes(graph, coupled.operator, 2)
    module.eval()
    expected = module(inputs).logits_NC[rows]
    found = step().logits_NC
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    assert client.model.flat.w.grad is not None
    assert client.model.flat.w.grad.any()
    module.train()
    assert not torch.equal(step().logits_NC, step().logits_NC)


@pytest.mark.parametrize("fanouts", [[1, 2], [2, 1]])
def test_forward_draws_once_from_a_stream_of_its_own(fanouts: list[int], graph: View, make_client: MakeClient) -> None:
    rows = torch.tensor([4, 19, 0])

    def step(round_number: int = 1) -> Tensor:
        client = make_client(graph, make_coupled("gin", dropout=0.0, fanouts=fanouts), round_number)
        forward = client.model.forward(rows)
        first = forward().logits_NC
        assert torch.equal(first, forward().logits_NC)
        return first

    assert torch.equal(step(), step())
    assert not torch.equal(step(), step(2))
    rng = np.random.default_rng(partial(key, 0, 1, 0)("neighbours of some rows"))
    around = sample_neighbourhood(graph, "sum", fanouts, rows, rng)
    torch.testing.assert_close(step(), make_coupled("gin", dropout=0.0, fanouts=fanouts)(around).logits_NC)


def client_of(view: View, name: str, make_client: MakeClient, **options: Any) -> Client:
    torch.manual_seed(0)
    client = make_client(view, build(name, 3, 2, 2, 0.0, {"hidden": 8, **options}))
    client.model.module.eval()
    return client


@pytest.mark.parametrize("name", COUPLED)
def test_alike_are_pairs_of_the_same_features(name: str, make_view: MakeView, make_client: MakeClient) -> None:
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    view = make_view(8, [(i, i + 4) for i in range(4)], [0] * 8, [0], 2, np.concatenate([x, x]))
    client = client_of(view, name, make_client)
    expected = client.model.logits()
    torch.testing.assert_close(client.model(client.model.standalone(torch.from_numpy(x))).logits_NC, expected[:4])
