"""Cross-entropy of a batch and its gradient at the logits, in the logits' memory."""

import torch
from torch import Tensor


def to_gradient(logits_NC: Tensor, label_N: Tensor) -> Tensor:
    """Replaces logits by softmax - one-hot, N times the gradient of the mean cross-entropy; returns the latter.

    Args:
        logits_NC: float32 `[N, C]`.
        label_N: Classes, int64.
    """
    top_N, own_N = logits_NC.amax(1), logits_NC.gather(1, label_N[:, None]).squeeze(1)
    torch.softmax(logits_NC, 1, out=logits_NC)
    # The largest probability of a row is one over its sum of exponentials; its own may be too small for a float.
    loss = (top_N - own_N - logits_NC.amax(1).log()).mean()
    logits_NC.scatter_add_(1, label_N[:, None], logits_NC.new_full((1, 1), -1).expand(len(label_N), 1))
    return loss
