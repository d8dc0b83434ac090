"""Losses of training without labels: of the nodes of one graph their edges, of small graphs two views of each.

Axes: n items of a step, H columns of their embeddings.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.base import Loss, Received
from shoal.algorithms.client import ClientModel
from shoal.algorithms.graphs.graph_augmentation import SmallGraphs, with_other_edges, without_nodes
from shoal.algorithms.losses.prototype_losses import nt_xent
from shoal.algorithms.models.layers.head import Output
from shoal.storage.errors import ShoalError
from shoal.storage.shards.view import View

# As in GraphCL's code: tau of the loss, and the share of nodes, or of edges, that a view changes.
TEMPERATURE, ALTERED = 0.5, 0.2
# Draws of node pairs and of views have this purpose.
PURPOSE = "unlabelled"


def make_unlabelled_loss(trained: ClientModel) -> Loss:
    """Makes the loss of a client's visit: of its edges, or, where items are graphs, of views of these.

    It takes the numbers of items in the place of their labels, and draws from a random stream of the visit.
    """
    data, rng = trained.data, np.random.default_rng(trained.random(PURPOSE))
    if data.graph_ptr is None:
        return _reconstruct_edges(data, rng)
    return _contrast_graphs(trained, data, rng)


def _reconstruct_edges(data: View, rng: np.random.Generator) -> Loss:
    """Makes the loss of a graph auto-encoder (Kipf & Welling, Variational graph auto-encoders, 2016).

    An edge joins i and j with probability sigmoid(<z_i - m, z_j - m>), m the mean of the embeddings of a step. The mean
    of -log p over the edges among its nodes is added to that of -log(1 - p) over pairs that are none, drawn uniformly,
    as many as there are edges. The paper's embeddings end in a linear layer; these end in a ReLU, without m no pair
    would have a negative product.
    """
    indptr, indices = data.csr
    source = np.repeat(np.arange(data.nodes, dtype=np.int64), np.diff(indptr))
    once = source < indices
    ends_2E = np.stack([source[once], indices[once].astype(np.int64)])
    keys_E = ends_2E[0] * data.nodes + ends_2E[1]
    place_N = np.full(data.nodes, -1, dtype=np.int64)

    def loss(out: Output, items: Tensor, w: Tensor, received: Received) -> Tensor:
        chosen = items.cpu().numpy()
        place_N[chosen] = np.arange(len(chosen))
        edges_2E = place_N[ends_2E]
        edges_2E = edges_2E[:, (edges_2E >= 0).all(0)]
        pairs_2E = _draw_pairs(chosen, edges_2E.shape[1], keys_E, data.nodes, rng)
        place_N[chosen] = -1
        z_nH = out.embedding_NH
        z_nH = z_nH - z_nH.mean(0)
        return _mean_loss(z_nH, edges_2E, -1.0) + _mean_loss(z_nH, pairs_2E, 1.0)

    return loss


def _draw_pairs(chosen: np.ndarray, count: int, keys_E: np.ndarray, nodes: int, rng: np.random.Generator) -> np.ndarray:
    """Draws places of pairs of different nodes that no edge joins, int64 `[2, at most count]`."""
    pairs = rng.integers(len(chosen), size=(2, count))
    low, high = np.sort(chosen[pairs], axis=0)
    keys = low * nodes + high
    if len(keys_E):
        at = np.minimum(np.searchsorted(keys_E, keys), len(keys_E) - 1)
        pairs = pairs[:, (keys_E[at] != keys) & (low != high)]
    return pairs


def _mean_loss(z_nH: Tensor, pairs_2E: np.ndarray, sign: float) -> Tensor:
    """Computes the mean of softplus(sign <z_i, z_j>) over pairs, a scalar; 0 without any."""
    if not pairs_2E.shape[1]:
        return 0.0 * z_nH.sum()
    i, j = torch.from_numpy(pairs_2E).to(z_nH.device)
    return F.softplus(sign * (z_nH[i] * z_nH[j]).sum(1)).mean()


def _contrast_graphs(trained: ClientModel, data: View, rng: np.random.Generator) -> Loss:
    """Makes the loss of GraphCL (You et al., NeurIPS 2020): NT-Xent between two views of every graph of a step.

    One view lacks nodes, the other one has other edges. Embeddings are compared as they are: a projection before the
    loss would be one of each client's own. A step of one graph has no other to compare with, and a loss of 0.
    """
    assert data.graph_ptr is not None
    assert trained.coupled is not None
    coupled = trained.coupled
    if coupled.operator == "edges":
        raise ShoalError("data.edge_features", "edges of altered graphs have no features; set it to drop")
    graphs = SmallGraphs(data.graph_ptr.cpu().numpy(), *_whole_numbers(data), np.arange(data.nodes))

    def loss(out: Output, items: Tensor, w: Tensor, received: Received) -> Tensor:
        some = graphs.some(items.cpu().numpy())
        views = without_nodes(some, ALTERED, rng), with_other_edges(some, ALTERED, rng)
        z = [trained(view.batch(data, coupled)).embedding_NH for view in views]
        return nt_xent(z[0], z[1], TEMPERATURE) if len(items) > 1 else 0.0 * (z[0].sum() + z[1].sum())

    return loss


def _whole_numbers(data: View) -> tuple[np.ndarray, np.ndarray]:
    """Copies row starts and columns of the adjacency, int64."""
    indptr, indices = data.csr
    return indptr.astype(np.int64), indices.astype(np.int64)
