from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.algorithms import client as module_under_test
from shoal.algorithms.client import Client, ClientInfo, ClientModel, FlatModel
from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, all_nodes, sampled
from shoal.algorithms.models.layers.readout import Adapted
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import key
from shoal.storage.store.view import View


@pytest.fixture
def client(views: Callable[..., list[View]]) -> Client:
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
    client.model.changed()
    torch.testing.assert_close(client.model.logits(), expected)


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_logits_of_a_part_are_rows_of_all(client: Client, part: str) -> None:
    alone = client.model.logits_of(part)
    torch.testing.assert_close(alone, client.model.logits()[getattr(client.data, part)])
    torch.testing.assert_close(client.model.logits_of(part), alone)


def test_logits_follow_the_parameters(client: Client) -> None:
    before = client.model.logits()
    client.model.load(client.model.w * 0)
    assert torch.equal(client.model.logits(), torch.zeros_like(before))
    with torch.no_grad():
        client.model.w.add_(0.1)
    client.model.changed()
    assert not torch.equal(client.model.logits(), torch.zeros_like(before))


def test_half_precision_hops_are_widened(make_view: Callable[..., View], make_client: Callable[..., Client]) -> None:
    x = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float16)
    client = make_client(make_view(6, [], [0] * 6, [1, 4], 2, x), build("mlp", 4, 2, 0, 0.0, {}))
    (rows,) = client.model.gathered("train")
    assert torch.equal(rows, torch.from_numpy(x[[1, 4]]).float())
    assert client.model.logits().dtype == torch.float32


MakeView, MakeClient = Callable[..., View], Callable[..., Client]


def make_coupled(name: str, dropout: float = 0.5, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return build(name, 4, 3, 0, dropout, {"hidden": 8, **options})


@pytest.fixture
def graph(make_view: MakeView) -> View:
    rng = np.random.default_rng(0)
    edges = np.argwhere(np.triu(rng.random((20, 20)) < 0.3, 1))
    x = rng.standard_normal((20, 4)).astype(np.float32)
    return make_view(20, edges, rng.integers(3, size=20), range(0, 20, 3), 3, x)


def test_parameters_are_the_host_s(client: Client) -> None:
    model = client.model
    assert not model.w.requires_grad
    assert model.received is False
    model.w.fill_(2.0)
    assert all((p == 2.0).all() for p in model.module.parameters())
    model.load(torch.zeros_like(model.w))
    assert model.received
    assert not any(p.any() for p in model.module.parameters())


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


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_gathered_rows_are_those_of_every_hop_and_kept(client: Client, part: str) -> None:
    rows = getattr(client.data, part)
    inputs = client.model.gathered(part)
    assert len(inputs) == 3
    for k, hop in enumerate(inputs):
        assert isinstance(hop, Tensor)
        assert hop.dtype == torch.float32
        assert hop.is_contiguous()
        assert torch.equal(hop, client.data.hop(k)[rows])
    for again, hop in zip(client.model.gathered(part), inputs):
        assert again is hop


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_all_rows_are_read_where_they_lie_if_they_are_float32(
    dtype: type, make_view: MakeView, make_client: MakeClient
) -> None:
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(dtype)
    client = make_client(make_view(5, [], [0] * 5, range(5), 2, x), build("mlp", 4, 2, 0, 0.0, {}))
    (rows,) = client.model.gathered("train")
    assert isinstance(rows, Tensor)
    assert (rows.data_ptr() == client.data.x.data_ptr()) == (dtype is np.float32)
    assert torch.equal(rows, torch.from_numpy(x).float())


def test_what_logits_of_gives_is_computed_once(client: Client) -> None:
    """After the logits of all rows are known, those of a part are read from them; no row is computed twice."""
    everything = client.model.logits()
    assert client.model.logits() is everything
    everything.fill_(7.0)
    assert (client.model.logits_of("val") == 7.0).all()
    client.model.changed()
    assert not (client.model.logits_of("val") == 7.0).any()


def test_a_pass_over_the_whole_graph_is_not_made_twice(graph: View, make_client: MakeClient) -> None:
    client = make_client(graph, make_coupled("gcn"))
    passes: list[object] = []
    client.model.module.register_forward_hook(lambda *_: passes.append(None))
    (out,) = client.model.outputs()
    assert torch.equal(client.model.logits_of("test"), out.logits_NC[graph.test])
    assert torch.equal(client.model.logits(), out.logits_NC)
    assert len(passes) == 1
    client.model.load(client.model.w * 0)
    assert not torch.equal(client.model.logits(), out.logits_NC)
    assert len(passes) == 2


@pytest.mark.parametrize("inside", [False, True])
def test_a_model_that_passes_messages_is_found_inside_an_adapter(
    inside: bool, graph: View, make_client: MakeClient
) -> None:
    coupled = make_coupled("gcn")
    client = make_client(graph, Adapted(coupled, 3, 3, 0.0) if inside else coupled)
    assert client.model.coupled is coupled
    module = build("mlp", 4, 3, 0, 0.0, {})
    assert make_client(graph, Adapted(module, 3, 3, 0.0) if inside else module).model.coupled is None


@pytest.mark.parametrize("layers", [1, 3])
def test_a_coupled_model_reads_the_whole_graph(layers: int, graph: View, make_client: MakeClient) -> None:
    client = make_client(graph, make_coupled("gcn", layers=layers))
    around = client.model.gathered("test")
    assert isinstance(around, Neighbourhood)
    assert len(around.operators) == layers
    assert around.rows is not None
    assert torch.equal(around.rows, graph.test)
    assert torch.equal(around.x_NF, graph.x)
    expected = client.model.module.eval()(all_nodes(graph, "symmetric", layers)).logits_NC
    assert torch.equal(client.model.logits(), expected)
    assert torch.equal(client.model.module(around).logits_NC, expected[graph.test])


@pytest.mark.parametrize("name", ["mlp", "gcn"])
def test_a_part_is_answered_from_its_rows_or_from_one_pass_for_all(
    name: str, graph: View, make_client: MakeClient
) -> None:
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
    around = sampled(graph, "sum", fanouts, rows, rng)
    assert torch.equal(step(), make_coupled("gin", dropout=0.0, fanouts=fanouts)(around).logits_NC)


@pytest.mark.parametrize(("name", "hops"), [("mlp", 0), ("sgc", 2), ("gamlp", 2)])
def test_alike_nodes_have_their_features_at_every_hop(
    name: str, hops: int, graph: View, make_client: MakeClient
) -> None:
    torch.manual_seed(0)
    client = make_client(graph, build(name, 4, 3, hops, 0.0, {}))
    x_NF = torch.randn(6, 4)
    expected = client.model.module([x_NF] * len(client.model.flat.inputs)).logits_NC
    assert torch.equal(client.model(client.model.standalone(x_NF)).logits_NC, expected)


def test_alike_has_a_matrix_a_layer(graph: View, make_client: MakeClient) -> None:
    around = make_client(graph, make_coupled("gcn", layers=3)).model.standalone(graph.x[:6])
    assert isinstance(around, Neighbourhood)
    assert len(around.operators) == 3
    for operator in around.operators:
        torch.testing.assert_close(operator.to_dense(), torch.eye(6))
