"""One client on a host: from the values that it is sent to the values that it leaves behind."""

from dataclasses import replace

import numpy as np
import torch

from shoal.algorithms.base import Received, overrides, trains_plainly
from shoal.algorithms.client import Client, random_of
from shoal.algorithms.client_model import ClientModel
from shoal.algorithms.method_errors import code_of
from shoal.algorithms.protocol import MODEL, Tree, Upload, parameters_key
from shoal.engine.hosts.batched_counts import predicted
from shoal.engine.hosts.job_context import OpenedJob
from shoal.engine.hosts.scored import Held, Scored, may_wait
from shoal.engine.hosts.write_guard import ReadOnly, require_unwritten
from shoal.engine.messages.cell import Cell
from shoal.engine.messages.devices import CPU, copied, creating_on, moved
from shoal.engine.rounds.domains import score_graph
from shoal.engine.rounds.protocol_checks import loss_value, require_form, require_state
from shoal.engine.rounds.scoring import ACCURACY, score


class Visit:
    """A client with its data, its state and a download applied; the next visit takes the models from it.

    Attributes:
        client: The client.
        given: What `Algorithm.receive` made of the download.
    """

    def __init__(self, opened: OpenedJob, client_id: int, cell: Cell, shared: Tree, shared_guard: ReadOnly) -> None:
        """Begins the visit.

        Args:
            opened: The host's job.
            client_id: The client.
            cell: Its cell.
            shared: Download of all clients, on the host's device.
            shared_guard: Watches over it.

        Raises:
            ShoalError: The client's data is missing or damaged, or `receive` failed.
        """
        self._opened, self._cell = opened, cell
        self._id = client_id
        info, random = opened.infos[client_id], opened.job.random(cell.round, client_id)
        view = opened.views.get(client_id)
        # Copies: what a round started from stays as it is, and Ray's shared memory cannot be written to. What lies on a
        # device is a copy of the cell's own.
        own = copied if opened.device.type == "cpu" else moved
        private = own(cell.private.get(client_id, {}), opened.device)
        inbox = own(cell.inboxes.get(client_id, {}), opened.device)
        state = own(cell.states.get(client_id, {}), opened.device)
        self._guards = [shared_guard, ReadOnly(private, "download"), ReadOnly(inbox, "inbox")]
        models = {}
        for name, flat in opened.models(info).items():
            kept = state.get(parameters_key(name))
            models[name] = ClientModel(
                flat, view, random_of(random, name), opened.initial(info, name) if kept is None else kept
            )
        self.client = Client(info, view, models, state, inbox, random)
        self._shapes = {parameters_key(name): model.pattern.w.shape for name, model in models.items()}
        with code_of(opened.algorithm, "receive"), creating_on(opened.device):
            self.received: Received = opened.algorithm.receive(self.client, {**shared, **private})

    def train(self) -> float:
        """Trains the client, and gives its loss, NaN where the method says none.

        Raises:
            ShoalError: The method's code failed, or the loss is not finite.
        """
        trainer, algorithm = self._opened.trainer(self.client.info), self._opened.algorithm
        # Plain training creates nothing on the default device, and a block that sets one delays every call of torch.
        device = CPU if trains_plainly(algorithm) else self._opened.device
        with code_of(algorithm, "train"), creating_on(device):
            return loss_value(algorithm.train(self.client, self.received, trainer, self._cell.phase))

    def upload(self) -> tuple[Upload, Tree]:
        """What the client sends and its new state, where they are: the next client, which trains in the same memory,
        leaves them as they are.

        Raises:
            ShoalError: The method's code failed, or what it gave or keeps has not the form that it must have.
        """
        client, algorithm = self.client, self._opened.algorithm
        with code_of(algorithm, "upload"), creating_on(self._opened.device):
            upload = algorithm.upload(client, self.received, self._cell.phase)
            require_form(upload, self._cell.up, self._sent_as())
            if algorithm.client_models != "global" and isinstance(client.state, dict):
                client.state.update({parameters_key(name): model.w for name, model in client.models.items()})
            require_state(client.state, self._shapes)
        return replace(upload, entries=self._snapshot(upload.entries)), self._snapshot(client.state)

    def score(self) -> np.ndarray:
        """Counts of the client's predictions; see `shoal.engine.rounds.scoring`, of a whole graph `domains`."""
        count = score_graph if self._opened.job.is_graph(self._id) else score
        received = self._received_to_score() if self._cell.score_with else self.received
        with creating_on(self._opened.device):
            return count(self._opened.algorithm, self.scored, received, self._opened.job.metric)

    @property
    def is_scored_later(self) -> bool:
        """Whether its predictions can be counted with those of other clients."""
        opened = self._opened
        return opened.device.type != "cpu" and opened.job.metric == ACCURACY and not opened.job.is_graph(self._id)

    def score_later(self) -> Scored:
        """What the client predicts, or what that needs: for `shoal.engine.hosts.scored`."""
        algorithm = self._opened.algorithm
        received = self._received_to_score() if self._cell.score_with else self.received
        client = self.scored
        if may_wait(algorithm, client):
            return Held(client, client.model.snapshot())
        with creating_on(self._opened.device):
            return predicted(algorithm, client, received)

    @property
    def scored(self) -> Client:
        """The client as it is scored: with the models and the state that it has now, on all of its data."""
        opened, client = self._opened, self.client
        if opened.scored_views is opened.views:
            return client
        view = opened.scored_views.get(self._id)
        models = {name: ClientModel(model.flat, view, model.random) for name, model in client.models.items()}
        return replace(client, info=opened.scored_infos[self._id], data=view, models=models)

    def _received_to_score(self) -> Received:
        """What `receive` makes of what the server gives for the evaluation alone."""
        algorithm, down = self._opened.algorithm, copied(self._cell.score_with, self._opened.device)
        self._guards.append(ReadOnly(down, "download"))
        with code_of(algorithm, "receive"), creating_on(self._opened.device):
            return algorithm.receive(self.client, down)

    def end(self) -> None:
        """Ends the visit.

        Raises:
            MethodWrites: The method wrote into a download, an inbox, or the client's data.
        """
        method = type(self._opened.algorithm).__name__
        where = f"round {self._cell.round}, {self._opened.job.who(self._id)}: {method}"
        for guard in self._guards:
            guard.require_unchanged(where)
        for data in self._opened.lent(self._id):
            require_unwritten(data, where)

    def _sent_as(self) -> dict[str, torch.Size]:
        """Shapes of parameters by the names of entries that stand for them; `w` too unless `receive` is replaced."""
        own_receive = overrides(self._opened.algorithm, "receive")
        return self._shapes if own_receive else {**self._shapes, "w": self._shapes[parameters_key(MODEL)]}

    def _snapshot(self, tree: Tree) -> Tree:
        """The tensors as they are now."""
        memory = {model.pattern.w.untyped_storage().data_ptr(): model for model in self.client.models.values()}
        found = {}
        for name, t in tree.items():
            if (model := memory.get(t.untyped_storage().data_ptr())) is not None:
                # A view of the host's model stands for what the client has there.
                model.flush()
                t = t.clone()
            found[name] = t.detach()
        return found
