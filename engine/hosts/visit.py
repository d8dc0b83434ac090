"""One client on a host: from the values that it is sent to the values that it leaves behind."""

from dataclasses import replace

import numpy as np
import torch

from algorithms.base import Given
from algorithms.client import Client, random_of
from algorithms.client_model import ClientModel
from algorithms.protocol import Tree, Upload, parameters_key
from engine.hosts.opened_job import OpenedJob
from engine.hosts.read_only import ReadOnly
from engine.rounds.scoring import score
from engine.wire.cell import Cell
from engine.wire.devices import copied


class Visit:
    """A client with its data, its state and a download applied; the next visit takes the models from it.

    Attributes:
        client: The client.
        given: What `Algorithm.begin` made of the download.
    """

    def __init__(self, opened: OpenedJob, client_id: int, cell: Cell, shared: Tree, shared_guard: ReadOnly) -> None:
        """Begins the visit.

        Args:
            opened: The host's job.
            client_id: The client.
            cell: Its cell.
            shared: Download of all clients, on the host's device.
            shared_guard: Watches over it.
        """
        self._opened, self._cell = opened, cell
        info, random = opened.infos[client_id], opened.job.random(cell.round, client_id)
        view = opened.views.get(client_id)
        # Copies: what a round started from stays as it is, and Ray's shared memory cannot be written to.
        private = copied(cell.private.get(client_id, {}), opened.device)
        inbox = copied(cell.inboxes.get(client_id, {}), opened.device)
        state = copied(cell.states.get(client_id, {}), opened.device)
        self._guards = [shared_guard, ReadOnly(private, "download"), ReadOnly(inbox, "inbox")]
        models = {}
        for name, flat in opened.models(info).items():
            kept = state.get(parameters_key(name))
            flat.load(opened.initial(info, name) if kept is None else kept)
            models[name] = ClientModel(flat, view, random_of(random, name))
        self.client = Client(info, view, models, state, inbox, random)
        self.given: Given = opened.algorithm.begin(self.client, {**shared, **private})

    def train(self) -> float:
        """Trains the client, and gives its loss."""
        trainer = self._opened.trainer(self.client.info)
        return self._opened.algorithm.train(self.client, self.given, trainer, self._cell.phase)

    def upload(self) -> tuple[Upload, Tree]:
        """What the client sends and its new state: snapshots, for the next client trains in the same memory."""
        client, algorithm = self.client, self._opened.algorithm
        upload = algorithm.upload(client, self.given, self._cell.phase)
        if algorithm.keeps_model:
            client.state.update({parameters_key(name): model.w for name, model in client.models.items()})
        sent = replace(
            upload,
            entries=self._snapshot(upload.entries),
            weight={name: w.cpu() if isinstance(w, torch.Tensor) else w for name, w in upload.weight.items()},
        )
        return sent, self._snapshot(client.state)

    def score(self) -> np.ndarray:
        """Counts of the client's predictions; see `engine.rounds.scoring`."""
        return score(self._opened.algorithm, self.client, self.given)

    def end(self) -> None:
        """Ends the visit.

        Raises:
            MethodWrites: The method wrote into a download or an inbox.
        """
        method = type(self._opened.algorithm).__name__
        where = f"round {self._cell.round}, client {self.client.info.client}: {method}"
        for guard in self._guards:
            guard.require_unchanged(where)

    def _snapshot(self, tree: Tree) -> Tree:
        """The tensors as they are now, on the processor."""
        if self._opened.device.type != "cpu":
            return {name: t.detach().cpu() for name, t in tree.items()}
        own = {model.w.untyped_storage().data_ptr() for model in self.client.models.values()}
        return {
            name: t.detach().clone() if t.untyped_storage().data_ptr() in own else t.detach()
            for name, t in tree.items()
        }
