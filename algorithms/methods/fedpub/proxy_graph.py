"""The graph that all clients' models are compared on: a random one, that says nothing of anybody's data (Fed-PUB)."""

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.client import ClientModel
from shoal.algorithms.graphs.graph_views import smoothing_over
from shoal.algorithms.models.inputs.neighbourhood import Inputs, Neighbourhood, operator_over

# As the authors' code has it: an edge inside a block with this probability, none between blocks.
BLOCKS, NODES, INSIDE = 5, 100, 0.1


def proxy_graph(seed: int, features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Row starts and columns of the symmetric adjacency, int32, and features drawn from N(0, 1), float32 `[500, F]`.

    Args:
        seed: Of the run: the same for all clients and rounds.
        features: Their width F.
    """
    rng = np.random.default_rng(seed)
    nodes = BLOCKS * NODES
    joined = np.zeros((nodes, nodes), dtype=bool)
    for block in range(BLOCKS):
        own = slice(block * NODES, (block + 1) * NODES)
        joined[own, own] = np.triu(rng.random((NODES, NODES)) < INSIDE, 1)
    joined |= joined.T
    starts = np.concatenate([[0], np.cumsum(joined.sum(1))]).astype(np.int32)
    return starts, joined.nonzero()[1].astype(np.int32), rng.standard_normal((nodes, features), dtype=np.float32)


def sketch(model: ClientModel, seed: int) -> Tensor:
    """What a model makes of the proxy graph: its mean embedding over the nodes, in evaluation mode, `[H]`."""
    coupled = model.coupled
    reads = (*model.flat.inputs, _r(model)) if coupled is None else (coupled.operator, coupled.depth)
    inputs = model.data.cache(("proxy graph", seed, *reads), lambda: _inputs(model, seed))
    return model.output(inputs).embedding_NH.mean(0)


def _inputs(model: ClientModel, seed: int) -> Inputs:
    data, coupled = model.data, model.coupled
    starts, columns, features = proxy_graph(seed, data.features)
    x_NF = torch.from_numpy(features).to(data.device)
    if coupled is not None:
        operator = operator_over(coupled.operator, starts, columns).to(data.device)
        return Neighbourhood(x_NF, (operator,) * coupled.depth)
    smoothing = smoothing_over(starts, columns, _r(model)).to(data.device)
    hops = [x_NF]
    for _ in range(max(model.flat.inputs)):
        hops.append(smoothing @ hops[-1])
    return [hops[k] for k in model.flat.inputs]


def _r(model: ClientModel) -> float:
    """Exponent of the normalisation of the clients' own hops."""
    kernel = model.data.propagation
    return 0.5 if kernel is None else kernel.r
