"""Visits of a client to one host, and what trains it there."""

from functools import partial

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import Client, ClientModel
from shoal.algorithms.rng import key, random_of
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import LocalTrainer


def visited(client: Client, round_number: int, seed: int = 0) -> Client:
    """Gives a client as another visit to the same host has it."""
    random = partial(key, seed, round_number, client.info.client)
    models = {name: ClientModel(m.flat, m.data, random_of(random, name)) for name, m in client.models.items()}
    state = {name: t.clone() for name, t in client.state.items()}
    return Client(client.info, client.data, models, state, {}, random)


def trainer_of(client: Client, options: TrainOptions, method: Algorithm | None = None) -> LocalTrainer:
    """Gives the trainer of all models of a client, of plain cross-entropy unless a method says otherwise."""
    flats = {name: model.flat for name, model in client.models.items()}
    return LocalTrainer(flats, options, method or Algorithm())
