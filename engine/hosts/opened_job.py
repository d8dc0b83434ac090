"""A job that is open on a host: its method, models, trainers, stages and data."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.base import trains_plainly
from shoal.algorithms.client import ClientInfo, FlatModel
from shoal.algorithms.method_errors import OURS, file_of
from shoal.algorithms.protocol import MODEL, creating_on, parameters_key
from shoal.algorithms.rng import CPU
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.choice import analytic
from shoal.algorithms.training.batched.batched_training import BatchedTrainer
from shoal.algorithms.training.local_training import LocalTrainer
from shoal.engine.messages.cell import Cell
from shoal.engine.messages.job import Job
from shoal.engine.messages.models import BuiltModel
from shoal.engine.messages.trainers import ANALYTIC, BATCHED
from shoal.engine.rounds.protocol_checks import checks_always
from shoal.engine.rounds.stage import make_stages
from shoal.engine.scores.measures import measures_of
from shoal.storage.shards.cache import SMALL, OpenViews, most_views
from shoal.storage.shards.view import Cache, View
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import DOMAINS, Store

if TYPE_CHECKING:
    from shoal.engine.hosts.devices.cell_stack import CellStacks

# So many views have graph and features in memory.
PARTS_IN_MEMORY = 16


@dataclass(frozen=True)
class _Kind:
    """The models and trainers of a host for the clients that train one of the config's models.

    Attributes:
        models: The host's models, by name.
        keys: Names of their parameters in a client's state.
        initials: Parameters `[P]` that all these clients start from; a model of which each draws its own is missing.
        shapes: Shapes of the parameters, by their names in a client's state.
        batched: Trains several in one batch; None: they are trained one by one.
    """

    models: Mapping[str, FlatModel]
    keys: Mapping[str, str]
    built: Mapping[str, BuiltModel]
    initials: Mapping[str, Tensor]
    shapes: Mapping[str, torch.Size]
    trainer: LocalTrainer
    batched: BatchedTrainer | None


class OpenedJob:
    """The method, models, trainers and data views of a job on a host; all of it can be made again.

    Attributes:
        creating: Inside this context, tensors that a method makes anew lie on the device; so in `training`.
        infos: Sizes of all clients, and after them of the whole graphs that are evaluated.
        scored_infos: The same of what clients are scored on, which is more where training sees training nodes alone.
        scored_views: What they are scored on; the same object as `views` where that is what training sees.
        kinds: By the number of a client's model.
        begins: Is called when the visit of a client begins.
        stages: Of uploads, in their order.
        view: Gives the data of a client that is scored, changed by arguments of `Job.view`.
        stacks: Trains cells without a visit, where method and cell allow it; None: nobody trains in batches.
        checks: The form of what clients of the cell at work give is looked at.
        guarded: Writes of the method into read-only data are looked for, and its form is checked in every round.
    """

    def __init__(self, job: Job, device: torch.device, cache: Cache, keeps_from: float) -> None:
        """Builds what training needs; raises a ShoalError if the store or the method does not fit the job.

        `keeps_from`: new states of clients from so many bytes on may stay on the device.
        """
        store = job.open_store()
        self.job, self.device, self.creating = job, device, creating_on(device)
        self.algorithm = job.algorithm()
        # A block that sets a default device delays every call of torch, and plain training creates nothing on it.
        self.training = creating_on(CPU if trains_plainly(self.algorithm) else device)
        self.stages = make_stages(job)
        users_code = bool(job.texts) or any(stage.guarded for stage in self.stages)
        self.guarded = checks_always(self.algorithm) or users_code
        # A visit copies what it may write to: code of the user's anything, ours not what it only replaces, and in an
        # evaluation nothing.
        kept = self.algorithm.only_replaced | {parameters_key(name) for name in self.algorithm.models()}
        self.only_replaced = frozenset() if self.guarded else frozenset(kept)
        self.copies = device == CPU
        self.begins: Callable[[int], None] = lambda client: None
        self._first_rounds: dict[str, int] = {}
        self.checks = True
        self.measures = measures_of(job.metrics, job.own_metrics)
        self.view: Callable[..., View] = partial(job.view, store, cache=cache, device=device)
        # A machine that has none of the whole graphs is never asked for one.
        graphs = job.open_graphs(store) if (store.path / DOMAINS / NAME).exists() else None
        training, of_graphs = job.open_training(store), job.graph_infos(graphs)
        self.infos: Sequence[ClientInfo] = job.infos(training).followed_by(of_graphs)
        self.scored_infos: Sequence[ClientInfo] = job.infos(store).followed_by(of_graphs)

        def views(of_clients: Store, most: int) -> OpenViews[View]:
            stores = [part for part in (of_clients, graphs) if part is not None]
            places = [(part, number) for part in stores for number in range(part.clients)]

            def open_view(number: int) -> View:
                changed = {name: change for stage in self.stages for name, change in stage.on_data(number).items()}
                view = job.view(*places[number], cache, device, **changed)
                if self.guarded:
                    view.watch()
                return view

            nodes = np.concatenate([part.manifest.clients.count("nodes") for part in stores])
            return OpenViews(open_view, most, (nodes <= SMALL).__getitem__ if device == CPU else None)

        job.require_room([part for part in (store, training, graphs) if part is not None], cache.limit)
        most = (PARTS_IN_MEMORY if job.computes_parts else most_views()) // (2 if job.training else 1)
        self.views = views(training, most)
        self.scored_views = views(store, most) if job.training else self.views
        built = job.build_models(store, self.algorithm)
        flats = {
            name: [model.flat if device == CPU else model.flat.on(device) for model in several]
            for name, several in built.items()
        }
        self.kinds = []
        for number, path in enumerate(job.trainers(store, self.algorithm, flats[MODEL], device.type)):
            # A model that the method describes is of one kind at all clients.
            models = {name: several[number if len(several) > 1 else 0] for name, several in flats.items()}
            built_here = {name: several[number if len(several) > 1 else 0] for name, several in built.items()}
            same_start = {name: model for name, model in built_here.items() if model.spec.init != "own"}
            form = analytic(models[MODEL]) if path == ANALYTIC else None
            kind = _Kind(
                models,
                {name: parameters_key(name) for name in models},
                built_here,
                # The processor draws them, so that they are the same on any device.
                {name: job.initial(model, name, 0).to(device) for name, model in same_start.items()},
                {parameters_key(name): model.w.shape for name, model in models.items()},
                LocalTrainer(models, job.train, self.algorithm, form, job.clipped_rows),
                BatchedTrainer(models[MODEL], job.train) if path == BATCHED else None,
            )
            self.kinds.append(kind)
        batches = any(kind.batched is not None for kind in self.kinds)
        self.stacks = self._make_stacks(cache, math.inf if device == CPU else keeps_from) if batches else None

    def _make_stacks(self, cache: Cache, keeps_from: float) -> "CellStacks":
        # Jobs without batches load none of it.
        from shoal.engine.hosts.devices.cell_stack import CellStacks

        return CellStacks(self, cache, keeps_from)

    def train_with(self, options: TrainOptions) -> None:
        """Trains with other options from now on."""
        for kind in self.kinds:
            kind.trainer.use(options)
            if kind.batched is not None:
                kind.batched.options = options

    def begin_cell(self, cell: Cell) -> None:
        """Checks what clients of a cell give in the first round of its phase, or always."""
        self.checks = self.guarded or self._first_rounds.setdefault(cell.phase, cell.round) == cell.round
        self.copies = self.device == CPU and (self.guarded or bool(cell.phase))

    def plan(self, cells: Sequence[Cell]) -> None:
        """Announces who is visited, and who is scored, from now on; see `OpenViews.plan`."""
        trains = any(cell.train for cell in cells)
        self.views.plan([i for cell in cells for i in cell.ids], self.touch if trains else None)
        if self.scored_views is not self.views:
            # Evaluation reads what it needs.
            self.scored_views.plan([i for cell in cells for i in cell.ids if i in cell.score])

    def views_of(self, client: int) -> list[View]:
        """Lists the views of a client that the method could have modified."""
        views = {id(opened): opened.opened(client) for opened in (self.views, self.scored_views)}
        return [view for view in views.values() if view is not None]

    def where(self, cell: Cell, client: int) -> str:
        """Returns how an error names a visit, the method, and the user's files."""
        method = type(self.algorithm)
        files = [*([] if method.__module__.startswith(OURS) else [file_of(method)]), *self.job.texts]
        files += [stage.name for stage in self.stages if stage.guarded]
        named = f"{method.__name__} ({', '.join(files)})" if files else method.__name__
        return f"round {cell.round}, {self.job.who(client)}: {named}"

    def touch(self, view: View) -> None:
        """Brings into memory what training reads of a client's files."""
        for model in self.kinds[self.infos[view.client].model].models.values():
            if model.coupled is None:
                view.touch(model.inputs, training=True)
            elif not model.coupled.fanouts:
                view.touch([0], training=False, edges=True)
