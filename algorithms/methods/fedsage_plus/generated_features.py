"""Features of generated neighbours, which are never written out.

Axes: N nodes, P neighbours at most of a node, M generated ones, F features, R width of a root, B real nodes.
"""

import torch
from torch import Tensor

from algorithms.backbones.head import Head
from storage.sparse_matrix import Features, SparseMatrix


class GeneratedFeatures(SparseMatrix):
    """X~ `[M, F]`: the p-th neighbour of node n has the features L_p r_n, a root r_n `[R]` times a layer L_p `[F, R]`.

    F may be many thousands and R is at most a few hundred, so all that is asked of X~ is asked of L first: its product
    with a weight W is r_n (L_p' W), the square of its norm r_n (L_p' L_p) r_n, and its product with a real node x
    r_n (L_p' x). It stands where sparse features stand, which are only ever multiplied by a weight; it has no arrays of
    its own.

    Attributes:
        owner_M: Whose neighbours they are, int64, ascending.
    """

    def __init__(self, root_NR: Tensor, layer_FPR: Tensor, count_N: Tensor) -> None:
        """Wraps the parts.

        Args:
            root_NR: Roots r, which may be differentiated, as the layer may be.
            layer_FPR: Layers L, one for the first neighbour of a node, one for the second, ….
            count_N: How many neighbours a node gets, at most P, int64.
        """
        self._layer_FPR = layer_FPR
        neighbours = layer_FPR.shape[1]
        some = count_N.nonzero()[:, 0]
        self._root_nR = root_NR[some]
        place, self._slot_M = (torch.arange(neighbours, device=some.device) < count_N[some, None]).nonzero().unbind(1)
        self.owner_M = some[place]
        self._root_M = place
        self._place_M = place * neighbours + self._slot_M

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), len(self._layer_FPR)))

    def __len__(self) -> int:
        return len(self.owner_M)

    def __matmul__(self, weight_FK: Tensor) -> Tensor:
        layers = self._layer_FPR.shape[1:]
        of_layers_RPK = (self._layer_FPR.flatten(1).t() @ weight_FK).unflatten(0, layers).transpose(0, 1)
        return self._of_generated((self._root_nR @ of_layers_RPK.flatten(1)).unflatten(1, (layers[0], -1)))

    def float(self) -> "GeneratedFeatures":
        return self

    def to_dense(self) -> Tensor:
        layer_RPF = self._layer_FPR.permute(2, 1, 0)
        return self._of_generated((self._root_nR @ layer_RPF.flatten(1)).unflatten(1, layer_RPF.shape[1:]))

    def squares_M(self) -> Tensor:
        """The square of the norm of each."""
        layer_PFR = self._layer_FPR.transpose(0, 1)
        gram_RPR = (layer_PFR.transpose(1, 2) @ layer_PFR).transpose(0, 1)
        through_nPR = (self._root_nR @ gram_RPR.flatten(1)).unflatten(1, gram_RPR.shape[1:])
        return self._of_generated((through_nPR * self._root_nR[:, None]).sum(2)[..., None])[:, 0]

    def seen(self, x_BF: Features) -> Tensor:
        """L_p' x of real nodes, `[B, P, R]`, which the products with them are made of."""
        return (x_BF @ self._layer_FPR.flatten(1)).unflatten(1, self._layer_FPR.shape[1:])

    def products(self, seen_BPR: Tensor, made_Q: Tensor, real_Q: Tensor) -> Tensor:
        """Products of generated nodes with real ones, pair by pair, `[Q]`.

        Args:
            seen_BPR: What `seen` says of the real nodes.
            made_Q: Places of generated nodes, int64.
            real_Q: Places of real ones, int64.
        """
        root_QR = self._root_nR.index_select(0, self._root_M[made_Q])
        places = real_Q * seen_BPR.shape[1] + self._slot_M[made_Q]
        return (root_QR * seen_BPR.flatten(0, 1).index_select(0, places)).sum(1)

    def all_products(self, seen_BPR: Tensor) -> Tensor:
        """Products of all generated nodes with all of some real ones, `[M, B]`; arguments as for `products`."""
        found_PBn = seen_BPR.transpose(0, 1) @ self._root_nR.t()
        return self._of_generated(found_PBn.permute(2, 0, 1))

    def _of_generated(self, numbers_nPK: Tensor) -> Tensor:
        """Those of P numbers, or rows, of every node that has neighbours that are of one, `[M, K]`."""
        return numbers_nPK.flatten(0, 1).index_select(0, self._place_M)


def root(maker: Head, noisy_NH: Tensor) -> Tensor:
    """What the last layer of a maker reads of the embeddings of nodes, and a 1 for its bias, `[N, H + 1]`."""
    hidden_NH = maker.transformed(noisy_NH).relu()
    return torch.cat([hidden_NH, hidden_NH.new_ones(len(hidden_NH), 1)], dim=1)


def layer(maker: Head, most: int) -> Tensor:
    """The last layer of a maker, the bias as last column: `[F, P, H + 1]`, P neighbours of a node at most."""
    last = maker.linears[1]
    parts = last.get_parameter("weight").unflatten(0, (most, -1)), last.get_parameter("bias").view(most, -1, 1)
    return torch.cat(parts, dim=2).transpose(0, 1).contiguous()
