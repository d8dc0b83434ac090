"""How often a backdoor works: test nodes of other classes that a model takes for the target, by the trigger."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.algorithms.base import Received
from shoal.algorithms.client import Client, ClientModel
from shoal.engine.config.sections import BACKDOOR
from shoal.engine.rounds.scoring import PARTS, kept_of_own, scores_of


def with_rates(counts: np.ndarray, opened: Any, client: Client, received: Received) -> np.ndarray:
    """Counts of a client, `[parts, K, C]`, and behind them the rates that `BACKDOOR` names, as metrics are kept.

    They are of test nodes that are not of the target class, which all have the trigger at once, or none in the client's
    own graph; not defined without such nodes, for other parts, and of a whole graph. `opened` is the host's job
    (`shoal.engine.hosts.host.OpenedJob`).
    """
    classes, test = client.info.classes, client.data.test
    others = client.data.label[test] != opened.job.attack.target
    rates = {BACKDOOR[0]: math.nan, BACKDOOR[1]: math.nan}
    if bool(others.any()) and not opened.job.is_graph(client.info.client):
        data = opened.triggered(client.info.client)
        models = {name: ClientModel(model.flat, data, model.random) for name, model in client.models.items()}
        for rate, one in zip(BACKDOOR, (replace(client, data=data, models=models), client)):
            class_N = scores_of(opened.algorithm, one, received, "test", len(test)).argmax(1)
            rates[rate] = float((class_N[others] == opened.job.attack.target).double().mean())
    kept = np.array([[kept_of_own(math.nan, classes)] * len(BACKDOOR)] * len(counts))
    kept[PARTS.index("test")] = [kept_of_own(rates[rate], classes) for rate in BACKDOOR]
    return np.concatenate([counts, kept], axis=1)
