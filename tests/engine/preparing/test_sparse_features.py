"""Stores of sparse features: what dense ones hold, under names of their own, completed after an interruption."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.store_contents import contents

from shoal.engine.config.config import Config
from shoal.engine.preparing.identity import store_path
from shoal.engine.preparing.prepare import prepare
from shoal.storage.errors import ShoalError
from shoal.storage.graph.rows import CsrRows
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import Store
from shoal.storage.store.verify import verify


def with_words(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """Changes of a config: a graph of the user's own, of whose 90 features a node has few and every fifth none."""
    rng = np.random.default_rng(0)
    x = (rng.random((200, 90)) < 0.05) * rng.random((200, 90))
    x[::5] = 0
    np.savez(tmp_path / "words.npz", edge_index=rng.integers(0, 200, (2, 500)), x=x, y=rng.integers(0, 3, 200))
    return {"data__dataset": "files", "data__path": str(tmp_path / "words.npz"), "data__options": {}, **changes}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_sparse_store_holds_what_a_dense_one_does(
    make_config: Callable[..., Config], tmp_path: Path, dtype: str
) -> None:
    changes = with_words(tmp_path, data__dtype=dtype)
    stores = [
        prepare(make_config(**changes, data__store=str(tmp_path / layout), data__layout=layout), centralized=True)
        for layout in ("auto", "sparse", "dense")
    ]
    for sparse, dense in ((stores[0], stores[2]), (stores[1], stores[2])):
        for mine, truth in ((sparse, dense), (Store(sparse.path.parent), Store(dense.path.parent))):
            assert (mine.manifest.layout, truth.manifest.layout) == ("sparse", "dense")
            assert verify(mine) == []
            for client in range(truth.clients):
                (shard, _, hops), (other, _, others) = (s.data(*names_of(s), client) for s in (mine, truth))
                assert isinstance(shard.x, CsrRows)
                for found, expected in zip([shard.x, *hops], [other.x, *others], strict=True):
                    rows = found.toarray() if isinstance(found, CsrRows) else found
                    np.testing.assert_array_equal(rows, expected)
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
    with pytest.raises(ShoalError, match=r": dataset\.layout auto \(config: None\); delete it or set data\.store$"):
        prepare(make_config(**changes, data__layout="dense"))


def test_features_that_are_drawn_cannot_be_sparse(make_config: Callable[..., Config], tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match=r"^data\.layout: sparse needs features that are read into memory, .* 'sbm' "):
        prepare(make_config(data__layout="sparse"))
    same = {store_path(make_config(data__store=None, data__layout=layout)) for layout in ("auto", "dense")}
    assert len(same) == 1
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("seed", range(3))
def test_an_interrupted_sparse_store_is_completed(
    make_config: Callable[..., Config], tmp_path: Path, seed: int
) -> None:
    config = make_config(**with_words(tmp_path))
    path = prepare(config).path
    expected = contents(path)
    rng = np.random.default_rng(seed)
    (path / NAME).unlink()
    log = path / "progress.jsonl"
    log.write_bytes(log.read_bytes()[: rng.integers(log.stat().st_size)])
    lost = sorted(path.glob("*/**/*.arrow"))[:: 1 + seed]
    lost[0].write_bytes(b"half")
    for file in lost[1:]:
        file.unlink()
    # The journal names twice what was made twice.
    assert {**contents(prepare(config).path), log.name: None} == {**expected, log.name: None}
