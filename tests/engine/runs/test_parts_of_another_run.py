"""A part of another run in a run folder is refused by whatever reads it, though it is sound in itself."""

import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.errors import refused
from support.small_runs import small_run

from shoal.engine.config.config import Config, load_config, parse_config
from shoal.engine.config.config_text import RUN, with_seal
from shoal.engine.records.client_scores import CLIENT_SCORES, read_client_scores
from shoal.engine.records.metrics import DIGESTS, METRICS, OF_RUN, RECORDS, read_metrics
from shoal.engine.records.run_folder import CONFIG, SUMMARY, run_path
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run
from shoal.engine.runs.verify import verify_run
from shoal.storage.errors import ShoalError
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.study.figure_data import client_numbers, recorded_mixing
from shoal.study.sweep_folder import rows_of

KEPT = {"keep_best": True, "keep_records": True, "checkpoint_every": 1}


def config(folder: Path, seed: int) -> Config:
    return parse_config(small_run(folder, seed=seed, algorithm={"name": "fedgta"}, run=KEPT), "test")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Finished runs that differ in their seed alone, with all that a run keeps."""
    folder = tmp_path_factory.mktemp("two")
    return run(config(folder, 0)), run(config(folder, 1))


@pytest.fixture
def own(two: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the first, elsewhere and by another name, which all readers take for it."""
    return Path(shutil.copytree(two[0], tmp_path / "copy"))


def resume(folder: Path) -> None:
    """Resumes a copy where its config looks for it."""
    same = load_config(folder)
    same = same.model_copy(update={"run": config(folder.parent, 0).run})
    run_path(same).parent.mkdir()
    folder.rename(run_path(same))
    (run_path(same) / SUMMARY).unlink()
    run(same, resume=True)


READERS: dict[str, Callable[[Path], object]] = {
    "export": export,
    "export of the best": lambda folder: export(folder, "deployed"),
    "table": lambda folder: rows_of([folder]),
    "metrics": read_metrics,
    "scores": read_client_scores,
    "figures of clients": lambda folder: client_numbers(folder, "deployed"),
    "figures of records": recorded_mixing,
    # The last one, for it moves the folder.
    "resume": resume,
}


@pytest.mark.parametrize(
    ("part", "readers"),
    [
        ("", set()),
        (CONFIG, set(READERS)),
        # How many rounds there are is in the summary.
        (SUMMARY, {"export", "export of the best", "table", "metrics", "scores", "figures of records"}),
        (METRICS, {"metrics", "scores", "figures of records"}),
        ("checkpoints", {"export", "figures of clients", "resume"}),
        ("best", {"export of the best"}),
        (CLIENT_SCORES, {"scores"}),
        (RECORDS, {"figures of records"}),
    ],
)
def test_a_part_of_another_run_is_refused(two: tuple[Path, Path], own: Path, part: str, readers: set[str]) -> None:
    theirs = two[1] / part
    if theirs.is_file():
        shutil.copyfile(theirs, own / part)
    elif part:
        shutil.rmtree(own / part)
        shutil.copytree(theirs, own / part)
    assert bool(verify_run(own)) == bool(part)
    found = set()
    for name, read in READERS.items():
        try:
            read(own)
        except ShoalError:
            found.add(name)
    assert found == readers


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(own: Path) -> None:
    kept = [file for file in own.rglob("*") if file.is_file() and file.name != ".lock"]
    assert len(kept) > 10
    for file in kept:
        content = file.read_bytes()
        file.unlink()
        os.mkfifo(file)
        assert any("Is no file" in fault for fault in verify_run(own)), file
        file.unlink()
        file.write_bytes(content)
    assert verify_run(own) == []


def test_an_export_that_does_not_fit_leaves_the_one_before(own: Path) -> None:
    before = {file: file.read_bytes() for file in export(own).iterdir()}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # A file cannot grow beyond this, as on a disk that is full.
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with refused(own / "export" / "models.safetensors", says="cannot be written: "):
            export(own)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {file: file.read_bytes() for file in (own / "export").iterdir()} == before


def test_a_run_of_before_is_read_and_takes_no_part_of_another(own: Path) -> None:
    expected = read_metrics(own), rows_of([own])[0].figures
    text = (own / CONFIG).read_text()
    (own / CONFIG).write_text(with_seal(text[: text.index(RUN)]))
    with refused(own / SUMMARY, says="this folder is of an unnamed run"):
        rows_of([own])
    for name in (METRICS, SUMMARY):
        lines = (own / name).read_text().splitlines() if name == METRICS else [(own / name).read_text()]
        plain = [{k: v for k, v in unsealed(line).items() if k not in (OF_RUN, DIGESTS)} for line in lines]
        (own / name).write_text("".join(f"{sealed(line)}\n" for line in plain))
    without = [{k: v for k, v in line.items() if k != DIGESTS} for line in expected[0]]
    assert (read_metrics(own), rows_of([own])[0].figures) == (without, expected[1])
    assert len(read_client_scores(own))
    assert recorded_mixing(own)
