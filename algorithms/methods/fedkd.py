"""FedKD: a mentor of the client's own and a common mentee, whose changes are sent at low rank."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from shoal.algorithms.base import Ask, Client, Context, Output, Received, Requests, Trainer, Tree, Upload, pure
from shoal.algorithms.client import FlatModel
from shoal.algorithms.losses.distillation import distance_of_projected, distillation_loss
from shoal.algorithms.methods.shared.copilot import COPILOT, TaughtRows
from shoal.algorithms.models.build import width_of
from shoal.algorithms.protocol import MODEL, Reduce, moments_key
from shoal.algorithms.training.joint_training import Beside, Outputs, label_loss, train_jointly
from shoal.algorithms.training.local_training import keep_moments, kept_moments, make_optimizer
from shoal.storage.options.types import Part

# A client's state holds W under the first name, and under the second the copilot's parameters, as the server does.
PROJECTION, BASE = "projection", "base"
OTHER = {MODEL: COPILOT, COPILOT: MODEL}


@dataclass(frozen=True)
class FedKD(TaughtRows):
    """FedKD (Wu et al., Nature Communications 13, 2022); mentor and mentee are a client's own model and the copilot.

    In every epoch both answer, in training mode; then each takes one step, the mentor m on

        CE_m + [KL(mentee || mentor) + MSE(z_m, W z_s)] / (CE_m + CE_s)

    and the mentee s on the same with the two exchanged: CE_s + [KL(mentor || mentee) + MSE(z_m, W z_s)] / (CE_m +
    CE_s). CE is the mean over training rows, the KL that over `rows` (see `TaughtRows`), the MSE that over rows and the
    width of the mentor's embedding z_m. The other model's output and the denominator are detached (our choice). W,
    `[H_m, H_s]`, stays at the client; after both steps it takes its own on the two MSE terms, by the optimizer of the
    config. Losses of attention maps are left out. The mentor predicts.

    The copilot travels as changes, every matrix in them truncated to the least rank that holds a share of its squared
    singular values: T = energy_start + (energy_end - energy_start) t / rounds in round t. A client sends what training
    changed; the server truncates the mean over the cohort, weighted by nodes, again and applies what is left, so that
    it and its clients hold the same to the bit.

    Up: for an `[a, b]` matrix of rank r the smaller of r (a + b + 1) and a b scalars, other parameters as they are, and
    the weight. Down: T, and the last round's change to clients that took part in that round, all P parameters to
    others. A client without training rows does not train and has weight 0.
    """

    energy_start: Part = 0.95
    energy_end: Part = 0.98

    def setup(self, ctx: Context) -> Tree:
        return {**super().setup(ctx), "current": torch.zeros(len(ctx.clients), dtype=torch.bool)}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        energy = torch.tensor(self.energy_start + (self.energy_end - self.energy_start) * ctx.round / ctx.rounds)
        change = {name: t for name, t in server.items() if name.startswith("change.")}
        private = {i: change if server["current"][i] else {"w": server["w"]} for i in cohort}
        got = yield Ask("train", {"change": Reduce.MEAN}, shared={"energy": energy}, private=private)
        copilot = ctx.build(COPILOT, 0)
        change = compress(copilot, got["change"], float(energy))
        server.update(change, w=server["w"] + expand(copilot, change))
        # These clients have the server's parameters but for this change.
        server["current"] = torch.zeros_like(server["current"])
        server["current"][got.ids] = True

    def receive(self, client: Client, down: Tree) -> Received:
        if "energy" in down:
            copilot, w = client.models[COPILOT], down.get("w")
            base = client.state[BASE] + expand(copilot.flat, down) if w is None else w.clone()
            client.state[BASE] = base
            copilot.load(base)
        return down

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        if not client.info.train:
            return float("nan")
        with projection(client, trainer) as (w, optimizer):
            labels = LabelLosses(client, self.taught(client))
            losses = {name: pure(partial(self._taught, labels, w.detach(), name)) for name in OTHER}
            beside = Beside(w, optimizer, partial(self._projected, labels))
            return train_jointly(client, trainer, losses, self.taught(client), beside)[MODEL]

    def _taught(self, of_labels: "LabelLosses", w: Tensor, learner: str, outputs: Outputs) -> Tensor:
        """Computes the loss of mentor or mentee, whose projection is `w`, `[H_m, H_s]`."""
        labels, scale = of_labels(outputs)
        z = {name: out.embedding_NH for name, out in outputs.items()}
        z[OTHER[learner]] = z[OTHER[learner]].detach()
        taught = distillation_loss(outputs[OTHER[learner]].logits_NC, outputs[learner].logits_NC)
        return labels[learner] + (taught + distance_of_projected(z[MODEL], z[COPILOT], w)) / scale

    def _projected(self, of_labels: "LabelLosses", outputs: Outputs, w: Tensor) -> Tensor:
        """Computes what both losses have of the projection."""
        z = {name: out.embedding_NH.detach() for name, out in outputs.items()}
        return 2 * distance_of_projected(z[MODEL], z[COPILOT], w) / of_labels(outputs)[1]

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        copilot = client.models[COPILOT]
        sent = compress(copilot.flat, copilot.w - client.state[BASE], float(received["energy"]))
        weight = float(client.info.items) if client.info.train else 0.0
        size = sum(part.nbytes for part in sent.values()) + 4
        return Upload({"change": expand(copilot.flat, sent)}, {"change": weight}, {"change": size})


class LabelLosses:
    """Both cross-entropies of a client's outputs, and their sum, detached; computed once for the same outputs."""

    def __init__(self, client: Client, part: str) -> None:
        """Takes the client, and of which rows outputs are, `train` or `all`."""
        self._client, self._part = client, part
        self._last: tuple[list[Output], tuple[dict[str, Tensor], Tensor]] | None = None

    def __call__(self, outputs: Outputs) -> tuple[dict[str, Tensor], Tensor]:
        """Cross-entropies by the names of models, and the sum, no less than the least divisor."""
        asked = [*outputs.values()]
        if self._last is None or any(a is not b for a, b in zip(self._last[0], asked, strict=True)):
            labels = {name: label_loss(self._client, out, self._part) for name, out in outputs.items()}
            # Both may be 0 to rounding.
            total = (labels[MODEL] + labels[COPILOT]).detach().clamp_min(torch.finfo(torch.float32).eps)
            self._last = asked, (labels, total)
        return self._last[1]


@contextmanager
def projection(client: Client, trainer: Trainer) -> Iterator[tuple[nn.Parameter, torch.optim.Optimizer]]:
    """Returns a client's projection, `[H_m, H_s]`, at first identity or Xavier-uniform, and its optimizer."""
    start = client.state.get(PROJECTION)
    if start is None:
        start = torch.empty(*(width_of(client.models[name].module) for name in OTHER), device=client.data.device)
        if start.shape[0] == start.shape[1]:
            nn.init.eye_(start)
        else:
            nn.init.xavier_uniform_(start, generator=client.rng(PROJECTION))
    w = nn.Parameter(start)
    w.grad = torch.zeros_like(start)
    optimizer = make_optimizer([w], trainer.options)
    if kept := kept_moments(client.state, moments_key(PROJECTION)):
        optimizer.state[w] = kept
    yield w, optimizer
    client.state[PROJECTION] = w.detach()
    if trainer.options.opt_state == "keep":
        keep_moments(client.state, moments_key(PROJECTION), optimizer.state[w])


def truncate(matrix: Tensor, energy: float) -> Tensor:
    """Makes the message for a matrix `[A, B]`: factors of rank R, or a copy of it where these take as much.

    The rank is the least whose squared singular values hold a share `energy` of the sum of all: at least 1 for a matrix
    that is not zero, 0 for one that is. What is no matrix, or not finite, stays as it is. Of factors,
    `[R, A + B + 1]`, a row is a left singular vector, the right one, and their singular value. All is float32.
    """
    # A sum is finite in a tenth of the time where all numbers are.
    if matrix.dim() == 2 and (math.isfinite(matrix.sum()) or bool(matrix.isfinite().all())):
        # The processor computes in float64: squares of small numbers do not vanish, and no device rounds otherwise.
        left, right, s = _singular_parts(matrix.cpu().double(), energy)
        if len(s) * (sum(matrix.shape) + 1) < matrix.numel():
            return torch.cat([part.float() for part in (left, right, s[:, None])], dim=1).to(matrix.device)
    return matrix.clone(memory_format=torch.contiguous_format)


def _singular_parts(matrix: Tensor, energy: float) -> tuple[Tensor, Tensor, Tensor]:
    """Finds left singular vectors, `[R, A]`, right ones, `[R, B]`, and values of `truncate`, the largest first.

    Squared values and the vectors of the shorter side are those of the product of the matrix with itself, of min(A, B)
    rows, which take less time than a decomposition. Values below 1e-8 of the largest are lost in its rounding.
    """
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.t()
    squares, vectors = torch.linalg.eigh(wide @ wide.t())
    held = squares.clamp_min(0).flip(0).cumsum(0)
    rank = int((held < energy * held[-1]).sum()) + 1 if held[-1] > 0 else 0
    of_short = vectors.flip(1)[:, :rank].t()
    of_long = of_short @ wide
    s = of_long.norm(dim=1)
    of_long = of_long / s.clamp_min(torch.finfo(s.dtype).tiny)[:, None]
    return (of_short, of_long, s) if wide is matrix else (of_long, of_short, s)


def restore(part: Tensor, shape: torch.Size) -> Tensor:
    """Restores a matrix of a shape from what `truncate` gave, float32, with the same bits on every machine."""
    if part.shape == shape:
        return part
    rows, columns = shape
    left, right, s = part.cpu().double().split([rows, columns, 1], dim=1)
    # Libraries round otherwise in float64, which does not reach the float32. It lies as weights by column do.
    return ((s * right).t() @ left).t().float().to(part.device)


def compress(model: FlatModel, change: Tensor, energy: float) -> Tree:
    """Compresses a change of a model's parameters, `[P]`: `change.<k>` is the message of the k-th parameter."""
    return {f"change.{k}": truncate(part, energy) for k, part in enumerate(model.parts(change))}


def expand(model: FlatModel, sent: Tree) -> Tensor:
    """Restores the change of the parameters, `[P]`, from what `compress` gave; other entries are not read."""
    change = torch.empty_like(model.w.detach())
    for k, part in enumerate(model.parts(change)):
        part.copy_(restore(sent[f"change.{k}"], part.shape))
    return change
