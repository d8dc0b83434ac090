"""Differential privacy of clients by noise on each upload, so that all that the server computes of them is covered.

An upload has k parts: the changes of its means and models together, of norm C at most, and each other entry, of the
norm B that its method declares (`Algorithm.norms`). A longer part is scaled down. Its noise has the deviation
z sqrt(k) C, or z sqrt(k) B. With all data of a client replaced each part moves by twice its norm, 2 / (z sqrt(k))
deviations, and all k together by 2 / z: they are one Gaussian mechanism. Epsilon is that of all rounds: the server
knows who sent an upload, so that no draw of cohorts makes it less. What the server computes of uploads adds nothing.
"""

import math
from collections.abc import Callable

import torch

from shoal.algorithms.base import Algorithm
from shoal.algorithms.protocol import Tree, Upload
from shoal.engine.config.round_sections import PrivacyOptions
from shoal.engine.messages.cell import Cell
from shoal.engine.uploads.compression import like
from shoal.engine.uploads.privacy import norms_of
from shoal.storage.errors import ShoalError


class NoisyUploads:
    """What clients of a job do to their uploads."""

    def __init__(self, options: PrivacyOptions, method: Algorithm) -> None:
        """With the noise of the options; raises as `norms_of`."""
        self._noise, self._clip, self._norms = options.noise or 0.0, options.clip or math.inf, norms_of(method)

    def sent(self, upload: Upload, received: Tree, cell: Cell, random: Callable[[str], int]) -> Upload:
        """An upload that counts once, clipped and with noise; `random` gives a seed of the client for a purpose.

        Raises ShoalError: an entry is of whole numbers.
        """
        entries = dict(upload.entries)
        norms = {name: self._norms.get(name) for name in cell.up}
        changed = [name for name, norm in norms.items() if norm is None]
        parts = [(changed, self._clip)] * bool(changed) + [([name], norm) for name, norm in norms.items() if norm]
        for name, norm in norms.items():
            if not entries[name].is_floating_point():
                found = str(entries[name].dtype).removeprefix("torch.")
                raise ShoalError(
                    "privacy.where", f"upload() gives {name!r} as {found}; noise needs floats, as .float() gives"
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
