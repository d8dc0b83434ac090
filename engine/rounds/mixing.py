"""Products of a mixing matrix with what clients uploaded, which the engine holds for the method."""

import torch
from torch import Tensor

from shoal.algorithms.protocol import Mix, Tree
from shoal.engine.rounds.costs import Meter
from shoal.engine.rounds.protocol_checks import require_finite
from shoal.engine.rounds.state import FederationState
from shoal.storage.errors import ShoalError

COLUMNS_AT_A_TIME = 2**20


class Mixer:
    """The entries of `Reduce.MIX` of one round, and where their products go."""

    def __init__(self, next_state: FederationState, meter: Meter, where: str) -> None:
        """Starts with nothing to mix.

        Args:
            draft: The state whose inboxes get the products.
            meter: Counts what clients are sent.
            where: What an error says of the round and the method.
        """
        self._next_state, self._meter, self._where = next_state, meter, where
        self._held: Tree = {}

    def hold(self, uploads: Tree) -> None:
        """Keeps entries, `[clients, …]`, in the place of older ones of the same name."""
        self._held.update(uploads)

    def mix(self, mix: Mix) -> Tensor:
        """The product, `[rows, …]`; rows of clients are put into their inboxes.

        Raises:
            ShoalError: Nobody uploaded the entry, the matrix does not fit the clients that did, or it holds NaN.
        """
        if mix.entry not in self._held:
            raise ShoalError(f"{self._where}: Mix({mix.entry!r}) before any Ask uploaded it as Reduce.MIX")
        held = self._held[mix.entry]
        flat = held.reshape(len(held), -1)
        rows = mix.rows.to(flat.dtype)
        require_finite({mix.entry: rows}, f"{self._where}: the matrix of Mix")
        if rows.shape[-1] != len(held) or (mix.dst is not None and rows.shape[:-1] != (len(mix.dst),)):
            wanted = [len(held)] if mix.dst is None else [len(mix.dst), len(held)]
            raise ShoalError(f"{self._where}: the matrix of Mix({mix.entry!r}) is {list(rows.shape)}, wanted {wanted}")
        result = torch.empty(*rows.shape[:-1], flat.shape[1])
        for start in range(0, flat.shape[1], COLUMNS_AT_A_TIME):
            result[..., start : start + COLUMNS_AT_A_TIME] = rows @ flat[:, start : start + COLUMNS_AT_A_TIME]
        result = result.reshape(*rows.shape[:-1], *held.shape[1:])
        require_finite({mix.entry: result}, f"{self._where}: the result of Mix")
        for row, client in enumerate(mix.dst or ()):
            # A copy, so that a client's inbox does not hold the whole product in memory.
            own = result[row].clone()
            self._next_state.put_into_inbox(client, mix.entry, own)
            self._meter.mixed(own.nbytes)
        return result
