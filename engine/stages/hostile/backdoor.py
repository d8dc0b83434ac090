"""The success of a backdoor: test nodes of other classes that a model takes for the target, by the trigger."""

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from shoal.algorithms.base import Received
from shoal.algorithms.client import Client, ClientModel
from shoal.engine.rounds.stage import Opened
from shoal.engine.scores.counts import PARTS, kept_of_own, scores_of
from shoal.engine.stages.hostile.section import BACKDOOR

if TYPE_CHECKING:
    from shoal.storage.shards.trigger import Trigger


def with_rates(
    counts: np.ndarray, opened: Opened, client: Client, received: Received, trigger: "Trigger"
) -> np.ndarray:
    """Returns the counts of a client, `[parts, K, C]`, and behind them the rates of `BACKDOOR`, as metrics are kept.

    They are of test nodes that are not of the target class, which all have the trigger at once, or none in the client's
    own graph; not defined without such nodes, for other parts, and of a whole graph. `opened` is the host's job.
    """
    classes, test = client.info.classes, client.data.test
    others = client.data.label[test] != trigger.target
    rates = {BACKDOOR[0]: math.nan, BACKDOOR[1]: math.nan}
    if bool(others.any()) and not opened.job.is_graph(client.info.client):
        data = opened.view(client.info.client, change=trigger)
        models = {name: ClientModel(model.flat, data, model.random) for name, model in client.models.items()}
        for rate, scored in zip(BACKDOOR, (replace(client, data=data, models=models), client)):
            class_N = scores_of(opened.algorithm, scored, received, "test", len(test)).argmax(1)
            rates[rate] = float((class_N[others] == trigger.target).double().mean())
    kept = np.array([[kept_of_own(math.nan, classes)] * len(BACKDOOR)] * len(counts))
    kept[PARTS.index("test")] = [kept_of_own(rates[rate], classes) for rate in BACKDOOR]
    return np.concatenate([counts, kept], axis=1)
