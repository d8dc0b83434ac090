"""`propagation.keep`: hops that are not on disk are computed at a visit, and no bit of a run depends on it."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from support.errors import refused
from support.fixtures import Keys, Start
from support.small_cells import require_same_tree, tensors_of
from support.user_graph import sparse_features, user_graph

from shoal.engine.records import inputs
from shoal.storage.shards.cache import Cache
from shoal.storage.shards.view import View
from shoal.storage.store.manifest import read_manifest
from shoal.storage.store.store import Store

UNTIMED = {"seconds": None, "hosts": None}


@pytest.fixture(scope="session")
def few_labels(graphs: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Keys:
    """Keys of the small federation where half of the nodes have no label, and features are mostly zeros."""
    arrays = {file.stem: np.load(file) for file in graphs["plain"].glob("*.npy")}
    nodes = len(arrays["y"])
    arrays["split"][np.random.default_rng(1).random(nodes) < 0.5] = 0
    arrays["y"][arrays["split"] == 0] = -1
    path = user_graph(tmp_path_factory.mktemp("few_labels"), nodes, **{**arrays, "x": sparse_features(nodes, 40, 0.1)})
    return {"data.path": path, "data.layout": "dense", "train.epochs": 2}


KINDS: dict[str, Keys] = {
    "sgc": {"model.name": "sgc"},
    "gamlp, float16": {"propagation.dtype": "float16", "data.dtype": "float16", "train.batch_size": 4},
    "sgc, sparse": {"model.name": "sgc", "data.layout": "sparse"},
    "gamlp, batched": {"engine.trainer": "batched"},
    "sgc, masked": {"model.name": "sgc", "data.sparsity": {"edges": 0.3, "features": 0.3}},
    "gamlp, inductive": {"data.inductive": True},
    "fedgta": {"algorithm.name": "fedgta", "participation.ratio": 0.67},
    "fedgta, labelled rows": {"algorithm.name": "fedgta", "propagation.rows": "labelled", "data.dtype": "float16"},
    "fedproto, two models": {"algorithm.name": "fedproto", "model": [{"name": "sgc"}, {"name": "gamlp", "hidden": 64}]},
    "fedpg": {"algorithm.name": "fedpg"},
    "global": {"algorithm.name": "global"},
}


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("kind", KINDS)
def test_no_bit_of_a_run_depends_on_it(start: Start, few_labels: Keys, tmp_path: Path, kind: str) -> None:
    keys = {**few_labels, "data.store": str(tmp_path / "store"), **KINDS[kind]}
    # What lies on disk after the first is not made again for the last.
    all_kept, *others = [start({**keys, "propagation.keep": keep}) for keep in ("all", "labelled", "none")]
    for _ in range(3):
        expected = all_kept.round()
        for server in others:
            found = server.round()
            assert {**found, **UNTIMED} == {**expected, **UNTIMED}
    for server in others:
        require_same_tree(tensors_of(server), tensors_of(all_kept))
    folders = sorted(read_manifest(tmp_path / "store").hops)
    assert len(folders) == 2
    assert folders[0 if "rows" in kind else 1].endswith("-keep-labelled")


@pytest.fixture(params=["all", "labelled"])
def view(start: Start, few_labels: Keys, tmp_path: Path, request: pytest.FixtureRequest) -> View:
    """A client whose hops are computed but for labelled rows, in a cache of nearly no bytes."""
    keys = {"data.store": str(tmp_path / "store"), "propagation.rows": request.param, "propagation.keep": "labelled"}
    return start({**few_labels, **keys}).job.view(Store(tmp_path / "store"), 0, Cache(1))


def test_hops_that_are_dropped_are_computed_again_and_writes_are_seen(view: View) -> None:
    view.watch()
    before = view.hop(2).clone()
    view.cache("another", lambda: torch.zeros(9))
    assert torch.equal(view.hop(2), before)
    assert view.written() is None
    other = next(row for row in range(view.nodes) if row != view._row)
    view.hop(2).numpy()[other] += 1
    assert view.written() == "hop(2)"


def test_labelled_rows_are_read_from_disk_and_others_computed(view: View, tmp_path: Path) -> None:
    labelled = torch.flatten((view.label >= 0).nonzero())
    assert Store(tmp_path / "store").hops_file("r0.5-k2-float32-keep-labelled", 0).rows == len(labelled)
    read = view.rows(1, labelled.flip(0))
    assert view._cache.bytes == 0
    assert torch.equal(read, view.hop(1)[labelled.flip(0)])
    assert torch.equal(view.rows(1, torch.arange(view.nodes)), view.hop(1))


def test_a_run_may_go_on_with_another_value() -> None:
    here, there = (inputs.of_stores("with hops", "", "", keep) for keep in ("all", "labelled"))
    assert inputs.differences(here, inputs.of_stores("without", "", "", "none")) == []
    assert inputs.differences(there, inputs.of_stores("others", "", "", "labelled")) == list(there)


def test_hops_of_a_client_that_no_cache_holds_are_refused(start: Start, few_labels: Keys, tmp_path: Path) -> None:
    keys = {**few_labels, "data.store": str(tmp_path / "store"), "propagation.rows": "labelled"}
    job = start({**keys, "propagation.keep": "none"}).job
    store, needed = Store(tmp_path / "store"), 30 * 40 * 2 * 4
    job.require_room([store], needed)
    with refused("propagation.keep", says="none computes hops of 9.4 KiB for a client of 30 nodes"):
        job.require_room([store], needed - 1)
