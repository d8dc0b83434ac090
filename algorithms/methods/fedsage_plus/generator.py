"""The networks that guess what neighbours a node misses: how many, and with what features (NeighGen of FedSage+).

Axes: N nodes, M generated ones, F features, H width, P neighbours at most of a node, R width of a root, B real nodes.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.gnn.sage import GraphSAGE
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood
from shoal.algorithms.models.layers.head import Head
from shoal.algorithms.rng import Stream
from shoal.storage.graph.sparse_matrix import FeatureMatrix, Features
from shoal.storage.shards.view import View


class GeneratedFeatures(FeatureMatrix):
    """X~ `[M, F]`: the p-th neighbour of node n has the features L_p r_n, a root r_n `[R]` times a layer L_p `[F, R]`.

    F may be many thousands and R is at most a few hundred, so all that is asked of X~ is asked of L first: its product
    with a weight W is r_n (L_p' W), the square of its norm r_n (L_p' L_p) r_n, and its product with a real node x
    r_n (L_p' x). It stands where sparse features stand, which are only ever multiplied by a weight; it has no arrays of
    its own.

    Attributes:
        owner_M: Whose neighbours they are, int64, ascending.
    """

    def __init__(self, root_NR: Tensor, layer_FPR: Tensor, count_N: Tensor) -> None:
        """Wraps roots and layers, which may be differentiated, and how many neighbours a node gets, int64, up to P."""
        self._layer_FPR, self._root_NR = layer_FPR, root_NR
        there_NP = torch.arange(layer_FPR.shape[1], device=count_N.device) < count_N[:, None]
        self.owner_M, self._number_M = there_NP.nonzero().unbind(1)
        # All first neighbours of nodes, then all second ones, …: whose they are, and where each of them comes there.
        by_number = self._number_M.argsort(stable=True)
        counts_P = torch.bincount(self._number_M, minlength=layer_FPR.shape[1])
        self._owners = self.owner_M[by_number].split(counts_P.tolist())
        self._place_M = by_number.argsort()

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.owner_M), len(self._layer_FPR)))

    def __matmul__(self, weight_FK: Tensor) -> Tensor:
        return self._times_root((self._layer_FPR.flatten(1).t() @ weight_FK).unflatten(0, self._layer_FPR.shape[1:]))

    def to_dense(self) -> Tensor:
        return self._times_root(self._layer_FPR.permute(1, 2, 0))

    def squares_M(self) -> Tensor:
        """Squares the norm of each generated node."""
        layer_PFR = self._layer_FPR.transpose(0, 1)
        through_MR = self._times_root(layer_PFR.transpose(1, 2) @ layer_PFR)
        return (through_MR * self._root_NR.index_select(0, self.owner_M)).sum(1)

    def project(self, x_BF: Features) -> Tensor:
        """Computes L_p' x of real nodes, `[B, P, R]`, from which the products with them are made."""
        return (x_BF @ self._layer_FPR.flatten(1)).unflatten(1, self._layer_FPR.shape[1:])

    def products(self, seen_BPR: Tensor, made_Q: Tensor, real_Q: Tensor) -> Tensor:
        """Multiplies generated nodes by real ones, pair by pair, `[Q]`; `project` gave the first argument."""
        root_QR = self._root_NR.index_select(0, self.owner_M[made_Q])
        places = real_Q * seen_BPR.shape[1] + self._number_M[made_Q]
        return (root_QR * seen_BPR.flatten(0, 1).index_select(0, places)).sum(1)

    def all_products(self, seen_BPR: Tensor) -> Tensor:
        """Multiplies all generated nodes by all of some real ones, `[M, B]`."""
        return self._times_root(seen_BPR.permute(1, 2, 0))

    def _times_root(self, tables_PRK: Tensor) -> Tensor:
        """Multiplies the root of each node's owner by the table of the node's number, `[M, K]`."""
        rows = [self._root_NR.index_select(0, owners) @ table for owners, table in zip(self._owners, tables_PRK)]
        return torch.cat(rows).index_select(0, self._place_M)


class Guess(NamedTuple):
    """The numbers of missing neighbours, differentiable; those to get, int64 from 0 to P; the embeddings."""

    missing_N: Tensor
    count_N: Tensor
    z_NH: Tensor


class Generator(nn.Module):
    """GraphSAGE of two layers with a linear head for the number, a perceptron for features, a classifier to try them.

    The classifier of `encoder`, of one class, says how many neighbours are missing; `maker` makes features of at most P
    = `most` neighbours of an embedding, see `generate_neighbours`; `classifier` is another GraphSAGE, trained on
    augmented graphs, and not used for prediction.
    """

    def __init__(self, features: int, classes: int, hidden: int, most: int) -> None:
        """Draws the parameters from torch's default generator; nothing is dropped."""
        super().__init__()
        self.most = most
        self.encoder = GraphSAGE(features, 1, 0, 0.0, hidden=hidden)
        self.maker = make_maker(features, hidden, most)
        self.classifier = GraphSAGE(features, classes, 0, 0.0, hidden=hidden)

    def guess(self, around: Neighbourhood) -> Guess:
        """Guesses the neighbours that nodes of a graph miss."""
        return guess_missing(self.encoder, around, self.most)


def guess_missing(encoder: GraphSAGE, around: Neighbourhood, most: int) -> Guess:
    """Guesses the neighbours that nodes of a graph miss, by an encoder of one class."""
    out = encoder(around)
    missing_N = out.logits_NC[:, 0]
    count_N = missing_N.detach().nan_to_num().round().clamp(0, most).long()
    return Guess(missing_N, count_N, out.embedding_NH)


def with_noise(z_NH: Tensor, rng: torch.Generator) -> Tensor:
    """Adds noise of a standard normal distribution."""
    return z_NH + torch.randn(z_NH.shape, generator=rng, device=z_NH.device)


def make_maker(features: int, hidden: int, most: int) -> Head:
    """Makes two layers, H to H to P F."""
    return Head(hidden, hidden, most * features, 2, 0.0)


def generate_neighbours(maker: Head, noisy_NH: Tensor, count_N: Tensor, most: int) -> GeneratedFeatures:
    """Makes neighbours from noisy embeddings, `count_N` int64 for each node: `[M, F]`, the first node's first."""
    return GeneratedFeatures(root(maker, noisy_NH), layer(maker, most), count_N)


def root(maker: Head, noisy_NH: Tensor) -> Tensor:
    """Computes the inputs of a maker's last layer from the embeddings of nodes, and a 1 for its bias, `[N, H + 1]`."""
    hidden_NH = maker.first_layer(noisy_NH).relu()
    return torch.cat([hidden_NH, hidden_NH.new_ones(len(hidden_NH), 1)], dim=1)


def layer(maker: Head, most: int) -> Tensor:
    """Returns the last layer of a maker, the bias as last column: `[F, P, H + 1]`, P neighbours of a node at most."""
    last = maker.linears[1]
    parts = last.get_parameter("weight").unflatten(0, (most, -1)), last.get_parameter("bias").view(most, -1, 1)
    return torch.cat(parts, dim=2).transpose(0, 1).contiguous()


def fresh_generator(data: View, hidden: int, most: int, seed: int) -> FlatModel:
    """Draws a generator for a client's features from a seed."""
    with Stream(data.device, seed):
        return FlatModel(Generator(data.features, data.classes, hidden, most))


def of_maker(flat: FlatModel) -> slice:
    """Finds the parameters of the maker among those of a generator."""
    module = flat.module
    before, count = (sum(p.numel() for p in part.parameters()) for part in (module.encoder, module.maker))  # type: ignore
    return slice(before, before + count)
