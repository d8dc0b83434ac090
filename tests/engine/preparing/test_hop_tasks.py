"""Hops as tasks of a real Ray cluster."""

from collections.abc import Callable
from pathlib import Path

import pytest
import ray

from shoal.engine.config.config import Config
from shoal.engine.preparing.prepare import prepare
from shoal.storage.errors import ShoalError
from shoal.storage.store.verify import verify


def test_hops_on_a_cluster_are_those_made_here(
    make_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = prepare(make_config(data__store=str(tmp_path / "here")))
    monkeypatch.setattr("shoal.engine.preparing.store_steps.CLUSTER_BYTES", 0)
    there = prepare(make_config(data__store=str(tmp_path / "there"), engine__backend="ray", engine__hosts=1))
    assert here.manifest.hops == there.manifest.hops
    assert not verify(there)
    assert not ray.is_initialized()


def test_a_cluster_that_computes_no_hops_is_not_waited_for(
    make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shoal.engine.preparing.store_steps.CLUSTER_BYTES", 0)
    config = make_config(engine__backend="ray", engine__hosts=1, engine__cell_timeout=1e-3)
    with pytest.raises(ShoalError, match=r"^prepare: no hops of clients \[.*\] for 0 s; .* engine.cell_timeout"):
        prepare(config)
    assert not ray.is_initialized()
