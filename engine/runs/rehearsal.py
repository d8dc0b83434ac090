"""A rehearsal of a method's `setup` on made-up sizes, which refuses a run before its data is read or prepared."""

from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from typing import Any

import numpy as np
import torch

from shoal.algorithms.base import Algorithm, Context
from shoal.algorithms.client import ClientTable, FlatModel
from shoal.algorithms.method_errors import raise_named
from shoal.algorithms.models.names import least_edge_features
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import CPU, key
from shoal.engine.config.config import Config
from shoal.engine.messages.models import BuiltModels, KnownModels, assign_models
from shoal.storage.errors import ShoalError

# Features, classes, and items of a client, of which half train.
SIZES = ((8, 3, 12), (24, 7, 40))
ITEMS = {"graph": "graphs", "edge": "pairs"}
# A method may copy its model some times in `setup`; larger ones wait for the run itself.
MOST_PARAMETERS = 5_000_000


def rehearse_setup(config: Config, algorithm: Algorithm, known: KnownModels | None = None) -> None:
    """Calls `Algorithm.setup` as a run does, on clients of one or two made-up graphs, unless it is known to pass.

    Raises:
        ShoalError: `setup` fails on both in the same words; what it says of one alone is for the run's own data.
    """
    models = known or KnownModels()
    models.once(config, algorithm, partial(_rehearse, config, algorithm, models))


def _rehearse(config: Config, algorithm: Algorithm, known: KnownModels) -> None:
    refusals: set[str] = set()
    for features, classes, items in SIZES:
        try:
            context = _context(config, algorithm, features, classes, items, known)
        except ShoalError:
            # The data decides which models can be.
            return
        if context is None:
            return
        try:
            # What the method prints, it prints in the run.
            with redirect_stdout(StringIO()):
                algorithm.setup(context)
            return
        except BaseException as error:
            try:
                raise_named(algorithm, "setup", error)
            except ShoalError as named:
                if named.line in refusals:
                    raise
                refusals.add(named.line)


def _context(
    config: Config, algorithm: Algorithm, features: int, classes: int, items: int, known: KnownModels
) -> Context | None:
    """Makes the context of `setup` on a made-up graph; None: the models are too large to be built for it."""
    clients = 1 if algorithm.centralized else config.partition.clients
    hops, task = config.kernel().hops, config.task
    shape: dict[str, Any] = {"features": features, "classes": classes, "hops": hops, "dropout": config.train.dropout}
    shape["edge_features"] = least_edge_features([spec.name for spec in config.models()])
    embedding = config.heterogeneity.embedding
    with torch.device("meta"):
        sketched = known.built(algorithm, config.models(), embedding, **shape, task=task)
    if sum(len(model.flat.w) for several in sketched.values() for model in several) > MOST_PARAMETERS:
        return None
    built: BuiltModels = known.built(algorithm, config.models(), embedding, **shape, task=task)
    sizes = {"nodes": items, "train": items // 2, "domain": 0} | ({ITEMS[task]: items} if task in ITEMS else {})
    columns: dict[str, Any] = {name: np.full(clients, size) for name, size in sizes.items()}
    columns |= {"client": np.arange(clients), "model": assign_models(config, clients)}
    table = ClientTable(columns, classes, 1 if task == "graph" else None)

    def build(name: str, number: int = 0) -> FlatModel:
        model = built[name][number].flat.on(CPU)
        model.load(model.initial(key(config.seed, "init")))
        return model

    return Context(
        clients=table,
        scored=table,
        classes=classes,
        features=features,
        hops=hops,
        train=config.train.in_round(1),
        models={name: [model.info for model in several] for name, several in built.items()},
        initial=built[MODEL][0].flat.initial(key(config.seed, "init")),
        build=build,
        device=CPU,
        round=0,
        rounds=config.rounds,
        seed=config.seed,
        random=partial(key, config.seed, 0, "server"),
    )
