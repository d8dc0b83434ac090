"""Hostile clients, and what hosts do to uploads: a keyed set of clients attacks, and the server's door bounds norms.

What is said of an entry holds for its change: its difference from the tensor that the client received under the same
name in this visit, in a download or its inbox, or the entry itself where it received none. Only entries of
`Reduce.MEAN` are changed; weights are as they were. Axis: N numbers of a tensor.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.protocol import Reduce, Tree, Upload
from shoal.algorithms.rng import key
from shoal.engine.config.config import Config
from shoal.engine.config.names import own_among
from shoal.engine.config.round_sections import AttackOptions
from shoal.engine.messages.cell import WITHIN, Cell
from shoal.engine.messages.job import Job
from shoal.engine.uploads.compression import like
from shoal.engine.uploads.protocol_checks import named
from shoal.engine.uploads.reduction import counted
from shoal.engine.uploads.robust import require_enough
from shoal.storage.errors import ShoalError
from shoal.storage.store.view import View
from shoal.storage.user_code.user_code import UserCode

KIND = "attack.kind"
# Attacks on the data of hostile clients; all others are on what they send.
ON_DATA = ("label_flip", "backdoor")
Change = Callable[[Tensor, float, torch.Generator], Tensor]


def hostile_clients(options: AttackOptions, clients: int, seed: int) -> frozenset[int]:
    """The hostile ones among all clients, `share` of them rounded down, uniform, keyed by the run's seed alone.

    Raises ShoalError: the share is less than one client.
    """
    count = int(options.share * clients + 1e-9)
    if not count:
        raise ShoalError("attack.share", f"{options.share:g} of {clients} clients is less than one; take more")
    return frozenset(np.random.default_rng(key(seed, "hostile")).choice(clients, size=count, replace=False).tolist())


def require_possible(config: Config, cohort: int) -> None:
    """Raises a ShoalError if no client would be hostile, an attack is none, or a cohort is too small."""
    clients, attack, hostile = config.partition.clients, config.attack.kind, frozenset[int]()
    if attack != "none":
        hostile = hostile_clients(config.attack, clients, config.seed)
        if attack == "backdoor" and (why := _no_backdoor(config)):
            raise ShoalError(KIND, f"backdoor attaches nodes to whole graphs of nodes, {why}")
        for code in own_among(KIND, [attack]).values():
            own_change(code)
    require_enough(config.aggregation, cohort)
    root = config.aggregation.root
    if config.aggregation.kind != "fltrust":
        return
    if root in hostile or not root < clients:
        why = "is hostile with this seed" if root in hostile else f"is none of 0 to {clients - 1}"
        raise ShoalError("aggregation.root", f"client {root} {why}; trust another one")
    if cohort < clients:
        raise ShoalError("aggregation.kind", f"fltrust trusts client {root} in every round; take participation.ratio=1")


def _no_backdoor(config: Config) -> str:
    """Why no trigger can be planted; empty: it can."""
    if config.task != "node":
        return f"and task is {config.task}; take label_flip"
    if config.data.cross_edges != "drop":
        return "and sums over edges between clients are made before; take data.cross_edges=drop"
    if config.propagation.rows != "all":
        return "and propagation.rows shows labelled ones; take all"
    return ""


class HostileUploads:
    """What hosts of a job do to uploads, and to data that hostile clients train on."""

    def __init__(self, job: Job) -> None:
        """Raises a ShoalError if the user's function is none."""
        attack, aggregation = job.attack or AttackOptions(), job.aggregation
        hostile = hostile_clients(attack, len(job.model_of), job.seed) if job.attack else frozenset[int]()
        self._hostile, self._attack, self._seed = hostile, attack, job.seed
        self._attacks, self._scale = frozenset() if attack.kind in ON_DATA else hostile, attack.scale
        self._trigger: Any = None
        if attack.kind == "backdoor":
            from shoal.storage.store.trigger import Trigger

            self._trigger = Trigger(attack.nodes, attack.target, key(job.seed, "trigger"))
        if self._attacks:
            self._change = CHANGES.get(attack.kind) or own_change(job.own_attack[attack.kind])
        self._bound = aggregation.bound if aggregation and aggregation.kind == "norm_bound" else math.inf
        # Of a job that hides clients.
        self._hidden: Any = None
        self._noisy: Any = None
        if job.privacy is not None:
            from shoal.engine.uploads import hidden_uploads

            self._hidden, self._bound = hidden_uploads, job.privacy.clip or math.inf
            if job.privacy.where == "client":
                self._noisy = hidden_uploads.NoisyUploads(job.privacy, job.algorithm())

    def on_data(self, client: int) -> dict[str, Any]:
        """What is done to the data that a client trains on, as of `Job.view`."""
        if client not in self._hostile or self._attack.kind not in ON_DATA:
            return {}
        if self._trigger is None:
            return {"flipped": True}
        draw = key(self._seed, client, "backdoor")
        return {"trigger": replace(self._trigger, share=self._attack.poison, draw=draw)}

    def triggered(self, view: Callable[..., View]) -> Callable[[int], View] | None:
        """Gives a client's data where test nodes have the trigger of a backdoor; None: there is no trigger."""
        return self._trigger and partial(view, trigger=self._trigger)

    def attacked(
        self, client: int, upload: Upload, received: Tree, cell: Cell, rng: Callable[[str], torch.Generator]
    ) -> Upload:
        """What a client sends: as it is, or changed if it is hostile; where clients are hidden it counts once."""
        entries = dict(upload.entries)
        for name, (base, change) in changes(upload, received, cell).items() if client in self._attacks else ():
            drawn = self._change(change, self._scale, rng(f"attack/{cell.phase}/{name}"))
            entries[name] = (base + drawn).to(upload.entries[name].dtype)
        upload = Upload(entries, upload.weight, upload.upload_bytes)
        if self._hidden is not None:
            # Before it is compressed, so that no size is of its weights.
            upload = self._hidden.once(upload, self._hidden.with_rows(received, entries), cell)
        return upload

    def bounded(self, upload: Upload, received: Tree, cell: Cell, random: Callable[[str], int]) -> Upload:
        """What the server reduces: a change of an l2 norm above the bound is scaled down to it, or has noise, too.

        The norm is that of all mean entries of a message together (Sun et al., Can you really backdoor federated
        learning?, 2019, section 4: w_k <- w_k / max(1, |w_k| / M)).
        """
        if self._hidden is not None:
            received = self._hidden.with_rows(received, upload.entries)
        if self._noisy is not None:
            noisy: Upload = self._noisy.sent(upload, received, cell, random)
            return noisy
        found, bound = changes(upload, received, cell), self._bound if cell.clip is None else cell.clip
        norm = sum((change.double().square().sum() for _, change in found.values()), torch.zeros(())).sqrt()
        entries, above = dict(upload.entries), bool(norm > bound)
        if above:
            share = bound / float(norm)
            entries |= {name: (base + share * change).to(change.dtype) for name, (base, change) in found.items()}
        if cell.clip is not None:
            entries[WITHIN] = torch.tensor(-0.5 if above else 0.5)
        return Upload(entries, upload.weight, upload.upload_bytes)


def changes(upload: Upload, received: Tree, cell: Cell) -> dict[str, tuple[Tensor, Tensor]]:
    """Of every mean entry what it is a change from, and the change, zero where the entry has no weight."""
    found = {}
    for name, how in cell.up.items():
        value, weight = upload.entries[name], upload.weight.get(name, 1.0)
        if how is Reduce.MEAN and (isinstance(weight, Tensor) or weight):
            base = like(value, received.get(name))
            base = torch.zeros_like(value) if base is None else base.to(value.dtype)
            found[name] = base, counted(value - base, weight)
    return found


def _gaussian(change: Tensor, scale: float, rng: torch.Generator) -> Tensor:
    """Noise of mean zero with `scale` times the root mean square of the change (Blanchard et al., NeurIPS 2017).

    The processor draws it, so that it is the same on any device.
    """
    size, rng = scale * change.square().mean().sqrt(), torch.Generator().manual_seed(rng.initial_seed())
    return size * torch.randn(change.shape, generator=rng, dtype=change.dtype).to(change.device)


# By kind what a hostile client sends instead of its change.
CHANGES: dict[str, Change] = {
    "sign_flip": lambda change, scale, rng: -scale * change,
    "gaussian": _gaussian,
    # Model replacement (Bagdasaryan et al., AISTATS 2020).
    "scaled": lambda change, scale, rng: scale * change,
}


def own_change(code: UserCode) -> Change:
    """The user's function, `def Own(change, scale, rng)`, which gives a tensor like the change.

    Raises ShoalError: it is none, or takes other arguments; when it is called, it fails or gives something else.
    """
    function, name = code.function(KIND, "change", "scale", "rng"), code.name.rpartition(":")[2]

    def change_of(change: Tensor, scale: float, rng: torch.Generator) -> Tensor:
        with code.at_work(KIND):
            found = function(change.clone(), scale, rng)
        if not isinstance(found, Tensor) or found.shape != change.shape:
            raise code.fault(KIND, f"{name} gives {named(found)}, expected a tensor of shape {list(change.shape)}")
        return found.to(change)

    return change_of
