"""The mean gradient of a client's local steps, from how far it moved or recorded step by step."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from shoal.algorithms.client import Client
from shoal.algorithms.train_options import TrainOptions
from shoal.storage.errors import ShoalError

# `steps`: from the distance that SGD went; `gradient`: recorded, for any optimizer; `auto`: steps where they tell it;
# `off`: not at all.
Form = Literal["auto", "steps", "gradient", "off"]


def form_for(form: Form, options: TrainOptions) -> Form:
    """Chooses the form for an optimizer; a ShoalError refuses `steps` where these are no multiples of gradients."""
    steps_tell = options.optimizer == "sgd" and not options.momentum
    if form == "steps" and not steps_tell:
        raise ShoalError(
            "algorithm.variate", "steps wants train.optimizer: sgd without train.momentum; set variate: gradient"
        )
    if form == "auto":
        return "steps" if steps_tell else "gradient"
    return form


def steps_of(client: Client, options: TrainOptions) -> int:
    """Steps K of a client's visit: batches of all epochs."""
    rows = client.info.train
    return options.epochs * math.ceil(rows / (options.batch_size or rows))


@contextmanager
def record_gradients(client: Client) -> Iterator[Tensor]:
    """Adds up the gradients of the loss of the client's model, `[P]`, over the backward passes inside the block.

    Terms that read the flat `w`, as a linear term does, are not in it; nor is weight decay.
    """
    flat = client.model.flat
    total = torch.zeros_like(flat.w.detach())
    handles = [
        p.register_hook(partial(_add, part))
        for p, part in zip(flat.module.parameters(), flat.parts(total), strict=True)
    ]
    try:
        yield total
    finally:
        for handle in handles:
            handle.remove()


def _add(part: Tensor, gradient: Tensor) -> None:
    part.add_(gradient)
