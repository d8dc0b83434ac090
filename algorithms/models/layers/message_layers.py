"""Parameters of layers that pass messages: named, shaped and drawn as PyG's, whose import takes seconds.

What a layer computes from them stands with its model. Axes: F inputs, H outputs, D outputs of one of several heads.
"""

import math

import torch
from torch import Tensor, nn


def glorot(weight: Tensor) -> None:
    """Draws a weight `[…, rows, columns]` from the default generator (Glorot and Bengio, AISTATS 2010)."""
    bound = math.sqrt(6 / (weight.shape[-2] + weight.shape[-1]))
    weight.data.uniform_(-bound, bound)


class Linear(nn.Module):
    """A weight `[H, F]`, and perhaps a bias `[H]`."""

    bias: nn.Parameter | None

    def __init__(self, features: int, outputs: int, bias: bool = True, by_glorot: bool = False) -> None:
        """Draws the weight by Glorot's rule, or as He et al. (ICCV 2015) with slope sqrt(5); the bias by its inputs."""
        super().__init__()
        self._by_glorot = by_glorot
        self.weight = nn.Parameter(torch.empty(outputs, features))
        self.register_parameter("bias", nn.Parameter(torch.empty(outputs)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator; so in all layers below."""
        features = self.weight.shape[1]
        if self._by_glorot:
            glorot(self.weight)
        else:
            bound = math.sqrt(6 / ((1 + math.sqrt(5) ** 2) * features))
            self.weight.data.uniform_(-bound, bound)
        if self.bias is not None:
            bound = 1 / math.sqrt(features)
            self.bias.data.uniform_(-bound, bound)


class GCNConv(nn.Module):
    """W and b of GCN."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.lin = Linear(features, outputs, bias=False, by_glorot=True)
        self.bias = nn.Parameter(torch.empty(outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.lin.reset_parameters()
        nn.init.zeros_(self.bias)


class SAGEConv(nn.Module):
    """W_1 and b of the neighbours' mean, and W_2 of the node itself."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__()
        self.lin_l = Linear(features, outputs)
        self.lin_r = Linear(features, outputs, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.lin_l.reset_parameters()
        self.lin_r.reset_parameters()


class GINConv(nn.Module):
    """An MLP and a number e that is learnt, 0 at first."""

    def __init__(self, mlp: nn.Sequential) -> None:
        super().__init__()
        self.nn = mlp
        self.eps = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for module in self.nn:
            if isinstance(module, nn.Linear | nn.LayerNorm):
                module.reset_parameters()
        nn.init.zeros_(self.eps)


class GATConv(nn.Module):
    """W, b and the attention vectors `[1, heads, D]` of GAT."""

    negative_slope = 0.2

    def __init__(self, features: int, outputs: int, heads: int) -> None:
        """Takes the outputs D of a head."""
        super().__init__()
        self.heads, self.out_channels = heads, outputs
        self.lin = Linear(features, heads * outputs, bias=False, by_glorot=True)
        self.att_src = nn.Parameter(torch.empty(1, heads, outputs))
        self.att_dst = nn.Parameter(torch.empty(1, heads, outputs))
        self.bias = nn.Parameter(torch.empty(heads * outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.lin.reset_parameters()
        glorot(self.att_src)
        glorot(self.att_dst)
        nn.init.zeros_(self.bias)


class GCN2Conv(nn.Module):
    """W `[H, H]` of a layer of GCNII, by its number from 1, with alpha and beta = log(theta / number + 1)."""

    def __init__(self, width: int, alpha: float, theta: float, number: int) -> None:
        super().__init__()
        self.alpha, self.beta = alpha, math.log(theta / number + 1)
        self.weight1 = nn.Parameter(torch.empty(width, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        glorot(self.weight1)


class TransformerConv(nn.Module):
    """Keys, queries, values and the node's own part, each a linear layer to all heads."""

    def __init__(self, features: int, outputs: int, heads: int) -> None:
        """Takes the outputs D of a head."""
        super().__init__()
        self.heads, self.out_channels = heads, outputs
        self.lin_key = Linear(features, heads * outputs)
        self.lin_query = Linear(features, heads * outputs)
        self.lin_value = Linear(features, heads * outputs)
        self.lin_skip = Linear(features, heads * outputs)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (self.lin_key, self.lin_query, self.lin_value, self.lin_skip):
            linear.reset_parameters()


class GINEConv(nn.Module):
    """GIN's MLP and e, and a linear layer from features of edges to the width of what the MLP reads."""

    def __init__(self, mlp: nn.Sequential, inputs: int, edge_features: int) -> None:
        super().__init__()
        self.gin = GINConv(mlp)
        self.lin = Linear(edge_features, inputs)

    def reset_parameters(self) -> None:
        self.gin.reset_parameters()
        self.lin.reset_parameters()


class EdgeAttention(nn.Module):
    """W_e `[heads D, edge features]` and a vector `[1, heads, D]`, by which edges add to GAT's scores."""

    def __init__(self, outputs: int, heads: int, edge_features: int) -> None:
        """Takes the outputs D of a head."""
        super().__init__()
        self.lin_edge = Linear(edge_features, heads * outputs, bias=False, by_glorot=True)
        self.att_edge = nn.Parameter(torch.empty(1, heads, outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.lin_edge.reset_parameters()
        glorot(self.att_edge)


class EdgeGATConv(nn.Module):
    """The parameters of `GATConv`, and those of edges."""

    def __init__(self, features: int, outputs: int, heads: int, edge_features: int) -> None:
        """Takes the outputs D of a head."""
        super().__init__()
        self.gat = GATConv(features, outputs, heads)
        self.edges = EdgeAttention(outputs, heads, edge_features)

    def reset_parameters(self) -> None:
        self.gat.reset_parameters()
        self.edges.reset_parameters()


class EdgeTransformerConv(nn.Module):
    """The four layers of `TransformerConv`, and one from features of edges to all heads."""

    def __init__(self, features: int, outputs: int, heads: int, edge_features: int) -> None:
        """Takes the outputs D of a head."""
        super().__init__()
        self.of_nodes = TransformerConv(features, outputs, heads)
        self.lin_edge = Linear(edge_features, heads * outputs, bias=False)

    def reset_parameters(self) -> None:
        self.of_nodes.reset_parameters()
        self.lin_edge.reset_parameters()


class KindWeights(nn.Module):
    """A weight `[H, F]` of every kind of edge; or of every base, and how much of each a kind has, `[kinds, bases]`."""

    def __init__(self, features: int, outputs: int, kinds: int, bases: int | None = None) -> None:
        super().__init__()
        count = kinds if bases is None else bases
        self.linears = nn.ModuleList(Linear(features, outputs, bias=False, by_glorot=True) for _ in range(count))
        self.shares = None if bases is None else nn.Parameter(torch.empty(kinds, bases))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in self.linears:
            linear.reset_parameters()  # type: ignore[operator]
        if self.shares is not None:
            glorot(self.shares)


class RGCNConv(nn.Module):
    """A weight of the node itself, those of kinds of edges, and b."""

    def __init__(self, features: int, outputs: int, kinds: int, bases: int | None = None) -> None:
        super().__init__()
        self.root = Linear(features, outputs, bias=False, by_glorot=True)
        self.kinds = KindWeights(features, outputs, kinds, bases)
        self.bias = nn.Parameter(torch.empty(outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.root.reset_parameters()
        self.kinds.reset_parameters()
        nn.init.zeros_(self.bias)


class HGTConv(nn.Module):
    """Keys, queries and values of every kind of nodes, and what relations make of keys and values.

    A relation multiplies those of a head by a matrix of its own, `[relations, heads, D, D]`, and scores by a number.
    """

    def __init__(self, width: int, heads: int, nodes: int, relations: int) -> None:
        """Takes the width H of input and output, and numbers of kinds of nodes and of relations."""
        super().__init__()
        self.heads, depth = heads, width // heads
        self.lin_kqv = nn.ModuleList(Linear(width, 3 * width) for _ in range(nodes))
        self.lin_out = nn.ModuleList(Linear(width, width) for _ in range(nodes))
        self.key_weight = nn.Parameter(torch.empty(relations, heads, depth, depth))
        self.value_weight = nn.Parameter(torch.empty(relations, heads, depth, depth))
        self.prior = nn.Parameter(torch.empty(relations, heads))
        self.skip = nn.Parameter(torch.empty(nodes))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (*self.lin_kqv, *self.lin_out):
            linear.reset_parameters()
        bound = 1 / math.sqrt(self.key_weight.shape[-1])
        for weight in (self.key_weight, self.value_weight):
            weight.data.uniform_(-bound, bound)
        nn.init.ones_(self.prior)
        nn.init.ones_(self.skip)


class HANConv(nn.Module):
    """A linear layer to all heads, attention vectors `[1, heads, D]` of every path, and attention to paths."""

    def __init__(self, features: int, outputs: int, heads: int, paths: int) -> None:
        """Takes the width H of all heads, which share it."""
        super().__init__()
        self.lin = Linear(features, outputs)
        shape = 1, heads, outputs // heads
        self.att_src = nn.ParameterList(torch.empty(shape) for _ in range(paths))
        self.att_dst = nn.ParameterList(torch.empty(shape) for _ in range(paths))
        self.k_lin = Linear(outputs, outputs)
        self.q = nn.Parameter(torch.empty(1, outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.lin.reset_parameters()
        self.k_lin.reset_parameters()
        for vector in (*self.att_src, *self.att_dst, self.q):
            glorot(vector)


def largest(outputs: list[Tensor]) -> Tensor:
    """Returns the largest of all layers' outputs, entry by entry, `[N, H]` (Xu et al., ICML 2018)."""
    return torch.stack(outputs, dim=-1).max(dim=-1)[0]
