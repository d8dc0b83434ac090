"""A cell of clients that train in one batch and send what they trained, as one stack: no client is visited.

It is for methods whose clients receive, train and send as those of FedAvg. Their parameters are `[B, P]` from the
download to the weighted sums, and checks of all of them are one operator and one number each.

Axes: B clients, P parameters.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from shoal.algorithms.base import Algorithm, overrides, trains_plainly
from shoal.algorithms.client import Client, ClientModel
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import MODEL, Reduce, Tree
from shoal.algorithms.rng import generator_on, key
from shoal.algorithms.training.batched.batched_inputs import BatchedRows, numbers_of_row, size_groups
from shoal.algorithms.training.batched.batched_training import Batch, BatchedTrainer
from shoal.algorithms.training.local_training import DIVERGED, bounded_loss
from shoal.engine.hosts.devices.gpu import fetch, send, without_lost
from shoal.engine.messages.cell import NO_STAGES, Cell, Outcome, PartialSum
from shoal.engine.rounds.reduction import add_up, require_numbers
from shoal.storage.errors import ShoalError
from shoal.storage.shards.cache import Cache

# States that stay on a device take at most this part of what its cache may take, and as much again until a round ends.
STATES_SHARE = 0.25


def sends_its_model(method: Algorithm) -> bool:
    """Returns whether clients of a method receive, train and send as FedAvg's do: by its functions, not its name."""
    cls = type(method)
    hooks = cls.receive is Algorithm.receive and getattr(cls, "upload", None) is FedAvg.upload
    weights = getattr(cls, "weight_of", None) is FedAvg.weight_of
    return hooks and weights and trains_plainly(method) and cls.client_models == "global"


@dataclass(frozen=True)
class Prepared:
    """The clients of a cell in the order of a stack's rows, those that do not train last.

    Attributes:
        batches: First and last row but one of each batch, and what it trains on.
        trained: How many train.
        weight_B1: Weights of uploads, float32 on the device; so as numbers in `weights`.
    """

    ids: Sequence[int]
    batches: Sequence[tuple[int, int, Batch]]
    trained: int
    weights: Sequence[float]
    weight_B1: Tensor

    def tensors(self) -> list[Tensor]:
        """Lists the tensors, of which a cache counts the bytes."""
        batches = [(*batch.inputs.tensors, batch.label_BN, batch.count_B) for *_, batch in self.batches]
        return [self.weight_B1, *(t for tensors in batches for t in tensors)]


class CellStacks:
    """The cells of one job that a host trains as stacks.

    What clients train on stays in the cache where they come together again. Their states stay on the device while there
    is room: they are values, so that a round which fails leaves those before it.
    """

    def __init__(self, opened: Any, cache: Cache, keeps_states: bool) -> None:
        """Takes cells of a host's job (`shoal.engine.hosts.opened_job.OpenedJob`); the cache is the host's.

        `keeps_states`: whoever is given states takes them as they are, on the host's device.
        """
        self._opened, self._cache, self._keeps_states = opened, cache, keeps_states
        plain = sends_its_model(opened.algorithm) and not opened.guarded and not opened.stages
        self._possible = plain and all(set(kind.models) == {MODEL} for kind in opened.kinds)
        # Clients of a cell, by its first one, when that came last.
        self._last: dict[int, tuple[int, ...]] = {}
        self._staying: list[_Staying] = []

    def takes(self, cell: Cell) -> bool:
        """Returns whether the clients of a cell need no visit."""
        trains = self._possible and cell.phase and cell.train and self._trainer(cell) is not None
        if not trains or cell.score_with or cell.again is not None or cell.stages != NO_STAGES:
            return False
        if cell.score and overrides(self._opened.algorithm, "predict"):
            return False
        return not cell.private and not cell.inboxes and dict(cell.up) == {"w": Reduce.MEAN}

    def reads_in_place(self, cell: Cell) -> bool:
        """Returns whether a cell's states lie on the device and are read there as they are; else copies are sent."""
        devices = {t.device for state in cell.states.values() for t in state.values()}
        return devices <= {self._opened.device} and self.takes(cell)

    def is_ready(self, cell: Cell) -> bool:
        """Returns whether all that the clients of a cell train on is at hand, in one piece."""
        return self._cache.peek(self._key(cell)) is not None

    def _key(self, cell: Cell) -> tuple[Any, ...]:
        return "stack", self._opened.job.id, tuple(cell.ids)

    def _trainer(self, cell: Cell) -> BatchedTrainer | None:
        trainer: BatchedTrainer | None = self._opened.kinds[self._opened.infos[cell.ids[0]].model].batched
        return trainer

    def _prepare(self, cell: Cell, again: bool) -> Prepared:
        """Prepares a cell's clients; if they were together before, what they train on is kept."""
        if not again:
            return self._gather(cell)
        prepared: Prepared | None = None

        def build() -> list[Any]:
            nonlocal prepared
            prepared = self._gather(cell)
            # Graphs are joined anew: their matrices would be counted of no one.
            rows = all(isinstance(batch.inputs, BatchedRows) for *_, batch in prepared.batches)
            return [prepared, *prepared.tensors()] if rows else [None]

        kept: Prepared | None = self._cache.get(self._key(cell), build)[0]
        self._opened.begins(cell.ids[-1])
        return kept or prepared or self._gather(cell)

    def _gather(self, cell: Cell) -> Prepared:
        """Gathers what clients train on, those of similar size in one batch."""
        opened = self._opened
        flat = opened.kinds[opened.infos[cell.ids[0]].model].models[MODEL]
        clients, rows, labels, weights = [], [], [], {}
        for i in cell.ids:
            opened.begins(i)
            info, view = opened.infos[i], opened.views.get(i)
            # Nothing is drawn: models that draw neighbours are not trained in batches.
            model = ClientModel(flat, view, lambda purpose: 0)
            weights[i] = opened.algorithm.weight_of(Client(info, view, {MODEL: model}, {}, {}, lambda purpose: 0))
            if info.train:
                clients.append(i)
                rows.append(model.gathered("train"))
                labels.append(view.train_label)
        groups: list[list[int]] = []
        if clients:
            lengths, numbers = zip(*(numbers_of_row(inputs, flat.coupled) for inputs in rows))
            # A client takes parameters, their gradients and two moments, beside the rows.
            groups = size_groups(lengths, 4 * numbers[0], 4 * 4 * len(flat.w))
        ids: list[int] = []
        batches = []
        for group in groups:
            batch = Batch.of([rows[place] for place in group], [labels[place] for place in group])
            batches.append((len(ids), len(ids) + len(group), batch))
            ids += [clients[place] for place in group]
        trained = len(ids)
        ids += sorted(set(cell.ids) - set(ids))
        in_order = [weights[i] for i in ids]
        weight_B = torch.tensor(in_order, dtype=torch.float32, device="cpu")
        if opened.device.type != "cpu":
            (weight_B,) = send([weight_B], opened.device)
        return Prepared(ids, batches, trained, in_order, weight_B[:, None])

    def train(self, cell: Cell, w_P: Tensor) -> "Stack":
        """Trains the clients of a cell from `w_P`; nothing that they are given is written to."""
        trainer = self._trainer(cell)
        assert trainer is not None
        ids = tuple(cell.ids)
        again = self._last.get(ids[0]) == ids
        self._last[ids[0]] = ids
        prepared = self._prepare(cell, again)
        # Parameters may travel in half the bytes.
        w_BP = w_P.to(trainer.model.w.dtype).expand(len(ids), -1).clone()
        before = [cell.states.get(i, {}) for i in prepared.ids]
        losses, moments = [], list[Tree]()
        for start, stop, batch in prepared.batches:
            streams = partial(self._stream, cell.round, prepared.ids[start:stop])
            loss_B, of_batch = trainer.fit_batch(batch, w_BP[start:stop], before[start:stop], streams, copies=True)
            losses.append(loss_B)
            moments += of_batch
        states = list(before)
        if trainer.options.opt_state == "keep":
            states[: len(moments)] = [state | of_client for state, of_client in zip(before, moments)]
        # NaN is the largest of all.
        largest_B = torch.linalg.vector_norm(w_BP, math.inf, dim=1)
        return Stack(cell, prepared, w_BP, torch.cat([*losses, largest_B]), states, self._has_room(before, states))

    def _stream(self, number: int, ids: Sequence[int], row: int) -> torch.Generator:
        """Makes the stream of a client's training in a round, by its row."""
        seed = key(self._opened.job.seed, number, ids[row], "train")
        return generator_on(self._opened.device).manual_seed(seed)

    def _has_room(self, before: Sequence[Tree], states: Sequence[Tree]) -> bool:
        """Returns whether new states may stay on the device, in place of those before; notes their memory then."""
        name = next((name for state in states for name in state), None)
        if not self._keeps_states or name is None:
            return self._keeps_states
        old, new = ([s[name].untyped_storage() for s in trees if name in s] for trees in (before, states))
        read, begun = (Counter([storage.data_ptr() for storage in storages]) for storages in (old, new))
        size = sum([t.nbytes for t in next(state for state in states if name in state).values()])
        self._staying = [memory for memory in self._staying if not memory.storage.expired()]
        # What is read to the last row is let go when the round is committed.
        others = sum(memory.size for memory in self._staying if read[memory.address] < memory.rows)
        if others + len(new) * size > STATES_SHARE * self._cache.limit:
            return False
        storages = {storage.data_ptr(): storage for storage in new}
        self._staying += [
            _Staying(StorageWeakRef(storage), address, begun[address], begun[address] * size)
            for address, storage in storages.items()
        ]
        return True


class _Staying(NamedTuple):
    """Memory of states that stay, all of it until the last of them is replaced: its rows, and bytes of all moments."""

    storage: StorageWeakRef
    address: int
    rows: int
    size: int


@dataclass
class Stack:
    """The clients of a cell after training: parameters `[B, P]`, losses of those that trained and the largest number of
    each as one vector, and states.

    Attributes:
        stays: Whether states stay on the device.
        counts: Of predictions of clients that are scored; as `gpu.counts_of` gives them where they are on the device.
        predicted: Their predictions, where a callback asks for them.
        errors: Errors of clients that could not be scored.
    """

    cell: Cell
    prepared: Prepared
    w_BP: Tensor
    numbers: Tensor
    states: list[Tree]
    stays: bool
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
        weighted_BP = self.w_BP.mul_(prepared.weight_B1)
        if prepared.trained < len(prepared.ids):
            # What has no weight is not read.
            weighted_BP[prepared.trained :] = 0.0
        place = dict(zip(cell.ids, cell.places))
        places = [place[i] for i in prepared.ids]
        sums = add_up(weighted_BP, places, cell.places)
        numbers = self._fetch(sums)
        loss_B, largest_B = numbers[: prepared.trained], numbers[prepared.trained :]
        sound_B = np.isfinite(largest_B)
        sound_B[: prepared.trained] &= np.isfinite(loss_B) & (loss_B <= DIVERGED * max(cell.first_loss, 1.0))
        sound_B[prepared.trained :] = True
        wrong = self.errors | {
            prepared.ids[row]: self._error(float(loss_B[row]), float(largest_B[row]))
            for row in np.flatnonzero(~sound_B).tolist()
        }
        rows = sorted(range(len(places)), key=prepared.ids.__getitem__)
        if wrong:
            rows = [row for row in rows if prepared.ids[row] not in wrong]
            chosen = torch.tensor(rows, dtype=torch.int64, device="cpu").to(weighted_BP.device)
            sums = add_up(weighted_BP[chosen], [places[row] for row in rows], cell.places)
            sums = {span: total.cpu() for span, total in sums.items()}
        return self._outcome(loss_B.tolist(), rows, sums), dict(sorted(wrong.items()))

    def _fetch(self, sums: dict[range, Tensor]) -> np.ndarray:
        """Brings all to the processor that does not stay, with one wait; returns the numbers."""
        if self.w_BP.device.type != "cpu":
            kept = [] if self.stays else [t for state in self.states for t in state.values()]
            later = {client: counts for client, counts in self.counts.items() if isinstance(counts, Tensor)}
            self.numbers, *fetched = fetch([self.numbers, *sums.values(), *later.values(), *kept])
            here = iter(fetched)
            sums.update({span: next(here) for span in sums})
            for client in later:
                try:
                    self.counts[client] = without_lost(next(here).numpy())
                except ShoalError as error:
                    self.errors[client] = error
            if kept:
                self.states = [{name: next(here) for name in state} for state in self.states]
        return self.numbers.numpy()

    def _error(self, loss: float, largest: float) -> Exception:
        """Makes the error of a client of a loss and a largest parameter of which one is not sound."""
        try:
            bounded_loss(loss)
            require_numbers("w", math.isfinite(largest))
            bounded_loss(loss, self.cell.first_loss)
        except ShoalError as error:
            return error
        raise AssertionError("expected a client that is not sound")

    def _outcome(self, losses: list[float], rows: Sequence[int], sums: dict[range, Tensor]) -> Outcome:
        """Makes the outcome of the clients of some rows, ascending."""
        prepared, cell, size = self.prepared, self.cell, 4 * self.w_BP.shape[1] + 4
        losses += [math.nan] * (len(prepared.ids) - prepared.trained)
        outcome = Outcome([prepared.ids[row] for row in rows], losses=[losses[row] for row in rows])
        outcome.states = dict(zip(outcome.ids, [self.states[row] for row in rows]))
        outcome.bytes_up = [size] * len(rows)
        outcome.scores = {i: np.asarray(self.counts[i]) for i in outcome.ids if i in self.counts}
        outcome.predicted = {i: self.predicted[i] for i in outcome.ids if i in self.predicted}
        place, weights = dict(zip(cell.ids, cell.places)), dict(zip(prepared.ids, prepared.weights))
        for span, total in sums.items():
            within = [i for i in outcome.ids if place[i] in span]
            weight: dict[str, float | Tensor] = {"w": sum([weights[i] for i in within])}
            outcome.sums[span] = PartialSum(within[0], {"w": total}, weight)
        return outcome
