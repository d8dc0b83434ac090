"""Hostile clients, and what hosts do to uploads: a keyed set of clients attacks, and the server's door bounds norms.

What is said of an entry holds for its change: its difference from the tensor that the client received under the same
name in this visit, in a download or its inbox, or the entry itself where it received none. Only entries of
`Reduce.MEAN` are changed; weights are as they were. Axis: N numbers of a tensor.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.protocol import Reduce, Tree, Upload
from shoal.algorithms.rng import key
from shoal.engine.config.config import Config
from shoal.engine.config.names import own_among
from shoal.engine.config.round_sections import AttackOptions
from shoal.engine.messages.cell import Cell
from shoal.engine.messages.job import Job
from shoal.engine.uploads.compression import like
from shoal.engine.uploads.protocol_checks import named
from shoal.engine.uploads.reduction import counted
from shoal.engine.uploads.robust import require_enough
from shoal.storage.errors import ShoalError
from shoal.storage.user_code.user_code import UserCode

KIND = "attack.kind"
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
    clients, attack = config.partition.clients, config.attack.kind
    if attack != "none":
        hostile_clients(config.attack, clients, config.seed)
        for code in own_among(KIND, [attack]).values():
            own_change(code)
    require_enough(config.aggregation, cohort)


class HostileUploads:
    """What hosts of a job do to uploads.

    Attributes:
        flipped: Clients that train with flipped labels; see `shoal.storage.store.view.View`.
    """

    def __init__(self, job: Job) -> None:
        """Raises a ShoalError if the user's function is none."""
        attack, aggregation = job.attack or AttackOptions(), job.aggregation
        hostile = hostile_clients(attack, len(job.model_of), job.seed) if job.attack else frozenset[int]()
        self.flipped = hostile if attack.kind == "label_flip" else frozenset[int]()
        self._attacks, self._scale = hostile - self.flipped, attack.scale
        if self._attacks:
            self._change = CHANGES.get(attack.kind) or own_change(job.own_attack[attack.kind])
        self._bound = aggregation.bound if aggregation and aggregation.kind == "norm_bound" else math.inf
        self._once: Callable[[Upload, Tree, Cell], Upload] | None = None
        if job.privacy is not None:
            from shoal.engine.uploads.privacy import once

            self._once, self._bound = once, job.privacy.clip or math.inf

    def attacked(
        self, client: int, upload: Upload, received: Tree, cell: Cell, rng: Callable[[str], torch.Generator]
    ) -> Upload:
        """What a client sends: as it is, or changed if it is hostile."""
        if client not in self._attacks:
            return upload
        entries = dict(upload.entries)
        for name, (base, change) in changes(upload, received, cell).items():
            drawn = self._change(change, self._scale, rng(f"attack/{cell.phase}/{name}"))
            entries[name] = (base + drawn).to(upload.entries[name].dtype)
        return Upload(entries, upload.weight, upload.upload_bytes)

    def bounded(self, upload: Upload, received: Tree, cell: Cell) -> Upload:
        """What the server reduces: a change of an l2 norm above the bound is scaled down to it.

        The norm is that of all mean entries of a message together (Sun et al., Can you really backdoor federated
        learning?, 2019, section 4: w_k <- w_k / max(1, |w_k| / M)).
        """
        if self._once is not None:
            upload = self._once(upload, received, cell)
        found = changes(upload, received, cell)
        norm = sum((change.double().square().sum() for _, change in found.values()), torch.zeros(())).sqrt()
        if not norm > self._bound:
            return upload
        share = self._bound / float(norm)
        clipped = {name: (base + share * change).to(change.dtype) for name, (base, change) in found.items()}
        return Upload({**upload.entries, **clipped}, upload.weight, upload.upload_bytes)


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
    """Noise of mean zero with `scale` times the root mean square of the change (Blanchard et al., NeurIPS 2017)."""
    size = scale * change.square().mean().sqrt()
    return size * torch.randn(change.shape, generator=rng, device=change.device, dtype=change.dtype)


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
