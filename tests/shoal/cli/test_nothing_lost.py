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
from shoal.engine.records.run_folder import LOG, SUMMARY
from shoal.engine.runs.run import run
from shoal.storage.files.digest import digest
from shoal.storage.store.manifest import read_manifest

Refused = Callable[..., str]
Shoal = Callable[..., None]
Resume = Callable[..., str]
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


@pytest.fixture
def resume(tiny: Path, shoal: Shoal, capsys: pytest.CaptureFixture[str]) -> Resume:
    """Resumes the run, and gives what is said."""

    def resume(*more: str) -> str:
        shoal("run", tiny, *ROUNDS, *more, "--resume")
        return capsys.readouterr().err

    return resume


@pytest.fixture
def not_resumed(tiny: Path, refused: Refused) -> Refused:
    """Gives the line with which the run is not resumed."""
    return lambda *more: refused("run", tiny, *ROUNDS, *more, "--resume")


def unreadable(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def of_each(damage: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda folder: [damage(folder / name) for name in ("round-000002", "round-000004")]


def linked_to_itself(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to("checkpoints")


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    ("damage", "said", "times"),
    [
        (of_each(lambda path: unreadable(path / TENSORS)), "cannot be read (Too many levels of symbolic links)", 2),
        (of_each(lambda path: unreadable(path / PLAIN)), "cannot be read (Too many levels of symbolic links)", 2),
        (of_each(lambda path: (path / PLAIN).write_text('{"format": 99}')), "format 99 of another version of Shoal", 2),
        (of_each(lambda path: os.truncate(path / TENSORS, 100)), "checksum does not match", 2),
        (linked_to_itself, "the checkpoints cannot be read", 1),
        (lambda folder: folder.rename(folder.with_name("elsewhere")), "no checkpoint, though 4 rounds are logged", 1),
    ],
)
def test_resume_unreadable_checkpoints_are_kept(
    tiny: Path,
    finished: Path,
    not_resumed: Refused,
    shoal: Shoal,
    damage: Callable[[Path], object],
    said: str,
    times: int,
) -> None:
    (finished / SUMMARY).unlink()
    damage(finished / "checkpoints")
    before = contents(finished)
    for _ in range(2):
        assert not_resumed().count(said) == times
        assert contents(finished) == before
    shoal("run", tiny, *ROUNDS, "--fresh")
    assert (finished / SUMMARY).exists()


def test_resume_unreadable_newest_is_set_aside(finished: Path, resume: Resume) -> None:
    expected, newest = numbers(finished), finished / "checkpoints" / "round-000004"
    final = (newest / TENSORS).read_bytes()
    (finished / SUMMARY).unlink()
    os.truncate(newest / TENSORS, 100)
    assert "round-000004: damaged" in resume()
    assert numbers(finished) == expected
    assert (newest / TENSORS).read_bytes() == final
    names = {path.name for path in (finished / "checkpoints").iterdir()}
    assert names == {"round-000002", "round-000004", "round-000004.unusable"}


def test_resume_deleted_metrics_are_rebuilt(finished: Path, resume: Resume) -> None:
    """`test_metrics.py` has the other damages."""
    expected = numbers(finished)
    cut_off(finished)
    (finished / METRICS).unlink()
    assert f"{METRICS}: was deleted; rebuilt from the checkpoint" in resume()
    assert numbers(finished) == expected
    assert len(expected) == 4


def test_a_lost_summary_is_written_again(
    tiny: Path, finished: Path, refused: Refused, resume: Resume, shoal: Shoal
) -> None:
    for text in ("", (finished / SUMMARY).read_text().replace("0.", "0.9", 1)):
        (finished / SUMMARY).write_text(text)
        for command in (("run", tiny, *ROUNDS), ("inspect", finished)):
            assert f"{finished / SUMMARY}: " in refused(*command)
    (finished / SUMMARY).unlink()
    resume()
    shoal("inspect", finished)


def test_resume_without_a_run_starts_with_a_line(tiny: Path, resume: Resume) -> None:
    said = resume()
    assert f"{only(tiny.parent / 'runs')}: nothing to resume, starting" in said


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
def test_a_changed_graph_is_not_resumed(
    tiny: Path, graph: Path, not_resumed: Refused, resume: Resume, shoal: Shoal, name: str
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
    assert f"{first}: {said}" in not_resumed()
    turn(graph / name, -1)
    resume()
    assert numbers(first) == expected
    # Elsewhere it is the same run.
    assert "already finished" in resume(f"data.path={graph.rename(graph.with_name('moved'))}")


RNG = np.random.default_rng(1)


@pytest.mark.parametrize(
    ("key", "array", "more"),
    [
        ("data.split_file", RNG.integers(1, 4, size=120), ["data.split=file"]),
        ("partition.file", RNG.permutation(np.arange(120) % 4), ["partition.method=file"]),
        ("participation.trace", RNG.integers(2, size=(4, 4)), []),
    ],
)
def test_files_count_by_content(
    tiny: Path, not_resumed: Refused, shoal: Shoal, key: str, array: Any, more: list[str]
) -> None:
    file, runs = tiny.parent / "file.npy", tiny.parent / "runs"
    np.save(file, array)
    choice = [f"{key}={file}", *more, "data.store=null"]
    shoal("run", tiny, *ROUNDS, *choice)
    cut_off(only(runs))
    np.save(file, array[::-1])
    assert f"the unfinished run differs from this config in the content of {key}" in not_resumed(*choice)
    shoal("run", tiny, *ROUNDS, *choice)
    assert len(list(runs.iterdir())) == 2


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


def test_published_files_changed(tiny: Path, refused: Refused, shoal: Shoal, resume: Resume, publish: Any) -> None:
    publish(0)
    shoal("run", tiny, *ROUNDS)
    first = only(tiny.parent / "runs")
    expected = numbers(first)
    file = publish(1)
    changed = f"the file {COMPUTERS} changed since this run started; restore the content"
    assert f"{first}: {changed}" in refused("run", tiny, *ROUNDS)
    cut_off(first)
    assert changed in refused("run", tiny, *ROUNDS, "--resume")
    assert f"made from another content of {COMPUTERS}" in refused("run", tiny, *ROUNDS, "seed=1")
    # A store needs its published files no more.
    file.unlink()
    resume()
    assert numbers(first) == expected
    shoal("run", tiny, *ROUNDS, "propagation.hops=2")
    # While a prepare is interrupted.
    publish(0)
    (tiny.parent / "store" / "manifest.json").unlink()
    shutil.rmtree(tiny.parent / "store" / "clients")
    publish(1)
    assert "holds an unfinished store of another dataset, of other files of it" in refused("prepare", tiny)
    publish(0)
    shoal("prepare", tiny)


def test_another_store_is_not_resumed(tiny: Path, finished: Path, refused: Refused, not_resumed: Refused) -> None:
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
    assert f"{finished}: the prepared store changed since this run started" in not_resumed()
    assert contents(finished) == before
