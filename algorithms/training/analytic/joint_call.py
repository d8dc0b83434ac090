"""Models of a client that learn from each other, trained in one compiled call."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack

import torch
from torch import Tensor

from shoal.algorithms.client import ClientModel
from shoal.algorithms.models.compiled.losses import trace_loss
from shoal.algorithms.models.compiled.passes import Call
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.models.layers.head import Output
from shoal.algorithms.protocol import Tree
from shoal.algorithms.rng import Stream
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.one_call import Plan, plan_whole, train_in_turns
from shoal.algorithms.training.analytic.small_heads import Trained, count_steps

OutputsLoss = Callable[[Mapping[str, Output]], Tensor]


def train_in_one_call(
    models: Mapping[str, ClientModel],
    inputs: Mapping[str, Inputs],
    losses: Mapping[str, OutputsLoss],
    moments: Mapping[str, Tree],
    streams: Mapping[str, Stream],
    options: TrainOptions,
) -> dict[str, tuple[float, float]] | None:
    """Trains as `train_jointly` does on pure losses; gives each loss before the last step and before the first.

    The models are in training mode; Adam's moments, by torch's names, are begun if there are none, and changed in
    place. None: a model has no pass over its inputs, or a loss is more than a sum of losses of rows.
    """
    plans = _plan(models, inputs, losses)
    if plans is None:
        return None
    learners = []
    for name, plan in plans.items():
        kept = torch.empty(options.epochs, plan.kept)
        with streams[name]:
            for of_step in kept:
                plan.draw(of_step)
        learners.append((plan, Trained.of(models[name], moments[name], kept, options, None)))
    ended = train_in_turns(learners, options.epochs)
    for name in plans:
        count_steps(moments[name], options)
    return dict(zip(plans, ended))


def _plan(
    models: Mapping[str, ClientModel], inputs: Mapping[str, Inputs], losses: Mapping[str, OutputsLoss]
) -> dict[str, Plan] | None:
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
    except Exception:
        # Stand-ins can do little; autograd names what is wrong.
        return None
    for name, of_model in passes.items():
        assert of_model is not None
        plan = plan_whole(of_model, calls[name], traced[name])
        if plan is None:
            return None
        plans[name] = plan
    return plans
