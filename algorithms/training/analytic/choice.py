"""The choice of models that are trained by the formulas of their gradients."""

from typing import Protocol

from torch import Tensor

from shoal.algorithms.base import Algorithm, fits_cross_entropy, overrides
from shoal.algorithms.client import FlatModel
from shoal.algorithms.method_errors import OURS
from shoal.algorithms.models.build import name_of
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.training.analytic.layers import HEADS, HeadGradients
from shoal.algorithms.training.analytic.small_heads import SmallHead, SmallModel, is_small_head


class AnalyticGradient(Protocol):
    """Gradients of a backward pass, to rounding, written into `grad`."""

    def gradient(self, inputs: Inputs, label_N: Tensor) -> Tensor:
        """Overwrites the gradients of all parameters by those of a batch, in training mode; gives its mean loss.

        Dropout draws the same numbers from torch's default generator as the model's forward pass. The labels are the
        classes of the rows of its output, int64; the loss is cross-entropy.
        """
        ...


def analytic(model: FlatModel) -> AnalyticGradient:
    """Makes the gradients of a model for which `needed_for_analytic` gives None."""
    name = name_of(model.module)
    if name in HEADS:
        return HeadGradients(model)
    if name == "gamlp":
        from shoal.algorithms.training.analytic.gamlp import GAMLPGradients

        return GAMLPGradients(model)
    # Heads need none of it.
    from shoal.algorithms.training.analytic.graphs import GraphGradients

    return GraphGradients(model)


def at_once(model: FlatModel) -> SmallModel | None:
    """Returns the object that trains small clients of such a model in one call; None: nothing does."""
    if is_small_head(model):
        return SmallHead(model)
    if model.coupled is None or (passes := model.passes) is None:
        return None
    # Heads need none of it.
    from shoal.algorithms.training.analytic.small_graphs import SmallGraph

    return SmallGraph(passes)


def needed_for_analytic(method: Algorithm, model: FlatModel) -> str | None:
    """Says what is missing to train a model by formulas of its gradients; None: nothing."""
    if model.reads_items:
        return "a node task (task: node)"
    name = name_of(model.module)
    if name is None:
        return "a model that is not adapted to another width"
    # The class itself says so: a class that derives from it may compute something else.
    if not vars(type(model.module)).get("has_gradient_formulas"):
        return f"a model with formulas of its gradients, which {name} is not"
    if getattr(model.module, "attention", None) == "recursive":
        return "another model.attention than recursive"
    if model.coupled is None and not model.module.head.drops_embedding:  # type: ignore[union-attr]
        return "dropout before the classifier (no model.head_dropout: false) of a model that reads hops"
    if model.coupled is not None and model.coupled.fanouts:
        return "the whole graph in every step (no model.fanouts)"
    usual = "layer" if name == "gin" else "none"
    if getattr(model.module, "norm", usual) != usual:
        return f"model.norm: {usual}"
    if model.coupled is not None and (
        model.coupled.relu_head or (model.coupled.conv_head and model.coupled.papers_head == "linear")
    ):
        return "model.head: linear"
    if name in ("gamlp", "gat") and model.w.device.type not in ("cpu", "meta"):
        return f"a processor, for {name}"
    if model.bfloat16 and (name not in HEADS or model.sparse or model.w.device.type not in ("cpu", "meta")):
        return f"products in float32 (engine.precision), or {' or '.join(HEADS)} on dense features and a processor"
    if not fits_plainly(method):
        return f"a method of plain cross-entropy, which {type(method).__name__} is not"
    return None


def fits_plainly(method: Algorithm) -> bool:
    """Returns whether `trainer.fit` without loss and term may go by formulas.

    A `train` of the user's own may look at gradients of the module, which formulas do not make.
    """
    return fits_cross_entropy(method) or (type(method).__module__.startswith(OURS) and not overrides(method, "loss"))
