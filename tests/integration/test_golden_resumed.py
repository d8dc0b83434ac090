"""Golden runs that are stopped after their first round and resumed have the digests of whole ones."""

from pathlib import Path

import pytest
from integration.golden_digests import config_of, digest_of, matrix
from integration.golden_ways import RESUMED, RESUMED_TOO, cases, expected_digest

from shoal.engine.config.config import parse_config
from shoal.engine.runs.run import run


@pytest.mark.parametrize("name", cases(RESUMED, slow=RESUMED_TOO))
def test_stopped_and_resumed(golden_graph: Path, name: str) -> None:
    config = config_of(name, matrix()[name], golden_graph, run__root=str(golden_graph.parent / "resumed"))
    plain = config.plain()
    with pytest.raises(KeyboardInterrupt):
        run(parse_config({**plain, "run": {**plain["run"], "max_seconds": 1e-9}}, name))
    assert digest_of(run(config, resume=True)) == expected_digest(name, golden_graph)
