"""What a removal leaves: nothing that Shoal wrote, of whatever run, store or study, and all that it did not write."""

import itertools
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.fixtures import Configure, Refused
from support.needs import needs
from support.small_runs import small_config, small_run

from shoal.engine.config.config import Config, parse_config
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records import checkpoint
from shoal.engine.records.run_folder import CHECKPOINTS, SUMMARY
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run
from shoal.kept.at_address import remove_at
from shoal.kept.removal import FILES, remove
from shoal.pages.report import report
from shoal.past.fork import fork
from shoal.storage.files.addresses import Folder
from shoal.storage.store.manifest import read_manifest
from shoal.storage.store.store import scratch_path
from shoal.study.study import Study
from shoal.sweeps.forecast import forecast
from shoal.sweeps.sweep import Sweep

METHOD = """
from dataclasses import dataclass
from mine_too import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    pass
"""


def yes(_: str) -> bool:
    return True


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def config_of(tmp_path: Path) -> Configure:
    def config_of(**changes: Any) -> Config:
        data = {"store": str(tmp_path / "store"), **changes.pop("data", {})}
        return parse_config(small_run(tmp_path, **{"rounds": 2, **changes}, data=data), "test")

    return config_of


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or path.is_file()}


@pytest.fixture
def full_run(config_of: Configure, tmp_path: Path, printed: Refused, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with all that commands and callbacks write into its folder, and what kills and damages leave."""
    # Models and what clients keep are in files of their own.
    monkeypatch.setattr(checkpoint, "PART_BYTES", 100)
    (tmp_path / "mine.py").write_text(METHOD)
    (tmp_path / "mine_too.py").write_text("from shoal.algorithms.methods.fedavg import FedAvg\n")
    keep = {"checkpoint_every": 1, "keep_best": True, "keep_records": True}
    parent = run(
        config_of(
            algorithm={"name": "fedproto"}, model={"name": "mlp"}, run=keep,
            callbacks=[{"name": "csv"}, {"name": "tensorboard"}],
        )
    )  # fmt: skip
    made = fork(parent, 1, ["name=fork"])
    export(made)
    export(made, "deployed")
    report([made], None)
    printed("clock", made)
    from shoal.influence.influences import Influences

    Influences("deployed", 2, (), ()).write(made)
    newest = made / CHECKPOINTS / "round-000002"
    for aside in ("round-000002.unusable", "round-000002.unusable1", "round-000003.unfinished"):
        (made / CHECKPOINTS / aside).mkdir()
        for file in newest.iterdir():
            (made / CHECKPOINTS / aside / file.name).write_bytes(file.read_bytes())
    for left in ("failure.txt", "summary.json.unfinished", f"{CHECKPOINTS}/round-000002/state.safetensors.part"):
        (made / left).touch()
    return made


@needs("clock", "influence")
def test_nothing_of_a_run_remains(full_run: Path) -> None:
    files = files_in(full_run)
    # It has one of each kind, or this says nothing.
    for name in (
        "clients-0001.safetensors",
        "export/best-deployed/models",
        "clock/target.csv",
        "fork.json",
        "tensorboard/",
    ):
        assert any(name in file for file in files), name
    mine = full_run / "clock" / "notes.txt"
    mine.write_text("mine")
    assert remove([full_run], yes)
    assert files_in(full_run) == {"clock/notes.txt"}
    assert mine.read_text() == "mine"


def test_nothing_of_a_store_remains(config_of: Configure, tmp_path: Path) -> None:
    store = tmp_path / "store"
    crossing = config_of(data={"cross_edges": "hops"})
    for config in (
        config_of(data={"split": "per_client", "inductive": True}), crossing, config_of(algorithm={"name": "global"}),
        config_of(algorithm={"name": "global"}, data={"inductive": True}),
    ):  # fmt: skip
        prepare(config, config.algorithm.name == "global")
    kernel = crossing.kernel()
    left = store / scratch_path(next(iter(read_manifest(store).boundaries)), kernel.name)
    partition, unfinished = (
        store / "shoal-partition-x" / "bucket-0",
        store / "clients" / "00000.arrow.task-1.unfinished",
    )
    for path in (left / "degree.npy", left / "unfinished-hop1.npy", partition, unfinished, store / ".seen-01"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    files = files_in(store)
    for name in ("boundaries/", "tables/boundaries/", "training/", "whole/training/"):
        assert any(file.startswith(name) for file in files), name
    mine = {"boundaries/notes.txt", "tables/mine.csv"}
    for name in mine:
        (store / name).write_text("mine")
    assert remove([store], yes)
    assert files_in(store) == mine


@needs("clock", "search")
def test_nothing_of_a_study_remains(tmp_path: Path, printed: Refused, capsys: pytest.CaptureFixture[str]) -> None:
    config = small_config(tmp_path, rounds=2)
    sweep = Sweep(Study(config, ("seed=1,2",)))
    forecast(sweep, 1.0)
    assert sweep.go()
    output = sweep._output(0)
    output.parent.mkdir()
    output.write_text("what its process printed")
    report([sweep.folder], None, kinds=("svg",))
    printed("clock", sweep.folder)
    from shoal.search.search import Asked, Search

    search = Search(Study(config, ()), Asked(("train.lr=0.1,0.2",), trials=2, sampler="grid", seeds=1))
    assert search.go()
    report([search.folder], None, kinds=("svg",))
    (search.folder / ".lock").touch()
    names = {name for folder in (sweep.folder, search.folder) for name in files_in(folder)}
    assert {"sweep.json", "search.json", "forecast.json", "table.csv", "table.parquet", "table.json"} <= names
    assert "clock/rounds.csv" in names
    (search.folder / "paper.tex").write_text("mine")
    runs = tmp_path / "runs"
    assert remove([sweep.folder, search.folder], yes)
    assert files_in(runs) == {f"sweeps/{search.folder.name}/paper.tex"}
    assert f"{search.folder}: stays with what Shoal did not write: paper.tex" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["run", "store"])
def test_a_removal_that_was_cut_off_goes_on(
    kind: str, config_of: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlink, sound, folder = Path.unlink, tmp_path / "sound", tmp_path / "store"
    prepare(config_of(algorithm={"name": "global"}), centralized=True)
    if kind == "run":
        folder = run(config_of(run={"checkpoint_every": 1}))
    shutil.copytree(folder, sound)
    for most in range(len(files_in(sound)) + 1):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(sound, folder)
        calls = itertools.count()

        def until(path: Path, missing_ok: bool = False, calls: Any = calls, most: int = most) -> None:
            if next(calls) >= most:
                raise KeyboardInterrupt
            unlink(path, missing_ok)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", until)
            with suppress(KeyboardInterrupt):
                remove([folder], yes)
        assert folder.exists() == (most < len(files_in(sound)))
        if folder.exists():
            assert remove([folder], yes)
        assert not folder.exists()


@pytest.mark.parametrize("kind", ["run", "store"])
def test_a_removal_at_an_address_that_was_cut_off_goes_on(
    kind: str, config_of: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "run":
        root = f"file://{tmp_path}/there"
        there = tmp_path / "there" / run(config_of(run={"root": root, "checkpoint_every": 1})).name
    else:
        there = tmp_path / "there"
        prepare(config_of(data={"store": f"file://{there}", "cross_edges": "hops"}))
    (there / "mine.txt").touch()
    delete = Folder.delete
    calls = itertools.count()

    def until(folder: Folder, name: str) -> None:
        if next(calls) == 3:
            raise KeyboardInterrupt
        delete(folder, name)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "delete", until)
        with pytest.raises(KeyboardInterrupt):
            remove_at([f"file://{there}"], yes)
    assert len(files_in(there)) > 1
    assert remove_at([f"file://{there}"], yes)
    assert files_in(there) == {"mine.txt"}


def test_a_run_elsewhere_that_a_sweep_names_stays(
    config_of: Configure, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = Sweep(Study(small_config(tmp_path, rounds=1), ("seed=1,2",)))
    assert sweep.go()
    moved = tmp_path / "theirs" / "sweeps" / sweep.folder.name
    moved.parent.mkdir(parents=True)
    os.rename(sweep.folder, moved)
    assert remove([moved], yes)
    assert not moved.exists()
    assert all((row.path / SUMMARY).exists() for row in sweep.rows)
    assert capsys.readouterr().err.count("name it to remove it, too") == 2


def test_patterns_are_of_paths_below_the_folder() -> None:
    names = ("..", ".", "../x", "a/../b", "/etc/passwd", "boundaries/../00000.arrow", "splits/../00000.arrow")
    for patterns in FILES.values():
        assert not [name for name in names if re.fullmatch("|".join(patterns), name)]
