"""The uploads of hidden clients: each counts once, and where noise is at clients, it is added here.

Where each row of a mean has a weight, as prototypes by class have, a client counts once in each row: where it has none
as no change of what it received, or of zeros, so that the classes of a client are hidden, too.

With noise at clients all that the server computes is covered. An upload has k parts: the changes of its means and
models together, of norm C at most, and each other entry, of the norm B that its method declares (`Algorithm.norms`). A
longer part is scaled down. Its noise has the deviation z sqrt(k) C, or z sqrt(k) B. With all data of a client replaced
each part moves by twice its norm, 2 / (z sqrt(k)) deviations, and all k together by 2 / z: they are one Gaussian
mechanism. Epsilon is that of all rounds: the server knows who sent an upload, so that no draw of cohorts makes it less.
"""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from shoal.algorithms.base import Algorithm
from shoal.algorithms.losses.prototypes import unpack
from shoal.algorithms.method_errors import ProtocolError, code_of
from shoal.algorithms.protocol import Reduce, Tree, Upload
from shoal.engine.messages.cell import Cell
from shoal.engine.rounds.stage import AtClient, Stage
from shoal.engine.stages.changes import like
from shoal.engine.stages.privacy.section import PrivacyOptions
from shoal.storage.errors import ShoalError

if TYPE_CHECKING:
    from shoal.engine.messages.job import Job
    from shoal.engine.rounds.sampling import Plan


def norms_of(method: Algorithm) -> dict[str, float | None]:
    """Reads a method's `norms`; raises a ShoalError if they have none, or it gives what is no norm."""
    with code_of(method, "norms"):
        norms = dict(method.norms())
        for entry, norm in norms.items():
            if norm is not None and not 0 <= norm < math.inf:
                raise ProtocolError(f"gives {norm} for {entry!r}, expected None or a number of at least 0")
    return norms


def with_rows(received: Tree, entries: Tree) -> Tree:
    """Adds to a download the rows of classes that it has, as `pack` makes them, under the names of such entries."""
    rows_there = {
        name: rows[0]
        for name, value in entries.items()
        if value.dim() > 1 and (rows := unpack(received, *value.shape[:-1], entry=name)) is not None
    }
    return {**received, **rows_there}


def once(upload: Upload, received: Tree, cell: Cell) -> Upload:
    """Makes an upload count as one client, in each row, whatever it says: without weight as no change.

    All of it is sent, so that its size says nothing either.
    """
    entries, weights, sizes = dict(upload.entries), Tree(), dict[str, int]()
    for name in (name for name, how in cell.up.items() if how is Reduce.MEAN):
        weight, value = upload.weight.get(name, 1.0), entries[name]
        if isinstance(weight, torch.Tensor) or not weight:
            base = like(value, received.get(name))
            base = torch.zeros_like(value) if base is None else base.to(value.dtype)
            entries[name] = torch.where(torch.as_tensor(weight != 0, device=value.device), value, base)
        if isinstance(weight, torch.Tensor):
            # Weights are known.
            weights[name], sizes[name] = torch.ones_like(weight), value.nbytes
    return Upload(entries, weights, sizes)


class CountOnce(Stage):
    """The first half of hidden clients: each counts as one client, before its upload is compressed."""

    hides_sizes = True

    def at_client(self, upload: Upload, at: AtClient) -> Upload:
        return once(upload, with_rows(at.received, upload.entries), at.cell)


def make(job: "Job", plan: "Plan | None") -> list[Stage]:
    """Returns the stage of a job that hides clients."""
    return [CountOnce()]


class NoisyUploads:
    """The clip and the noise that clients of a job apply to their uploads."""

    def __init__(self, options: PrivacyOptions, method: Algorithm) -> None:
        """Prepares the noise of the options; raises as `norms_of`."""
        self._noise, self._clip, self._norms = options.noise or 0.0, options.clip or math.inf, norms_of(method)

    def protect(self, upload: Upload, received: Tree, cell: Cell, random: Callable[[str], int]) -> Upload:
        """Clips an upload, counts it once, and adds noise; `random` gives a seed of the client for a purpose.

        Raises ShoalError: an entry is of whole numbers.
        """
        entries = dict(upload.entries)
        norms = {name: self._norms.get(name) for name in cell.up}
        changed = [name for name, norm in norms.items() if norm is None]
        parts = [(changed, self._clip)] * bool(changed) + [([name], norm) for name, norm in norms.items() if norm]
        for name, norm in norms.items():
            if not entries[name].is_floating_point():
                dtype = str(entries[name].dtype).removeprefix("torch.")
                raise ShoalError(
                    "privacy.where", f"upload() gives {name!r} as {dtype}; noise needs floats, as .float() gives"
                )
            if norm == 0:
                entries[name] = torch.ones_like(entries[name])
        for names, norm in parts:
            bases = {name: None if norms[name] else like(entries[name], received.get(name)) for name in names}
            changes = {name: entries[name] if base is None else entries[name] - base for name, base in bases.items()}
            length = float(sum(change.double().square().sum() for change in changes.values())) ** 0.5
            for name, change in changes.items():
                if length > norm:
                    change, base = change * (norm / length), bases[name]
                    entries[name] = change if base is None else base + change
                if self._noise:
                    rng = torch.Generator().manual_seed(random(f"privacy/{cell.phase}/{name}"))
                    # The processor draws it, so that it is the same on any device.
                    noise = torch.randn(change.shape, generator=rng).to(change)
                    entries[name] = entries[name] + self._noise * math.sqrt(len(parts)) * norm * noise
        return Upload(entries, upload.weight, {name: t.nbytes for name, t in entries.items()})
