"""A client's encoder, and the prototypes of what it embeds.

Axes: N nodes of the client, T of them for training, E width of an embedding, K clusters.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.base import Client
from shoal.algorithms.client import FlatModel
from shoal.algorithms.losses.clusters import by_kmeans
from shoal.algorithms.models.gnn.sage import GraphSAGE
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, sample_neighbourhood
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import bounded_loss, make_optimizer


class Encoder(nn.Module):
    """GraphSAGE of two layers, tanh, and a linear classifier."""

    def __init__(self, features: int, classes: int, width: int) -> None:
        """Draws the parameters from torch's default generator; nothing is dropped."""
        super().__init__()
        self.sage = GraphSAGE(features, classes, 0, 0.0, hidden=width)

    def embed(self, around: Neighbourhood) -> Tensor:
        """Computes the embeddings that lie in (-1, 1), `[N, E]`."""
        return torch.tanh(self.sage.embed(around.x_NF, around.operators))

    def forward(self, around: Neighbourhood) -> Tensor:
        """Computes logits, `[N, C]`."""
        logits_NC: Tensor = self.sage.head(self.embed(around)).logits_NC
        return logits_NC


def embed_nodes(
    client: Client, width: int, w: Tensor, epochs: int, neighbours: int, options: TrainOptions
) -> tuple[Tensor, float]:
    """Trains an encoder from parameters w on the labels of a client, and embeds all its nodes, `[N, E]`.

    Each step reads up to so many neighbours of a node, drawn anew for every layer, and so does the embedding; 0 reads
    all. Gives also the last loss.
    """
    data = client.data
    with torch.random.fork_rng(devices=[]):
        flat = FlatModel(Encoder(data.features, client.info.classes, width).to(data.device))
    flat.load(w)
    optimizer, rng = (
        make_optimizer([flat.w], options),
        np.random.default_rng(client.random("neighbours of the encoder")),
    )
    fanouts = [neighbours or -1] * 2

    def draw(rows: Tensor) -> Neighbourhood:
        return sample_neighbourhood(data, "mean", fanouts, rows, rng)

    loss = torch.zeros(())
    for _ in range(epochs):
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(flat.module(draw(data.train)), data.train_label)
        loss.backward()
        optimizer.step()
    assert isinstance(flat.module, Encoder)
    with torch.no_grad():
        z_NE = flat.module.embed(draw(torch.arange(data.nodes)))
    return z_NE, bounded_loss(float(loss.detach()))


def summarise(z_NE: Tensor, clusters: int, seed: int) -> tuple[Tensor, Tensor]:
    """Clusters embeddings by k-means; gives the means, `[k, E]`, and the cluster of every node, int64 `[N]`.

    There are k = `clusters`, or as many as different embeddings.
    """
    points = z_NE.cpu().numpy()
    count = min(clusters, len(np.unique(points, axis=0)))
    label_N = by_kmeans(points, count, seed).numpy() if count > 1 else np.zeros(len(points), dtype=np.int64)
    cluster_N = torch.from_numpy(np.unique(label_N, return_inverse=True)[1]).to(z_NE.device)
    of_cluster_KN = F.one_hot(cluster_N).T.to(z_NE.dtype)
    return of_cluster_KN @ z_NE / of_cluster_KN.sum(1, keepdim=True), cluster_N
