"""The data of a host's clients: opened once each, that of the next one while the present one trains."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import pairwise

from storage.apart import ahead, apart
from storage.view import View


class OpenViews:
    """Views by client; each can be opened again."""

    def __init__(self, open_view: Callable[[int], View]) -> None:
        """Starts without any.

        Args:
            open_view: Opens a client's data; called in other threads.
        """
        self._open_view = open_view
        self._views: dict[int, View] = {}
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
