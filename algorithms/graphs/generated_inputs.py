"""Inputs of a model over a small graph that a method makes, with gradients to the features."""

import numpy as np
from torch import Tensor

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.inputs.masked_features import AlteredFeatures, smoothing_over
from shoal.algorithms.models.inputs.neighbourhood import Inputs, Neighbourhood, operator_over


def inputs_over(model: FlatModel, x_NF: Tensor, starts: np.ndarray, columns: np.ndarray) -> Inputs:
    """Makes what a model reads of all nodes of a symmetric graph without loops, given as CSR of int32.

    A model of hops reads copies of x that are smoothed by D^-1/2 (A + I) D^-1/2.
    """
    if (coupled := model.coupled) is not None:
        matrix = operator_over(coupled.operator, starts, columns).to(x_NF.device)
        return Neighbourhood(x_NF, (matrix,) * coupled.depth)
    smoothing = smoothing_over(starts, columns, 0.5).to(x_NF.device)
    return [AlteredFeatures(x_NF, None, smoothing, k) if k else x_NF for k in model.inputs]
