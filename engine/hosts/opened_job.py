"""What a host keeps of one job: all of it can be made again."""

from collections.abc import Mapping, Sequence

import torch

from algorithms.client import ClientInfo
from algorithms.flat_model import FlatModel
from algorithms.protocol import MODEL
from algorithms.training.closed_form.choice import closed_form
from algorithms.training.local_training import LocalTrainer
from algorithms.training.stacked_training import StackedTrainer
from engine.hosts.device import placed
from engine.hosts.open_views import OpenViews, most_views
from engine.hosts.training_path import CLOSED_FORM, STACKED, training_paths
from engine.wire.job import Job
from engine.wire.models import kind_of
from storage.manifest import NAME
from storage.store import DOMAINS, Store
from storage.view import Memo, View


class OpenedJob:
    """Method, models, trainers and data views of a job on a host.

    Attributes:
        job: The job.
        device: Where the host computes.
        algorithm: The method.
        infos: Sizes of all clients, and after them of the whole graphs that are evaluated.
        scored_infos: The same of what clients are scored on, which is more where training sees training nodes alone.
        views: Data of the clients.
        scored_views: What they are scored on; the same object where that is what training sees.
    """

    def __init__(self, job: Job, device: torch.device, memo: Memo) -> None:
        """Builds what training needs.

        Args:
            job: The job.
            device: Where the host computes.
            memo: The host's cache.

        Raises:
            ShoalError: The store or the method does not fit the job.
        """
        store = job.open_store()
        self.job, self.device = job, device
        self.algorithm = job.algorithm()
        # A machine that has none of the whole graphs is never asked for one.
        graphs = job.open_graphs(store) if (store.path / DOMAINS / NAME).exists() else None
        training, of_graphs = job.open_training(store), job.graph_infos(graphs)
        self.infos, self.scored_infos = ([*job.infos(of), *of_graphs] for of in (training, store))

        def views(of_clients: Store, most: int) -> OpenViews:
            stores = (of_clients, graphs)
            places = [(of, number) for of in stores if of is not None for number in range(of.clients)]
            return OpenViews(lambda number: job.view(*places[number], memo=memo, device=device), most)

        most = most_views() // (2 if job.training else 1)
        self.views = views(training, most)
        self.scored_views = views(store, most) if job.training else self.views
        # Those on the processor draw initial parameters, which so are the same on any device.
        self._kinds = job.build_models(store, self.algorithm)
        self._flats = {name: placed([kind.flat for kind in kinds], device) for name, kinds in self._kinds.items()}
        own = self._flats[MODEL]
        paths = training_paths(job.path, device.type, self.algorithm, own, job.train)
        closed = [closed_form(flat) if path == CLOSED_FORM else None for flat, path in zip(own, paths)]
        self._trainers = [
            LocalTrainer(self._of_number(number), job.train, self.algorithm, form) for number, form in enumerate(closed)
        ]
        self._stacked = [
            StackedTrainer(flat, job.train, self.algorithm) if path == STACKED else None
            for flat, path in zip(own, paths)
        ]
        self._initials: dict[tuple[str, int], torch.Tensor] = {}

    def _of_number(self, number: int) -> dict[str, FlatModel]:
        return {name: flats[number if len(flats) > 1 else 0] for name, flats in self._flats.items()}

    def models(self, info: ClientInfo) -> Mapping[str, FlatModel]:
        """The host's models that a client trains, by name."""
        return self._of_number(info.model)

    def begin_round(self, number: int) -> None:
        """Trains with the options of a round from now on.

        Raises:
            ShoalError: The schedule gives the round no rate.
        """
        if self.job.train.schedule is not None:
            options = self.job.train.in_round(number)
            for trainer in self._trainers:
                trainer.use(options)
            for stacked in self._stacked:
                if stacked is not None:
                    stacked.options = options

    def trainer(self, info: ClientInfo) -> LocalTrainer:
        """The trainer of a client's models."""
        return self._trainers[info.model]

    def stacked_trainer(self, ids: Sequence[int]) -> StackedTrainer | None:
        """What trains the clients of a cell in one batch; None: they are trained one by one."""
        return self._stacked[self.infos[ids[0]].model]

    def initial(self, info: ClientInfo, name: str) -> torch.Tensor:
        """Initial parameters of one of a client's models; those that all clients of its kind share are drawn once.

        They are drawn on the processor, so that they are the same everywhere, and lie where the host computes.
        """
        kind = kind_of(self._kinds, info, name)
        if kind.choice.init == "own":
            return self.job.initial(kind, name, info.client).to(self.device)
        place = name, info.model
        if place not in self._initials:
            self._initials[place] = self.job.initial(kind, name, info.client).to(self.device)
        return self._initials[place]

    def plan(self, clients: Sequence[int], scored: Sequence[int], training: bool) -> None:
        """Says who is visited, and who is scored, from now on; see `OpenViews.plan`."""
        self.views.plan(clients, self.touch if training else _leave)
        if self.scored_views is not self.views:
            self.scored_views.plan(scored, _leave)

    def lent(self, client: int) -> list[View]:
        """The data of a client that a method may have had in its hands."""
        views = {id(of): of.opened(client) for of in (self.views, self.scored_views)}
        return [view for view in views.values() if view is not None]

    def touch(self, view: View) -> None:
        """Brings into memory what training reads of a client's files."""
        for model in self.models(self.infos[view.client]).values():
            if model.coupled is None:
                view.touch(model.inputs, training=True)
            elif not model.coupled.fanouts:
                view.touch([0], training=False, edges=True)


def _leave(view: View) -> None:
    """Evaluation reads what it needs by itself."""
