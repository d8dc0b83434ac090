"""Operations and traffic of clients against counters of torch, on real passes of the models."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from shoal.algorithms.models.build import build
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood
from shoal.algorithms.models.layers import edge_attention
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.train_options import TrainOptions
from shoal.engine.simulation.work import Product, Sizes, forward_work, products_of, training_work
from shoal.storage.graph.sparse_matrix import SparseMatrix

aten = torch.ops.aten
NODES, ROWS, FEATURES, CLASSES, HOPS = 11, 7, 5, 4, 3
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("mlp", {}), ("sgc", {}), ("sgc", {"layers": 3}), ("s2gc", {}), ("gbp", {}), ("sign", {}), ("sign", {"layers": 2}),
    *(("gamlp", {"attention": name}) for name in ("simple", "gate", "ori_ref", "jk", "recursive")),
    *((name, {"head": head, "layers": 3}) for name in ("gcn", "gcnii", "gin", "sage") for head in ("linear", "conv")),
    *(("gat", {"head": head, "layers": 3, "heads": 3}) for head in ("linear", "conv")),
    ("transformer", {"layers": 3, "heads": 3}),
]  # fmt: skip


def mv_flops(matrix: Any, vector: Any, *rest: Any, out_shape: Any = None, **options: Any) -> int:
    return 2 * matrix[0] * matrix[1]


class Traffic(TorchDispatchMode):
    """Bytes of both matrices and the result of every product."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        factors = {aten.mm.default: args[:2], aten.bmm.default: args[:2], aten.mv.default: args[:2]}
        factors[aten.addmm.default] = args[1:3]
        if func in factors:
            self.bytes += sum(t.nbytes for t in (*factors[func], out))
        return out


def attended(score_HNN: Tensor, x_MHD: Tensor) -> Tensor:
    """Sums over all nodes, weighted by a softmax of scores, as a product that torch counts, `[N, H, D]`."""
    return torch.bmm(score_HNN.softmax(2), x_MHD.transpose(0, 1)).transpose(0, 1)


def attend(full: Any, receiver_NH: Tensor, sender_MH: Tensor, x_MHD: Tensor, slope: float) -> Tensor:
    """The kernel of that name on a complete graph."""
    scores = receiver_NH.t()[:, :, None] + sender_MH.t()[:, None]
    return attended(nn.functional.leaky_relu(scores, slope), x_MHD)


def attend_by_products(full: Any, query_NHD: Tensor, key_MHD: Tensor, value_MHD: Tensor) -> Tensor:
    """The kernel of that name on a complete graph."""
    scores = torch.bmm(query_NHD.transpose(0, 1), key_MHD.permute(1, 2, 0))
    return attended(scores / query_NHD.shape[2] ** 0.5, value_MHD)


@pytest.fixture
def dense_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention by torch's dense products, which its counter sees; they give what the kernels give."""
    starts = torch.arange(0, NODES * NODES + 1, NODES, dtype=torch.int32)
    full = SparseMatrix.of(starts, torch.arange(NODES, dtype=torch.int32).repeat(NODES), torch.ones(NODES**2), NODES)
    torch.manual_seed(1)
    rows, (query, key_, value) = torch.rand(2, NODES, 3), torch.rand(3, NODES, 3, 2)
    torch.testing.assert_close(attend(full, *rows, value, 0.2), edge_attention.attend(full, *rows, value, 0.2))
    torch.testing.assert_close(
        attend_by_products(full, query, key_, value), edge_attention._attend_by_products(full, query, key_, value)
    )
    monkeypatch.setattr(edge_attention, "attend", attend)
    monkeypatch.setattr(edge_attention, "_attend_by_products", attend_by_products)


def made(name: str, options: dict[str, Any]) -> tuple[nn.Module, Any, Sizes]:
    """A model, its input of seven rows, and the sizes; the graph is complete, and its matrix dense."""
    torch.manual_seed(0)
    own = {} if name in ("s2gc", "sgc") else {"hidden": 6}
    module = build(name, FEATURES, CLASSES, HOPS, 0.5, {**own, **options})
    sizes = Sizes(np.array([ROWS]), np.array([NODES]), np.array([NODES * NODES]))
    if isinstance(module, Coupled):
        matrix: Any = torch.rand(NODES, NODES)
        return module, Neighbourhood(torch.rand(NODES, FEATURES), (matrix,) * module.depth, torch.arange(ROWS)), sizes
    return module, [torch.rand(ROWS, FEATURES) for _ in range(len(module.inputs))], sizes  # type: ignore[arg-type]


def counted(module: nn.Module, inputs: Any, backward: bool) -> tuple[int, int]:
    with FlopCounterMode(display=False, custom_mapping={aten.mv: mv_flops}) as flops, Traffic() as traffic:
        out: Tensor = module(inputs).logits_NC
        if backward:
            out.square().sum().backward()
    return flops.get_total_flops(), traffic.bytes


def entries_of(products: list[Product], sizes: Sizes, trained: bool) -> int:
    """Bytes that a sparse matrix takes beyond a dense one of as many entries: the columns, once for all heads."""
    return sum(4 * int(sizes.entries[0]) * (p.passes if trained else 1) for p in products if p.over == "entries")


@pytest.mark.usefixtures("dense_attention")
@pytest.mark.parametrize(("name", "options"), MODELS)
def test_work_of_a_pass_and_a_step_is_what_torch_counts(name: str, options: dict[str, Any]) -> None:
    module, inputs, sizes = made(name, options)
    products = products_of(module)
    assert products is not None
    # In conv heads every node is classified, and rows are taken behind that.
    forward = forward_work(products, sizes)
    flops, traffic = counted(module, inputs, backward=False)
    assert (forward.flops[0], forward.traffic[0]) == (flops, traffic + entries_of(products, sizes, False))
    parameters = sum(p.numel() for p in module.parameters())
    step = training_work(products, parameters, sizes, TrainOptions(epochs=1, optimizer="sgd"))
    flops, traffic = counted(module, inputs, backward=True)
    # SGD reads weight and gradient, and writes the weight.
    assert step.flops[0] == flops
    assert step.traffic[0] == traffic + entries_of(products, sizes, True) + 3 * 4 * parameters


def test_batches_repeat_the_graph_and_split_the_rows() -> None:
    sizes = Sizes(np.array([10, 0]), np.array([20, 3]), np.array([60, 4]))
    plain, options = TrainOptions(epochs=2), TrainOptions(epochs=2, batch_size=4)
    rows, nodes = [Product("rows", 5, 3, 2)], [Product("nodes", 5, 3, 2), Product("entries", 1, 3, 2)]
    assert training_work(rows, 0, sizes, plain).flops.tolist() == [2 * 2 * 2 * 10 * 15, 0]
    assert training_work(rows, 0, sizes, options).flops.tolist() == pytest.approx([2 * 2 * 2 * 10 * 15, 0])
    whole = 2 * 2 * (2 * 20 * 15 + 2 * 60 * 3)
    assert training_work(nodes, 0, sizes, plain).flops.tolist() == [whole, 0]
    assert training_work(nodes, 0, sizes, options).flops.tolist() == [3 * whole, 0]
    # Adam: weight, gradient and two moments are read, all but the gradient written.
    assert training_work([], 9, sizes, options).traffic.tolist() == [2 * 3 * 7 * 4 * 9, 0]
