"""Hostile clients: a keyed set of clients attacks, on what they train on or on what they send.

What is said of an entry holds for its change: its difference from the tensor that the client received under the same
name in this visit, in a download or its inbox, or the entry itself where it received none. Only entries of
`Reduce.MEAN` are changed; weights are as they were. Axis: N numbers of a tensor.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.base import Received
from shoal.algorithms.client import Client
from shoal.algorithms.method_errors import describe
from shoal.algorithms.protocol import Reduce, Upload
from shoal.algorithms.rng import key
from shoal.engine.config.config import Config
from shoal.engine.config.names import own_among, shown_name
from shoal.engine.messages.job import Job
from shoal.engine.rounds.stage import AtClient, Opened, Phase, Stage, require_means
from shoal.engine.sections.sections import options_of
from shoal.engine.stages.changes import changes_of
from shoal.engine.stages.hostile.backdoor import with_rates
from shoal.engine.stages.hostile.section import HOSTILE, AttackOptions
from shoal.storage.errors import ShoalError
from shoal.storage.user_code.user_code import UserCode

if TYPE_CHECKING:
    from shoal.engine.rounds.sampling import Plan
    from shoal.storage.shards.trigger import Trigger

KIND = "attack.kind"
# So many numbers of hostile clients are shown.
MOST_NAMED = 20
# These attacks are on the data of hostile clients; all others are on what they send.
ON_DATA = ("label_flip", "backdoor")
Change = Callable[[Tensor, float, torch.Generator], Tensor]


def hostile_clients(options: AttackOptions, clients: int, seed: int) -> frozenset[int]:
    """Draws the hostile ones among all clients, `share` of them rounded down, uniform, keyed by the run's seed alone.

    Raises ShoalError: the share is less than one client.
    """
    count = int(options.share * clients + 1e-9)
    if not count:
        raise ShoalError("attack.share", f"{options.share:g} of {clients} clients is less than one; take more")
    return frozenset(np.random.default_rng(key(seed, "hostile")).choice(clients, size=count, replace=False).tolist())


def require_possible(config: Config, cohort: int) -> None:
    """Raises a ShoalError if no client would be hostile, or one that is trusted, or the attack is none."""
    options = HOSTILE.of(config)
    hostile = hostile_clients(options, config.partition.clients, config.seed)
    if options.kind == "backdoor" and (why := _no_backdoor(config)):
        raise ShoalError(KIND, f"backdoor attaches nodes to whole graphs of nodes, {why}")
    for code in own_among(KIND, [options.kind]).values():
        own_change(code)
    reduction = options_of(config, "aggregation")
    if reduction is not None and reduction.kind == "fltrust" and reduction.root in hostile:
        raise ShoalError("aggregation.root", f"client {reduction.root} is hostile with this seed; trust another one")


def require_target(config: Config, dataset: str, classes: int) -> None:
    """Raises a ShoalError if the target of a backdoor is no class of a dataset."""
    options = HOSTILE.of(config)
    if options.kind == "backdoor" and options.target >= classes:
        raise ShoalError("attack.target", f"{options.target}, and classes of '{dataset}' are 0 to {classes - 1}")


def describe_run(config: Config, parameters: Sequence[int], rounds: int) -> dict[str, str]:
    """Returns how many clients attack, how, and the first of them."""
    options, clients = HOSTILE.of(config), config.partition.clients
    hostile = sorted(hostile_clients(options, clients, config.seed))
    first = ", ".join(map(str, hostile[:MOST_NAMED])) + (" …" if len(hostile) > MOST_NAMED else "")
    how = f" (scale {options.scale:g})" if options.kind not in ON_DATA else ""
    if options.kind == "backdoor":
        how = f" (target class {options.target}, {100 * options.poison:g} % of their training nodes)"
    return {"attack": f"{len(hostile)} of {clients} clients, by {shown_name(options.kind)}{how}: {first}"}


def _no_backdoor(config: Config) -> str:
    """Returns why no trigger can be planted; empty: it can."""
    if config.task != "node":
        return f"and task is {config.task}; take label_flip"
    if options_of(config, "cross_edges") is not None:
        return "and sums over edges between clients are made before; take data.cross_edges=drop"
    if config.propagation.rows != "all":
        return "and propagation.rows shows labelled ones; take all"
    if config.propagation.relations:
        return "and hops are of relations, which edges of a trigger have not; set propagation.relations=false"
    return ""


class Hostile(Stage):
    """The hostile clients of a job: what they train on, and what they send."""

    _trigger: "Trigger | None" = None

    def __init__(self, job: Job) -> None:
        """Draws the hostile clients; raises a ShoalError if the user's function is none."""
        self._attack: AttackOptions = job.stages["attack"]
        self._hostile = hostile_clients(self._attack, len(job.model_of), job.seed)
        self._seed, self._method = job.seed, job.method_name
        self._attacks = frozenset[int]() if self._attack.kind in ON_DATA else self._hostile
        if self._attack.kind == "backdoor":
            from shoal.storage.shards.trigger import Trigger

            self._trigger = Trigger(self._attack.nodes, self._attack.target, key(job.seed, "trigger"))
        if self._attacks:
            self._change = CHANGES.get(self._attack.kind) or own_change(job.user_code[self._attack.kind])

    def on_data(self, client: int) -> dict[str, Any]:
        if client not in self._hostile or self._attack.kind not in ON_DATA:
            return {}
        if self._trigger is None:
            return {"flipped": True}
        draw = key(self._seed, client, "backdoor")
        return {"change": replace(self._trigger, share=self._attack.poison, draw=draw)}

    def at_client(self, upload: Upload, at: AtClient) -> Upload:
        if at.client not in self._attacks:
            return upload
        entries = dict(upload.entries)
        for name, (base, change) in changes_of(upload, at.received, at.cell).items():
            drawn = self._change(change, self._attack.scale, at.rng(f"attack/{at.cell.phase}/{name}"))
            entries[name] = (base + drawn).to(upload.entries[name].dtype)
        return Upload(entries, upload.weight, upload.upload_bytes)

    def score(self, counts: np.ndarray, client: Client, received: Received, opened: Opened) -> np.ndarray:
        if self._trigger is None:
            return counts
        return with_rates(counts, opened, client, received, self._trigger)

    def before(self, phase: Phase) -> None:
        """Refuses a phase without a mean, which no attack on uploads changes."""
        up, kind = phase.ask.up, self._attack.kind
        if kind not in ON_DATA and Reduce.MEAN not in up.values():
            require_means(self._method, up, KIND, kind, "changes", "label_flip")


def make(job: Job, plan: "Plan | None") -> list[Stage]:
    """Returns the stage of a job; raises as `Hostile`."""
    return [Hostile(job)]


def _gaussian(change: Tensor, scale: float, rng: torch.Generator) -> Tensor:
    """Draws noise of mean zero with `scale` times the root mean square of the change (Blanchard et al., NeurIPS 2017).

    The processor draws it, so that it is the same on any device.
    """
    size, rng = scale * change.square().mean().sqrt(), torch.Generator().manual_seed(rng.initial_seed())
    return size * torch.randn(change.shape, generator=rng, dtype=change.dtype).to(change.device)


# A hostile client sends this, by kind, instead of its change.
CHANGES: dict[str, Change] = {
    "sign_flip": lambda change, scale, rng: -scale * change,
    "gaussian": _gaussian,
    # This is model replacement (Bagdasaryan et al., AISTATS 2020).
    "scaled": lambda change, scale, rng: scale * change,
}


def own_change(code: UserCode) -> Change:
    """Makes a change of the user's function, `def Own(change, scale, rng)`, which gives a tensor like the change.

    Raises ShoalError: it is none, or takes other arguments; when it is called, it fails or gives something else.
    """
    function, name = code.function(KIND, "change", "scale", "rng"), code.name.rpartition(":")[2]

    def change_of(change: Tensor, scale: float, rng: torch.Generator) -> Tensor:
        with code.at_work(KIND):
            changed = function(change.clone(), scale, rng)
        if not isinstance(changed, Tensor) or changed.shape != change.shape:
            raise code.fault(KIND, f"{name} gives {describe(changed)}, expected a tensor of shape {list(change.shape)}")
        return changed.to(change)

    return change_of
