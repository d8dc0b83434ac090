"""A run over several graphs: stopped and resumed, and refused where its whole graphs are others by now."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.errors import refused

from shoal.engine.config.config import Config
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.checkpoint import load_newest
from shoal.engine.records.inputs import GRAPHS
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run
from shoal.storage.options.split_codes import TEST
from shoal.storage.store.store import Store


@pytest.fixture
def config_of(configure: Callable[..., Config], three_domains: Any, tmp_path: Path) -> Callable[..., Config]:
    def config_of(name: str, **keys: Any) -> Config:
        run_keys = {"run.root": str(tmp_path / name), "run.tensorboard": False, "run.checkpoint_every": 1}
        plain = {**three_domains.keys, **run_keys, "data.store": str(tmp_path / "store"), "rounds": 7}
        return configure({**plain, **{key.replace("__", "."): value for key, value in keys.items()}})

    return config_of


def stopped(config: Config) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(config)


def test_stopped_and_resumed(config_of: Callable[..., Config], tmp_path: Path) -> None:
    through = run(config_of("through"))
    stopped(config_of("parts", run__max_seconds=1e-9))
    parts = run(config_of("parts"), resume=True)
    found, expected = ([line["scopes"] for line in read_metrics(folder)] for folder in (parts, through))
    assert found == expected
    summary = read_summary(parts)
    assert summary["scopes"] == read_summary(through)["scopes"]
    domains = summary["scopes"]["domains"]
    assert domains["last_five"]["rounds"] == [3, 4, 5, 6, 7]
    means = [line["domains"]["both"]["balanced"] for line in expected]
    assert domains["last_five"]["balanced"] == pytest.approx(sum(means[2:]) / 5)
    best = max(range(7), key=lambda number: expected[number]["domains"]["val"]["clients"])
    assert domains["best"] == {"round": best + 1, **expected[best]["domains"]}
    kept = load_newest(parts / "checkpoints")
    assert kept is not None
    assert kept.state.scores["domains"][5].shape == (3, 4, 4)
    assert summary["inputs"][GRAPHS] == kept.inputs[GRAPHS]
    # The rates follow from what is exported, with nothing of ours in between.
    table = pa.ipc.open_file(export(through) / "predictions-domains.arrow").read_all().to_pandas()
    last = domains["last"]["test"]
    of_test = table[table.part == TEST]
    right = of_test.domains == of_test.label
    by_domain = right.groupby(of_test.domain, observed=False).mean()
    assert by_domain.to_dict() == {name: found["accuracy"] for name, found in last["domains"].items()}
    assert by_domain.mean() == pytest.approx(last["clients"])
    assert len(table) == sum(graph.nodes for graph in Store(tmp_path / "store").manifest.domains)
    assert table.node.is_unique
    assert "served" in pa.ipc.open_file(through / "export/predictions.arrow").schema.names


def test_other_whole_graphs_are_no_way_on(config_of: Callable[..., Config]) -> None:
    config = config_of("parts", run__max_seconds=1e-9)
    stopped(config)
    graphs = Store(prepare(config).path).domain_graphs()
    record = graphs.manifest.splits["public"]
    manifest = replace(graphs.manifest, splits={"public": replace(record, unreachable=record.unreachable + 1)})
    manifest.write(graphs.path)
    with refused(says="the prepared whole graphs changed since this run started"):
        run(config, resume=True)
    # Made again they are what they were.
    shutil.rmtree(graphs.path)
    run(config_of("parts"), resume=True)
