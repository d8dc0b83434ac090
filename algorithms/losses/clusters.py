"""Clusters of a client's items: k-means of what its model embeds them to."""

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.client import Client

PURPOSE = "clusters"
# Starts of k-means, the best of which counts.
STARTS = 10


def cluster_items(client: Client) -> Tensor:
    """Clusters all items of a client by k-means (Lloyd, 1982) of their embeddings, those before the classifier.

    There are as many clusters as the dataset has classes, or items where these are fewer. k-means++ draws from a random
    stream of the visit. No label is read.

    Returns:
        A one in the column of its cluster for every item, float32 `[items, C]`.
    """
    z_NH = torch.cat([out.embedding_NH.float() for out in client.model.outputs()]).cpu().numpy()
    count = min(client.info.classes, len(z_NH))
    clusters = torch.zeros(len(z_NH), dtype=torch.int64)
    if count > 1:
        clusters = by_kmeans(z_NH, count, client.random(PURPOSE))
    return torch.nn.functional.one_hot(clusters, client.info.classes).float().to(client.data.device)


def by_kmeans(z_NH: np.ndarray, count: int, seed: int) -> Tensor:
    """Finds the cluster of every row among so many, int64 `[N]`, by k-means; k-means++ draws from the seed."""
    # Others need none of it, and loading it takes a second.
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    # Sums of several threads have other last bits.
    with threadpool_limits(1):
        made = KMeans(count, n_init=STARTS, random_state=seed % 2**32).fit_predict(z_NH)
    return torch.from_numpy(made).long()
