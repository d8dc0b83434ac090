"""Work of a prepare on a cluster that does none of it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from support.errors import refused

from shoal.engine.config.config import Config
from shoal.engine.preparing.cluster_tasks import TaskRunner


def test_a_cluster_that_computes_nothing_is_not_waited_for(
    hosts: Sequence[Any], make_config: Callable[..., Config], tmp_path: Path
) -> None:
    runner = TaskRunner(make_config(engine__cell_timeout=1e-6), tmp_path, [])
    with refused("prepare", says="look at the cluster or raise engine.cell_timeout"):
        next(runner.results(lambda given, items: iter(items), None, [[0]], 1))
