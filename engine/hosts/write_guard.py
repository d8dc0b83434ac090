"""What a method may read but not write: downloads and inboxes, which other clients of the host read, and data."""

import torch

from shoal.algorithms.protocol import Tree
from shoal.storage.errors import ShoalError
from shoal.storage.store.view import View


class MethodWrites(ShoalError):
    """A method wrote into what it was lent: a fault of its code, which no client can be blamed for."""


class ReadOnly:
    """Notices when tensors are written to, by torch or behind its back."""

    def __init__(self, tree: Tree, what: str) -> None:
        """Remembers the tensors as they are; an error calls them `what`."""
        self._what = what
        self._seen = {name: (t, t._version, _sum(t)) for name, t in tree.items()}

    def require_unchanged(self, where: str) -> None:
        """Raises MethodWrites if a tensor was written to; names it, and says `where`: the time and the client."""
        for name, (tensor, version, total) in self._seen.items():
            now = _sum(tensor)
            if tensor._version != version or not (now == total or (now != now and total != total)):
                raise MethodWrites(
                    f"{where} writes into the {self._what} {name!r}, which is read-only: other clients read it, too; "
                    f"take a copy first, as in {name}.clone()"
                )


def require_unwritten(data: View, where: str) -> None:
    """Raises MethodWrites if a client's data was written to since it was opened, by counts of writes; names what."""
    if (written := data.written()) is not None:
        raise MethodWrites(
            f"{where} writes into client.data.{written}, which is read-only: later visits read it, too; "
            "take a copy first, as clone() makes one"
        )


def _sum(tensor: torch.Tensor) -> float:
    """Their sum, where it costs no wait for a device."""
    return float(tensor.sum()) if tensor.device.type == "cpu" and tensor.dtype != torch.bool else 0.0
