"""FedGen: a generator of embeddings, trained on the server, tells clients what the others' classifiers know."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numba
import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from shoal.algorithms.base import Ask, Client, Context, Output, Received, Requests, Tree, Upload
from shoal.algorithms.client import FlatModel
from shoal.algorithms.losses.distillation import distillation_loss
from shoal.algorithms.losses.prototype_generator import STATE, train_kept
from shoal.algorithms.losses.prototype_losses import distances
from shoal.algorithms.losses.prototypes import bits, from_bits
from shoal.algorithms.methods.lg_fedavg import LGFedAvg
from shoal.algorithms.methods.shared.body import as_layer
from shoal.algorithms.methods.shared.requirements import require_weight
from shoal.algorithms.models.compiled.row_losses import FAST, is_compiled, row_loss
from shoal.algorithms.models.layers.head import undrawn
from shoal.algorithms.protocol import MODEL, Reduce
from shoal.storage.options.types import AboveZero, NotNegative, Part, Positive


class FeatureGenerator(nn.Module):
    """Embeddings g = W_2 ReLU(W_1 [e, onehot(y)] + b_1) + b_2 of noise e ~ N(0, I) and a class y (FedGen).

    FedGen's code normalises the hidden layer over the batch, whose running statistics are no parameters.
    """

    def __init__(self, noise: int, classes: int, hidden: int, width: int) -> None:
        """Draws no parameters: they are loaded, or drawn by `reset_parameters`."""
        super().__init__()
        self.noise, self.classes = noise, classes
        pairs = ((noise + classes, hidden), (hidden, width))
        self.layers = nn.ModuleList(undrawn(*pair) for pair in pairs)

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator."""
        for layer in self.layers:
            layer.reset_parameters()  # type: ignore[operator]

    def draw(self, y_N: Tensor, rng: torch.Generator) -> Tensor:
        """Draws noise for as many embeddings, float32 `[N, Z]`."""
        return torch.randn(len(y_N), self.noise, generator=rng, device=y_N.device)

    def forward(self, noise_NZ: Tensor, y_N: Tensor) -> Tensor:
        """Generates embeddings `[N, H]` from noise and classes, int64."""
        x = torch.cat([noise_NZ, F.one_hot(y_N, self.classes)], dim=1)
        return self.layers[1](self.layers[0](x).relu())


# Logits of a block of clients in `ensemble_cross_entropy`: they stay in a processor's cache.
LOGITS = 2**17


def ensemble_cross_entropy(g_NH: Tensor, y_N: Tensor, weight_BCH: Tensor, bias_BC: Tensor, share_BC: Tensor) -> Tensor:
    """Averages sum_i share_{i, y} CE(h_i(g), y) over embeddings, h_i the classifier of client i (FedGen).

    The shares are what a client's word on a class counts; the column of a class sums to one. The gradient is that of
    the embeddings alone.
    """
    loss: Tensor = _EnsembleCrossEntropy.apply(g_NH, y_N, weight_BCH, bias_BC, share_BC)
    return loss


class _EnsembleCrossEntropy(torch.autograd.Function):
    """The loss and its gradient in one pass over blocks of clients, each on the embeddings that its word counts for.

    With p_i the softmax of h_i and e the one-hot vector of the class, it is sum_i share_{i, y} (p_i - e) W_i / N.
    """

    @staticmethod
    def forward(ctx: Any, g_NH: Tensor, y_N: Tensor, weight_BCH: Tensor, bias_BC: Tensor, share_BC: Tensor) -> Tensor:
        place_BM, share_BM = _counting(share_BC[:, y_N])
        loss, of_g_NH = g_NH.new_zeros((), dtype=torch.float64), torch.zeros_like(g_NH)
        clients = max(LOGITS // max(place_BM.shape[1] * weight_BCH.shape[1], 1), 1)
        for places, shares, weight, bias in zip(*(t.split(clients) for t in (place_BM, share_BM, weight_BCH, bias_BC))):
            true = y_N[places][..., None]
            score = torch.baddbmm(bias[:, None], g_NH[places], weight.transpose(1, 2)).log_softmax(2)
            loss -= (shares * score.gather(2, true)[..., 0]).sum(dtype=torch.float64)
            of_score = score.exp_().scatter_add_(2, true, score.new_full((1, 1, 1), -1).expand(true.shape))
            of_score.mul_(shares[..., None])
            of_g_NH.index_add_(0, places.flatten(), torch.bmm(of_score, weight).flatten(0, 1))
        ctx.of_g = of_g_NH / len(y_N)
        return (loss / len(y_N)).to(g_NH.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.of_g, None, None, None, None


def _counting(share_BN: Tensor) -> tuple[Tensor, Tensor]:
    """Lists for every client the places that it has a share of, and the shares, both `[B, M]`; behind them zeros."""
    client_P, place_P = share_BN.nonzero(as_tuple=True)
    count_B = torch.bincount(client_P, minlength=len(share_BN))
    column_P = torch.arange(len(client_P), device=share_BN.device) - (count_B.cumsum(0) - count_B)[client_P]
    place_BM = place_P.new_zeros(len(share_BN), int(count_B.max()))
    place_BM[client_P, column_P] = place_P
    share_BM = share_BN.new_zeros(place_BM.shape)
    share_BM[client_P, column_P] = share_BN[client_P, place_P]
    return place_BM, share_BM


def sameness(noise_NZ: Tensor, g_NH: Tensor) -> Tensor:
    """Computes FedGen's diversity loss: exp(-mean over pairs a, b of |e_a - e_b|_2 * mean over H of |g_a - g_b|)."""
    if noise_NZ.is_cpu and is_compiled(g_NH):
        return row_loss(_sameness, g_NH, noise_NZ)
    apart_NN = distances(noise_NZ, noise_NZ)
    different_NN = torch.cdist(g_NH, g_NH, p=1) / g_NH.shape[1]
    return (-(apart_NN * different_NN).mean()).exp()


@numba.njit(cache=True, nogil=True, fastmath=FAST)
def _sameness(g: np.ndarray, noise: np.ndarray, gradient: np.ndarray) -> float:
    """Computes `sameness`, pair by pair."""
    (rows, width), total = g.shape, 0.0
    gradient[:] = 0
    for a in range(rows):
        of_a = np.zeros(width, np.float32)
        for b in range(a):
            square, different = np.float32(0), np.float32(0)
            for z in range(noise.shape[1]):
                square += (noise[a, z] - noise[b, z]) ** 2
            apart = np.sqrt(square)
            for h in range(width):
                difference = g[a, h] - g[b, h]
                different += abs(difference)
                moved = apart if difference > 0 else -apart if difference < 0 else np.float32(0)
                of_a[h] += moved
                gradient[b, h] -= moved
            total += float(apart) * float(different)
        for h in range(width):
            gradient[a, h] += of_a[h]
    scale = 2 / (rows * rows * width)
    same = math.exp(-scale * total)
    gradient *= np.float32(-scale * same)
    return same


# Bounds the generator's widths and its batch, all pairs of which are compared.
WIDEST = 4096


class Taught(NamedTuple):
    """The message to a client once there is a generator: G, and the classes that it was trained on.

    Both terms are multiplied by the factor. Each draws embeddings, of random classes or of the rows' own, from a stream
    of its own, so that neither depends on whether the other is there.
    """

    generator: FeatureGenerator
    classifier: slice
    factor: float
    known_C: Tensor
    drawn: torch.Generator
    own: torch.Generator


@dataclass(frozen=True)
class FedGen(LGFedAvg):
    """FedGen (Zhu et al., ICML 2021), its form with a shared classifier h and private bodies.

    The server trains G, from noise and a class to an embedding of width H, on sum_i n_iy / n_y CE(h_i(G(y)), y) over
    the uploaded classifiers + diversity_weight * exp(-mean over pairs |e_a - e_b|_2 * mean |g_a - g_b|). The y of a
    batch are uniform over the classes of the cohort, as in the paper's code. Adam goes on from round to round.

    From the round after the first training of G on, a client trains on cross-entropy + a CE(h(G(y~)), y~)
    + b KL(h(G(y)) || h(z)): y~ as many as the step has rows, uniform over the classes that G was ever trained on; y the
    rows' own labels, of those classes, and that teacher is constant. In round t a = alpha * decay^(t - 1), b likewise.
    alpha = beta = 0 trains as LG-FedAvg.

    Up: the classifier, n_i and C counts. Down: the classifier; once G is trained, its P_G parameters, the factor, and a
    bit for every class.

    Attributes:
        alpha: Weight of the classifier's training on embeddings of G; 10 in the paper's code.
        beta: Weight of the distillation; 10 in the paper's code.
        decay: Factor of both a round.
        server_steps, server_batch, server_lr: Steps of G in a round, embeddings a step, and its learning rate.
        diversity_weight: Weight of the diversity loss.
        noise, hidden: Widths of the noise and of G's hidden layer.
    """

    alpha: NotNegative = 10.0
    beta: NotNegative = 10.0
    decay: Part = 0.98
    server_steps: Positive = 50
    server_batch: Annotated[int, Field(ge=1, le=WIDEST)] = 128
    server_lr: AboveZero = 3e-4
    diversity_weight: NotNegative = 1.0
    noise: Annotated[int, Field(ge=1, le=WIDEST)] = 32
    hidden: Annotated[int, Field(ge=1, le=WIDEST)] = 256

    def setup(self, ctx: Context) -> Tree:
        for number, kind in enumerate(ctx.models[MODEL]):
            require_weight(ctx.build(MODEL, number), kind, "FedGen reads embeddings by the classifier's weight alone")
        return {**super().setup(ctx), "known": torch.zeros(ctx.classes, dtype=torch.bool)}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        shared = self.global_model(server)
        if STATE in server:
            shared["generator"], shared["known"] = server[STATE], bits(server["known"])
            shared["factor"] = torch.tensor(self.decay ** (ctx.round - 1))
        got = yield Ask("train", {"w": Reduce.MEAN, "classifier": Reduce.STACK, "counts": Reduce.STACK}, shared=shared)
        if got.weights["w"] > 0:
            server["w"] = got["w"]
        counts_BC = got["counts"]
        class_Q = counts_BC.any(0).nonzero()[:, 0]
        if not len(class_Q):
            return
        server["known"][class_Q] = True
        weight_BCH, bias_BC = as_layer(got["classifier"], ctx.classes)
        share_BC = counts_BC / counts_BC.sum(0).clamp_min(1)
        generator = FeatureGenerator(self.noise, ctx.classes, self.hidden, ctx.width)
        rng = ctx.rng("noise")

        def loss() -> Tensor:
            place_N = torch.randint(len(class_Q), (self.server_batch,), generator=rng, device=class_Q.device)
            y_N = class_Q[place_N]
            noise_NZ = generator.draw(y_N, rng)
            g_NH = generator(noise_NZ, y_N)
            taught = ensemble_cross_entropy(g_NH, y_N, weight_BCH, bias_BC, share_BC)
            return taught + self.diversity_weight * sameness(noise_NZ, g_NH) if self.diversity_weight else taught

        ctx.notes["server loss"] = train_kept(
            server, generator, loss, self.server_steps, self.server_lr, 0.0, ctx.random("generator")
        )

    def receive(self, client: Client, down: Tree) -> Taught | None:
        super().receive(client, down)
        if STATE not in down:
            return None
        classifier, classes = client.model.flat.classifier, client.info.classes
        width = (classifier.stop - classifier.start) // classes - 1
        generator = FeatureGenerator(self.noise, classes, self.hidden, width)
        FlatModel(generator).load(down[STATE])
        streams = client.rng("drawn classes"), client.rng("own classes")
        return Taught(generator, classifier, float(down["factor"]), from_bits(down["known"], classes), *streams)

    def loss(self, out: Output, y: Tensor, w: Tensor, received: Taught | None) -> Tensor:
        total = super().loss(out, y, w, received)
        if received is None:
            return total
        weight_CH, bias_C = as_layer(w[received.classifier], len(received.known_C))
        if self.alpha:
            class_Q = received.known_C.nonzero()[:, 0]
            y_N = class_Q[torch.randint(len(class_Q), y.shape, generator=received.drawn, device=y.device)]
            logits_NC = F.linear(_generate(received.generator, y_N, received.drawn), weight_CH, bias_C)
            total = total + received.factor * self.alpha * F.cross_entropy(logits_NC, y_N)
        taught_N = received.known_C[y]
        if self.beta and bool(taught_N.any()):
            teacher_NC = F.linear(_generate(received.generator, y[taught_N], received.own), weight_CH, bias_C)
            total = total + received.factor * self.beta * distillation_loss(teacher_NC, out.logits_NC[taught_N])
        return total

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        sent = super().upload(client, received, phase)
        counts_C = torch.bincount(client.data.train_label, minlength=client.info.classes).int()
        # The classifier that is averaged is the one that G learns from: it is sent once.
        return Upload(
            {**sent.entries, "classifier": sent.entries["w"], "counts": counts_C}, sent.weight, {"classifier": 0}
        )


def _generate(generator: FeatureGenerator, y_N: Tensor, rng: torch.Generator) -> Tensor:
    """Generates embeddings `[N, H]` of some classes, without gradients."""
    with torch.no_grad():
        return generator(generator.draw(y_N, rng), y_N)
