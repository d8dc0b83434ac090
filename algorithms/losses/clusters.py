"""Clusters of a client's items: k-means of what its model embeds them to."""

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
    # Other targets need none of it, and loading it takes a second.
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    z_NH = torch.cat([out.embedding_NH.float() for out in client.model.outputs()]).cpu().numpy()
    count = min(client.info.classes, len(z_NH))
    clusters = torch.zeros(len(z_NH), dtype=torch.int64)
    if count > 1:
        seed = client.random(PURPOSE) % 2**32
        # Sums of several threads have other last bits.
        with threadpool_limits(1):
            made = KMeans(count, n_init=STARTS, random_state=seed).fit_predict(z_NH)
        clusters = torch.from_numpy(made).long()
    return torch.nn.functional.one_hot(clusters, client.info.classes).float().to(client.data.device)
