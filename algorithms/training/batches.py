"""What a model reads in one step of local training."""

from collections.abc import Callable

import numpy as np
from torch import Tensor

from shoal.algorithms.client import Client
from shoal.algorithms.models.inputs.graph_batch import ItemBatch
from shoal.algorithms.models.inputs.neighbourhood import Inputs, Neighbourhood, sampled
from shoal.algorithms.protocol import MODEL
from shoal.storage.graph.sparse_matrix import SparseMatrix, StoredFeatures


def batches(client: Client, model: str = MODEL) -> Callable[[Tensor | None], Inputs]:
    """Gives the inputs of one of the client's models for training items, by their places; None stands for all of them.

    A decoupled model reads these rows of its hops, a coupled one the whole graph, or, with `model.fanouts`, neighbours
    drawn for these rows from a random stream of its own. Where items are graphs, a model reads these graphs alone, and
    where they are pairs, what their rows need.
    """
    data, own = client.data, client.models[model]
    if (items := own.items) is not None:
        return lambda places: own.gathered("train") if places is None else items.some(data.train[places])
    coupled = own.coupled
    if coupled is not None and coupled.fanouts:
        operator, fanouts = coupled.operator, coupled.fanouts
        rng = np.random.default_rng(own.random("neighbours"))
        return lambda places: sampled(data, operator, fanouts, _at(data.train, places), rng)
    inputs = own.gathered("train")
    assert not isinstance(inputs, ItemBatch)
    if isinstance(inputs, Neighbourhood):
        return lambda places: inputs._replace(rows=_at(data.train, places))
    return lambda places: [_features_at(hop, places) for hop in inputs]


def _at(rows: Tensor, places: Tensor | None) -> Tensor:
    return rows if places is None else rows[places]


def _features_at(rows: StoredFeatures, places: Tensor | None) -> StoredFeatures:
    if places is None:
        return rows
    return rows.rows(places) if isinstance(rows, SparseMatrix) else rows[places]
