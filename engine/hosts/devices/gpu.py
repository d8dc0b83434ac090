"""The work of a host on a GPU, arranged so that it seldom waits for the device.

Values of a cell come in one copy, results of its clients go back in one copy, large means as their sum alone, and
predictions are counted together. On a processor nothing of this runs.

Axes: J parts of clients, S items of all of them one behind the other, C classes.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm, Received
from shoal.algorithms.client import Client, ClientModel
from shoal.algorithms.models.build import name_of
from shoal.algorithms.models.inputs.neighbourhood import Inputs
from shoal.algorithms.protocol import MODEL, Reduce, Tree, Upload, only_trains
from shoal.algorithms.training.batched.batched_inputs import batched_inputs, numbers_of_row, pad, size_groups
from shoal.algorithms.training.batched.batched_training import evaluate_models, outputs
from shoal.algorithms.training.local_training import bounded_loss
from shoal.engine.messages.cell import Cell
from shoal.engine.rounds.costs import working_clock
from shoal.engine.rounds.reduction import require_numbers
from shoal.engine.scores.counts import KINDS, PARTS, class_label, metrics_beyond_counts, require_winner, scores_in_form
from shoal.storage.shards.cache import PASSING_SHARE, Cache

# The device holds so many bytes of results; more are fetched before the end of a cell.
MAX_RESULT_BYTES = 2**28
# From so many bytes of an entry on, adding it up on the device costs less than its copy.
LEAST_TO_ADD = 2**16


class Visited(Protocol):
    """A visit of a client; see `shoal.engine.hosts.host.Visit`."""

    received: Received

    @property
    def scored(self) -> Client: ...

    @property
    def is_graph(self) -> bool: ...

    def received_to_score(self) -> Received: ...


class Deferred:
    """The cells of one call on a host with a GPU."""

    def __init__(self, opened: Any, cache: Cache) -> None:
        """Defers results of the host's job (`shoal.engine.hosts.opened_job.OpenedJob`), with its cache."""
        self._opened, self._cache = opened, cache
        self._results: list[ClientResult] = []
        self._bytes = 0
        self._scored: dict[int, Scored] = {}
        self._next: Cell | None = None
        self._begun = False
        self._values: Cell | None = None
        self._means: set[str] = set()
        # Nothing of the present cell was fetched before its end.
        self._is_whole = True

    def send(self, tree: Tree) -> Tree:
        """Copies a download to the device."""
        return dict(zip(tree, send(list(tree.values()), self._opened.device)))

    def receive(self, cell: Cell, following: Cell | None) -> Cell:
        """Returns a cell with its clients' values on the device; those of the following one are sent at its end."""
        values, begun = self._values, self._begun
        self._means = {entry for entry, how in cell.up.items() if how is Reduce.MEAN}
        self._values, self._begun, self._next = None, False, following
        if not begun:
            self._cache.begin_turn()
        return self._send_values(cell) if values is None else values

    def _send_values(self, cell: Cell) -> Cell:
        """Sends the values of a cell's clients, where it does not read them in their place."""
        stacks = self._opened.stacks
        in_place = stacks is not None and stacks.reads_in_place(cell)
        return cell if in_place else send_values(cell, self._opened.device)

    def scores_later(self, visit: Visited) -> bool:
        """Takes what a client predicts, or what that needs; False: it is to be scored now."""
        opened = self._opened
        if metrics_beyond_counts(opened.job.metrics) or opened.job.predictions or visit.is_graph:
            return False
        received, client = visit.received_to_score(), visit.scored
        scored: Scored
        if may_wait(opened.algorithm, client):
            scored = Held(client, client.model.snapshot())
        else:
            with opened.creating:
                scored = predict_parts(opened.algorithm, client, received)
        self._scored[client.info.client] = scored
        return True

    def count(self) -> dict[int, Tensor]:
        """Counts the predictions of the clients that were to be scored later, by client; see `counts_of`."""
        scored, self._scored = self._scored, {}
        if not scored:
            return {}
        return dict(zip(scored, counts_of(list(scored.values()), self._opened.infos[0].classes)))

    def keep(self, result: "ClientResult") -> None:
        """Keeps a result on the device until `flush`."""
        self._results.append(result)
        self._bytes += sum(t.nbytes for t in result.tensors())

    @property
    def is_full(self) -> bool:
        """Returns whether results take so much memory that they are to be fetched."""
        return self._bytes > MAX_RESULT_BYTES

    def flush(
        self,
        take: Callable[["ClientResult"], None],
        fail: Callable[[int, Exception], None],
        seconds: dict[str, float],
        last: bool = False,
    ) -> None:
        """Waits for the device and hands over the results, in the order of clients.

        Args:
            take: Called with each result.
            fail: Called with a client whose result is not sound, or with all if nothing can be fetched.
            seconds: Time by step.
            last: They are the last of the cell: what the next cell trains on is sent before the wait.
        """
        began = working_clock()
        waiting, self._results, self._bytes = self._results, [], 0
        try:
            counts_by_client = self.count()
            waiting = [replace(result, counts=counts_by_client.get(result.client, result.counts)) for result in waiting]
            if last:
                seconds["upload"] -= self.bring(seconds)
            # An entry that is added up on the device needs no copy, but must be known to be finite.
            stays = [self._stays(result) if last and self._is_whole else {} for result in waiting]
            staying = {id(t): t for tensors in stays for t in tensors.values()}
            here, finite = _fetch_except(staying, waiting)
            fetched = [result.map_tensors(lambda t: here.get(id(t), t)) for result in waiting]
        except Exception as error:
            # It cannot be known which client is at fault.
            for result in waiting:
                fail(result.client, error)
            return
        for result, added in zip(fetched, stays):
            try:
                for name, t in added.items():
                    # An entry without weight is not read.
                    read = result.upload is None or result.upload.weight.get(name, 1.0)
                    require_numbers(name, not read or id(t) in finite or bool(t.isfinite().all()))
                loss = bounded_loss(float(result.loss)) if isinstance(result.loss, Tensor) else result.loss
                counts = without_lost(result.counts.numpy()) if isinstance(result.counts, Tensor) else result.counts
                take(replace(result, loss=loss, counts=counts, checked=frozenset(added)))
            except Exception as error:
                fail(result.client, error)
        self._is_whole = last
        seconds["upload"] += working_clock() - began

    def _stays(self, result: "ClientResult") -> Tree:
        """Selects what of an upload is added up on the device: large entries of means whose weight is a number."""
        if result.upload is None:
            return {}
        entries, weight = result.upload.entries, result.upload.weight
        large = {name: t for name, t in entries.items() if name in self._means and t.nbytes >= LEAST_TO_ADD}
        on_device = {name: t for name, t in large.items() if t.device.type != "cpu" and t.is_floating_point()}
        return {name: t for name, t in on_device.items() if not isinstance(weight.get(name), Tensor)}

    def bring(self, seconds: dict[str, float]) -> float:
        """Sends what the next cell trains on, as part of the training; returns the seconds that this took."""
        began = working_clock()
        self._bring()
        spent = working_clock() - began
        seconds["train"] += spent
        return spent

    def _bring(self) -> None:
        """Sends values and training data of the next cell, where its clients are trained in batches.

        Of the data at most the cache's probation share. Errors are ignored here and raised when the cell runs. A device
        works in the order of its queue: no number can change.
        """
        opened, cell = self._opened, self._next
        if cell is None or not cell.train or opened.kinds[opened.infos[cell.ids[0]].model].batched is None:
            return
        self._cache.begin_turn()
        self._begun = True
        room = PASSING_SHARE * self._cache.limit
        with suppress(Exception):
            self._values = self._send_values(cell)
            for client in () if opened.stacks.bring(cell) else cell.ids:
                if room <= 0:
                    break
                room -= self._cache.size_of(self._gather(client))

    def _gather(self, client: int) -> Inputs:
        """Reads what the client's model needs to train; the cache keeps it."""
        opened = self._opened
        flat = opened.kinds[opened.infos[client].model].models[MODEL]
        # Nothing is drawn: models that draw neighbours are not trained in batches.
        return ClientModel(flat, opened.views.get(client), lambda purpose: 0).gathered("train")


@dataclass(frozen=True)
class ClientResult:
    """The result of one client; nothing writes into its tensors any more.

    Attributes:
        loss: A float, NaN if the method reports none, or a device scalar not yet synchronised.
        upload: What it sends; None where it was only evaluated.
        state: What it keeps.
        counts: Of its predictions, where it was evaluated; a tensor as `counts_of` gives it.
        checked: Entries of the upload that are known to be finite; they lie on the device.
        predicted: Predicted classes and labels by part, where a callback asks for them; see `scoring.score`.
        notes: What stages send to the server beside the upload.
    """

    client: int
    loss: float | Tensor
    upload: Upload | None
    state: Tree
    counts: np.ndarray | Tensor | None
    checked: frozenset[str] = frozenset()
    predicted: Mapping[str, np.ndarray] | None = None
    notes: dict[str, Any] = field(default_factory=dict)

    def tensors(self) -> Iterator[Tensor]:
        """Yields all tensors of the result, wherever they are."""
        yield from self.state.values()
        yield from (t for t in (self.counts, self.loss) if isinstance(t, Tensor))
        if self.upload is not None:
            yield from self.upload.entries.values()
            yield from (w for w in self.upload.weight.values() if isinstance(w, Tensor))

    def name_tensors(self) -> Tree:
        """Names the tensors of the visit as errors call them."""
        named = {f"client.state {name!r}": t for name, t in self.state.items() if not only_trains(name)}
        if self.upload is not None:
            named |= {f"upload {name!r}": t for name, t in self.upload.entries.items()}
            named |= {f"the weight of {name!r}": torch.as_tensor(w) for name, w in self.upload.weight.items()}
        return named | {"the loss": torch.as_tensor(self.loss)}

    def map_tensors(self, to: Callable[[Tensor], Tensor]) -> "ClientResult":
        """Applies a function to every tensor of the result."""
        upload = self.upload
        if upload is not None:
            weight = {name: to(w) if isinstance(w, Tensor) else w for name, w in upload.weight.items()}
            upload = replace(upload, entries={name: to(t) for name, t in upload.entries.items()}, weight=weight)
        loss = to(self.loss) if isinstance(self.loss, Tensor) else self.loss
        counts = to(self.counts) if isinstance(self.counts, Tensor) else self.counts
        return replace(
            self, loss=loss, upload=upload, state={name: to(t) for name, t in self.state.items()}, counts=counts
        )


def _fetch_except(staying: Mapping[int, Tensor], results: Sequence[ClientResult]) -> tuple[dict[int, Tensor], set[int]]:
    """Copies results, by id, except tensors that stay, and returns the ids of those known to be finite."""
    tensors = {
        id(t): t for result in results for t in result.tensors() if t.device.type != "cpu" and id(t) not in staying
    }
    # A norm that overflows is a false alarm.
    norms = [torch.stack(torch._foreach_norm(list(staying.values())))] if staying else []
    copies = fetch([*tensors.values(), *norms])
    lengths = copies.pop().tolist() if norms else []
    return dict(zip(tensors, copies)), {key for key, norm in zip(staying, lengths) if math.isfinite(norm)}


# A tensor on a device starts at a multiple of so many bytes.
APART = 64


def send(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Asynchronous copies to the device; the results do not alias for version counting.

    Those that lie there, as states that stay, are copied there, all of one form at once.
    """
    here = [i for i, t in enumerate(tensors) if t.device != device]
    copies = dict(zip(here, _send_from_here([tensors[i] for i in here], device)))
    of_form: dict[Any, list[int]] = {}
    for i, t in enumerate(tensors):
        if i not in copies:
            of_form.setdefault((t.dtype, t.shape), []).append(i)
    for places in of_form.values():
        copies.update(zip(places, torch.stack([tensors[i] for i in places]).unbind()))
    return [copies[i] for i in range(len(tensors))]


def _send_from_here(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Sends tensors of the processor, as one copy."""
    if not tensors:
        return []
    layout = _Layout(tensors, APART)
    bytes_here = torch.empty(layout.size, dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")
    for tensor, place in zip(tensors, layout.places(bytes_here)):
        place.copy_(tensor)
    bytes_there = bytes_here.to(device, non_blocking=True)
    # Views count their writes together; `data` begins a count of its own.
    return [place.data for place in layout.places(bytes_there)]


def send_values(cell: Cell, device: torch.device) -> Cell:
    """Sends all values of a cell's clients to a device, in one copy."""
    trees = [*cell.private.values(), *cell.states.values(), *cell.inboxes.values(), cell.score_with]
    copies = iter(send([t for tree in trees for t in tree.values()], device))

    def of_clients(by_client: Mapping[int, Tree]) -> dict[int, Tree]:
        return {client: {name: next(copies) for name in tree} for client, tree in by_client.items()}

    return replace(
        cell,
        private=of_clients(cell.private),
        states=of_clients(cell.states),
        inboxes=of_clients(cell.inboxes),
        score_with={name: next(copies) for name in cell.score_with},
    )


def fetch(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies a device's tensors to the processor, with one wait."""
    if not tensors:
        return []
    layout = _Layout(tensors)
    flat = [torch.cat([tensors[i].detach().reshape(-1) for i in places]).view(torch.uint8) for places in layout.groups]
    bytes_there = torch.cat(flat)
    bytes_here = torch.empty(layout.size, dtype=torch.uint8, device="cpu", pin_memory=bytes_there.device.type == "cuda")
    bytes_here.copy_(bytes_there)
    # Each is cloned: a client's state must not hold the memory of its cell.
    return [place.clone() for place in layout.places(bytes_here)]


class _Layout:
    """A layout of tensors one behind the other, those of one type together, wide numbers first.

    Attributes:
        groups: Places of the tensors of each type.
        size: Bytes of all.
    """

    def __init__(self, tensors: Sequence[Tensor], apart: int = 1) -> None:
        """Starts each tensor at a multiple of `apart` bytes, and of its numbers' width."""
        self._tensors = tensors
        by_type: dict[torch.dtype, list[int]] = {}
        for i, t in enumerate(tensors):
            by_type.setdefault(t.dtype, []).append(i)
        self._types = sorted(by_type, key=lambda dtype: -dtype.itemsize)
        self.groups = [by_type[dtype] for dtype in self._types]
        steps = [max(1, apart // dtype.itemsize) for dtype in self._types]
        self._rooms = [[-(-tensors[i].numel() // n) * n for i in places] for n, places in zip(steps, self.groups)]
        self.size = sum(sum(rooms) * dtype.itemsize for rooms, dtype in zip(self._rooms, self._types))

    def places(self, bundle: Tensor) -> list[Tensor]:
        """Makes views of a bundle of bytes, in the types and shapes of the tensors."""
        tensors: list[Tensor] = list(self._tensors)
        start = 0
        for dtype, group, rooms in zip(self._types, self.groups, self._rooms):
            stop = start + sum(rooms) * dtype.itemsize
            for i, room, place in zip(group, rooms, bundle[start:stop].view(dtype).split(rooms)):
                t = self._tensors[i]
                place = place if room == t.numel() else place[: t.numel()]
                tensors[i] = place if t.dim() == 1 else place.view(t.shape)
            start = stop
        return tensors


# This kind comes after those of `scoring`: items whose largest score is not finite have no class.
LOST = KINDS


class Predicted(NamedTuple):
    """The predictions of a part of a client, on its device: labels and predicted classes, int64, and their scores."""

    label_N: Tensor
    class_N: Tensor
    best_N: Tensor


def predict_parts(algorithm: Algorithm, client: Client, received: Received) -> list[Predicted]:
    """Predicts the parts that are scored, not yet known to be finite; raises as `scores_in_form` does."""
    parts = []
    for part in PARTS:
        label_N = class_label(client.data, part)
        scores_NC = label_N.new_empty(0, client.info.classes, dtype=torch.float32)
        if len(label_N):
            scores_NC = scores_in_form(algorithm, client, received, part, len(label_N)).detach()
        parts.append(Predicted(label_N, scores_NC.argmax(1), scores_NC.amax(1)))
    return parts


def batched_counts(parts_J: Sequence[Predicted], classes: int) -> Tensor:
    """Counts the predictions of J parts at once, int64 `[J, 4, C]`.

    Kinds are those of `shoal.engine.scores.counts`, by class, and `LOST`, whose first number counts items whose
    best score is not finite.
    """
    label_S, class_S, best_S = (torch.cat(parts) for parts in zip(*parts_J))
    number_J = torch.arange(len(parts_J), device=label_S.device)
    number_S = torch.cat([number_J[j : j + 1].expand(len(part.label_N)) for j, part in enumerate(parts_J)])
    first_S = number_S * ((LOST + 1) * classes)
    places = [first_S + label_S, first_S + classes + class_S, first_S + 2 * classes + label_S]
    places.append(first_S + LOST * classes)
    ones_S = torch.ones_like(label_S)
    ones_at = [ones_S, ones_S, (label_S == class_S).long(), (~best_S.isfinite()).long()]
    counts = label_S.new_zeros(len(parts_J) * (LOST + 1) * classes)
    return counts.index_add_(0, torch.cat(places), torch.cat(ones_at)).view(len(parts_J), LOST + 1, classes)


def without_lost(counts_PKC: np.ndarray) -> np.ndarray:
    """Returns a client's counts, int64 `[parts, 3, C]`; raises a ShoalError if a largest score was not finite."""
    for part, lost in zip(PARTS, counts_PKC[:, LOST, 0]):
        require_winner(part, not lost)
    return counts_PKC[:, :KINDS]


# A pass reads so many numbers of hops, in float32 256 MB.
NUMBERS_OF_A_PASS = 2**26


@dataclass(frozen=True)
class Held:
    """A client that waits for a pass, on the data that it is scored on, and its parameters `[P]`, now fixed."""

    client: Client
    w: Tensor


# A client has predictions of its parts, or waits for them.
Scored = Sequence[Predicted] | Held


def may_wait(algorithm: Algorithm, client: Client) -> bool:
    """Returns whether predictions need one model alone, and rows of dense hops or a graph that may lie with others."""
    plain, model = type(algorithm).predict is Algorithm.predict, client.model
    if not plain or model.items is not None or model.pattern.prompted or name_of(model.pattern.module) is None:
        return False
    if model.coupled is not None:
        return model.coupled.stacks and not model.answered
    return not any(client.data.is_sparse(k) for k in model.pattern.inputs)


def counts_of(scored: Sequence[Scored], classes: int) -> list[Tensor]:
    """Counts the predictions of every client, int64 `[parts, 4, C]`; see `batched_counts`."""
    held = [waiting for waiting in scored if isinstance(waiting, Held)]
    if held and held[0].client.model.coupled is not None:
        predictions = iter(_predict_on_graphs(held))
    else:
        predictions = iter(list(zip(*(_predict_part(held, part) for part in PARTS))))
    parts = [part for waiting in scored for part in (next(predictions) if isinstance(waiting, Held) else waiting)]
    return list(batched_counts(parts, classes).unflatten(0, (len(scored), len(PARTS))))


def _predict_part(held: Sequence[Held], part: str) -> list[Predicted]:
    """Predicts a part of clients of one model."""
    predictions: list[Predicted] = []
    for group in _groups(held, part):
        labels = [class_label(waiting.client.data, part) for waiting in group]
        model = group[0].client.model.pattern
        hops = [pad(list(rows), 0) for rows in zip(*(waiting.client.model.gathered(part) for waiting in group))]
        logits_BNC = evaluate_models(model, torch.stack([waiting.w for waiting in group]), hops)
        class_BN, best_BN = logits_BNC.argmax(2), logits_BNC.amax(2)
        predictions += [Predicted(y, c[: len(y)], best[: len(y)]) for y, c, best in zip(labels, class_BN, best_BN)]
    return predictions


def _predict_on_graphs(held: Sequence[Held]) -> list[tuple[Predicted, ...]]:
    """Predicts every part of clients of one model that passes messages: one pass for all parts."""
    model = held[0].client.model
    gathered = [waiting.client.model.gathered("all") for waiting in held]
    rows, numbers = zip(*(numbers_of_row(inputs, model.coupled) for inputs in gathered))
    predictions: dict[int, tuple[Predicted, ...]] = {}
    for places in size_groups(rows, 4 * numbers[0], 4 * len(held[0].w), 4 * NUMBERS_OF_A_PASS):
        group = [held[i] for i in places]
        inputs = batched_inputs([gathered[i] for i in places])
        logits_BNC = outputs(model.pattern, torch.stack([waiting.w for waiting in group]), inputs).logits_NC.float()
        class_BN, best_BN = logits_BNC.argmax(2), logits_BNC.amax(2)
        of_parts = [_chosen(group, part, class_BN, best_BN) for part in PARTS]
        predictions |= zip(places, zip(*of_parts))
    return [predictions[i] for i in range(len(held))]


def _chosen(group: Sequence[Held], part: str, class_BN: Tensor, best_BN: Tensor) -> list[Predicted]:
    """Selects the predictions of a part from those for all nodes."""
    labels = [class_label(waiting.client.data, part) for waiting in group]
    row_BT = pad([getattr(waiting.client.data, part) for waiting in group], 0)
    class_BT, best_BT = class_BN.gather(1, row_BT), best_BN.gather(1, row_BT)
    return [Predicted(y, c[: len(y)], best[: len(y)]) for y, c, best in zip(labels, class_BT, best_BT)]


def _groups(held: Sequence[Held], part: str) -> Iterator[list[Held]]:
    """Yields neighbouring clients, as many as a pass may have."""
    group: list[Held] = []
    most = 0
    for waiting in held:
        data, hops = waiting.client.data, len(waiting.client.model.pattern.inputs)
        rows = len(getattr(data, part))
        if group and (len(group) + 1) * max(most, rows) * data.features * hops > NUMBERS_OF_A_PASS:
            yield group
            group, most = [], 0
        group.append(waiting)
        most = max(most, rows)
    if group:
        yield group
