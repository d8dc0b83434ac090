"""A generator of embeddings for classes, and what it learns from the classifiers of many clients.

Axes: N embeddings, Z noise, C classes, H width of the embeddings, B clients.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import skip_init

from algorithms.losses.prototype_losses import distances


class FeatureGenerator(nn.Module):
    """Embeddings g = W_2 ReLU(W_1 [e, onehot(y)] + b_1) + b_2 of noise e ~ N(0, I) and a class y (FedGen).

    Signed, as embeddings of most models are. FedGen's code normalises the hidden layer over the batch, whose running
    statistics are no parameters.
    """

    def __init__(self, noise: int, classes: int, hidden: int, width: int) -> None:
        """Draws no parameters: they are loaded, or drawn by `reset_parameters`.

        Args:
            noise: Z.
            classes: C.
            hidden: Width of the hidden layer.
            width: H.
        """
        super().__init__()
        self.noise, self.classes = noise, classes
        device = torch.get_default_device()
        pairs = ((noise + classes, hidden), (hidden, width))
        self.layers = nn.ModuleList(skip_init(nn.Linear, *pair, device=device) for pair in pairs)

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator."""
        for layer in self.layers:
            layer.reset_parameters()  # type: ignore[operator]

    def draw(self, y_N: Tensor, rng: torch.Generator) -> Tensor:
        """Noise for as many embeddings, float32 `[N, Z]`, on their device."""
        return torch.randn(len(y_N), self.noise, generator=rng, device=y_N.device)

    def forward(self, noise_NZ: Tensor, y_N: Tensor) -> Tensor:
        """Embeddings `[N, H]` of noise and classes, int64."""
        x = torch.cat([noise_NZ, F.one_hot(y_N, self.classes)], dim=1)
        return self.layers[1](self.layers[0](x).relu())


def ensemble_cross_entropy(g_NH: Tensor, y_N: Tensor, weight_BCH: Tensor, bias_BC: Tensor, share_BC: Tensor) -> Tensor:
    """Mean over embeddings of sum_i share_{i, y} CE(h_i(g), y), h_i the classifier of client i (FedGen).

    Args:
        g_NH: Embeddings, differentiable.
        y_N: Classes that they stand for, int64.
        weight_BCH: Weights of the classifiers.
        bias_BC: Their biases.
        share_BC: What a client's word on a class counts; the column of a class sums to one.
    """
    logits_BNC = g_NH @ weight_BCH.transpose(1, 2) + bias_BC[:, None]
    each_BN = -F.log_softmax(logits_BNC, dim=2)[:, torch.arange(len(y_N), device=y_N.device), y_N]
    return (share_BC[:, y_N] * each_BN).sum(0).mean()


def sameness(noise_NZ: Tensor, g_NH: Tensor) -> Tensor:
    """exp(-mean over pairs a, b of |e_a - e_b|_2 * mean over H of |g_a - g_b|): falls where noise makes a difference.

    The diversity loss of FedGen. Its code takes the mean squared difference of the noise for the norm; pairs of an
    embedding with itself count, as they do there.
    """
    apart_NN = distances(noise_NZ, noise_NZ)
    different_NN = torch.cdist(g_NH, g_NH, p=1) / g_NH.shape[1]
    return (-(apart_NN * different_NN).mean()).exp()
