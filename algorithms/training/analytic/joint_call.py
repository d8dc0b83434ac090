"""Models of a client that learn from each other, trained in one compiled call."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from shoal.algorithms.client import ClientModel
from shoal.algorithms.models.compiled.losses import trace_loss
from shoal.algorithms.models.compiled.passes import Call
from shoal.algorithms.models.compiled.trace import Value
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.protocol import MODEL, Tree
from shoal.algorithms.rng import Stream
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.one_call import Plan, plan_whole, train_in_turns
from shoal.algorithms.training.analytic.small_heads import NO_MOMENT, Trained, count_steps

OutputsLoss = Callable[[Mapping[str, Output]], Tensor]
# A matrix beside the models, its moments, and its loss.
Matrix = tuple[nn.Parameter, Tree, Callable[[Mapping[str, Output], Tensor], Tensor]]


def train_in_one_call(
    models: Mapping[str, ClientModel],
    inputs: Mapping[str, Inputs],
    losses: Mapping[str, OutputsLoss],
    moments: Mapping[str, Tree],
    streams: Mapping[str, Stream],
    options: TrainOptions,
    beside: Matrix | None = None,
) -> dict[str, tuple[float, float]] | None:
    """Trains as `train_jointly` does on pure losses; gives each loss before the last step and before the first.

    The models are in training mode; Adam's moments, by torch's names, are begun if there are none, and changed in
    place. None: a model has no pass over its inputs, or a loss is more than a sum of losses of rows.
    """
    plans = _plan(models, inputs, losses, beside, options.epochs)
    if plans is None:
        return None
    learners = []
    for name, plan in plans.items():
        if beside is not None and name == "":
            moments = {**moments, name: beside[1]}
            learners.append((plan, Trained.of(beside[0], beside[1], NO_MOMENT, options)))
            continue
        kept = torch.empty(options.epochs, plan.kept, dtype=torch.int16)
        with streams[name]:
            plan.draw(kept)
        learners.append((plan, Trained.of(models[name].flat.w, moments[name], kept, options)))
    ended = train_in_turns(learners, options.epochs)
    for of_learner in moments.values():
        count_steps(of_learner, options)
    return dict(zip(plans, ended))


def _plan(
    models: Mapping[str, ClientModel],
    inputs: Mapping[str, Inputs],
    losses: Mapping[str, OutputsLoss],
    beside: Matrix | None,
    steps: int,
) -> dict[str, Plan] | None:
    """Plans the steps of models, by name, and those beside them, without a name; None: they are not to be had."""
    passes = {name: model.pattern.passes for name, model in models.items()}
    calls: dict[str, list[Call]] = {}
    plans = {}
    try:
        with ExitStack() as stack:
            for name, of_model in passes.items():
                if of_model is None:
                    return None
                calls[name] = stack.enter_context(of_model.drawing())
            outputs = {name: model(inputs[name]) for name, model in models.items()}
            traced = {name: trace_loss(lambda w: losses[name](outputs), calls[name]) for name in models}  # noqa: B023
            if beside is not None:
                matrix = Value("own", [], *beside[0].shape)
                of_matrix = trace_loss(lambda w: beside[2](outputs, w), [], matrix)
    except Exception:
        # Stand-ins can do little; autograd names what is wrong.
        return None
    for name, of_model in passes.items():
        assert of_model is not None
        plan = plan_whole(of_model, calls[name], traced[name], steps)
        if plan is None:
            return None
        plans[name] = plan
    if beside is not None:
        plans[""] = Plan(plans[MODEL].passes, [], of_matrix, own=matrix)
    return plans
