"""Compiled passes of models beside the models themselves: outputs, gradients, draws."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.client import FlatModel
from shoal.algorithms.graphs.generated_graph import DrawnOperator
from shoal.algorithms.models.build import build
from shoal.algorithms.models.compiled import passes as module_of_passes
from shoal.algorithms.models.compiled.passes import Passes
from shoal.algorithms.models.inputs.masked_features import AlteredFeatures
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, operator_over
from shoal.algorithms.models.layers.dropout import masks, transform
from shoal.algorithms.models.layers.head import Output
from shoal.storage.graph.sparse_matrix import SparseMatrix

NODES, FEATURES, CLASSES = 37, 11, 3
HEADS = ("linear", "relu", "conv")
MODELS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"head": head}) for name in ("gcn", "sage", "gin", "gcnii") for head in HEADS),
    *(("gat", {"head": head, "heads": 2}) for head in HEADS),
    ("gin", {"norm": "none"}),
    ("transformer", {"heads": 3}),
]
# On three hops.
DECOUPLED: list[tuple[str, dict[str, Any]]] = [
    *((name, {"layers": layers}) for name in ("mlp", "sgc", "s2gc", "gbp") for layers in (1, 3)),
    *(("sign", {"layers": layers}) for layers in (1, 2)),
    *(("gamlp", {"attention": attention}) for attention in ("simple", "gate", "ori_ref", "jk")),
]


def sparse(matrix: np.ndarray) -> SparseMatrix:
    csr = sp.csr_array(matrix.astype(np.float32))
    return SparseMatrix.of(csr.indptr.astype(np.int32), csr.indices.astype(np.int32), csr.data, matrix.shape[1])


def graph_of(model: FlatModel, sparse_features: bool) -> Neighbourhood:
    """A graph whose fifth node has no neighbour and whose eleventh has no feature."""
    rng = np.random.default_rng(2)
    half = np.triu(rng.random((NODES, NODES)) < 0.08, 1)
    half[4] = half[:, 4] = False
    csr = sp.csr_array((half | half.T).astype(np.float32))
    x = rng.standard_normal((NODES, FEATURES)) * (rng.random((NODES, FEATURES)) < 0.4)
    x[10] = 0
    assert model.coupled is not None
    matrix = operator_over(model.coupled.operator, csr.indptr.astype(np.int32), csr.indices.astype(np.int32))
    features = sparse(x) if sparse_features else torch.from_numpy(x.astype(np.float32))
    return Neighbourhood(features, (matrix,) * model.coupled.depth)


def model_of(name: str, sparse_features: bool = True, **options: Any) -> FlatModel:
    module = build(name, FEATURES, CLASSES, 0, 0.4, {"hidden": 6, "layers": 3, **options})
    model = FlatModel(module, sparse=sparse_features)
    model.initial(1)
    # Biases start at zero.
    model.load(model.w.detach() + 0.1 * torch.randn(len(model.w), generator=torch.Generator().manual_seed(0)))
    return model


def run(model: FlatModel, of: Callable[[Any], Output], around: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, embedding, and the gradient of a loss that reads both."""
    assert model.w.grad is not None
    model.w.grad.zero_()
    torch.manual_seed(3)
    out = of(around)
    loss = F.cross_entropy(out.logits_NC, torch.arange(len(out.logits_NC)) % CLASSES) + out.embedding_NH.square().mean()
    loss.backward()
    return out.logits_NC.detach(), out.embedding_NH.detach(), model.w.grad.clone()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("sparse_features", [True, False])
@pytest.mark.parametrize(("name", "options"), MODELS)
def test_outputs_and_gradients_are_those_of_the_model(
    name: str, options: dict[str, Any], sparse_features: bool, training: bool
) -> None:
    model = model_of(name, sparse_features, **options)
    model.module.train(training)
    around = graph_of(model, sparse_features)
    assert model.passes is not None
    assert model.passes.of(around) is not None
    for made, expected in zip(run(model, model, around), run(model, model.module, around)):
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("sparse_features", [True, False])
@pytest.mark.parametrize("name", ["gcn", "gcnii"])
def test_numbers_of_a_learned_matrix_have_the_gradients_that_autograd_gives_them(
    name: str, sparse_features: bool, head: str
) -> None:
    """Other candidates are drawn than there are edges, and all three layers read the same matrix."""
    model = model_of(name, sparse_features, head=head)
    around = graph_of(model, sparse_features)
    pairs_2S = torch.combinations(torch.arange(NODES))[::3].T.int().contiguous()
    numbers_S = (torch.arange(pairs_2S.shape[1]) % 4 == 0).float().requires_grad_()
    drawn = around._replace(operators=(DrawnOperator(pairs_2S, numbers_S, NODES),) * 3)
    assert model.passes is not None
    assert model.passes.of(drawn) is not None
    assert model.passes.of(drawn, embeds=False) is None
    made, expected = [], []
    for of, results in ((model, made), (model.module, expected)):
        numbers_S.grad = None
        results.extend([*run(model, of, drawn), numbers_S.grad])
    for one, other in zip(made, expected):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("name", ["gcn", "gat"])
def test_rows_that_are_asked_for_may_repeat(name: str, head: str) -> None:
    model = model_of(name, head=head, **({"heads": 2} if name == "gat" else {}))
    around = graph_of(model, True)._replace(rows=torch.tensor([5, 30, 5, 0]))
    assert model.passes is not None
    assert model.passes.of(around) is not None
    for made, expected in zip(run(model, model, around), run(model, model.module, around)):
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("rows", [None, torch.tensor([3, 1])])
@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_columns_may_be_masked(name: str, rows: Tensor | None) -> None:
    model = model_of(name)
    around = graph_of(model, True)
    kept = (torch.arange(FEATURES) % 3 > 0).float()
    around = around._replace(x_NF=AlteredFeatures(around.x_NF, kept), rows=rows)
    assert model.passes is not None
    assert model.passes.of(around) is not None
    for made, expected in zip(run(model, model, around), run(model, model.module, around)):
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("name", "options"), DECOUPLED)
def test_outputs_and_gradients_of_sparse_hops(name: str, options: dict[str, Any], training: bool) -> None:
    module = build(
        name, FEATURES, CLASSES, 2, 0.4, {**({"hidden": 6} if options.get("layers") != 1 else {}), **options}
    )
    model = FlatModel(module, sparse=True)
    model.initial(1)
    model.load(model.w.detach() + 0.1 * torch.randn(len(model.w), generator=torch.Generator().manual_seed(0)))
    module.train(training)
    rng = np.random.default_rng(4)
    hops = [sparse(rng.standard_normal((20, FEATURES)) * (rng.random((20, FEATURES)) < 0.4)) for _ in model.inputs]
    passes, label = model.passes, torch.arange(20) % CLASSES
    assert passes is not None
    # The input of a single layer is its embedding, which is no value of a pass.
    alone = options.get("layers") == 1 and name != "sign"
    assert (passes.of(hops) is None) == alone
    assert passes.of(hops, embeds=False) is not None
    assert passes.of([hop.to_dense() for hop in hops]) is None
    gradients = []
    for of in (model, module):
        assert model.w.grad is not None
        model.w.grad.zero_()
        torch.manual_seed(3)
        F.cross_entropy(of(hops).logits_NC, label).backward()
        gradients.append((of(hops).logits_NC.shape, model.w.grad.clone()))
    torch.testing.assert_close(*(gradient for _, gradient in gradients), rtol=1e-4, atol=2e-6)


def test_one_output_may_have_no_gradient() -> None:
    model = model_of("gcn")
    around = graph_of(model, True)
    for read in (lambda out: out.logits_NC, lambda out: out.embedding_NH):
        gradients = []
        for of in (model, model.module):
            torch.manual_seed(3)
            gradients.append(torch.autograd.grad(read(of(around)).square().sum(), list(model.module.parameters()),
                                                 allow_unused=True))  # fmt: skip
        for made, expected in zip(*gradients):
            torch.testing.assert_close(made, torch.zeros_like(made) if expected is None else expected)


def test_passes_do_not_share_memory() -> None:
    model = model_of("sage")
    around, gradients = graph_of(model, True), []
    for of in (model, model.module):
        torch.manual_seed(3)
        first, second = of(around), of(around)
        loss = (first.logits_NC * second.embedding_NH.sum()).square().sum()
        for _ in range(2):
            gradients.append(torch.autograd.grad(loss, model.module.head.linears[0].weight, retain_graph=True)[0])  # type: ignore
    torch.testing.assert_close(gradients[0], gradients[2], rtol=1e-4, atol=1e-5)
    assert torch.equal(gradients[0], gradients[1])


def test_a_way_back_through_changed_parameters_is_refused() -> None:
    model = model_of("gcn")
    out = model(graph_of(model, True))
    with torch.no_grad():
        model.module.convs[0].bias.add_(1)  # type: ignore
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.logits_NC.sum().backward()


def test_what_has_no_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("gcn")
    around, passes = graph_of(model, True), model.passes
    assert passes is not None
    assert passes.of(around._replace(rows=torch.arange(6)[::2])) is None
    assert passes.of(around._replace(x_NF=torch.zeros(NODES, FEATURES, requires_grad=True))) is None
    assert passes.of(around._replace(x_NF=torch.zeros(NODES, FEATURES).double())) is None
    with masks(lambda x, p: torch.ones_like(x)):
        assert passes.of(around) is None
    for options in ({"jumping": "max"}, {"norm": "batch"}):
        other = model_of("gcn", **options)
        assert other.passes is not None
        assert other.passes.of(graph_of(other, True)) is None
        run(other, other, graph_of(other, True))
    monkeypatch.setattr(module_of_passes, "MOST_PRODUCTS", 10)
    assert model_of("gcn").passes.of(graph_of(model, True)) is None  # type: ignore

    class Derived(type(model.module)):  # type: ignore[misc]
        pass

    model.module.__class__ = Derived
    assert FlatModel(model.module).passes is None


def test_inputs_of_the_same_shapes_share_a_pass() -> None:
    model = model_of("gcn")
    around, passes = graph_of(model, True), model.passes
    assert passes is not None
    (matrix, *_), x = around.operators, around.x_NF
    assert isinstance(x, SparseMatrix)
    other = sparse(matrix.to_dense().numpy() * (torch.rand(NODES, NODES) < 0.5).numpy())
    changed = Neighbourhood(sparse(2 * x.to_dense().numpy()), (matrix, other, matrix))
    model.module.eval()
    assert passes.of(around) is passes.of(changed)
    torch.testing.assert_close(model(changed).logits_NC, model.module(changed).logits_NC)


class Written(nn.Module):
    """Parts that no model of ours joins this way, in a class that is traced."""

    traced = True

    def __init__(self, forward: Callable[[Any, Neighbourhood], Output]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.lift, self.last = nn.Linear(FEATURES, 5), nn.Linear(5, CLASSES)
        self.norm, self.square, self.share = nn.LayerNorm(5), nn.Linear(5, 5), nn.Parameter(torch.tensor(0.3))
        self.unread = nn.Linear(2, 2)
        self._forward = forward

    def forward(self, around: Neighbourhood) -> Output:
        return self._forward(self, around)


def weight_read_twice(of: Any, around: Neighbourhood) -> Output:
    x = F.relu(transform(around.x_NF, of.lift.weight, of.lift.bias))
    y = of.square(F.relu(of.square(x)))
    return Output(of.last(y + x), y)


def first_rows(of: Any, around: Neighbourhood) -> Output:
    x = transform(around.x_NF, of.lift.weight, of.lift.bias)
    y = around.operators[0] @ x + (x[:20] + of.share * x[:20])
    return Output(of.last(y[:9]), x[:9])


def sums_of_sums(of: Any, around: Neighbourhood) -> Output:
    x = of.norm(transform(around.x_NF, of.lift.weight))
    y = torch.add(x, x, alpha=0.5) + of.norm(x) * 2
    z = torch.lerp(torch.addmm(y, y, of.square.weight, beta=0.7, alpha=0.3), x, 0.2)
    return Output(of.last(z + (y + z)), z)


@pytest.mark.parametrize("forward", [weight_read_twice, first_rows, sums_of_sums])
@pytest.mark.parametrize("sparse_features", [True, False])
def test_values_that_are_read_several_times(
    forward: Callable[[Any, Neighbourhood], Output], sparse_features: bool
) -> None:
    module = Written(forward)
    if sparse_features:
        module.first_weights = lambda: [module.lift.weight]  # type: ignore[method-assign, assignment]
    model = FlatModel(module, sparse=sparse_features)
    rng = np.random.default_rng(5)
    x = rng.standard_normal((NODES, FEATURES)) * (rng.random((NODES, FEATURES)) < 0.4)
    operator = sparse((rng.random((20, NODES)) < 0.2) * rng.random((20, NODES)))
    around = Neighbourhood(sparse(x) if sparse_features else torch.from_numpy(x.astype(np.float32)), (operator,))
    passes = Passes(module, model.w, model.parts)
    assert passes.of(around) is not None
    assert model.w.grad is not None
    model.w.grad.fill_(torch.nan)
    made = run(model, passes.output, around)  # type: ignore[arg-type]
    for one, expected in zip(made, run(model, module, around)):
        torch.testing.assert_close(one, expected, rtol=1e-4, atol=1e-5)
    model.w.grad.fill_(0.5)
    torch.manual_seed(3)
    out = passes.output(around)
    assert out is not None
    loss = F.cross_entropy(out.logits_NC, torch.arange(len(out.logits_NC)) % CLASSES)
    with passes.adding():
        (loss + out.embedding_NH.square().mean()).backward()
    torch.testing.assert_close(model.w.grad - 0.5, made[2], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["gcn", "gin", "gat"])
def test_gradients_may_be_added_to_those_of_parameters(name: str) -> None:
    model = model_of(name, **({"heads": 2} if name == "gat" else {}))
    around, passes = graph_of(model, True), model.passes
    assert passes is not None
    gradients = []
    for adds in (passes.adding, nullcontext):
        assert model.w.grad is not None
        model.w.grad.fill_(0.5)
        torch.manual_seed(3)
        first, second = model(around), model(around)
        with adds():
            (first.logits_NC.square().sum() + second.embedding_NH.sum() + model.w.sum()).backward()
        gradients.append(model.w.grad.clone())
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)


def test_frozen_parameters_have_no_gradient() -> None:
    model = model_of("gcn")
    around, passes, frozen = graph_of(model, True), model.passes, model.module.head.linears[0].weight  # type: ignore
    assert passes is not None
    frozen.requires_grad_(False)
    for adds in (passes.adding, nullcontext):
        assert model.w.grad is not None
        model.w.grad.zero_()
        with adds():
            model(around).logits_NC.square().sum().backward()
        assert not frozen.grad.any()
        assert bool(model.w.grad.any())


@pytest.mark.parametrize("row", [NODES, -1])
def test_rows_that_do_not_exist_are_refused(row: int) -> None:
    model = model_of("gcn")
    with pytest.raises(IndexError):
        model(graph_of(model, True)._replace(rows=torch.tensor([0, row])))


def test_memory_is_used_again_when_nothing_refers_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    passes: Any = model_of("gcn").passes
    first, second = passes.room(100), passes.room(50)
    places = {room.memory.data_ptr() for room in (first, second)}
    assert len(places) == 2
    del first, second
    again = passes.room(80)
    assert again.memory.data_ptr() in places
    assert len(again.memory) == 100
    del again
    kept = [passes.room(100) for _ in range(9)]
    kept.clear()
    assert len(passes._free) == module_of_passes.MOST_FREE
    passes._free.clear()
    monkeypatch.setattr(module_of_passes, "LARGEST_FREE", 90)
    del kept
    large = passes.room(91)
    del large
    assert not passes._free


def unknown_function(of: Any, around: Neighbourhood) -> Output:
    x = torch.sigmoid(transform(around.x_NF, of.lift.weight))
    return Output(of.last(x), x)


def computed_factor(of: Any, around: Neighbourhood) -> Output:
    x = transform(around.x_NF, of.lift.weight)
    return Output(of.last((1 + of.share) * x), x)


def other_tensor(of: Any, around: Neighbourhood) -> Output:
    x = transform(around.x_NF, of.lift.weight, of.lift.bias + 1)
    return Output(of.last(x), x)


def part_of_a_weight(of: Any, around: Neighbourhood) -> Output:
    x = transform(around.x_NF, of.lift.weight)
    return Output(F.linear(x, of.square.weight[:CLASSES]) + F.linear(x, of.square.weight[1 : CLASSES + 1]), x)


def last_rows(of: Any, around: Neighbourhood) -> Output:
    x = transform(around.x_NF, of.lift.weight)
    return Output(of.last(x[1:]), x)


@pytest.mark.parametrize("forward", [unknown_function, computed_factor, other_tensor, part_of_a_weight, last_rows])
def test_what_no_operation_stands_for_is_left_to_the_model(forward: Callable[[Any, Neighbourhood], Output]) -> None:
    module = Written(forward)
    model = FlatModel(module)
    around = Neighbourhood(torch.ones(NODES, FEATURES), (sparse(np.eye(NODES)),))
    assert Passes(module, model.w, model.parts).of(around) is None
    run(model, model, around)


def test_nan_stays() -> None:
    model = model_of("gcn")
    around = graph_of(model, True)
    for parameter in model.module.parameters():
        kept = parameter.detach().clone()
        parameter.data[0] = torch.nan
        assert model(around).logits_NC.isnan().any()
        parameter.data.copy_(kept)
