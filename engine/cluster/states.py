"""States of clients in the memory of a cluster: they stay on the machine of the visit, and references travel.

A state is a result of its own of the call that made it. Ray keeps it where it was made, and the server, who called,
owns it: it outlives the host's process. What was on a machine that is lost is lost, and the run goes on from its newest
checkpoint.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ObjectLostError, RayError, RayTaskError

from shoal.algorithms.protocol import Tree, is_moment
from shoal.engine.messages.cell import Cell, Kept, Outcome
from shoal.engine.records.checkpoint import PART_BYTES, write_clients
from shoal.engine.rounds.reduction import tree_bytes

# Bytes that Ray sends with a call. Larger states stay where they are, larger downloads are put into memory once.
SENT_WITH_A_CALL = 96_000
LOST_STATES = "states of clients were lost with their machine"


def placed(cells: Sequence[Cell]) -> tuple[list[Cell], list[Any]]:
    """Cells whose kept states have places in a list of references, and this list."""
    refs: list[Any] = []
    if not any(cell.kept for cell in cells):
        return list(cells), refs
    found = []
    for cell in cells:
        kept = {}
        for client, one in cell.kept.items():
            kept[client] = replace(one, ref=len(refs))
            refs.append(one.ref)
        found.append(replace(cell, kept=kept) if kept else cell)
    return found, refs


def with_states(cell: Cell, trees: Sequence[Tree]) -> Cell:
    """A cell with the states that it names by their places; without moments where clients are only evaluated."""
    if not cell.kept:
        return cell
    states = {client: trees[one.ref] for client, one in cell.kept.items()}
    if not cell.phase:
        states = {i: {name: t for name, t in tree.items() if not is_moment(name)} for i, tree in states.items()}
    return replace(cell, states={**cell.states, **states}, kept={})


def take_states(outcomes: Sequence[Outcome | None]) -> list[Tree]:
    """Takes large states out of outcomes, which are left with their places in the list."""
    trees: list[Tree] = []
    for outcome in outcomes:
        if outcome is None:
            continue
        for client, tree in list(outcome.states.items()):
            if (size := tree_bytes(tree)) >= SENT_WITH_A_CALL:
                outcome.kept[client] = Kept(len(trees), tuple(tree), size, -1)
                trees.append(outcome.states.pop(client))
    return trees


def handed_over(states: dict[int, Tree], host: int = -1) -> dict[int, Kept]:
    """Moves large states into the memory of the cluster, out of `states`."""
    sizes = {client: tree_bytes(tree) for client, tree in states.items()}
    large = {client: states.pop(client) for client, size in sizes.items() if size >= SENT_WITH_A_CALL}
    return {client: Kept(ray.put(tree), tuple(tree), sizes[client], host) for client, tree in large.items()}


def write_in_parallel(
    folder: Path, kept: Mapping[int, Kept], hosts: Mapping[int, Any], seconds: float
) -> dict[str, str]:
    """Files of states, each written by the host that has them, or here where there are no `hosts`, and their digests.

    What a host has not written after `seconds` is written here.

    Raises:
        ObjectLostError: States are lost with their machine.
        OSError: A file cannot be written.
    """
    parts = _parts(kept, hosts)
    calls = {
        name: hosts[host].write_states.remote(folder / name, ids, *(kept[i].ref for i in ids))
        for name, host, ids in parts
        if hosts
    }
    found: dict[str, str] = {}
    for name, _, ids in parts:
        try:
            digest = ray.get(calls[name], timeout=seconds) if hosts else None
        except RayTaskError as error:
            if isinstance(error.cause, ObjectLostError | OSError):
                raise error.cause from error
            raise
        except RayError:
            # The host died, or is silent; its states outlive it.
            digest = None
        if digest is None:
            # Under another name: a silent host may go on writing.
            (folder / name).unlink(missing_ok=True)
            name = f"here-{name}"
            digest = write_clients(folder / name, dict(zip(ids, ray.get([kept[i].ref for i in ids]))))
        found[name] = digest
    return found


def _parts(kept: Mapping[int, Kept], hosts: Collection[int]) -> list[tuple[str, int, list[int]]]:
    """Files: name, host, and clients, of a bounded size."""
    of_host: dict[int, list[int]] = {}
    numbers = sorted(hosts) or [0]
    for client, one in sorted(kept.items()):
        host = one.host if one.host in hosts else numbers[client % len(numbers)]
        of_host.setdefault(host, []).append(client)
    parts = []
    for host, ids in of_host.items():
        groups: list[list[int]] = [[]]
        size = 0
        for client in ids:
            if groups[-1] and size + kept[client].nbytes > PART_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(client)
            size += kept[client].nbytes
        parts += [(f"clients-{host:04d}-{number:04d}.safetensors", host, group) for number, group in enumerate(groups)]
    # Hosts begin at once.
    return sorted(parts, key=lambda part: part[0].rsplit("-", 1)[1])
