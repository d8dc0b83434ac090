"""Parts of a round, made as the server makes them."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from shoal.engine.rounds.costs import Meter, Watch, unwatched
from shoal.engine.rounds.server import Exchange, Server


@pytest.fixture(scope="session")
def exchange_of() -> Callable[..., Exchange]:
    """Gives the exchange of a server's next round with some cohort."""

    def exchange_of(server: Server, cohort: Sequence[int], watch: Watch = unwatched, cell_size: Any = 1) -> Exchange:
        number = server.state.round + 1
        meter = Meter(number, server.infos, server._pool, watch)
        next_state = server.state.next_state(number)
        return Exchange(server.infos, cell_size, server._pool, server.state, next_state, cohort, meter)

    return exchange_of
