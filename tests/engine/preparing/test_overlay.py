"""A shared store stays as it is: what is made of it later lies elsewhere, and runs notice nothing."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.errors import refused
from support.shards import times
from support.store_contents import contents

from shoal.engine.config.config import Config
from shoal.engine.preparing.identity import store_or_overlay, store_path
from shoal.engine.preparing.overlay import overlay_path
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.run import run
from shoal.engine.runs.verify import verify_folder
from shoal.kept.removal import remove
from shoal.storage.store.client_table import Clients
from shoal.storage.store.manifest import read_manifest
from shoal.storage.store.store import Store
from shoal.study.figure_data import manifest_of

Make = Callable[..., Config]
NO_CLIENT = 65534
# Of another split and other hops than those of the shared store, and with the graph as a whole.
LATER = {"data.split": "stratified", "data.split_seed": 3, "propagation.hops": 1}


@pytest.fixture
def config_of(configure: Callable[..., Config], tmp_path: Path) -> Make:
    def config_of(**keys: Any) -> Config:
        places = {"data.store": str(tmp_path / "shared"), "run.root": str(tmp_path / "runs"), "engine.backend": "local"}
        return configure({**places, "rounds": 2, "evaluation.every": 1, "run.tensorboard": False, **keys})

    return config_of


def test_runs_on_an_overlay_are_those_on_a_store(config_of: Make, tmp_path: Path) -> None:
    shared = prepare(config_of()).path
    before = times(shared)
    own = {"data.overlay": str(tmp_path / "own"), "run.root": str(tmp_path / "own-runs")}
    # All that the first run reads is there already.
    assert prepare(config_of(**own)).path == shared
    assert not (tmp_path / "own").exists()
    for method in ("fedavg", "global"):
        on_overlay = run(config_of(**LATER, **own, **{"algorithm.name": method}))
        assert times(shared) == before
        alone = {"data.store": str(tmp_path / "alone")}
        on_store = run(config_of(**LATER, **alone, **{"algorithm.name": method}))
        assert on_overlay.name == on_store.name
        found, expected = read_summary(on_overlay), read_summary(on_store)
        assert found["scopes"] == expected["scopes"]
        assert found["inputs"] == expected["inputs"]
    config = config_of(**LATER, **own)
    overlay = overlay_path(shared, config)
    assert store_or_overlay(config) == overlay
    found, expected = contents(overlay), contents(tmp_path / "alone")
    kinds = (f"splits/{config.data.split_name}", "hops/r0.5-k1", "whole/clients", "whole/splits", "whole/hops")
    made = [name for name in expected if name.startswith(kinds)]
    assert {name: found.get(name) for name in made} == {name: expected[name] for name in made}
    assert len(made) == 2 + 3
    assert (overlay / "clients").readlink() == shared / "clients"
    assert not (overlay / "splits" / config.data.split_name).is_symlink()
    verify_folder(overlay)
    assert manifest_of(on_overlay) is not None
    # Again nothing is made.
    as_made = times(tmp_path / "own")
    assert prepare(config).path == overlay
    assert times(tmp_path / "own") == as_made
    # The owner adds something: it is linked when the overlay is next written.
    prepare(config_of(**{"propagation.hops": 3}))
    more = prepare(config_of(**LATER, **own, **{"propagation.r": 0.3}))
    assert (overlay / "hops" / "r0.5-k3-float32").is_symlink()
    assert len(more.manifest.hops) == 4
    # Of an overlay the links alone are removed.
    assert remove([overlay], lambda question: True)
    assert not overlay.exists()
    verify_folder(shared)


def test_links_follow_a_store_that_is_moved(config_of: Make, tmp_path: Path) -> None:
    shared, own = prepare(config_of()).path, {"data.overlay": str(tmp_path / "own")}
    overlay = prepare(config_of(**LATER, **own)).path
    moved = shared.rename(tmp_path / "moved")
    again = prepare(config_of(**LATER, **own, **{"data.store": str(moved), "propagation.r": 0.3})).path
    assert again == overlay
    assert (overlay / "clients").readlink() == moved / "clients"
    verify_folder(overlay)
    # Hops that the owner threw away are made again, here.
    shutil.rmtree(moved / "hops")
    verify_folder(prepare(config_of(**{**LATER, **own, "data.store": str(moved), "propagation.hops": 2})).path)


def test_an_overlay_of_another_store_is_refused(config_of: Make, tmp_path: Path) -> None:
    own = {"data.overlay": str(tmp_path / "own")}
    shared = prepare(config_of()).path
    overlay = prepare(config_of(**LATER, **own)).path
    found = read_manifest(overlay)
    first = found.clients[0]
    damaged = replace(first, file=replace(first.file, xxh3=first.file.xxh3[::-1]))
    replace(found, clients=Clients.of([damaged, *list(found.clients)[1:]])).write(overlay)
    with refused(overlay, says=f"was made of another store than {shared}"):
        prepare(config_of(**own, **{"propagation.r": 0.3}))


@contextmanager
def somebody_else() -> Iterator[None]:
    """Who may not write what the test made; root writes everything."""
    user = os.geteuid()
    os.seteuid(user or NO_CLIENT)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_store_that_cannot_be_written(config_of: Make, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        home = folder / "home"
        home.mkdir()
        monkeypatch.setenv("HOME", str(home))
        shared = shutil.copytree(prepare(config_of()).path, folder / "shared")
        graph = shutil.copytree(config_of().data.path, folder / "graph")
        for path in (folder, home, graph, *graph.rglob("*")):
            path.chmod(0o777)
        for path in (shared, *shared.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        places = {"data.store": str(shared), "data.path": str(graph)}
        config = config_of(**places, **LATER)
        try:
            with somebody_else():
                found = prepare(config)
                assert prepare(config_of(**places)).path == shared
        finally:
            for path in (shared, *shared.rglob("*")):
                path.chmod(0o777)
        assert found.path.is_relative_to(home / ".cache/shoal/overlays")
        assert config.data.split_name in Store(found.path).manifest.splits
        assert config.data.split_name not in Store(shared).manifest.splits
        assert "what is missing of this store is made in" in " ".join(capfd.readouterr().err.split())
        assert store_path(config) == shared


def test_an_overlay_that_cannot_be_written(config_of: Make, tmp_path: Path) -> None:
    prepare(config_of())
    (tmp_path / "file").touch()
    with refused(says="cannot be made: Not a directory; set data.overlay to a folder"):
        prepare(config_of(**LATER, **{"data.overlay": str(tmp_path / "file")}))
