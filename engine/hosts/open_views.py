"""The data of a host's clients, as many as can be open: that of the next one is opened while the present one trains."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path

from storage.apart import ahead, apart
from storage.view import View

# Shard and hops; what is kept of a split is a copy.
MAPS_OF_A_VIEW = 2
MAX_MAPS = Path("/proc/sys/vm/max_map_count")
USUAL_MAX_MAPS = 65_530


def most_views() -> int:
    """How many views may be open in a process: half of its maps are for them, the rest for libraries and memory."""
    allowed = int(MAX_MAPS.read_text()) if MAX_MAPS.exists() else USUAL_MAX_MAPS
    return max(1, allowed // 2 // MAPS_OF_A_VIEW)


class OpenViews:
    """Views by client; the least recently visited are let go, and each can be opened again."""

    def __init__(self, open_view: Callable[[int], View], most: int) -> None:
        """Starts without any.

        Args:
            open_view: Opens a client's data; called in other threads.
            most: How many stay open, beside those that are about to be visited.
        """
        self._open_view = open_view
        self._most = most
        self._views: OrderedDict[int, View] = OrderedDict()
        self._coming: dict[int, Future[View]] = {}
        self._next: Mapping[int, int] = {}
        self._touch: Callable[[View], None] = lambda view: None

    def plan(self, clients: Sequence[int], touch: Callable[[View], None]) -> None:
        """Says who is visited from now on, in this order.

        Args:
            clients: Clients, each once.
            touch: Reads from the disk what a client's data is wanted for; called in another thread.
        """
        self._next = dict(pairwise(clients))
        self._touch = touch

    def get(self, client: int) -> View:
        """The data of a client; begins to open that of the next one.

        Raises:
            ShoalError: A file is missing or damaged.
        """
        if client not in self._views:
            coming = self._coming.pop(client, None)
            self._views[client] = apart(lambda: self._open_view(client)) if coming is None else coming.result()
            if len(self._views) > self._most:
                self._views.popitem(last=False)
        self._views.move_to_end(client)
        following = self._next.get(client)
        if following is not None and following not in self._views and following not in self._coming:
            self._coming[following] = ahead(lambda: self._opened(following))
        return self._views[client]

    def opened(self, client: int) -> View | None:
        """The data of a client that was visited, else None."""
        return self._views.get(client)

    def _opened(self, client: int) -> View:
        view = self._open_view(client)
        self._touch(view)
        return view
