"""A run deletes nothing that it cannot read, and goes on with the data that it began with."""

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from shoal.engine.config.config import load_config
from shoal.engine.records.checkpoint import PLAIN, TENSORS
from shoal.engine.records.metrics import METRICS, read_metrics
from shoal.engine.records.run_folder import CONFIG, LOG, SUMMARY
from shoal.engine.runs.run import run
from shoal.storage.files.digest import digest
from shoal.storage.store.manifest import read_manifest

Refused = Callable[..., str]
Shoal = Callable[..., None]
ROUNDS = ("rounds=4", "run.checkpoint_every=2")
NUMBERS = ("round", "cohort", "loss", "scopes", "bytes_up")


def only(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def numbers(folder: Path) -> list[dict[str, Any]]:
    return [{key: line.get(key) for key in NUMBERS} for line in read_metrics(folder)]


def contents(folder: Path) -> dict[str, str]:
    """Of all that a run keeps but its log."""
    paths = [path for path in folder.rglob("*") if path.name not in (LOG, ".lock")]
    links = {str(path): os.readlink(path) for path in paths if path.is_symlink()}
    return links | {str(path): digest(path) for path in paths if path.is_file() and not path.is_symlink()}


def cut_off(folder: Path) -> None:
    """Makes a finished run look as if it had been killed before its last checkpoint."""
    (folder / SUMMARY).unlink()
    shutil.rmtree(folder / "checkpoints" / "round-000004")
    lines = (folder / METRICS).read_text().splitlines(keepends=True)
    (folder / METRICS).write_text("".join(lines[:3]))


@pytest.fixture
def finished(tiny: Path, shoal: Shoal) -> Path:
    shoal("run", tiny, *ROUNDS)
    return only(tiny.parent / "runs")


def unreadable(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: unreadable(folder / TENSORS), "cannot be read (Too many levels of symbolic links)"),
        (lambda folder: unreadable(folder / PLAIN), "cannot be read (Too many levels of symbolic links)"),
        (lambda folder: (folder / PLAIN).write_text('{"format": 99}'), "format 99 of another version of Shoal"),
        (lambda folder: os.truncate(folder / TENSORS, 100), "checksum does not match"),
    ],
)
def test_resume_unreadable_checkpoints_are_kept_and_named(
    tiny: Path, finished: Path, refused: Refused, shoal: Shoal, damage: Callable[[Path], None], said: str
) -> None:
    (finished / SUMMARY).unlink()
    for number in (2, 4):
        damage(finished / "checkpoints" / f"round-{number:06d}")
    before = contents(finished)
    for _ in range(2):
        line = refused("run", tiny, *ROUNDS, "--resume")
        assert line.count(said) == 2
        assert contents(finished) == before
    shoal("run", tiny, *ROUNDS, "--fresh")
    assert (finished / SUMMARY).exists()


@pytest.mark.parametrize(
    ("link", "said"), [(True, "the checkpoints cannot be read"), (False, "no checkpoint, though 4 rounds are logged")]
)
def test_a_folder_of_checkpoints_that_is_gone(
    tiny: Path, finished: Path, refused: Refused, link: bool, said: str
) -> None:
    (finished / SUMMARY).unlink()
    (finished / "checkpoints").rename(finished / "elsewhere")
    if link:
        (finished / "checkpoints").symlink_to("checkpoints")
    before = contents(finished)
    assert said in refused("run", tiny, *ROUNDS, "--resume")
    assert contents(finished) == before


def test_the_newest_that_cannot_be_read_is_set_aside(
    tiny: Path, finished: Path, shoal: Shoal, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = numbers(finished)
    final = (finished / "checkpoints" / "round-000004" / TENSORS).read_bytes()
    (finished / SUMMARY).unlink()
    os.truncate(finished / "checkpoints" / "round-000004" / TENSORS, 100)
    shoal("run", tiny, *ROUNDS, "--resume")
    assert "round-000004: damaged" in capsys.readouterr().err
    assert numbers(finished) == expected
    assert (finished / "checkpoints" / "round-000004" / TENSORS).read_bytes() == final
    names = {path.name for path in (finished / "checkpoints").iterdir()}
    assert names == {"round-000002", "round-000004", "round-000004.unusable"}


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: path.unlink(), "was deleted"),
        (lambda path: path.write_text(""), "was emptied"),
        (lambda path: os.truncate(path, 100), "was changed or cut off"),
        (lambda path: path.write_text(path.read_text().replace('"loss": ', '"loss": 1')), "was changed or cut off"),
    ],
)
def test_resume_damaged_metrics_are_rebuilt_with_a_warning(
    tiny: Path, finished: Path, shoal: Shoal, capsys: pytest.CaptureFixture[str], damage: Callable[..., None], said: str
) -> None:
    expected = numbers(finished)
    cut_off(finished)
    damage(finished / METRICS)
    shoal("run", tiny, *ROUNDS, "--resume")
    assert f"{METRICS}: {said}; rebuilt from the checkpoint" in capsys.readouterr().err
    assert numbers(finished) == expected
    assert len(expected) == 4


def test_a_summary_that_was_lost_is_written_again(tiny: Path, finished: Path, refused: Refused, shoal: Shoal) -> None:
    for text in ("", (finished / SUMMARY).read_text().replace("0.", "0.9", 1)):
        (finished / SUMMARY).write_text(text)
        for command in (("run", tiny, *ROUNDS), ("inspect", finished)):
            assert f"{finished / SUMMARY}: " in refused(*command)
    (finished / SUMMARY).unlink()
    shoal("run", tiny, *ROUNDS, "--resume")
    shoal("inspect", finished)


def test_run_folder_with_edited_config_is_refused(finished: Path, refused: Refused) -> None:
    file = finished / CONFIG
    file.write_text(file.read_text().replace("seed: 0", "seed: 1", 1))
    for command in (("run", finished, "--resume"), ("export", finished), ("inspect", finished)):
        assert f"{file}: not as the run wrote it" in refused(*command)


def test_resume_without_a_run_starts_with_a_line(tiny: Path, shoal: Shoal, capsys: pytest.CaptureFixture[str]) -> None:
    shoal("run", tiny, *ROUNDS, "--resume")
    assert f"{only(tiny.parent / 'runs')}: nothing to resume, starting" in capsys.readouterr().err


@pytest.fixture
def graph(tiny: Path) -> Path:
    """Files of a graph of a user's own, which is made the config's."""
    folder = tiny.parent / "graph"
    folder.mkdir()
    rng = np.random.default_rng(0)
    np.save(folder / "edge_index.npy", rng.integers(120, size=(2, 500)))
    np.save(folder / "x.npy", rng.standard_normal((120, 6), dtype=np.float32))
    np.save(folder / "y.npy", rng.integers(3, size=120))
    with_data(tiny, dataset="files", path=str(folder), root=str(tiny.parent))
    return folder


def with_data(config: Path, **data: str) -> None:
    config.write_text(yaml.safe_dump({**yaml.safe_load(config.read_text()), "data": data}))


def turn(path: Path, by: int) -> None:
    """The same numbers in another order: same size, same time."""
    stat, array = path.stat(), np.load(path)
    half = array.reshape(-1)[array.size // 2 :]
    half[:] = np.roll(half, by)
    np.save(path, array)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("name", ["y.npy", "x.npy", "edge_index.npy"])
def test_a_graph_that_changed_is_neither_resumed_nor_finished(
    tiny: Path, graph: Path, refused: Refused, shoal: Shoal, name: str
) -> None:
    shoal("run", tiny, *ROUNDS)
    first = only(tiny.parent / "runs")
    expected = numbers(first)
    turn(graph / name, 1)
    # Another graph is another run, not one that is already finished.
    shoal("run", tiny, *ROUNDS)
    (second,) = set((tiny.parent / "runs").iterdir()) - {first}
    assert numbers(second) != expected
    shutil.rmtree(second)
    cut_off(first)
    said = "the unfinished run differs from this config in the content of data.path"
    assert f"{first}: {said}" in refused("run", tiny, *ROUNDS, "--resume")
    turn(graph / name, -1)
    shoal("run", tiny, *ROUNDS, "--resume")
    assert numbers(first) == expected


def test_a_graph_elsewhere_is_the_same_run(
    tiny: Path, graph: Path, shoal: Shoal, capsys: pytest.CaptureFixture[str]
) -> None:
    shoal("run", tiny, *ROUNDS)
    capsys.readouterr()
    shoal("run", tiny, *ROUNDS, f"data.path={graph.rename(graph.with_name('moved'))}")
    assert "already finished" in capsys.readouterr().err


RNG = np.random.default_rng(1)


@pytest.mark.parametrize(
    ("key", "array", "more"),
    [
        ("data.split_file", RNG.integers(1, 4, size=120), ["data.split=file"]),
        ("partition.file", RNG.permutation(np.arange(120) % 4), ["partition.method=file"]),
        ("participation.trace", RNG.integers(2, size=(4, 4)), []),
    ],
)
def test_a_file_that_a_key_names_counts_by_its_content(
    tiny: Path, refused: Refused, shoal: Shoal, tmp_path: Path, key: str, array: np.ndarray, more: list[str]
) -> None:
    file = tmp_path / "file.npy"
    np.save(file, array)
    choice = [*ROUNDS, f"{key}={file}", *more, "data.store=null"]
    shoal("run", tiny, *choice)
    cut_off(only(tiny.parent / "runs"))
    np.save(file, array[::-1])
    said = f"the unfinished run differs from this config in the content of {key}"
    assert said in refused("run", tiny, *choice, "--resume")
    shoal("run", tiny, *choice)
    assert len(list((tiny.parent / "runs").iterdir())) == 2


COMPUTERS = "amazon/Computers/raw/amazon_electronics_computers.npz"


@pytest.fixture
def publish(tiny: Path, tmp_path: Path) -> Callable[[int], Path]:
    """Puts a small graph where a published one belongs, and makes it the config's."""
    file = tmp_path / COMPUTERS
    file.parent.mkdir(parents=True)
    with_data(tiny, dataset="computers", root=str(tmp_path), store=str(tmp_path / "store"))

    def write(seed: int) -> Path:
        rng = np.random.default_rng(seed)
        dense, x = rng.random((120, 120)) < 0.05, rng.random((120, 8)) < 0.5
        arrays = {
            "adj_indptr": np.cumsum([0, *dense.sum(1)]),
            "adj_indices": np.nonzero(dense)[1],
            "attr_indptr": np.cumsum([0, *x.sum(1)]),
            "attr_indices": np.nonzero(x)[1],
            "attr_data": np.ones(x.sum()),
            "attr_shape": x.shape,
            "labels": rng.integers(3, size=120),
        }
        np.savez(file, **arrays)
        return file

    return write


def test_published_files_that_changed(
    tiny: Path, refused: Refused, shoal: Shoal, tmp_path: Path, publish: Callable[[int], Path]
) -> None:
    publish(0)
    shoal("run", tiny, *ROUNDS)
    first = only(tmp_path / "runs")
    expected = numbers(first)
    file = publish(1)
    changed = f"the file {COMPUTERS} changed since this run started; restore the content"
    assert f"{first}: {changed}" in refused("run", tiny, *ROUNDS)
    cut_off(first)
    assert changed in refused("run", tiny, *ROUNDS, "--resume")
    assert f"made from another content of {COMPUTERS}" in refused("run", tiny, *ROUNDS, "seed=1")
    # A store needs its published files no more.
    file.unlink()
    shoal("run", tiny, *ROUNDS, "--resume")
    assert numbers(first) == expected
    shoal("run", tiny, *ROUNDS, "propagation.hops=2")


def test_published_files_that_change_while_a_prepare_is_interrupted(
    tiny: Path, refused: Refused, shoal: Shoal, tmp_path: Path, publish: Callable[[int], Path]
) -> None:
    publish(0)
    shoal("prepare", tiny)
    (tmp_path / "store" / "manifest.json").unlink()
    (tmp_path / "store" / "clients" / "00002.arrow").unlink()
    publish(1)
    assert "holds an unfinished store of another dataset, of other files of it" in refused("prepare", tiny)
    publish(0)
    shoal("prepare", tiny)


def test_another_store_is_neither_resumed_nor_exported(tiny: Path, finished: Path, refused: Refused) -> None:
    """The same config finds another sound store at the same path, of a graph that an older Shoal drew, say."""
    store, other = tiny.parent / "store", tiny.parent / "other"
    elsewhere = [f"data.store={other}", "data.options.signal=0.5", f"run.root={tiny.parent / 'else'}"]
    run(load_config(tiny, [*ROUNDS, *elsewhere]))
    identity = read_manifest(store).identity
    shutil.rmtree(store)
    other.rename(store)
    replace(read_manifest(store), identity=identity).write(store)
    assert f"{store}: not the store that {finished} was run on" in refused("export", finished)
    cut_off(finished)
    before = contents(finished)
    assert f"{finished}: the prepared store changed since this run started" in refused("run", tiny, *ROUNDS, "--resume")
    assert contents(finished) == before
