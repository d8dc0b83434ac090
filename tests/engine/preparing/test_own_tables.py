"""A graph in tables from its files to an export: its name, the names of its classes, and features that are made."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.errors import refused
from support.small_runs import small_run

from shoal.engine.config.config import Config, parse_config
from shoal.engine.config.run_identity import identity_keys
from shoal.engine.preparing.identity import identity, store_path
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.export import export, with_ids
from shoal.engine.runs.run import run
from shoal.engine.screen.tables import show_store
from shoal.kept.removal import remove
from shoal.storage.graph.ids import clean_ids, joined_ids
from shoal.storage.graph.rows import CsrRows
from shoal.storage.store.manifest import read_manifest
from shoal.storage.store.store import IDS
from shoal.storage.store.verify import unnamed_files, verify


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ring of 60 nodes with chords, of three kinds, without features."""
    folder = tmp_path_factory.mktemp("tables")
    pairs = [(n, (n + step) % 60) for n in range(60) for step in (1, 3)]
    (folder / "edges.csv").write_text("source,target\n" + "".join(f"n{a},n{b}\n" for a, b in pairs))
    kinds = "owl", "ant", "bee"
    (folder / "nodes.csv").write_text("id,label\n" + "".join(f"n{n},{kinds[n % 3]}\n" for n in range(60)))
    return folder


@pytest.fixture
def config(tables: Path, tmp_path: Path) -> Callable[..., Config]:
    """Gives a config; keys are of its section data."""

    def config(**data: object) -> Config:
        keys = {"dataset": "files", "path": str(tables), "options": {}, "features": "degree", **data}
        partition, model = {"method": "random", "clients": 2}, {"name": "mlp", "hidden": 4}
        return parse_config(small_run(tmp_path, rounds=1, data=keys, partition=partition, model=model), "test")

    return config


def test_from_tables_to_an_export(config: Callable[..., Config], capsys: pytest.CaptureFixture[str]) -> None:
    named = config(name="birds")
    folder = run(named)
    store = store_path(named)
    assert store.name.startswith("birds-random2-")
    manifest = read_manifest(store)
    assert (manifest.name, manifest.label_names) == ("birds", ["ant", "bee", "owl"])
    assert manifest.identity["dataset"]["made_features"] == {"kind": "degree", "width": 64}
    assert read_summary(folder)["dataset"] == "birds"
    capsys.readouterr()
    show_store(store, manifest)
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "0 ant, 1 bee, 2 owl" in shown
    assert "made: kind degree, width 64" in shown
    with pa.OSFile(str(export(folder) / "predictions.arrow")) as file:
        table = pa.ipc.open_file(file).read_all()
    assert json.loads(table.schema.metadata[b"label_names"]) == ["ant", "bee", "owl"]
    label = dict(zip(table["node"].to_pylist(), table["label"].to_pylist()))
    assert [label[n] for n in range(3)] == [2, 0, 1]
    names = ["ant", "bee", "owl"]
    for column in ("label", "deployed", "global"):
        assert table[f"{column}_name"].to_pylist() == [names[number] for number in table[column].to_pylist()]
    assert table["id"].to_pylist() == [f"n{node}" for node in table["node"].to_pylist()]


def test_ids_are_made_again_and_verified(config: Callable[..., Config], tmp_path: Path) -> None:
    first = config()
    store = prepare(first)
    assert store.ids().to_pylist() == [f"n{n}" for n in range(60)]
    file = store.path / IDS
    written = file.read_bytes()
    assert (verify(store), unnamed_files(store)) == ([], [])
    assert prepare(first, centralized=True).ids() == store.ids()
    # Whatever is added to a store that others share, ids are found.
    overlay = prepare(config(overlay=str(tmp_path / "overlay"), split_seed=1))
    assert ((overlay.path / IDS).parent.is_symlink(), overlay.ids()) == (True, store.ids())
    file.write_bytes(written[:-1])
    assert [str(file) in fault for fault in verify(store)] == [True]
    file.unlink()
    assert prepare(first).manifest == store.manifest
    assert file.read_bytes() == written
    assert remove([overlay.path, store.path], lambda _: True)
    assert (overlay.path.exists(), store.path.exists()) == (False, False)


def test_ids_of_pairs_and_numbers_of_rows() -> None:
    ids = pa.array(["a", "b", "c"])
    pairs = with_ids({"source": pa.array([2, 0]), "target": pa.array([1, 1])}, ids)
    assert [pairs[name].to_pylist() for name in ("source_id", "target_id")] == [["c", "a"], ["b", "b"]]
    assert clean_ids(np.array(["0", "1"]), 2, "ids") is None
    assert clean_ids(np.array([1, 0]), 2, "ids").to_pylist() == [1, 0]
    assert clean_ids(np.array(["00", "1"]), 2, "ids").to_pylist() == ["00", "1"]
    assert joined_ids([None, None], [2, 1]) is None
    assert joined_ids([None, ids], [2, 3]).to_pylist() == ["0", "1", "a", "b", "c"]
    for wrong in (np.array(["a", "a"]), np.array([0.5, 1]), np.array([1])):
        with refused("ids"):
            clean_ids(wrong, 2, "ids")


def test_a_name_is_no_part_of_numbers(config: Callable[..., Config]) -> None:
    plain, named = config(), config(name="birds")
    keys = identity_keys(plain.plain())
    given = identity_keys(config(features="given").plain())
    assert keys == identity_keys(named.plain()) == given | {"data.features.kind": "degree"}
    assert "data.name" not in keys
    assert identity(plain) == identity(named)
    assert store_path(plain).name == store_path(named).name.replace("birds", "files")
    one, other = (prepare(each) for each in (plain, named))
    assert (one.manifest.name, other.manifest.name) == ("files", "birds")
    assert [asdict(c.file) for c in one.manifest.clients] == [asdict(c.file) for c in other.manifest.clients]
    x = one.shard(0).x
    assert isinstance(x, CsrRows)
    # Every node has four neighbours, of which clients keep some.
    assert (x.columns == 4).all()
    assert (x.shape, x.values.tolist()) == ((30, 64), [1] * 30)


def test_impossible_tables_are_refused(config: Callable[..., Config]) -> None:
    with refused("data.name"):
        store_path(config(dataset="sbm", path=None, name="birds"))
    for hidden in ({"inductive": True}, {"sparsity": {"edges": 0.5}}):
        with refused("data.features"):
            prepare(config(**hidden))
