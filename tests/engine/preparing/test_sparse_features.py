"""Stores of sparse features: what dense ones hold, under names of their own, completed after an interruption."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.errors import refused
from support.shards import dense
from support.user_graph import sparse_features, user_graph

from shoal.engine.config.config import Config
from shoal.engine.preparing.identity import store_path
from shoal.engine.preparing.prepare import prepare
from shoal.storage.graph.rows import CsrRows
from shoal.storage.store.store import Store
from shoal.storage.store.verify import verify


def with_words(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """Changes of a config: a graph of the user's own, of whose 90 features a node has few and every fifth none."""
    path = user_graph(tmp_path, 200, x=sparse_features(200, 90, 0.05))
    return {"data__dataset": "files", "data__path": path, "data__options": {}, **changes}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_sparse_store_holds_what_a_dense_one_does(
    make_config: Callable[..., Config], tmp_path: Path, dtype: str
) -> None:
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
                (shard, _, hops), (other, _, others) = (s.data(*names_of(s), client) for s in (mine, truth))
                assert isinstance(shard.x, CsrRows)
                for found, expected in zip([shard.x, *hops], [other.x, *others], strict=True):
                    np.testing.assert_array_equal(dense(found), expected)
    values = sum(stores[0].shard(client).x.entries for client in range(stores[0].clients))
    assert stores[0].manifest.feature_values == values


def names_of(store: Store) -> tuple[str, str]:
    """The split and the hops of a store."""
    return next(iter(store.manifest.splits)), next(iter(store.manifest.hops))


def test_a_store_of_the_other_layout_is_another(make_config: Callable[..., Config], tmp_path: Path) -> None:
    changes = with_words(tmp_path)
    layouts = [{"data__layout": layout} for layout in ("auto", "sparse", "dense")]
    assert len({store_path(make_config(**changes, data__store=None, **layout)) for layout in layouts}) == 3
    prepare(make_config(**changes))
    with refused(tmp_path / "store", says="dataset.layout auto (config: None)"):
        prepare(make_config(**changes, data__layout="dense"))


def test_features_that_are_drawn_cannot_be_sparse(make_config: Callable[..., Config], tmp_path: Path) -> None:
    with refused("data.layout"):
        prepare(make_config(data__layout="sparse"))
    same = {store_path(make_config(data__store=None, data__layout=layout)) for layout in ("auto", "dense")}
    assert len(same) == 1
    assert not (tmp_path / "store").exists()
