"""Prompts of FedLoG: a made-up neighbour for every global synthetic node, by a generator of its class.

Axes: C classes, K nodes of a class, F features.
"""

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.client import FlatModel
from shoal.algorithms.graphs.generated_inputs import inputs_over
from shoal.algorithms.models.inputs.neighbourhood import Inputs, Neighbourhood
from shoal.algorithms.models.layers.dropout import drop

# Hidden widths of a generator, and the chance that an entry of its last hidden layer is dropped.
WIDTHS, DROPPED = (256, 512), 0.5
# Weight `[C, inputs, outputs]` and bias `[C, 1, outputs]` of a layer of all generators.
Layer = tuple[Tensor, Tensor]


@lru_cache(maxsize=1)
def drawn_generators(seed: int, classes: int, features: int, device: torch.device) -> tuple[Layer, ...]:
    """Draws the generators of all classes, the same wherever the seed is the same.

    Weights and biases of a layer with n inputs are uniform between -1 / sqrt(n) and 1 / sqrt(n).
    """
    rng, layers = torch.Generator().manual_seed(seed), []
    for inputs, outputs in pairwise((features, *WIDTHS, features)):
        bound = 1 / math.sqrt(inputs)
        weight = torch.empty(classes, inputs, outputs).uniform_(-bound, bound, generator=rng)
        bias = torch.empty(classes, 1, outputs).uniform_(-bound, bound, generator=rng)
        layers.append((weight.to(device), bias.to(device)))
    return tuple(layers)


def prompts(layers: tuple[Layer, ...], known_C: Tensor, x_QKF: Tensor) -> Tensor:
    """Generates a neighbour's features for each node of the known classes, `[Q, K, F]`, of their own features."""
    x, all_known = x_QKF, bool(known_C.all())
    for number, layer in enumerate(layers, start=1):
        # Most of the work is to read the weights, which need not be copied.
        weight, bias = layer if all_known else (t[known_C] for t in layer)
        # Entries are dropped before the last layer alone, whatever mode the model is in.
        x = drop(x, DROPPED, number == len(layers))
        x = torch.baddbmm(bias, x, weight)
        x = x.relu() if number < len(layers) else x.tanh()
    return x


def prompted(model: FlatModel, x_NF: Tensor, prompt_NF: Tensor) -> Inputs:
    """Makes what a model reads of nodes that have one neighbour each, their prompt; nodes come first, prompts last."""
    count = len(x_NF)
    starts, place = np.arange(2 * count + 1, dtype=np.int32), np.arange(count, dtype=np.int32)
    inputs = inputs_over(model, torch.cat([x_NF, prompt_NF]), starts, np.concatenate([place + count, place]))
    if isinstance(inputs, Neighbourhood):
        return inputs._replace(rows=torch.arange(count, device=x_NF.device))
    return inputs
