"""Digests of uploads (`run.keep_digests`): a visit that is made again is compared with what the client sent then."""

from typing import TYPE_CHECKING

import torch
import xxhash

from shoal.algorithms.protocol import Replies, Upload
from shoal.engine.rounds.reduction import double_of, zero_unweighted
from shoal.engine.rounds.stage import AtClient, Phase, Stage

if TYPE_CHECKING:
    from shoal.engine.messages.job import Job
    from shoal.engine.rounds.sampling import Plan

# The line of a round has phases, clients and digests by this key, and the notes of a client a digest.
UPLOADS, DIGEST = "uploads", "digest"


class Digests(Stage):
    """The last stage on hosts: it notes the digest of what each client sends."""

    def at_client(self, upload: Upload, at: AtClient) -> Upload:
        at.notes[DIGEST] = upload_digest(upload)
        return upload

    def after(self, replies: Replies, phase: Phase) -> Replies:
        digests = {i: notes[DIGEST] for outcome in phase.outcomes for i, notes in outcome.notes.items()}
        rows = [(phase.ask.phase, i, digests[i]) for i in sorted(digests)]
        phase.columns[UPLOADS] = [*phase.columns.get(UPLOADS, ()), *rows]
        return replies


def make(job: "Job", plan: "Plan | None") -> list[Stage]:
    """Returns the stage that notes digests of uploads; called once on each host, and at the server with a plan."""
    return [Digests()]


def upload_digest(upload: Upload) -> str:
    """Returns the XXH3-128 of names, types, shapes and bytes; what has no weight counts as zeros."""
    hasher = xxhash.xxh3_128()
    for name, tensor in upload.entries.items():
        weight = upload.weight.get(name, 1.0)
        parts = (zero_unweighted(tensor, weight), torch.as_tensor(double_of(weight), dtype=torch.float64))
        for part in (t.detach().cpu().contiguous() for t in parts):
            hasher.update(f"{name} {part.dtype} {list(part.shape)} ".encode())
            hasher.update(part.reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()
