"""Compression of the float tensors that clients upload, in front of any method: a few numbers, or a byte a number.

A tensor that a client received under the same name in this visit, in a download or its inbox, is sent as the change
from it, which the server knows. What the change lacks is added to that of the next upload (error feedback: Seide et
al., Interspeech 2014; with the largest numbers Stich et al., Sparsified SGD with memory, NeurIPS 2018, and Sattler et
al., Robust and communication-efficient federated learning, 2019).

A tensor that was not received, as a prototype, is sent as the change from what the server has of it by the uploads
before, zero at first, which both sides keep (EF21: Richtarik et al., NeurIPS 2021).

Whatever reduces uploads sees whole tensors: what the server makes of the message. Axis: N numbers of a tensor.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shoal.algorithms.protocol import COMPRESSION, Upload
from shoal.engine.config.config import Config
from shoal.engine.config.sizes import size
from shoal.engine.messages.job import Job
from shoal.engine.rounds.stage import AtClient, Stage
from shoal.engine.stages.changes import like
from shoal.engine.stages.compression.section import COMPRESSION as COMPRESSION_SECTION
from shoal.engine.stages.compression.section import NOT_COMPRESSED, CommunicationOptions

if TYPE_CHECKING:
    from shoal.engine.rounds.sampling import Plan

# A tensor of fewer numbers, as a count of every class, is sent whole.
LEAST = 256
# A number's place takes so many bytes.
PLACE = 4
# int8 has so many steps on each side of zero.
STEPS = 127


class Compression(Stage):
    """A stage that makes uploads smaller, and keeps what each lacks for the next."""

    def __init__(self, options: CommunicationOptions) -> None:
        """Takes the options of a run."""
        self._options = options

    def at_client(self, upload: Upload, at: AtClient) -> Upload:
        """Returns the upload as the server will have it, with the bytes that were sent."""
        entries, sizes = dict(upload.entries), dict(upload.upload_bytes)
        of_phase = f"{COMPRESSION}{at.cell.phase}/"
        for name in at.cell.up:
            value, weight = entries[name], upload.weight.get(name)
            if not value.is_floating_point() or value.numel() < LEAST:
                continue
            # An entry without weight may be NaN, and is not read.
            read = (weight != 0).expand(value.shape) if isinstance(weight, Tensor) else None
            if read is None:
                numbers = value.numel() if weight is None or weight else 0
            else:
                numbers = int(read.sum())
            largest = max(1, int(self._options.ratio * numbers + 1e-9))
            number = torch.promote_types(value.dtype, torch.float32)
            size = compressed_bytes(self._options, numbers, number.itemsize)
            of_weight = 0 if weight is None else 4 * (weight.numel() if isinstance(weight, Tensor) else 1)
            if not numbers or size + of_weight >= sizes.get(name, value.nbytes + of_weight):
                continue
            received = like(value, at.received.get(name))
            key = f"{of_phase}{'left' if received is not None else 'sent'}/{name}"
            before = like(value, at.kept.get(key))
            base = received if received is not None else before if before is not None else torch.zeros_like(value)
            base = base.to(number)
            change = value.to(number) - base
            if read is not None:
                change = torch.where(read, change, 0.0)
            if received is not None and before is not None:
                change += before
            if self._options.upload == "topk":
                coded = largest_of(change, largest)
            else:
                coded = round_at_random(change, at.rng(f"{of_phase}{name}"))
            entries[name], sizes[name] = (base + coded).to(value.dtype), size + of_weight
            if self._options.error_feedback:
                at.kept[key] = change - coded if received is not None else entries[name]
        return Upload(entries, upload.weight, sizes)


def compressed_bytes(options: CommunicationOptions, numbers: int, itemsize: int) -> int:
    """Returns the bytes of so many numbers when they are compressed, each of `itemsize` bytes before."""
    if options.upload == "topk":
        return max(1, int(options.ratio * numbers + 1e-9)) * (itemsize + PLACE)
    return numbers + itemsize


def describe_run(config: Config, parameters: Sequence[int], rounds: int) -> dict[str, str]:
    """Returns what clients send of a model, with bytes; or a line where no model is compressed."""
    options, numbers = COMPRESSION_SECTION.of(config), max(parameters)
    if why := sent_whole(options, parameters):
        return {NOT_COMPRESSED: why}
    of_largest = f"topk, the largest {100 * options.ratio:g} % of the numbers of each change"
    how = of_largest if options.upload == "topk" else "int8, a byte for each number of a change"
    later = ", what is left unsent comes later" if options.error_feedback else ""
    whole = torch.float32.itemsize * numbers
    sent = size(compressed_bytes(options, numbers, torch.float32.itemsize))
    return {"compression": f"{how}{later}; {sent} in place of the {size(whole)} of a model"}


def sent_whole(options: CommunicationOptions, parameters: Sequence[int]) -> str:
    """Returns a line where no model, of so many float32 parameters each, is compressed; else an empty one."""
    bytes_each = torch.float32.itemsize
    large = [count for count in parameters if count >= LEAST]
    smaller = any(compressed_bytes(options, count, bytes_each) < bytes_each * count for count in large)
    if options.upload == "none" or smaller:
        return ""
    kept = f"communication.upload: {options.upload}: nothing of a model is compressed, "
    if large:
        return f"{kept}for numbers with their places take no fewer bytes; take communication.ratio below 0.5"
    return f"{kept}for tensors of fewer than {LEAST} numbers are sent whole, and a model has {max(parameters)}"


def make(job: Job, plan: "Plan | None") -> list[Stage]:
    """Returns the stage of a job."""
    return [Compression(job.stages["communication"])]


def largest_of(change: Tensor, count: int) -> Tensor:
    """Keeps the `count` numbers of largest magnitude of a change, and zeros the rest; NaN counts as the largest."""
    flat = change.reshape(-1)
    place = flat.abs().topk(count, sorted=False).indices
    return torch.zeros_like(flat).scatter_(0, place, flat[place]).view_as(change)


def round_at_random(change: Tensor, rng: torch.Generator) -> Tensor:
    """Rounds the change to multiples of its largest magnitude over 127, up or down at random so that its mean is kept.

    That is QSGD (Alistarh et al., NeurIPS 2017, section 3) with the maximum norm and 127 levels.
    """
    step = change.abs().amax() / STEPS
    step = torch.where(step == 0, 1.0, step)
    drawn = torch.rand(change.shape, generator=rng, device=change.device, dtype=change.dtype)
    return torch.floor(change / step + drawn).clamp(-STEPS, STEPS) * step
