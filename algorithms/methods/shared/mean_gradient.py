"""The mean gradient of a client's local steps, from how far it moved or added up step by step."""

import math
from typing import Literal

from shoal.algorithms.client import Client
from shoal.algorithms.train_options import TrainOptions
from shoal.storage.errors import ShoalError

# `steps`: from the distance that SGD went; `gradient`: added up, for any optimizer; `auto`: steps where they tell it;
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
