"""A readout of the user's own: how the embeddings of a graph's nodes become one.

Axes: N nodes of G graphs that lie behind one another, H width of the embedding.
"""

import inspect
from collections.abc import Callable

import torch
from torch import Tensor, nn

from shoal.storage.user_code.user_code import UserCode

KEY = "model.readout"


def user_readout(code: UserCode) -> Callable[[int], nn.Module]:
    """Makes readouts of a user's class from the width of the embedding.

    The class is a torch module that is made from the width H alone, or from nothing, and called as PyG's aggregations
    are: `forward(x, index, dim_size=G)` with embeddings `[N, H]` and the graph of every node, int64 `[N]`, ascending;
    it gives `[G, H]`. All of PyG's aggregations that keep the width are such classes.

    Raises:
        ShoalError: The file fails, or has no such class; names the line.
    """
    cls = code.load()
    if not isinstance(cls, type) or not issubclass(cls, nn.Module):
        raise code.fault(KEY, f"{getattr(cls, '__name__', cls)} is no torch module")
    return lambda width: UserReadout(code, cls, width)


class UserReadout(nn.Module):
    """The user's module, of which what it gives is looked at."""

    def __init__(self, code: UserCode, cls: type[nn.Module], width: int) -> None:
        """Makes the user's module; its parameters are drawn from torch's default generator.

        Raises:
            ShoalError: It cannot be made; names the line.
        """
        super().__init__()
        self.code, self.cls, self.width = code, cls, width
        with torch.random.fork_rng(devices=[]):
            self.inner = self._made()

    def _made(self) -> nn.Module:
        with self.code.at_work(KEY):
            return self.cls(self.width) if inspect.signature(self.cls).parameters else self.cls()

    def reset_parameters(self) -> None:
        """Draws all parameters anew from torch's default generator, as the user's constructor does."""
        fresh = self._made()
        with torch.no_grad():
            for mine, drawn in zip(self.inner.parameters(), fresh.parameters()):
                mine.copy_(drawn)

    def forward(self, z_NH: Tensor, first: Tensor) -> Tensor:
        """Embeddings of graphs, float32 `[G, H]`.

        Args:
            z_NH: Embeddings of nodes.
            first: First row of every graph and the end of the last, int64 `[G + 1]`.

        Raises:
            ShoalError: The user's code fails, or gives something else; names the line.
        """
        counts_G = first.diff()
        index_N = torch.arange(len(counts_G), device=z_NH.device).repeat_interleave(counts_G)
        with self.code.at_work(KEY):
            z_GH = self.inner(z_NH, index_N, dim_size=len(counts_G))
        if not isinstance(z_GH, Tensor) or z_GH.shape != (len(counts_G), self.width):
            found = list(z_GH.shape) if isinstance(z_GH, Tensor) else type(z_GH).__name__
            raise self.code.fault(KEY, f"forward must give a tensor {[len(counts_G), self.width]}, found {found}")
        return z_GH.float()
