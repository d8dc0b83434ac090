"""Modules of the user: a backbone that embeds nodes, below Shoal's classifier, or a readout of graphs.

Axes: N nodes of G graphs that lie behind one another, F features, H width of the embedding, K + 1 hops.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from shoal.algorithms.models.items.plain_graphs import graphs_of_rows
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.models.layers.head import Head, Output
from shoal.storage.graph.edges.edge_matrix import EdgeMatrix
from shoal.storage.graph.sparse_matrix import FeatureMatrix, Features, SparseMatrix
from shoal.storage.user_code.user_code import UserCode

KEY, READOUT_KEY = "model.name", "model.readout"
# The engine passes these to a constructor that asks for them by name.
PASSED = ("features", "hops", "dropout", "edge_features")


class Backbone(nn.Module):
    """Base class of users' models: it embeds nodes, and Shoal classifies the embeddings by a linear layer.

        class Mine(shoal.Backbone):
            def __init__(self, features: int, *, hidden: int = 64):
                super().__init__(width=hidden)
                self.conv = SAGEConv(features, hidden)

            def forward(self, x, edge_index):
                return self.conv(x, edge_index).relu()

    A constructor takes `features` (F), and if it likes `hops` (K), `dropout` (`train.dropout`) and `edge_features` (D,
    the features of an edge); its keyword-only parameters, each with a type and a default, are the options of `model` in
    a config.

    `forward` gives the embeddings of all N nodes of a client, float32 `[N, width]`. With `reads = "edges"` it is called
    as `forward(x, edge_index)`: features `[N, F]` and edges int64 `[2, E]`, both directions of each, without loops; a
    `forward(x, edge_index, edge_weight)` is also given what edges weigh, float32 `[E]`, ones where they have no
    weights, while another one is refused where they have; one that takes `edge_attr`, too, their features, float32
    `[E, D]`, and is refused where they have none. With `reads = "hops"` it is called as `forward(hops)`: K + 1
    tensors `[n, F]`, row by row, for any n rows.

    Parameters alone are sent and averaged: a normalisation by running statistics is refused.

    Attributes:
        reads: `edges` or `hops`.
        width: Width H of the embedding.
    """

    reads: ClassVar[Literal["edges", "hops"]] = "edges"

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width


def user_model(code: UserCode) -> type[nn.Module]:
    """Returns the class that builds a user's model, the same for the same texts; a ShoalError names a line."""
    cls = code.load()
    if not isinstance(cls, type) or not issubclass(cls, Backbone):
        named = f"a class {cls.__name__}" if isinstance(cls, type) else f"a {type(cls).__name__}"
        raise code.fault(KEY, f"{named} is no model; derive a class from shoal.Backbone")
    if cls.reads not in ("edges", "hops"):
        raise code.fault(KEY, f"{cls.__name__}.reads must be 'edges' or 'hops', found {cls.reads!r}")
    if cls.forward is nn.Module.forward:
        received = "x, edge_index" if cls.reads == "edges" else "hops"
        raise code.fault(KEY, f"{cls.__name__} has no forward(self, {received})")
    options = _options(code, cls)
    takes = inspect.signature(cls.forward).parameters
    base = UserCoupled if cls.reads == "edges" else UserDecoupled
    of_edges = {"operator": "edges"} if "edge_attr" in takes and base is UserCoupled else {}
    reads = {"weighs_edges": "edge_weight" in takes, **of_edges}
    wrapper = type(cls.__name__, (base,), {"code": code, "made": cls, "__doc__": cls.__doc__, **reads})
    wrapper.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return wrapper


def _options(code: UserCode, cls: type[Backbone]) -> list[inspect.Parameter]:
    """Lists the options of a model, its keyword-only parameters; refuses a parameter that is not passed."""
    options = []
    for parameter in inspect.signature(cls).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.annotation is parameter.empty or parameter.default is parameter.empty:
                raise code.fault(KEY, f"{cls.__name__}: option {parameter.name} needs a type and a default")
            options.append(parameter)
        elif parameter.name not in PASSED:
            choices = ", ".join(PASSED)
            raise code.fault(
                KEY, f"{cls.__name__}: nothing is given for {parameter.name}; take {choices}, and options behind a *"
            )
    return options


class _UserModel(nn.Module):
    """A user's model, with the texts of the user's code and the class that it defines."""

    code: ClassVar[UserCode]
    made: ClassVar[type[Backbone]]

    def __init__(
        self, features: int, classes: int, hops: int, dropout: float, edge_features: int = 0, **options: Any
    ) -> None:
        """Draws parameters from torch's default generator; a ShoalError names the line where the code fails."""
        nn.Module.__init__(self)
        asked = inspect.signature(self.made).parameters
        self.edge_features = edge_features
        received: dict[str, Any] = {"features": features, "hops": hops, "dropout": dropout}
        received["edge_features"] = edge_features
        chosen = {name: value for name, value in received.items() if name in asked}
        self._make: Callable[[], Backbone] = lambda: self.made(**chosen, **options)
        with self.code.at_work(KEY), torch.random.fork_rng(devices=[]):
            self.inner = self._make()
            width = getattr(self.inner, "width", None)
        if type(width) is not int or width < 1:
            raise self.code.fault(KEY, f"{self.made.__name__}.width must be a number of columns, found {width!r}")
        running = [name for name, _ in self.inner.named_buffers() if name.rpartition(".")[2].startswith("running_")]
        if running:
            raise self.code.fault(
                KEY,
                f"{self.made.__name__} keeps {running[0]}, which is no parameter and would not be sent; "
                "take a LayerNorm, or track_running_stats=False",
            )
        for name, p in self.inner.named_parameters():
            if isinstance(p, UninitializedParameter) or p.dtype != torch.float32 or p.is_quantized:
                fault = "has no shape yet" if isinstance(p, UninitializedParameter) else "has numbers of another type"
                raise self.code.fault(
                    KEY, f"{self.made.__name__}: the parameter {name} {fault}; expected float32, made from `features`"
                )
        self.dropout = dropout
        self.head = Head(width, width, classes, 1, dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator, as the user's constructor does."""
        with self.code.at_work(KEY), torch.device(self.head.linears[0].weight.device):  # type: ignore[arg-type]
            fresh = self._make()
        _copy_parameters(fresh, self.inner)
        self.head.reset_parameters()

    def embed_rows(self, *received: Any, rows: int, **named: Any) -> Tensor:
        """Runs the user's code, float32 `[rows, H]`; a ShoalError names the line of something else."""
        with self.code.at_work(KEY):
            z_NH = self.inner(*received, **named)
        return _require_rows(z_NH, [rows, self.inner.width], self.code, KEY, f"{self.made.__name__}.forward")


class UserCoupled(_UserModel, Coupled):
    """A user's model that passes messages: it reads all nodes and edges of a client."""

    operator = "sum"
    first = ()
    fanouts = ()
    structure = None
    conv_head = relu_head = False
    # It may read what it likes of a graph.
    row_by_row = False
    inputs = (0,)

    # A neighbourhood has one matrix, whose pattern is the edges.
    depth = 1

    def embed(self, x_NF: Features, operators: Sequence[SparseMatrix]) -> Tensor:
        x = x_NF.to_dense() if isinstance(x_NF, FeatureMatrix) else x_NF.float()
        matrix = operators[0]
        of_edges = {"edge_weight": matrix.parts()[2]} if self.weighs_edges else {}
        if isinstance(matrix, EdgeMatrix):
            of_edges["edge_attr"] = matrix.features(self.edge_features)
        return self.embed_rows(x, _edge_index(matrix), rows=len(x), **of_edges)


class UserDecoupled(_UserModel):
    """A user's model that reads rows of the hops."""

    def __init__(
        self, features: int, classes: int, hops: int, dropout: float, edge_features: int = 0, **options: Any
    ) -> None:
        super().__init__(features, classes, hops, dropout, edge_features, **options)
        self.inputs = tuple(range(hops + 1))

    def forward(self, hops: Sequence[Features]) -> Output:
        """Computes the output for rows of all hops, `[N, F]` each."""
        dense = [x.to_dense() if isinstance(x, FeatureMatrix) else x.float() for x in hops]
        z_NH = self.embed_rows(dense, rows=len(dense[0]))
        drops = self.head.drops_embedding and not self.head.pooled and self.training and self.dropout
        return Output(self.head(nn.functional.dropout(z_NH, self.dropout) if drops else z_NH).logits_NC, z_NH)


def user_readout(code: UserCode) -> Callable[[int], nn.Module]:
    """Makes readouts of a user's class from the width of the embedding; a ShoalError names a wrong line.

    The class is a torch module that is made from the width H alone, or from nothing, and called as PyG's aggregations
    are: `forward(x, index, dim_size=G)` with embeddings `[N, H]` and the graph of every node, int64 `[N]`, ascending;
    it gives `[G, H]`. All of PyG's aggregations that keep the width are such classes.
    """
    cls = code.load()
    if not isinstance(cls, type) or not issubclass(cls, nn.Module):
        raise code.fault(READOUT_KEY, f"{getattr(cls, '__name__', cls)} is no torch module")
    return lambda width: UserReadout(code, cls, width)


class UserReadout(nn.Module):
    """The user's readout; the shape of its result is checked. Where its code fails, a `ShoalError` names the line."""

    def __init__(self, code: UserCode, cls: type[nn.Module], width: int) -> None:
        """Makes the user's module; its parameters are drawn from torch's default generator."""
        super().__init__()
        self.code, self.cls, self.width = code, cls, width
        with torch.random.fork_rng(devices=[]):
            self.inner = self._make_inner()

    def _make_inner(self) -> nn.Module:
        with self.code.at_work(READOUT_KEY):
            return self.cls(self.width) if inspect.signature(self.cls).parameters else self.cls()

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator, as the user's constructor does."""
        _copy_parameters(self._make_inner(), self.inner)

    def forward(self, z_NH: Tensor, first: Tensor) -> Tensor:
        """Embeds graphs, float32 `[G, H]`, by the embeddings of nodes and `GraphBatch.first`."""
        graphs = len(first) - 1
        with self.code.at_work(READOUT_KEY):
            z_GH = self.inner(z_NH, graphs_of_rows(first), dim_size=graphs)
        return _require_rows(z_GH, [graphs, self.width], self.code, READOUT_KEY, "forward")


def _copy_parameters(drawn: nn.Module, into: nn.Module) -> None:
    with torch.no_grad():
        for old, new in zip(into.parameters(), drawn.parameters()):
            old.copy_(new)


def _require_rows(z: Any, shape: list[int], code: UserCode, key: str, function: str) -> Tensor:
    """Returns the result of a user's function in float32; refuses a tensor of another shape."""
    if not isinstance(z, Tensor) or list(z.shape) != shape or z.is_complex():
        got = f"{z.dtype} {list(z.shape)}" if isinstance(z, Tensor) else type(z).__name__
        raise code.fault(key, f"{function} must give a tensor {shape}, found {got}")
    return z.float()


def _edge_index(operator: SparseMatrix) -> Tensor:
    """Senders and receivers of messages, int64 `[2, E]`, from a matrix whose row i has the senders of node i."""
    starts, columns, _ = operator.parts()
    sender = torch.as_tensor(columns, dtype=torch.int64)
    counts = torch.as_tensor(starts, dtype=torch.int64).diff()
    receiver = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
    return torch.stack([sender, receiver])
