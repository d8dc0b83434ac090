"""What is shown of hosts: busy shares and slowest cells by hand, bounded prints, metrics of Ray."""

from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from ray.util import metrics
from support.small_cells import cell_of

from shoal.engine.cluster.reports import LONGEST_LINE, MOST_LINES, Prints, Work, publish
from shoal.engine.messages.cell import Outcome
from shoal.storage.errors import ShoalError


def test_prints_are_the_first_of_a_round_and_a_count() -> None:
    prints = Prints()
    with prints.capture(1):
        print("before any client")
        prints.client = 3
        print("a\nb", end="")
        print("x" * 2 * LONGEST_LINE)
    cut = "b" + "x" * (LONGEST_LINE - 1)
    assert prints.take() == ([(None, "before any client"), (3, "a"), (3, cut)], 0)
    for number, room in ((1, MOST_LINES - 3), (2, MOST_LINES)):
        with prints.capture(number):
            print(*range(MOST_LINES + 5), sep="\n")
        lines, more = prints.take()
        assert [text for _, text in lines] == [str(i) for i in range(room)]
        assert more == MOST_LINES + 5 - room
    error = ShoalError("no luck", detail="traceback\n")
    with suppress(ShoalError), prints.capture(3):
        print("the last word", end="")
        raise error
    assert error.detail == "traceback\nprinted before:\nthe last word"


def worked(busy: Sequence[tuple[int, list[int], float]], hosts: int, seconds: float = 10.0) -> dict[str, Any]:
    work = Work()
    for host, ids, spent in busy:
        work.note(host, cell_of(ids), Outcome(busy=spent))
    return work.end(seconds, hosts)


def test_busy_shares_and_slowest_cells() -> None:
    cells = [(0, [7, 9], 4.0), (2, [1], 1.0), (0, [2], 5.0), (2, [4, 5, 6], 2.5), (2, [8], 0.5)]
    found = worked(cells, hosts=3)
    assert found["busy"] == pytest.approx({"0": 0.9, "1": 0.0, "2": 0.4})
    slowest = [(cell["host"], cell["client"], cell["clients"], cell["seconds"]) for cell in found["slowest"]]
    assert slowest == [(0, 2, 1, 5.0), (0, 7, 2, 4.0), (2, 4, 3, 2.5)]
    # Hosts that work, and one host, have none; a clock that is off by a little makes no share above 1.
    phase = cell_of([0]).phase
    assert found["cells"] == {phase: 5}
    assert worked([(0, [0], 10.01), (1, [1], 6.0)], hosts=2) == {"busy": {"0": 1.0, "1": 0.6}, "cells": {phase: 2}}
    assert worked([(0, [0], 1.0)], hosts=1) == {"busy": {"0": 0.1}, "cells": {phase: 1}}


def test_ray_has_the_numbers_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[str, float] = {}

    def gauge(name: str, text: str, tag_keys: tuple[str, ...]) -> Any:
        return SimpleNamespace(set=lambda value, tags: shown.update({f"{name} of {tags['run']}": value}))

    monkeypatch.setattr(metrics, "Gauge", gauge)
    seconds = {"round": 2.0, "checkpoint": 0.5}
    sent = {"bytes_up": 10, "bytes_down": 20}
    publish("a", {"round": 3, "hosts": {"busy": {"0": 1.0, "1": 0.5}}, "cohort": [0, 4, 2], "seconds": seconds, **sent})
    found = {"round": 3, "clients_per_second": 1.5, "busy_share": 0.75, "checkpoint_seconds": 0.5, **sent}
    assert shown == {f"shoal_{name} of a": value for name, value in found.items()}
