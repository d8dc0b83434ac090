"""Stores of sparse features, and of clients that lack features, edges and labels: what is gone is gone everywhere."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.errors import refused
from support.fixtures import Configure
from support.shards import adjacency, dense
from support.user_graph import sparse_features, user_graph

from shoal.engine.preparing.identity import identity, store_path
from shoal.engine.preparing.prepare import prepare
from shoal.engine.runs.dry_run import show_plan
from shoal.engine.screen.tables import console, show_store
from shoal.storage.graph.rows import CsrRows
from shoal.storage.store.store import Store
from shoal.storage.store.verify import verify

SPLIT, HOPS = "stratified-20-40-40-seed0", "r0.5-k2-float32"
MASKS = {"features": 0.3, "edges": 0.5, "labels": 0.4, "seed": 1}


@pytest.fixture
def make(make_config: Configure, tmp_path: Path) -> Configure:
    """A config of 120 nodes with few values, in the folder that its name is made of."""
    path = user_graph(tmp_path, 120, x=sparse_features(120, 30, 0.3))
    own = {"data__dataset": "files", "data__path": path, "data__options": {}}
    common = {**own, "data__store": None, "partition__clients": 3, "engine__backend": "local"}
    return lambda **changes: make_config(**{**common, **changes})


def edges(store: Store) -> set[tuple[int, int]]:
    """Directed entries of all shards, by global ids."""
    shards = map(store.shard, range(store.clients))
    rows = ((shard.node, *adjacency(shard).nonzero()) for shard in shards)
    return {pair for node, a, b in rows for pair in zip(node[a].tolist(), node[b].tolist())}


def features(store: Store) -> np.ndarray:
    found = np.empty((store.manifest.nodes, store.manifest.features), dtype=np.float32)
    for shard in map(store.shard, range(store.clients)):
        found[shard.node] = dense(shard.x)
    return found


def part(store: Store, split: str, name: str) -> set[int]:
    """Global ids of one part of all clients."""
    clients = range(store.clients)
    return {int(i) for c in clients for i in store.shard(c).node[getattr(store.split(split, c), name)]}


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_clients_and_whole_graph_lack_the_same(make: Configure, layout: str) -> None:
    full = prepare(make(data__layout=layout))
    config = make(data__layout=layout, data__sparsity=MASKS)
    whole, store = prepare(config, centralized=True), prepare(config)
    assert verify(store) == verify(whole) == []
    np.testing.assert_array_equal(np.load(store.path / "assignment.npy"), np.load(full.path / "assignment.npy"))
    kept, all_edges = edges(store), edges(full)
    assert kept < all_edges
    assert 0.3 < len(kept) / len(all_edges) < 0.7
    assert kept == {(b, a) for a, b in kept} == edges(whole) & all_edges
    x, before = features(store), features(full)
    assert ((x == before) | (x == 0)).all()
    assert 0.6 < np.count_nonzero(x) / np.count_nonzero(before) < 0.8
    np.testing.assert_array_equal(features(whole), x)
    if layout == "sparse":
        assert store.manifest.feature_values == np.count_nonzero(x)


def test_training_labels_alone_are_taken_away_in_a_store_that_stays(make: Configure) -> None:
    full = prepare(make())
    shards = {path: path.read_bytes() for path in (full.path / "clients").iterdir()}
    config = make(data__sparsity={"labels": 0.4, "seed": 1})
    whole, store = prepare(config, centralized=True), prepare(config)
    assert store.path == full.path
    assert {path: path.read_bytes() for path in (store.path / "clients").iterdir()} == shards
    name = config.data.split_name
    assert name == f"{SPLIT}-less40-seed1"
    assert part(store, name, "train") < part(store, SPLIT, "train")
    for same in ("val", "test"):
        assert part(store, name, same) == part(store, SPLIT, same)
    few, many = (np.array(store.manifest.splits[each].counts) for each in (name, SPLIT))
    assert few[:, 0].tolist() == [int(n - int(0.4 * n + 1e-9)) for n in many[:, 0]]
    assert part(whole, name, "train") == part(store, name, "train")


def test_a_given_split_loses_training_labels_too(make: Configure, tmp_path: Path) -> None:
    np.save(tmp_path / "split.npy", np.arange(120) % 4)
    given = {"data__split": "file", "data__split_file": str(tmp_path / "split.npy")}
    config = make(**given, data__sparsity={"labels": 0.5})
    store = prepare(config)
    train = part(store, config.data.split_name, "train")
    assert train < set(range(1, 120, 4))
    assert 15 <= len(train) <= 17
    assert part(store, config.data.split_name, "val") == set(range(2, 120, 4))


def test_other_masks_are_other_stores(make: Configure, tmp_path: Path) -> None:
    several: list[dict[str, Any]] = [{}, {"edges": 0.5}, {"edges": 0.6}, {"features": 0.5}, {"edges": 0.5, "seed": 1}]
    assert len({store_path(make(data__sparsity=each)) for each in several}) == len(several)
    plain, none = make(), make(data__sparsity={"features": 0, "edges": 0, "labels": 0})
    assert (store_path(plain), plain.data.split_name) == (store_path(none), none.data.split_name)
    assert set(identity(none)) == {"dataset", "partition"}
    place = {"data__store": str(tmp_path / "store")}
    prepare(make(**place, data__sparsity={"edges": 0.5}))
    with refused(tmp_path / "store", says="sparsity.edges 0.5 (config: 0.6)"):
        prepare(make(**place, data__sparsity={"edges": 0.6}))


def test_what_is_masked_is_said(make: Configure, capsys: pytest.CaptureFixture[str]) -> None:
    config = make(data__sparsity=MASKS)
    with console.capture() as before:
        show_plan(config)
    assert "30 % of features, 50 % of edges, 40 % of training labels (seed 1)" in before.get()
    capsys.readouterr()
    store = prepare(config)
    assert "sparsity: clients lack 30 % of features, 50 % of edges (seed 1)" in "".join(capsys.readouterr())
    assert store.manifest.identity["sparsity"] == {"features": 0.3, "edges": 0.5, "seed": 1}
    with console.capture() as after:
        show_store(store.path, store.manifest)
    assert "30 % of features, 50 % of edges (seed 1)" in after.get()


def with_words(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """Changes of a config: a graph of the user's own, of whose 90 features a node has few and every fifth none."""
    path = user_graph(tmp_path, 200, x=sparse_features(200, 90, 0.05))
    return {"data__dataset": "files", "data__path": path, "data__options": {}, **changes}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_sparse_store_holds_what_a_dense_one_does(make_config: Configure, tmp_path: Path, dtype: str) -> None:
    changes = with_words(tmp_path, data__dtype=dtype)
    stores = [
        prepare(make_config(**changes, data__store=str(tmp_path / layout), data__layout=layout), centralized=True)
        for layout in ("auto", "sparse", "dense")
    ]
    full = stores[2]
    for sparse in stores[:2]:
        for mine, truth in ((sparse, full), (Store(sparse.path.parent), Store(full.path.parent))):
            assert (mine.manifest.layout, truth.manifest.layout) == ("sparse", "dense")
            assert verify(mine) == []
            for client in range(truth.clients):
                (shard, _, hops), (other, _, others) = (s.data(SPLIT, HOPS, client) for s in (mine, truth))
                assert isinstance(shard.x, CsrRows)
                for found, expected in zip([shard.x, *hops], [other.x, *others], strict=True):
                    np.testing.assert_array_equal(dense(found), expected)
    values = sum(stores[0].shard(client).x.entries for client in range(stores[0].clients))
    assert stores[0].manifest.feature_values == values


def test_a_store_of_the_other_layout_is_another(make_config: Configure, tmp_path: Path) -> None:
    changes = with_words(tmp_path)
    layouts = [{"data__layout": layout} for layout in ("auto", "sparse", "dense")]
    assert len({store_path(make_config(**changes, data__store=None, **layout)) for layout in layouts}) == 3
    prepare(make_config(**changes))
    with refused(tmp_path / "store", says="dataset.layout auto (config: None)"):
        prepare(make_config(**changes, data__layout="dense"))


def test_features_that_are_drawn_cannot_be_sparse(make_config: Configure, tmp_path: Path) -> None:
    with refused("data.layout"):
        prepare(make_config(data__layout="sparse"))
    same = {store_path(make_config(data__store=None, data__layout=layout)) for layout in ("auto", "dense")}
    assert len(same) == 1
    assert not (tmp_path / "store").exists()
