"""A metric: how far a model's confidence is from how often it is right."""

import torch
from torch import Tensor

BINS = 15


def ECE(logits: Tensor, labels: Tensor) -> float:
    """Expected calibration error (Guo et al., ICML 2017, equation 3) in 15 bins of equal width; 0 is best.

    Args:
        logits: Scores of one client's items of a part, float32 `[N, C]`.
        labels: Their classes, int64 `[N]`.
    """
    confidence_N, predicted_N = logits.softmax(1).max(1)
    bin_N = (confidence_N * BINS).ceil().long() - 1
    gap_N = (predicted_N == labels).float() - confidence_N
    return float(torch.zeros(BINS).index_add_(0, bin_N, gap_N).abs().sum() / len(labels))
