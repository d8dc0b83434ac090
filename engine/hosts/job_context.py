"""What a host keeps of one job: all of it can be made again."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path

import torch

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import ClientInfo
from shoal.algorithms.flat_model import FlatModel
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.choice import analytic, needed_for_analytic
from shoal.algorithms.training.batched.batched_training import BatchedTrainer, needed_to_batch
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.engine.hosts.device import placed
from shoal.engine.messages.job import Job
from shoal.engine.messages.models import model_of
from shoal.storage.errors import ShoalError
from shoal.storage.store.cache import ahead, apart
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import DOMAINS, Store
from shoal.storage.store.view import Cache, View

# Shard and hops; what is kept of a split is a copy.
MAPS_OF_A_VIEW = 2
MAX_MAPS = Path("/proc/sys/vm/max_map_count")
USUAL_MAX_MAPS = 65_530


def most_views() -> int:
    """How many views may be open in a process: half of its maps are for them, the rest for libraries and memory."""
    allowed = int(MAX_MAPS.read_text()) if MAX_MAPS.exists() else USUAL_MAX_MAPS
    return max(1, allowed // 2 // MAPS_OF_A_VIEW)


class OpenViews:
    """Views by client; the least recently visited are let go, and each can be opened again."""

    def __init__(self, open_view: Callable[[int], View], most: int) -> None:
        """Starts without any.

        Args:
            open_view: Opens a client's data; called in other threads.
            most: How many stay open, beside those that are about to be visited.
        """
        self._open_view = open_view
        self._most = most
        self._views: OrderedDict[int, View] = OrderedDict()
        self._coming: dict[int, Future[View]] = {}
        self._next: Mapping[int, int] = {}
        self._touch: Callable[[View], None] = lambda view: None

    def plan(self, clients: Sequence[int], touch: Callable[[View], None]) -> None:
        """Says who is visited from now on, in this order.

        Args:
            clients: Clients, each once.
            touch: Reads from the disk what a client's data is wanted for; called in another thread.
        """
        self._next = dict(pairwise(clients))
        self._touch = touch

    def get(self, client: int) -> View:
        """The data of a client; begins to open that of the next one.

        Raises:
            ShoalError: A file is missing or damaged.
        """
        if client not in self._views:
            coming = self._coming.pop(client, None)
            self._views[client] = apart(lambda: self._open_view(client)) if coming is None else coming.result()
            if len(self._views) > self._most:
                self._views.popitem(last=False)
        self._views.move_to_end(client)
        following = self._next.get(client)
        if following is not None and following not in self._views and following not in self._coming:
            self._coming[following] = ahead(lambda: self._opened(following))
        return self._views[client]

    def opened(self, client: int) -> View | None:
        """The data of a client that was visited, else None."""
        return self._views.get(client)

    def _opened(self, client: int) -> View:
        view = self._open_view(client)
        self._touch(view)
        return view


AUTOGRAD, BATCHED, ANALYTIC = "autograd", "batched", "analytic"


def trainers_of(
    path: str, device: str, algorithm: Algorithm, models: Sequence[FlatModel], train: TrainOptions
) -> list[str]:
    """For every model of the config how its clients are trained: `autograd`, `batched` or `analytic`.

    Args:
        path: `engine.trainer`; `auto` takes closed forms on the processor and the batch on GPUs, where it can.
        device: `cpu` or `cuda`.
        algorithm: The method.
        models: Of the config, in its order.
        train: Local training.

    Raises:
        ShoalError: What is asked for cannot be, with a model, the batches or the method's training.
    """
    wanted = path
    if path == "auto":
        wanted = ANALYTIC if device == "cpu" else BATCHED
    if wanted == AUTOGRAD:
        return [AUTOGRAD] * len(models)
    if wanted == BATCHED:
        missing = [needed_to_batch(algorithm, model, train) for model in models]
    else:
        missing = [needed_for_analytic(algorithm, model) for model in models]
    if path != "auto" and any(missing):
        raise ShoalError(f"engine.trainer: {path} needs {next(filter(None, missing))}; use autograd")
    return [wanted if what is None else AUTOGRAD for what in missing]


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

    def __init__(self, job: Job, device: torch.device, cache: Cache) -> None:
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
            return OpenViews(lambda number: job.view(*places[number], cache=cache, device=device), most)

        most = most_views() // (2 if job.training else 1)
        self.views = views(training, most)
        self.scored_views = views(store, most) if job.training else self.views
        # Those on the processor draw initial parameters, which so are the same on any device.
        self._built = job.build_models(store, self.algorithm)
        self._flats = {name: placed([built.flat for built in built], device) for name, built in self._built.items()}
        own = self._flats[MODEL]
        paths = trainers_of(job.trainer, device.type, self.algorithm, own, job.train)
        closed = [analytic(flat) if path == ANALYTIC else None for flat, path in zip(own, paths)]
        self._trainers = [
            LocalTrainer(self._of_number(number), job.train, self.algorithm, form) for number, form in enumerate(closed)
        ]
        self._batched = [BatchedTrainer(flat, job.train) if path == BATCHED else None for flat, path in zip(own, paths)]
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
            for stacked in self._batched:
                if stacked is not None:
                    stacked.options = options

    def trainer(self, info: ClientInfo) -> LocalTrainer:
        """The trainer of a client's models."""
        return self._trainers[info.model]

    def batched_trainer(self, ids: Sequence[int]) -> BatchedTrainer | None:
        """What trains the clients of a cell in one batch; None: they are trained one by one."""
        return self._batched[self.infos[ids[0]].model]

    def initial(self, info: ClientInfo, name: str) -> torch.Tensor:
        """Initial parameters of one of a client's models; those that all clients of its kind share are drawn once.

        They are drawn on the processor, so that they are the same everywhere, and lie where the host computes.
        """
        built = model_of(self._built, info, name)
        if built.spec.init == "own":
            return self.job.initial(built, name, info.client).to(self.device)
        place = name, info.model
        if place not in self._initials:
            self._initials[place] = self.job.initial(built, name, info.client).to(self.device)
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
