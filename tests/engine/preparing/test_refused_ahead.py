"""What is known to be wrong is refused before a graph is made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.config.config import Config, parse_config
from shoal.engine.preparing.prepare import prepare
from shoal.storage.errors import ShoalError


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"nodez": 3}, r"^data\.options\.nodez: unknown; known here: .*nodes, .*$"),
        ({"nodes": "many"}, r"^data\.options\.nodes: .* valid integer.*, found 'many'$"),
    ],
)
def test_options_of_a_dataset(make_config: Callable[..., Config], options: dict[str, Any], line: str) -> None:
    with pytest.raises(ShoalError, match=line):
        prepare(make_config(data__options=options))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"nodes": 10**12}, "data.options.nodes: .*less than 2147483648, found 1000000000000"),
        ({"nodes": 2 * 10**9}, "data.nodes: 2000000000 of 32 features: it needs .* GiB are free"),
        ({"features": 2 * 10**9}, "data.nodes: 10000 of 2000000000 features: it needs"),
        ({"blocks": 10**12}, "data.options.blocks: "),
        ({"degree": float("nan")}, "data.options.degree: must be a finite number, found nan"),
        ({"degree": "3"}, "data.options.degree: .*valid number, found '3'"),
        ({"nodes": True}, "data.options.nodes: .*valid integer, found True"),
        ({"nodes": "120"}, "data.options.nodes: .*valid integer, found '120'"),
        ({"seed": 2**64}, "data.options.seed: "),
        ({"seed": -1}, "data.seed: -1 must be at least 0"),
        ({"signal": 1e300}, "data.signal: 1e.300 must be in 0..1e.06"),
        ({"scratch": "a\0b"}, "data.options.scratch: has a character that no path can have"),
    ],
)
def test_options_that_would_fill_the_memory(tmp_path: Path, options: dict[str, Any], line: str) -> None:
    data = {"dataset": "sbm", "options": options, "store": str(tmp_path / "store")}
    config = parse_config({"name": "x", "data": data, "algorithm": "fedavg"}, "test")
    with pytest.raises(ShoalError, match=f"^{line}"):
        prepare(config)


@pytest.mark.parametrize(
    ("dataset", "options", "nodes"),
    [("sbm", {"nodes": 100}, 100), ("digits", {}, 1797), ("arxiv-like", {"scale": 0.01}, 1693)],
)
def test_more_clients_than_nodes_are_refused_before_the_graph_is_made(
    tmp_path: Path, dataset: str, options: dict[str, Any], nodes: int
) -> None:
    data = {"dataset": dataset, "options": options, "root": str(tmp_path), "store": str(tmp_path / "store")}
    plain = {"name": "x", "data": data, "algorithm": "fedavg", "partition": {"clients": nodes + 1}}
    with pytest.raises(ShoalError, match=rf"^partition\.clients is {nodes + 1}, but dataset '{dataset}' has {nodes} "):
        prepare(parse_config(plain, "test"))
    assert list(tmp_path.iterdir()) == []
