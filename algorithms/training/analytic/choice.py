"""The choice of models that are trained by the formulas of their gradients, or in one compiled call."""

from typing import NamedTuple, Protocol

from torch import Tensor

from shoal.algorithms.base import Algorithm, fits_cross_entropy, is_pure, overrides
from shoal.algorithms.client import FlatModel
from shoal.algorithms.method_errors import OURS
from shoal.algorithms.models.build import name_of
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.training.analytic.heads import HEADS, HeadGradients
from shoal.algorithms.training.analytic.small_heads import SmallHead, SmallModel, is_small_head


class AnalyticGradient(Protocol):
    """Gradients of a backward pass, to rounding, written into `grad`."""

    def gradient(self, inputs: Inputs, label_N: Tensor) -> Tensor:
        """Overwrites the gradients of all parameters by those of a batch, in training mode; gives its mean loss.

        Dropout draws the same numbers from torch's default generator as the model's forward pass. The labels are the
        classes of the rows of its output, int64; the loss is cross-entropy.
        """
        ...


class Formulas(NamedTuple):
    """The training of a model: of clients that it takes in one call, of others by the gradients of steps.

    Where there is neither, autograd trains.
    """

    one_call: SmallModel | None
    steps: AnalyticGradient | None


def analytic(model: FlatModel) -> Formulas:
    """Makes what trains a model for which `needed_for_analytic` gives None."""
    steps: AnalyticGradient | None = None
    name = name_of(model.module)
    if _needed_for_steps(model) is None:
        if name in HEADS:
            steps = HeadGradients(model)
        else:
            from shoal.algorithms.training.analytic.gamlp import GAMLPGradients

            steps = GAMLPGradients(model)
    if is_small_head(model):
        return Formulas(SmallHead(model), steps)
    if (passes := model.passes) is None:
        return Formulas(None, steps)
    # Heads need none of it.
    from shoal.algorithms.training.analytic.one_call import TracedModel

    return Formulas(TracedModel(passes), steps)


def needed_for_analytic(method: Algorithm, model: FlatModel) -> str | None:
    """Says what is missing to train a model by formulas of its gradients; None: nothing."""
    if model.reads_items:
        return "a node task (task: node)"
    if model.coupled is None and _needed_for_steps(model) is None:
        missing = None
    elif model.coupled is None and not model.sparse:
        missing = _needed_for_steps(model)
    else:
        missing = _needed_for_passes(model)
    if missing is not None:
        return missing
    by_pass = model.coupled is not None or model.sparse
    if not fits_plainly(method) and not (by_pass and trains_by_loss(method)):
        return f"a method of plain cross-entropy, which {type(method).__name__} is not"
    return None


def _needed_for_steps(model: FlatModel) -> str | None:
    """Says what is missing for the gradients of single steps, which models of rows have."""
    name, head = name_of(model.module), getattr(model.module, "head", None)
    # The class itself says so: a class that derives from it may compute something else.
    if not vars(type(model.module)).get("has_gradient_formulas"):
        return _no_formulas(name)
    if getattr(model.module, "attention", None) == "recursive":
        return "another model.attention than recursive"
    if not head.drops_embedding:  # type: ignore[union-attr]
        return "dropout before the classifier (no model.head_dropout: false) of a model that reads hops"
    if name == "gamlp" and model.w.device.type not in ("cpu", "meta"):
        return "a processor, for gamlp"
    if model.bfloat16 and (name not in HEADS or model.sparse or model.w.device.type not in ("cpu", "meta")):
        return f"products in float32 (engine.precision), or {' or '.join(HEADS)} on dense features and a processor"
    return None


def _needed_for_passes(model: FlatModel) -> str | None:
    """Says what is missing for compiled passes of a model that reads a graph, or sparse hops."""
    name, module = name_of(model.module), model.module
    if not vars(type(module)).get("traced"):
        return _no_formulas(name)
    if model.coupled is not None and model.coupled.fanouts:
        return "the whole graph in every step (no model.fanouts)"
    if getattr(module, "norm", "none") == "batch":
        return "another model.norm than batch"
    if getattr(module, "jump", None) is not None:
        return "model.jumping: none"
    if getattr(module, "attention", None) == "recursive":
        return "another model.attention than recursive"
    if model.w.device.type not in ("cpu", "meta"):
        return f"a processor, for {name}"
    if model.bfloat16:
        return f"products in float32 (engine.precision), for {name}"
    return None


def _no_formulas(name: str | None) -> str:
    if name is None:
        return "a model that is not adapted to another width"
    return f"a model with formulas of its gradients, which {name} is not"


def trains_by_loss(method: Algorithm) -> bool:
    """Returns whether clients train on a pure loss, by a `train` of ours or the default one."""
    return is_pure(method.loss) and (type(method).__module__.startswith(OURS) or not overrides(method, "train"))


def fits_plainly(method: Algorithm) -> bool:
    """Returns whether `trainer.fit` without loss and term may go by formulas.

    A `train` of the user's own may look at gradients of the module, which formulas do not make.
    """
    return fits_cross_entropy(method) or (type(method).__module__.startswith(OURS) and not overrides(method, "loss"))
