"""States of clients that stay on a device: every client has two rows of an array a name, and a round fills the other.

So a round that fails has left what it began with. One operator a name copies the rows of all clients of a cell.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

from shoal.algorithms.protocol import Tree
from shoal.engine.hosts.devices.gpu import send

_versions = count(1)


class KeptState(dict[str, Tensor]):
    """The state of a client as views of one of its rows.

    Attributes:
        version: Number of what is there among all that was written in this process; 0: nothing was.
    """

    version = 0


@dataclass
class _Slot:
    """The two states of a client, which of them was written last, and the rounds in which they were."""

    states: tuple[KeptState, KeptState]
    newest: int = 0
    rounds: list[int] = field(default_factory=lambda: [0, 0])

    def take(self, state: Tree, number: int) -> KeptState | None:
        """Returns the rows that round `number` may write to when it reads `state`; None: neither.

        What was read is of an earlier phase if it was written in this round: the other is what the round began with.
        """
        first, second = self.states
        read = 0 if state is first else 1 if state is second else self.newest
        if self.rounds[read] == number:
            return None
        self.newest, self.rounds[1 - read] = 1 - read, number
        self.states[1 - read].version = next(_versions)
        return self.states[1 - read]


class StateRows:
    """The rows of all clients of a job, in arrays `[2 n, ...]` of n that first came in one cell."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device) -> None:
        """Begins without rows, of states that have tensors of these shapes by name, float32."""
        self._shapes, self._device = shapes, device
        # Bytes of both rows of a client.
        self.size = max(1, 2 * sum(4 * torch.Size(shape).numel() for shape in shapes.values()))
        self._slots: dict[int, _Slot] = {}

    def copy(
        self, clients: Sequence[int], states: Sequence[Tree], number: int, room: int, replaced: Collection[str] = ()
    ) -> list[Tree]:
        """Copies states to rows that round `number` may write to, zeros where a client kept nothing.

        Rows of clients may take `room` bytes; what is not `KeptState` has memory of its own. What has a name among
        `replaced` is not copied from a `KeptState`: it will be written anew.

        Raises:
            RuntimeError: A tensor has another name or shape, or there is no memory.
        """
        new = [client for client in clients if client not in self._slots]
        if new := new[: max(0, room // self.size - len(self._slots))]:
            pairs = [KeptState(rows) for rows in self._make_rows(2 * len(new))]
            self._slots.update({client: _Slot((pairs[2 * i], pairs[2 * i + 1])) for i, client in enumerate(new)})
        slots = [self._slots.get(client) for client in clients]
        targets = [None if slot is None else slot.take(state, number) for slot, state in zip(slots, states)]
        passing = iter(self._make_rows(targets.count(None)))
        copies: list[Tree] = [next(passing) if rows is None else rows for rows in targets]
        self._fill(copies, states, replaced)
        return copies

    def find(self, client: int, version: int) -> KeptState | None:
        """Returns what a client kept, by its number; None: it is not here any more."""
        slot = self._slots.get(client)
        return next((state for state in slot.states if state.version == version), None) if slot else None

    def _make_rows(self, clients: int) -> list[Tree]:
        """Makes rows of clients, not yet filled."""
        if not clients or not self._shapes:
            return [{} for _ in range(clients)]
        arrays = [torch.empty(clients, *shape, device=self._device) for shape in self._shapes.values()]
        return [dict(zip(self._shapes, rows)) for rows in zip(*(array.unbind() for array in arrays))]

    def _fill(self, copies: Sequence[Tree], states: Sequence[Tree], replaced: Collection[str]) -> None:
        """Writes states into their copies; those of the processor are sent in one copy."""
        others = {i: state for i, state in enumerate(states) if state and type(state) is not KeptState}
        if others:
            for state in others.values():
                if wrong := [name for name, t in state.items() if t.shape != self._shapes.get(name)]:
                    names = ", ".join(self._shapes)
                    raise RuntimeError(
                        f"{wrong[0]!r} of shape {list(state[wrong[0]].shape)}, expected {names} of a client"
                    )
            sent = iter(send([t for state in others.values() for t in state.values()], self._device))
            here = {i: {name: next(sent) for name in state} for i, state in others.items()}
            states = [here.get(i, state) for i, state in enumerate(states)]
        for name in self._shapes:
            anew = name in replaced
            copied = [
                (copy[name], state[name])
                for copy, state in zip(copies, states)
                if name in state and not (anew and type(state) is KeptState)
            ]
            if copied:
                rows, sources = zip(*copied)
                torch._foreach_copy_(rows, sources)
            if begun := [copy[name] for copy, state in zip(copies, states) if name not in state]:
                torch._foreach_zero_(begun)
