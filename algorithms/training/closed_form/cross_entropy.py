"""Cross-entropy of a batch and its gradient at the logits, in the logits' memory."""

import torch
import torch.nn.functional as F
from torch import Tensor


def to_gradient(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    """Replaces logits by softmax - one-hot, N times the gradient of the mean cross-entropy; returns the latter.

    Args:
        logits_NC: float32 `[N, C]`.
        label_N: Classes, int64.
    """
    torch.log_softmax(logits_NC, 1, out=logits_NC)
    loss = F.nll_loss(logits_NC, label_N)
    logits_NC.exp_()
    logits_NC.scatter_add_(1, label_N[:, None], logits_NC.new_full((1, 1), -1).expand(len(label_N), 1))
    return loss
