"""A cell of clients that train in one batch and send what they trained, as one stack: no client is visited.

It is for methods whose clients receive, train and send as those of FedAvg, or by rows, as those of SCAFFOLD. Their
parameters are `[B, P]` from the download to the weighted sums, and checks of all of them are one operator and one
number each.

Axes: B clients, T of them that train, P parameters.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.base import (
    Algorithm,
    MappedLoss,
    Pull,
    RowTerm,
    fits_cross_entropy,
    keeps_models,
    maps_over_clients,
    overrides,
    pulls_all_the_same,
)
from shoal.algorithms.client import Client, ClientModel, ClientTable, FlatModel
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.shared.class_prototypes import SendsMeans
from shoal.algorithms.methods.shared.row_method import RowMethod
from shoal.algorithms.protocol import MODEL, Reduce, Tree, parameters_key
from shoal.algorithms.rng import generator_on, key
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.batched.batched_inputs import numbers_of_row, size_groups
from shoal.algorithms.training.batched.batched_training import Batch, BatchedTrainer, embeddings
from shoal.algorithms.training.batched.row_steps import moment_shapes
from shoal.algorithms.training.local_training import DIVERGED, bounded_loss
from shoal.engine.hosts.devices.class_means import MEANS, ClassMeans, means_by_class, reductions, sends_means
from shoal.engine.hosts.devices.gpu import fetch, send, without_lost
from shoal.engine.hosts.devices.state_rows import KeptState, StateRows
from shoal.engine.hosts.devices.training_rows import Places, TrainingRows
from shoal.engine.messages.cell import NO_STAGES, Cell, Outcome, PartialSum
from shoal.engine.rounds.reduction import add_up, require_numbers
from shoal.storage.errors import ShoalError
from shoal.storage.shards.cache import Cache

# States that stay on a device take at most this part of what its cache may take, and as much again for the next ones.
STATES_SHARE = 0.25
# Training rows of all clients are kept in one array if they take at most this part of what the cache may take.
ROWS_SHARE = 0.5
NOTHING: Tree = {}


def needs_no_visits(method: Algorithm) -> bool:
    """Returns whether clients of a method receive, train and send as FedAvg's do, by rows, or with means of classes.

    It is known by its functions.

    Every client of the former may be pulled, all in the same way.
    """
    cls = type(method)
    plain = cls.receive is Algorithm.receive and getattr(cls, "upload", None) is FedAvg.upload
    plain = plain and pulls_all_the_same(method) and fits_cross_entropy(method)
    weights = getattr(cls, "weight_of", None) is FedAvg.weight_of
    means = sends_means(method) and maps_over_clients(method) and not overrides(method, "pull")
    if means and isinstance(method, SendsMeans) and not method.sends_model:
        return keeps_models(cls)
    return (plain or by_rows(method) or means) and weights and cls.client_models == "global"


def by_rows(method: Algorithm) -> bool:
    """Returns whether a method's hooks take the rows of a stack."""
    hooks = ("receive", "pull", "upload")
    rows = isinstance(method, RowMethod) and all(getattr(type(method), h) is getattr(RowMethod, h) for h in hooks)
    return rows and maps_over_clients(method)


@dataclass(frozen=True)
class Prepared:
    """The clients of a cell in the order of a stack's rows, those that do not train last.

    Attributes:
        batches: First and last row but one of each batch, and what it trains on, or where the host keeps that.
        trained: How many train.
        weight_B1: Weights of uploads, float32 on the device; so as numbers in `weights`.
    """

    ids: Sequence[int]
    batches: Sequence[tuple[int, int, Batch | Places]]
    trained: int
    weights: Sequence[float]
    weight_B1: Tensor


class CellStacks:
    """The cells of one job that a host trains as stacks.

    What clients train on is kept in one array where the cache has room for that of all. Their states stay on the device
    while there is room: they are values, so that a round which fails leaves those before it.
    """

    def __init__(self, opened: Any, cache: Cache, keeps_from: float) -> None:
        """Takes cells of a host's job (`shoal.engine.hosts.opened_job.OpenedJob`); the cache is the host's.

        `keeps_from`: states of so many bytes stay on the host's device: whoever is given them takes them so.
        """
        self._opened, self._cache, self._keeps_from = opened, cache, keeps_from
        self._rows: RowMethod | None = opened.algorithm if by_rows(opened.algorithm) else None
        algorithm = opened.algorithm
        self._means = algorithm if isinstance(algorithm, SendsMeans) and sends_means(algorithm) else None
        # The name of a client's own model in its state.
        self._own_model: str | None = None
        if self._means is not None and not self._means.sends_model:
            self._own_model = parameters_key(MODEL)
        self._idle = frozenset(np.flatnonzero(ClientTable.of(opened.infos).train == 0).tolist())
        # Terms of its loss read what a client kept, if it is not the first visit.
        self._mapped = self._rows is not None and isinstance(self._rows, MappedLoss)
        plain = needs_no_visits(opened.algorithm) and not opened.guarded and not opened.stages
        # Models that each client draws for itself are drawn in visits.
        drawn = self._own_model is not None and any(MODEL not in kind.initials for kind in opened.kinds)
        self._possible = plain and not drawn and all(set(kind.models) == {MODEL} for kind in opened.kinds)
        # Cells of this round and of the one before, by their clients, which need no second look.
        self._round, self._cells, self._before = 0, dict[tuple[int, ...], Prepared](), dict[tuple[int, ...], Prepared]()
        # By model: training rows of every client, and the numbers of one.
        self._counts: dict[int, tuple[np.ndarray, int]] = {}
        self._states: dict[int, StateRows] = {}

    def takes(self, cell: Cell) -> bool:
        """Returns whether the clients of a cell need no visit."""
        trains = self._possible and cell.phase and cell.train and self._trainer(cell) is not None
        if not trains or cell.score_with or cell.again is not None or cell.stages != NO_STAGES:
            return False
        if cell.score and overrides(self._opened.algorithm, "predict"):
            return False
        if cell.private or cell.inboxes:
            return False
        if self._means is not None:
            # Who has no training row has no means, and keeps its model as it is.
            idle, sends = self._idle.intersection(cell.ids), self._means.sends_model
            model = {"w": Reduce.MEAN} if sends else {}
            have_means = not idle or (sends and len(idle) < len(cell.ids))
            return have_means and cell.up == model | reductions(self._means.stacks_means)
        means = "w" in cell.up and set(cell.up.values()) == {Reduce.MEAN}
        return means and (len(cell.up) == 1 or self._rows is not None)

    def reads_in_place(self, cell: Cell) -> bool:
        """Returns whether a cell's states are read where they lie; else copies are sent."""
        return math.isfinite(self._keeps_from) and self.takes(cell)

    def kept_state(self, client: int, version: int) -> KeptState | None:
        """Returns the state of a client that stayed on the device; None: it is not here any more."""
        rows = self._states.get(self._opened.infos[client].model)
        return None if rows is None else rows.find(client, version)

    def bring(self, cell: Cell) -> bool:
        """Brings what the clients of a cell train on to where it is kept; False: what is kept is each client's own."""
        kept = self._kept_rows(cell) if self.takes(cell) else None
        if kept is not None:
            self._add(kept, cell)
        return kept is not None

    def _trainer(self, cell: Cell) -> BatchedTrainer | None:
        trainer: BatchedTrainer | None = self._opened.kinds[self._opened.infos[cell.ids[0]].model].batched
        return trainer

    def _kept_rows(self, cell: Cell) -> TrainingRows | None:
        """Returns the training rows that are kept of clients of a cell's model; None: it reads graphs, or no room."""
        opened = self._opened
        number = opened.infos[cell.ids[0]].model
        flat = opened.kinds[number].models[MODEL]
        if flat.coupled is not None:
            return None
        if number not in self._counts:
            clients = ClientTable.of(opened.infos)
            count_N = np.where(clients.model == number, clients.train, 0)
            self._counts[number] = count_N, opened.views.get(cell.ids[0]).features
        count_N, features = self._counts[number]
        hops = len(flat.inputs)
        size = (1 + int(count_N.sum())) * (4 * hops * features + 8)
        if size > ROWS_SHARE * self._cache.limit:
            return None

        def build() -> list[Any]:
            rows = TrainingRows(count_N, hops, features, opened.device)
            return [rows, *rows.tensors]

        kept: list[Any] | None = self._cache.keep(("training rows", opened.job.id, number), size, build)
        return None if kept is None else kept[0]

    def _add(self, kept: TrainingRows, cell: Cell) -> None:
        """Adds clients of a cell that come for the first time to the rows that are kept."""
        for number in [number for number in cell.ids if number not in kept.weights]:
            client = self._client(number)
            hops = [client.data.rows(k, client.data.train) for k in client.model.pattern.inputs]
            kept.add(number, hops, client.data.train_label, self._weight_of(client))
        self._opened.begins(cell.ids[-1])

    def _client(self, number: int) -> Client:
        """Opens the data of a client."""
        opened = self._opened
        opened.begins(number)
        info, view = opened.infos[number], opened.views.get(number)
        # Nothing is drawn: models that draw neighbours are not trained in batches.
        model = ClientModel(opened.kinds[info.model].models[MODEL], view, lambda purpose: 0)
        return Client(info, view, {MODEL: model}, {}, {}, lambda purpose: 0)

    def _prepare(self, cell: Cell, kept: TrainingRows | None) -> Prepared:
        """Finds what clients train on."""
        if kept is None:
            return self._gather(cell)
        self._add(kept, cell)
        if cell.round != self._round:
            self._before, self._cells, self._round = self._cells, {}, cell.round
        clients = tuple(cell.ids)
        if (same := self._before.get(clients)) is None:
            counts = [kept.counts[i] for i in clients]
            width = 3 * sum([t.shape[1] for t in kept.tensors if t.dim() > 1])
            same = self._group(clients, counts, width, kept.weights, kept.places)
        self._cells[clients] = same
        return same

    def _gather(self, cell: Cell) -> Prepared:
        """Gathers what clients train on, one after another."""
        clients = {i: self._client(i) for i in cell.ids}
        weights = {i: self._weight_of(client) for i, client in clients.items()}
        gathered = {i: client.model.gathered("train") for i, client in clients.items() if client.info.train}
        numbers = {i: numbers_of_row(inputs, clients[i].model.coupled) for i, inputs in gathered.items()}
        counts = [numbers[i][0] if i in numbers else 0 for i in cell.ids]
        width = next((width for _, width in numbers.values()), 0)

        def batch(group: Sequence[int]) -> Batch:
            return Batch.of([gathered[i] for i in group], [clients[i].data.train_label for i in group])

        return self._group(cell.ids, counts, width, weights, batch)

    def _group(
        self,
        clients: Sequence[int],
        counts: Sequence[int],
        width: int,
        weights: Mapping[int, float],
        batch_of: Callable[[Sequence[int]], Batch | Places],
    ) -> Prepared:
        """Groups clients of similar size, given training rows of each and numbers of a row; sends what is needed."""
        opened = self._opened
        able = [i for i, count in zip(clients, counts) if count]
        # A client takes parameters, their gradients and two moments, beside the rows.
        client_bytes = 4 * 4 * len(opened.kinds[opened.infos[clients[0]].model].models[MODEL].w)
        groups = size_groups([count for count in counts if count], 4 * width, client_bytes)
        ids, batches = list[int](), list[tuple[int, int, Batch | Places]]()
        for group in groups:
            members = [able[place] for place in group]
            batches.append((len(ids), len(ids) + len(members), batch_of(members)))
            ids += members
        trained = len(ids)
        ids += sorted(set(clients) - set(ids))
        in_order = [weights[i] for i in ids]
        sent = [torch.tensor(in_order, dtype=torch.float32, device="cpu")]
        sent += [t for *_, batch in batches if isinstance(batch, Places) for t in (batch.place_BN, batch.count_B)]
        there = iter(sent if opened.device.type == "cpu" else send(sent, opened.device))
        weight_B1 = next(there)[:, None]
        batches = [
            (start, stop, Places(batch.lengths, next(there), next(there)) if isinstance(batch, Places) else batch)
            for start, stop, batch in batches
        ]
        return Prepared(ids, batches, trained, in_order, weight_B1)

    def train(self, cell: Cell, down: Tree) -> "Stack":
        """Trains the clients of a cell from a download; nothing that they are given is written to."""
        trainer, kept = self._trainer(cell), self._kept_rows(cell)
        assert trainer is not None
        prepared = self._prepare(cell, kept)
        keeps, on_device = trainer.options.opt_state == "keep", self._opened.device.type != "cpu"
        states, trained = [cell.states.get(i, NOTHING) for i in prepared.ids], prepared.trained
        names = self._kept_names(trainer.options)
        before = states[:trained]
        has = [[name in state for state in before] for name in names] if self._mapped else []
        have = list(map(all, zip(*has)))
        if (keeps or names) and on_device:
            states[:trained] = self._copy(cell, trainer, prepared.ids[:trained], before, names)
            # What lies there is read there; a client that comes for the first time has nothing.
            before = [
                old if type(old) is KeptState or not names or names[0] not in old else new
                for old, new in zip(before, states)
            ]
        w_P = first_P = trainer.model.w.detach()
        if names:
            first_P = torch.zeros_like(w_P) if self._own_model is None else self._initial(cell)
        had = {name: _stack([state.get(name, first_P) for state in before], first_P) for name in names}
        if self._own_model is not None:
            w_BP = had[self._own_model]
        else:
            # Parameters may travel in half the bytes.
            w_BP = down["w"].to(w_P.dtype).expand(len(prepared.ids), -1).clone()
        pull = self._pull(had, down, trainer.options)
        losses, moments, means_of = [], list[Tree](), list[tuple[Tensor, Tensor]]()
        classes = self._opened.infos[cell.ids[0]].classes
        received = None if self._means is None else self._means.read(down, classes)
        for start, stop, batch in prepared.batches:
            if isinstance(batch, Places):
                assert kept is not None
                batch = kept.batch(batch)
            streams = partial(self._stream, cell.round, prepared.ids[start:stop])
            rows_BP = w_BP[start:stop]
            mine = {name: t_BP[start:stop] for name, t_BP in had.items()}
            if self._means is None:
                terms = self._terms(trainer.model, batch, mine, down, have[start:stop])
            else:
                terms = self._opened.algorithm.row_terms(None, received)
            loss_B, of_batch = trainer.fit_batch(
                batch, rows_BP, states[start:stop], streams, _rows_of(pull, start, stop), terms, copies=not on_device
            )
            losses.append(loss_B)
            moments += of_batch
            if self._means is not None:
                (z_BNH,) = embeddings(trainer.model, [rows_BP], batch.inputs)
                means_of.append(means_by_class(z_BNH, batch.label_BN, classes))
        if keeps and not on_device:
            states[: len(moments)] = [state | of_client for state, of_client in zip(states, moments)]
        sent = {"w": w_BP}
        if self._own_model is not None:
            self._keep(states, {self._own_model: w_BP})
            sent = {}
        elif self._rows is not None:
            sums = None if pull is None else pull.total
            w_TP = w_BP[:trained]
            rows, new = self._rows.send_rows(had, down, w_TP, sums, trainer.options, trainer.options.epochs)
            assert new.keys() == set(names)
            self._keep(states, new)
            sent = {entry: w_BP if t is w_TP else _with_zeros(t, len(w_BP)) for entry, t in rows.items()}
        # NaN is the largest of all.
        checked, means = list(sent.values()), None
        if self._means is not None:
            means = ClassMeans.of(means_of, len(prepared.ids), self._means.stacks_means)
            checked.append(means.mean_BCH.flatten(1))
        largest = [torch.linalg.vector_norm(t, math.inf, dim=1) for t in checked]
        return Stack(cell, prepared, w_BP, torch.cat([*losses, *largest]), states, sent, self._rows, means)

    def _kept_names(self, options: TrainOptions) -> tuple[str, ...]:
        """Names the vectors `[P]` that clients keep beside moments."""
        if self._own_model is not None:
            return (self._own_model,)
        return () if self._rows is None else self._rows.kept_rows(options)

    def _initial(self, cell: Cell) -> Tensor:
        """Returns the parameters that clients of a cell begin with."""
        return self._opened.kinds[self._opened.infos[cell.ids[0]].model].initials[MODEL]

    def _weight_of(self, client: Client) -> float:
        """Returns the weight of a client's model; one that keeps its own has none."""
        return 1.0 if self._own_model is not None else self._opened.algorithm.weight_of(client)

    def _pull(self, had: Tree, down: Tree, options: TrainOptions) -> Pull | None:
        """Returns the pull of the clients that train, `[B, P]`, or one of all: that reads nothing of a client."""
        if self._rows is not None:
            # Batches are whole, so that a step is an epoch.
            return self._rows.pull_rows(had, down, options, options.epochs)
        if self._own_model is not None:
            return None
        return self._opened.algorithm.pull(None, {"w": down["w"]}, options)

    def _terms(self, model: FlatModel, batch: Batch, had: Tree, down: Tree, have: Sequence[bool]) -> Sequence[RowTerm]:
        """Returns the terms of a batch's loss beside cross-entropy, given who has what a method keeps."""
        if self._rows is None or not any(have):
            return ()

        def embed(*several_w: Tensor) -> list[Tensor]:
            return embeddings(model, [w.to(model.w.dtype) for w in several_w], batch.inputs)

        terms, has_B = self._rows.terms_of_rows(had, down, embed), None
        if not all(have):
            has_B = torch.tensor(have, device="cpu").to(self._opened.device, non_blocking=True)
        return [term._replace(has_B=has_B) for term in terms]

    def _keep(self, states: list[Tree], new: Tree) -> None:
        """Writes what the clients that trained keep, `[B, P]` by name, into their states."""
        for name, t_BP in new.items():
            if not len(t_BP):
                return
            if self._opened.device.type != "cpu":
                torch._foreach_copy_([state[name] for state in states[: len(t_BP)]], t_BP.unbind())
                continue
            # What a client keeps must not hold the memory of others.
            for row, t_P in enumerate(t_BP.unbind()):
                states[row] = {**states[row], name: t_P.clone()}

    def _copy(
        self, cell: Cell, trainer: BatchedTrainer, ids: Sequence[int], states: Sequence[Tree], replaced: Sequence[str]
    ) -> list[Tree]:
        """Copies states of clients that train to rows that may be written to, which stay where there is room.

        What has a name among `replaced` may be left out.
        """
        number, parameters = self._opened.infos[ids[0]].model if ids else 0, len(trainer.model.w)
        rows = self._states.get(number)
        if rows is None:
            shapes = moment_shapes(trainer.options, parameters) if trainer.options.opt_state == "keep" else {}
            shapes |= dict.fromkeys(replaced, (parameters,))
            rows = StateRows(shapes, self._opened.device)
            self._states[number] = rows
        room = int(2 * STATES_SHARE * self._cache.limit) if rows.size >= 2 * self._keeps_from else 0
        return rows.copy(ids, states, cell.round, room, replaced)

    def _stream(self, number: int, ids: Sequence[int], row: int) -> torch.Generator:
        """Makes the stream of a client's training in a round, by its row."""
        seed = key(self._opened.job.seed, number, ids[row], "train")
        return generator_on(self._opened.device).manual_seed(seed)


def _stack(rows: Sequence[Tensor], like: Tensor) -> Tensor:
    return torch.stack(list(rows)) if rows else like.new_zeros(0, len(like))


def _rows_of(pull: Pull | None, start: int, stop: int) -> Pull | tuple[()]:
    """Returns the pull of some rows; one that is the same for all is that of any."""
    if pull is None:
        return ()
    parts = (pull.linear, pull.origin, pull.total)
    linear, origin, total = [t[start:stop] if t is not None and t.dim() == 2 else t for t in parts]
    return Pull(linear, origin, pull.mu, total)


def _with_zeros(t_BP: Tensor, rows: int) -> Tensor:
    """Adds rows of zeros up to so many."""
    missing = rows - len(t_BP)
    return torch.cat([t_BP, t_BP.new_zeros(missing, t_BP.shape[1])]) if missing else t_BP


@dataclass
class Stack:
    """The clients of a cell after training: parameters `[B, P]`, losses of those that trained and the largest number of
    each in each entry as one vector, states, and what is sent, by entry `[B, P]`, of methods by rows weighted by these.

    Attributes:
        counts: Of predictions of clients that are scored; as `gpu.counts_of` gives them where they are on the device.
        predicted: Their predictions, where a callback asks for them.
        errors: Errors of clients that could not be scored.
    """

    cell: Cell
    prepared: Prepared
    w_BP: Tensor
    numbers: Tensor
    states: list[Tree]
    sent: Tree
    rows: RowMethod | None = None
    means: ClassMeans | None = None
    counts: dict[int, np.ndarray | Tensor] = field(default_factory=dict)
    predicted: dict[int, Mapping[str, np.ndarray]] = field(default_factory=dict)
    errors: dict[int, Exception] = field(default_factory=dict)

    def trained(self, client: int) -> Tensor:
        """Returns the parameters `[P]` of a client."""
        return self.w_BP[self.prepared.ids.index(client)]

    def score(self, clients: Collection[int], visit_of: Callable[[int, Tensor], Any], deferred: Any) -> None:
        """Counts what some clients predict; of these alone there are visits, which `visit_of` begins of parameters.

        `deferred` counts on the device, see `shoal.engine.hosts.devices.gpu`; None: there is none.
        """
        for client in sorted(clients):
            try:
                visit = visit_of(client, self.trained(client))
                if deferred is None or not deferred.scores_later(visit):
                    self.counts[client] = visit.score()
                if visit.predicted:
                    self.predicted[client] = visit.predicted
            except Exception as error:
                self.errors[client] = error
        if deferred is not None:
            self.counts |= deferred.count()

    def result(self) -> tuple[Outcome, dict[int, Exception]]:
        """Returns the outcome, with one wait for the device, and the errors of clients that have none.

        Afterwards parameters are not those of clients any more.
        """
        prepared, cell = self.prepared, self.cell
        weighted = {entry: self._weigh(entry, t_BP) for entry, t_BP in self.sent.items()}
        if self.means is not None:
            weighted |= self.means.weighted()
        place = dict(zip(cell.ids, cell.places))
        places = [place[i] for i in prepared.ids]
        sums = {
            (entry, span): total
            for entry, t_BP in weighted.items()
            for span, total in add_up(t_BP, places, cell.places).items()
        }
        numbers = self._fetch(sums)
        loss_B, largest_EB = numbers[: prepared.trained], numbers[prepared.trained :].reshape(-1, len(prepared.ids))
        sound_B = np.isfinite(largest_EB).all(0)
        sound_B[: prepared.trained] &= np.isfinite(loss_B) & (loss_B <= DIVERGED * max(cell.first_loss, 1.0))
        sound_B[prepared.trained :] = True
        wrong = self.errors | {
            prepared.ids[row]: self._error(float(loss_B[row]), largest_EB[:, row])
            for row in np.flatnonzero(~sound_B).tolist()
        }
        rows = sorted(range(len(places)), key=prepared.ids.__getitem__)
        if wrong:
            rows = [row for row in rows if prepared.ids[row] not in wrong]
            chosen = torch.tensor(rows, dtype=torch.int64, device="cpu").to(self.w_BP.device)
            sums = {
                (entry, span): total.cpu()
                for entry, t_BP in weighted.items()
                for span, total in add_up(t_BP[chosen], [places[row] for row in rows], cell.places).items()
            }
        return self._outcome(loss_B.tolist(), rows, sums), dict(sorted(wrong.items()))

    def _weights(self, entry: str) -> Sequence[float]:
        """Returns the weights of an entry."""
        weights, rows = self.prepared.weights, self.rows
        if rows is None or type(rows).entry_weight is RowMethod.entry_weight:
            return weights
        return [rows.entry_weight(entry, n) for n in weights]

    def _weigh(self, entry: str, t_BP: Tensor) -> Tensor:
        """Multiplies rows by their weights, in place."""
        prepared, weights = self.prepared, self._weights(entry)
        if weights == prepared.weights:
            t_BP.mul_(prepared.weight_B1)
        elif any(n != 1.0 for n in weights[: prepared.trained]):
            t_BP.mul_(torch.tensor(weights, dtype=torch.float32, device="cpu").to(t_BP.device)[:, None])
        if prepared.trained < len(prepared.ids):
            # What has no weight is not read.
            t_BP[prepared.trained :] = 0.0
        return t_BP

    def _fetch(self, sums: dict[tuple[str, range], Tensor]) -> np.ndarray:
        """Brings all to the processor that does not stay, with one wait; returns the numbers."""
        if self.w_BP.device.type != "cpu":
            passing = [row for row, state in enumerate(self.states) if state and type(state) is not KeptState]
            kept = [t for row in passing for t in self.states[row].values()]
            later = {client: counts for client, counts in self.counts.items() if isinstance(counts, Tensor)}
            means = [] if self.means is None else self.means.to_fetch()
            self.numbers, *fetched = fetch([self.numbers, *sums.values(), *later.values(), *kept, *means])
            if self.means is not None:
                self.means.take(fetched[-len(means) :])
            here = iter(fetched)
            sums.update({part: next(here) for part in sums})
            for client in later:
                try:
                    self.counts[client] = without_lost(next(here).numpy())
                except ShoalError as error:
                    self.errors[client] = error
            for row in passing:
                self.states[row] = {name: next(here) for name in self.states[row]}
        return self.numbers.numpy()

    def _error(self, loss: float, largest_E: np.ndarray) -> Exception:
        """Makes the error of a client of a loss and the largest numbers of entries, of which one is not sound."""
        try:
            bounded_loss(loss)
            for entry, largest in zip([*self.sent, MEANS], largest_E.tolist()):
                require_numbers(entry, math.isfinite(largest))
            bounded_loss(loss, self.cell.first_loss)
        except ShoalError as error:
            return error
        raise AssertionError("expected a client that is not sound")

    def _outcome(self, losses: list[float], rows: Sequence[int], sums: dict[tuple[str, range], Tensor]) -> Outcome:
        """Makes the outcome of the clients of some rows, ascending."""
        prepared, cell, size = self.prepared, self.cell, len(self.sent) * (4 * self.w_BP.shape[1] + 4)
        losses += [math.nan] * (len(prepared.ids) - prepared.trained)
        outcome = Outcome([prepared.ids[row] for row in rows], losses=[losses[row] for row in rows])
        outcome.states = dict(zip(outcome.ids, [self.states[row] for row in rows]))
        outcome.bytes_up = [size] * len(rows)
        if self.means is not None:
            sizes = self.means.sizes()
            outcome.bytes_up = [size + sizes[row] for row in rows]
            self.means.put(outcome, rows)
        outcome.scores = {i: np.asarray(self.counts[i]) for i in outcome.ids if i in self.counts}
        outcome.predicted = {i: self.predicted[i] for i in outcome.ids if i in self.predicted}
        place = dict(zip(cell.ids, cell.places))
        row_of = dict(zip(outcome.ids, rows))
        weights = {entry: dict(zip(prepared.ids, self._weights(entry))) for entry in self.sent}
        for (entry, span), total in sums.items():
            within = [i for i in outcome.ids if place[i] in span]
            part = outcome.sums.setdefault(span, PartialSum(within[0], {}, {}))
            if self.means is not None and entry == MEANS:
                part.total[entry] = total.view(self.means.mean_BCH.shape[1:])
                part.weight[entry] = self.means.weight_of([row_of[i] for i in within])
            else:
                of_clients = weights[entry]
                part.total[entry], part.weight[entry] = total, sum([of_clients[i] for i in within])
        return outcome
