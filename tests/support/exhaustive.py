"""One in ten of an exhaustive test's cases by default; all of them with `--exhaustive` or `-m exhaustive`.

`@pytest.mark.exhaustive` marks a parametrised test, or some cases of it, of which each alone says little;
`@pytest.mark.exhaustive(3)` keeps one in three. A loop inside a test takes `some(cases)`. The choice is seeded: it is
the same on every machine and in every worker.
"""

import random
from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

import pytest

ONE_IN = 10
SEED = 41
_every = False
T = TypeVar("T")


def some(cases: Iterable[T], name: str = "", one_in: int = ONE_IN) -> list[T]:
    """One in ten of the cases, or another share, at least one, in their order; all of them in an exhaustive run.

    Another name chooses other cases of a list of the same length.
    """
    every = list(cases)
    if _every or len(every) < 2:
        return every
    chosen = random.Random(f"{SEED} {name}").sample(range(len(every)), -(-len(every) // one_in))
    return [every[i] for i in sorted(chosen)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exhaustive", action="store_true", help="all cases of tests that are marked exhaustive")


def pytest_configure(config: pytest.Config) -> None:
    global _every
    _every = config.getoption("--exhaustive") or "exhaustive" in config.getoption("-m")


def choose(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects all but `some` of the marked cases of every test, unless tests are named one by one."""
    if _every or any("::" in arg for arg in config.args):
        return
    marked = defaultdict(list)
    for item in items:
        if mark := item.get_closest_marker("exhaustive"):
            marked[item.nodeid.partition("[")[0], *mark.args].append(item)
    dropped = {item for names, cases in marked.items() for item in set(cases) - set(some(cases, *names))}
    config.hook.pytest_deselected(items=[item for item in items if item in dropped])
    items[:] = [item for item in items if item not in dropped]
