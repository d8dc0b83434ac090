"""Local training of one client: epochs over its training rows."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shoal.algorithms.base import Algorithm, Loss, Pull, Received, Term, is_pure
from shoal.algorithms.client import Client, ClientModel, FlatModel
from shoal.algorithms.method_errors import fault, kind, raise_named
from shoal.algorithms.models.inputs.neighbourhood import Inputs, ItemBatch, Neighbourhood, sample_neighbourhood
from shoal.algorithms.protocol import MODEL, Tree, moments_key
from shoal.algorithms.rng import seed_default
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.choice import Formulas, fits_plainly
from shoal.storage.errors import ShoalError
from shoal.storage.graph.sparse_matrix import SparseMatrix
from shoal.storage.options.target_names import CLUSTERING

# Leaves the gradient of a batch in the model; gives its loss, a scalar.
Gradient = Callable[[Inputs, Tensor], Tensor]
Step = Callable[[], None]
# A loss so many times the first one comes from parameters that no later round mends.
DIVERGED = 1e6


# The function is torch's, but not wrapped: the wrapper loads torch's compiler, which takes a second of every process.
_add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)


class _OfOneVector(torch.optim.Optimizer):
    """Steps of one parameter, without torch's search for parameters and hooks; those of several are torch's."""

    add_param_group = _add_param_group

    def step(self, closure: Any = None) -> Any:
        vector = self._vector()
        if vector is None or closure is not None:
            return super().step(closure)
        if vector.grad is not None:
            flat_step(self, vector)()
        return None

    # Torch would wrap it for its profiler.
    step.hooked = True  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        vector = self._vector()
        if vector is None:
            super().zero_grad(set_to_none)
        elif set_to_none:
            vector.grad = None
        elif vector.grad is not None:
            vector.grad.zero_()

    def _vector(self) -> nn.Parameter | None:
        groups = self.param_groups
        if len(groups) != 1 or len(groups[0]["params"]) != 1:
            return None
        vector: nn.Parameter = groups[0]["params"][0]
        return vector


class Adam(_OfOneVector, torch.optim.Adam):
    """Torch's Adam."""


class SGD(_OfOneVector, torch.optim.SGD):
    """Torch's SGD."""


def make_optimizer(parameters: Sequence[nn.Parameter], options: TrainOptions) -> torch.optim.Optimizer:
    """Makes the optimizer of a model's parameters."""
    if options.optimizer == "adam":
        return Adam(parameters, lr=options.lr, weight_decay=options.weight_decay, fused=True)
    return SGD(parameters, lr=options.lr, weight_decay=options.weight_decay, momentum=options.momentum)


class LocalTrainer:
    """Trains the clients that visit a host, one after another, on the host's models."""

    def __init__(
        self,
        models: Mapping[str, FlatModel],
        options: TrainOptions,
        method: Algorithm,
        formulas: Formulas | None = None,
        clipped_rows: tuple[float | None, float] | None = None,
    ) -> None:
        """Makes the optimizers once; plain training goes by `formulas`, or by the gradients of `ClippedRows`."""
        self.options = options
        self._method, self._plain = method, fits_plainly(method)
        self._one_call, self._steps = formulas or Formulas(None, None)
        self.compiles = formulas is not None and clipped_rows is None and not options.momentum
        if not self._plain:
            # Gradients of single steps are those of cross-entropy.
            self._steps = None
        if clipped_rows is not None:
            from shoal.algorithms.training.clipped_rows import ClippedRows

            self._one_call, self._steps = None, ClippedRows(models[MODEL], *clipped_rows)
        self._moments = {name: moments_key(name) for name in models}
        self._optimizers = {name: make_optimizer([flat.w], options) for name, flat in models.items()}

    def use(self, options: TrainOptions) -> None:
        """Trains with other options from now on, of which the learning rate is another one."""
        self.options = options
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = options.lr

    def fit(
        self, client: Client, received: Received, model: str = MODEL, loss: Loss | None = None, term: Term | None = None
    ) -> float:
        """Trains a client's model in place, see `base.Trainer`; a ShoalError says that the loss is not finite."""
        if not client.info.train:
            return float("nan")
        trained = client.models[model]
        if client.data.target == CLUSTERING:
            # Other targets load none of it.
            from shoal.algorithms.training.unlabelled import make_unlabelled_loss

            loss = make_unlabelled_loss(trained)
        # Items of a method's own, as an augmented graph, are read in other ways than formulas know.
        of_model = model == MODEL and trained.items is None
        plain = of_model and loss is None and term is None
        with self.optimizer(client, model) as optimizer:
            y = client.data.train_label
            pull = pull_of(self._method, client, received, self.options) if model == MODEL else None
            trained.flat.set_training(True)
            # Compiled code reads vectors by their addresses.
            by_call = of_model and (pull is None or pull.is_contiguous())
            plan = self._plan(trained, received, loss, term) if self._one_call is not None and by_call else None
            if self._one_call is not None and plan is not None:
                return bounded_loss(
                    *self._one_call.fit(trained, plan, optimizer.state[trained.flat.w], self.options, pull)
                )
            form = self._steps if plain else None
            # Rows are rounded once: half the memory, and less work in every step.
            rounds = form is not None and trained.pattern.bfloat16
            inputs_of = batches(client, model, torch.bfloat16 if rounds else torch.float32)
            gradient_of: Gradient = self._by_autograd(trained, received, loss, term) if form is None else form.gradient
            seed_default(y.device, trained.random("train"))
            step, count = flat_step(optimizer, trained.flat.w), len(y)
            w, gradient = trained.flat.w.detach(), trained.flat.w.grad
            assert gradient is not None
            size = self.options.batch_size or count
            losses: list[Tensor] = []
            first: list[Tensor] = []
            for _ in range(self.options.epochs):
                order = torch.randperm(count, device=y.device) if size < count else None
                losses.clear()
                for start in range(0, count, size):
                    chosen = None if order is None else order[start : start + size]
                    target = y if chosen is None else y[chosen]
                    value = gradient_of(inputs_of(chosen), target)
                    if pull is not None:
                        pull.apply(gradient, w)
                    step()
                    losses.append(value if chosen is None else value * (len(target) / count))
                first = first or losses.copy()
        # A second number would be a second wait on a GPU; there losses are compared from round to round alone.
        return client.data.loss_unit * bounded_loss(
            float(sum(losses)), float(sum(first)) if y.device.type == "cpu" else math.inf
        )

    def _plan(self, trained: ClientModel, received: Received, loss: Loss | None, term: Term | None) -> Any | None:
        """Plans the whole training in one compiled call; None: it is not to be had."""
        assert self._one_call is not None
        if loss is None and term is None and self._plain:
            return self._one_call.plan_plainly(trained, self.options)
        inputs, y = trained.gathered("train"), trained.data.train_label
        if not self._one_call.takes(inputs, self.options):
            return None
        of_output = loss or self._method.loss
        if not all(part is None or is_pure(part) for part in (of_output, term)):
            return None

        def loss_of(w: Tensor) -> Tensor:
            value = of_output(trained(inputs), y, w, received)
            return value if term is None else value + term()

        return self._one_call.plan(inputs, y, loss_of, self.options.epochs)

    def _by_autograd(self, own: ClientModel, received: Received, loss: Loss | None, term: Term | None) -> Gradient:
        """Computes gradients of a loss, the method's by default, and of a term."""
        loss = loss or self._method.loss
        if term is not None and not callable(term):
            what = f"term=: expected a function that gives the term, or None, got a {type(term).__name__}"
            raise fault(self._method, "train", what)
        w, gradient, passes = own.flat.w, own.flat.w.grad, own.pattern.passes
        assert gradient is not None
        adds = nullcontext if passes is None else passes.adding

        def gradient_of(inputs: Inputs, target: Tensor) -> Tensor:
            gradient.zero_()
            value = loss(own(inputs), target, w, received)
            self._require_scalar(value, loss)
            if not value.requires_grad:
                raise fault(self._method, loss, "gives a loss without a gradient; it must come from the model")
            if term is not None:
                more = term()
                self._require_scalar(more, term)
                value = value + more
            with adds():
                value.backward()
            return value.detach()

        return gradient_of

    def _require_scalar(self, value: Any, function: Callable[..., Any]) -> None:
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise fault(self._method, function, f"gives {got}, expected a scalar tensor")

    @contextmanager
    def optimizer(self, client: Client, model: str = MODEL) -> Iterator[torch.optim.Optimizer]:
        """Makes the optimizer of one of a client's models; moments are read from `client.state` and written back."""
        trained, optimizer = client.models[model], self._optimizers[model]
        w = trained.flat.w
        optimizer.state.clear()
        if kept := kept_moments(client.state, self._moments[model]):
            optimizer.state[w] = kept
        yield optimizer
        trained.drop_logits()
        if self.options.opt_state == "keep":
            keep_moments(client.state, self._moments[model], optimizer.state[w])


def pull_of(method: Algorithm, client: Client, received: Received, options: TrainOptions) -> Pull | None:
    """Returns the pull of a method on a client that trains; a ShoalError if it does not fit the client's model."""
    try:
        pull: Any = method.pull(client, received, options)
    except BaseException as error:
        raise_named(method, "pull", error)
    if pull is None:
        return None
    w = client.model.flat.w
    if not isinstance(pull, Pull):
        raise fault(method, "pull", f"gives a {type(pull).__name__}, expected a Pull or None")
    for name in ("linear", "origin", "total"):
        t = getattr(pull, name)
        if t is not None and not (isinstance(t, Tensor) and t.shape == w.shape and t.dtype == w.dtype):
            got = f"{kind(t)} {list(t.shape)}" if isinstance(t, Tensor) else type(t).__name__
            raise fault(method, "pull", f"gives {name} as {got}, expected float32 {list(w.shape)}")
        if t is not None and t.requires_grad:
            raise fault(method, "pull", f"gives {name} with a gradient, expected values alone, as .detach() gives")
    if pull.mu and pull.origin is None:
        raise fault(method, "pull", f"gives mu {pull.mu:g} without an origin")
    return pull


@contextmanager
def without_denormals() -> Iterator[None]:
    """Makes numbers below 2^-126 zero inside the block: products with many of them take fifty times as long."""
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def bounded_loss(loss: float, first: float = math.inf) -> float:
    """Returns the loss of a trained client; raises a ShoalError if it is not finite, or 1e6 times max(`first`, 1)."""
    if not math.isfinite(loss):
        fault = "NaN" if math.isnan(loss) else "infinite"
    elif loss > DIVERGED * max(first, 1.0):
        fault = f"{loss:.2g}, over a million times the first, {first:.2g}"
    else:
        return loss
    raise ShoalError(f"the training loss is {fault}; a smaller train.lr may help")


def kept_moments(state: Tree, prefix: str) -> Tree:
    """Returns the moments of an optimizer in a client's state (see `moments_key`), by torch's names."""
    return {name.removeprefix(prefix): t for name, t in state.items() if name.startswith(prefix)}


def keep_moments(state: Tree, prefix: str, moments: Mapping[str, object]) -> None:
    """Writes the moments of an optimizer into a client's state."""
    state.update({prefix + name: t for name, t in moments.items() if isinstance(t, Tensor)})


def batches(
    client: Client, model: str = MODEL, dtype: torch.dtype = torch.float32
) -> Callable[[Tensor | None], Inputs]:
    """Gives the inputs of one of the client's models for training items, by their places; None stands for all of them.

    A decoupled model reads these rows of its hops, a coupled one the whole graph, or, with `model.fanouts`, neighbours
    drawn for these rows from a random stream of its own. Where items are graphs, a model reads these graphs alone, and
    where they are pairs, what their rows need. Dense rows of hops that the host keeps have the `dtype`.
    """
    data, trained = client.data, client.models[model]
    if (items := trained.items) is not None:
        return lambda places: trained.gathered("train") if places is None else items.some(data.train[places])
    coupled = trained.coupled
    if coupled is not None and coupled.fanouts:
        operator, fanouts = coupled.operator, coupled.fanouts
        rng = np.random.default_rng(trained.random("neighbours"))
        return lambda places: sample_neighbourhood(
            data, operator, fanouts, data.train if places is None else data.train[places], rng
        )
    inputs = trained.gathered("train", dtype)
    assert not isinstance(inputs, ItemBatch)
    if isinstance(inputs, Neighbourhood):
        whole, asked = inputs, inputs.rows
        return lambda places: (
            whole if places is None else whole._replace(rows=places if asked is None else asked[places])
        )
    hops = inputs
    return lambda places: (
        hops if places is None else [hop.rows(places) if isinstance(hop, SparseMatrix) else hop[places] for hop in hops]
    )


def flat_step(optimizer: torch.optim.Optimizer, w: nn.Parameter) -> Step:
    """Builds `optimizer.step` for its one parameter, to the bit, with the moments and options that it has now.

    Torch's `step` looks for parameters, groups and hooks anew each time, which takes longer than a small client's step.
    The optimizer's state of `w`, `[P]`, is read, or begun, and kept up to date; the gradient keeps its memory.
    """
    group, state = optimizer.param_groups[0], optimizer.state[w]
    assert w.grad is not None
    # The tensors ask for no gradients, so that nothing needs to be said about them in a step.
    return (_adam if isinstance(optimizer, torch.optim.Adam) else _sgd)(w.detach(), w.grad, group, state)


def _adam(w: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Tensor]) -> Step:
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32, device=w.device)
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(w), torch.zeros_like(w)
    steps = [state["step"]]
    tensors: list[list[Tensor]] = [[w], [gradient], [state["exp_avg"]], [state["exp_avg_sq"]], [], steps]
    options = {name: group[name] for name in ("amsgrad", "lr", "weight_decay", "eps", "maximize")}
    options["beta1"], options["beta2"] = group["betas"]

    def step() -> None:
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(*tensors, **options)

    return step


def _sgd(w: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Tensor]) -> Step:
    lr, weight_decay, momentum = group["lr"], group["weight_decay"], group["momentum"]

    def step() -> None:
        change = gradient.add(w, alpha=weight_decay) if weight_decay else gradient
        if momentum:
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = change.clone()
            else:
                state["momentum_buffer"].mul_(momentum).add_(change)
            change = state["momentum_buffer"]
        w.add_(change, alpha=-lr)

    return step
