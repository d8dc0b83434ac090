"""States of clients in the memory of a cluster: they stay on the machine of the visit, and references travel.

Each state is a separate result of the call that made it. Ray keeps it on that machine, and the server, which called,
owns it: it outlives the host's process. Of clients that a host trains as a stack on a GPU, states stay there; they are
put into that memory for a checkpoint or another host. If a machine or such a host is lost, so are its states, and the
run goes on from its newest checkpoint.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray.exceptions import ObjectLostError, RayActorError, RayError, RayTaskError
from torch import Tensor

from shoal.algorithms.protocol import Tree, only_trains
from shoal.engine.cluster.mixing import LEAST_OF_A_BLOCK
from shoal.engine.hosts.devices.state_rows import KeptState
from shoal.engine.messages.cell import Cell, Kept, OnDevice, Outcome
from shoal.engine.records.checkpoint import PART_BYTES, address_of, write_clients
from shoal.engine.rounds.reduction import Inbox, Mixed, tree_bytes
from shoal.engine.rounds.state import FederationState
from shoal.storage.errors import FetchError

log = logging.getLogger(__name__)
# Ray sends so many bytes with a call. Larger states stay on their machine; larger downloads are put into memory once.
SENT_WITH_A_CALL = 96_000
LOST_STATES = "states of clients were lost with their machine or host"


class StatesLost(Exception):
    """A host does not have a state that stayed on its device: it was replaced."""


def loses_states(error: RayTaskError) -> bool:
    """Returns whether a call failed because states that it needs are lost, or the host that had them."""
    return isinstance(error.cause, ObjectLostError | RayActorError | StatesLost)


def place_refs(cells: Sequence[Cell]) -> tuple[list[Cell], list[Any]]:
    """Replaces states and results of mixing in cells by places in a list of references; returns cells and the list.

    States on the device of the host that is called stay as they are.
    """
    refs: list[Any] = []

    def place(further: Sequence[Any]) -> tuple[int, ...]:
        refs.extend(further)
        return tuple(range(len(refs) - len(further), len(refs)))

    def place_box(box: Inbox) -> Inbox:
        return {e: replace(row, refs=place(row.refs)) if isinstance(row, Mixed) else row for e, row in box.items()}

    placed_cells = []
    for cell in cells:
        kept = {
            client: state if isinstance(state.ref, OnDevice) else replace(state, ref=place([state.ref])[0])
            for client, state in cell.kept.items()
        }
        inboxes = {client: place_box(box) for client, box in cell.inboxes.items()}
        placed_cells.append(replace(cell, kept=kept, inboxes=inboxes) if kept or inboxes else cell)
    return placed_cells, refs


def with_states(cell: Cell, values: Sequence[Any], on_device: Callable[[OnDevice], Tree]) -> Cell:
    """Puts `values`, and what is `on_device`, into a cell that has their places.

    Moments are left out if clients are only evaluated.
    """

    def whole(row: Any) -> Tensor:
        return torch.cat([values[place] for place in row.refs]).reshape(row.shape) if isinstance(row, Mixed) else row

    states: dict[int, Tree] = {
        client: on_device(state.ref) if isinstance(state.ref, OnDevice) else values[state.ref]
        for client, state in cell.kept.items()
    }
    if not cell.phase:
        states = {i: {name: t for name, t in tree.items() if not only_trains(name)} for i, tree in states.items()}
    inboxes = {client: {entry: whole(row) for entry, row in box.items()} for client, box in cell.inboxes.items()}
    return replace(cell, states={**cell.states, **states}, inboxes=inboxes, kept={})


def leave_on_device(outcomes: Sequence[Outcome | None], process: str) -> None:
    """Takes states that stay on the device of this process out of outcomes, which keep their places."""
    for outcome in [outcome for outcome in outcomes if outcome is not None]:
        staying = {client: tree for client, tree in outcome.states.items() if isinstance(tree, KeptState)}
        for client, tree in staying.items():
            place = OnDevice(process, client, tree.version)
            outcome.kept[client] = Kept(place, tuple(tree), tree_bytes(tree), -1)
            del outcome.states[client]


def take_states(outcomes: Sequence[Outcome | None]) -> list[Tree]:
    """Takes large states out of outcomes, which keep their places in the list."""
    trees: list[Tree] = []
    for outcome in outcomes:
        if outcome is None:
            continue
        for client, tree in list(outcome.states.items()):
            if (size := tree_bytes(tree)) >= SENT_WITH_A_CALL:
                outcome.kept[client] = Kept(len(trees), tuple(tree), size, -1)
                trees.append(outcome.states.pop(client))
    return trees


def hand_over_states(states: dict[int, Tree], host: int = -1) -> dict[int, Kept]:
    """Moves large states into the memory of the cluster, out of `states`."""
    sizes = {client: tree_bytes(tree) for client, tree in states.items()}
    large = {client: states.pop(client) for client, size in sizes.items() if size >= SENT_WITH_A_CALL}
    return {client: Kept(ray.put(tree), tuple(tree), sizes[client], host) for client, tree in large.items()}


def hand_over_inboxes(inboxes: Mapping[int, Inbox]) -> None:
    """Moves large results of mixing into the memory of the cluster."""
    for box in inboxes.values():
        for entry, t in box.items():
            if t.nbytes >= LEAST_OF_A_BLOCK:
                box[entry] = Mixed((ray.put(t.reshape(-1)),), t.shape, t.nbytes)


@dataclass(frozen=True)
class Item:
    """Tensors of a client in the memory of the cluster, to be written into a file.

    Attributes:
        name: The begin of their names in the file; for a result of mixing the whole name.
        values: The number of values that hold them.
        shape: The shape of a result of mixing, whose values are parts; None for a state, which is a single value.
    """

    name: str
    values: int = 1
    shape: torch.Size | None = None


def tensors_of(items: Sequence[Item], values: Sequence[Any]) -> Tree:
    """Returns the tensors of items by their names in a file; `values` has the values of all items in order."""
    tensors: Tree = {}
    rest = iter(values)
    for item in items:
        parts = [next(rest) for _ in range(item.values)]
        if item.shape is None:
            tensors |= {f"{item.name}/{name}": t for name, t in parts[0].items()}
        else:
            tensors[item.name] = torch.cat(parts).reshape(item.shape)
    return tensors


def write_in_parallel(folder: Path, state: FederationState, hosts: Mapping[int, Any], seconds: float) -> dict[str, str]:
    """Writes tensors of a state that are elsewhere into files, by `hosts`, or here without any; returns digests.

    Files that a host has not written after `seconds` are written here.

    Raises:
        ObjectLostError: States are lost with their machine.
        OSError: A file cannot be written.
    """
    parts, address = _parts(state, hosts), address_of(folder.parents[1])
    calls = {
        part.name: hosts[part.host].write_states.remote(folder / part.name, address, part.items, *part.refs)
        for part in parts
        if hosts
    }
    digests: dict[str, str] = {}
    sizes: dict[str, int | None] = {}
    for part in parts:
        name, host = part.name, part.host
        try:
            digest = ray.get(calls[name], timeout=seconds) if hosts else None
        except RayTaskError as error:
            if isinstance(error.cause, ObjectLostError | OSError):
                raise error.cause from error
            if not isinstance(error.cause, FetchError):
                raise
            log.warning("%s; the driver writes what host %d has of a checkpoint", error.cause, host)
            digest = None
        except RayError:
            # The host died or is silent; its states outlive it, so that they are written here.
            digest = None
        if digest is not None and not (folder / name).exists() and digest not in sizes:
            sizes = _sizes_at(address)
            if digest not in sizes:
                log.warning("host %d sees another folder or address; the driver writes what it has", host)
                digest = None
        if digest is None:
            # The file has another name, since a silent host may go on writing its own.
            (folder / name).unlink(missing_ok=True)
            name = f"here-{name}"
            digest = write_clients(folder / name, tensors_of(part.items, ray.get(part.refs)))
        digests[name] = digest
    return digests


def _sizes_at(address: str | None) -> dict[str, int | None]:
    """Returns the files at the address of a run, if it has one and that answers."""
    if address is None:
        return {}
    from shoal.engine.records.remote_parts import sizes_at
    from shoal.storage.files.addresses import Folder

    with suppress(FetchError):
        return sizes_at(Folder(address))
    return {}


@dataclass
class _Part:
    """A file of a checkpoint: its name, and the host, the items and the references that it is written from."""

    name: str
    host: int
    items: list[Item] = field(default_factory=list)
    refs: list[Any] = field(default_factory=list)
    size: int = 0


def _parts(state: FederationState, hosts: Collection[int]) -> list[_Part]:
    """Divides tensors into files of a bounded size, in an order in which all hosts begin at once."""
    of_host: dict[int, list[_Part]] = {}
    for host, item, refs, nbytes in _elsewhere(state, sorted(hosts) or [0]):
        parts = of_host.setdefault(host, [])
        if not parts or parts[-1].size + nbytes > PART_BYTES:
            parts.append(_Part(f"clients-{host:04d}-{len(parts):04d}.safetensors", host))
        parts[-1].items.append(item)
        parts[-1].refs += refs
        parts[-1].size += nbytes
    files = [(number, part) for parts in of_host.values() for number, part in enumerate(parts)]
    return [part for _, part in sorted(files, key=lambda file: (file[0], file[1].host))]


def _elsewhere(state: FederationState, hosts: Sequence[int]) -> Iterator[tuple[int, Item, Sequence[Any], int]]:
    """Yields what a state has elsewhere: the host that has it, or any, the item, its references, and bytes."""
    for client, kept in sorted(state.kept.items()):
        host = kept.host if kept.host in hosts else hosts[client % len(hosts)]
        yield host, Item(f"client/{client}"), [kept.ref], kept.nbytes
    for client, box in sorted(state.inboxes.items()):
        for entry, row in box.items():
            if isinstance(row, Mixed):
                item = Item(f"inbox/{client}/{entry}", len(row.refs), row.shape)
                yield hosts[client % len(hosts)], item, row.refs, row.nbytes
