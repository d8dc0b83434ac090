"""The folder of a run: one writer, what a kill leaves of it, and which runs are the same."""

import json
import logging
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.errors import refused
from support.fixtures import Configure

from shoal.engine.config.config import load_config
from shoal.engine.records.metrics import METRICS
from shoal.engine.records.run_folder import (
    CHECKPOINTS,
    CONFIG,
    LOG,
    SUMMARY,
    RunFolder,
    changed_keys,
    read_summary,
    run_path,
    unfinished_relatives,
)


@pytest.fixture
def config_of(configure: Configure, tmp_path: Path) -> Configure:
    return lambda **keys: configure(
        {"run.root": str(tmp_path), **{name.replace("__", "."): value for name, value in keys.items()}}
    )


@pytest.fixture
def folder(config_of: Configure) -> Iterator[RunFolder]:
    folder = RunFolder(run_path(config_of()))
    yield folder
    folder.close()


def test_a_log_of_json_lines(config_of: Configure) -> None:
    folder = RunFolder(run_path(config_of()), "json")
    logging.getLogger("a").warning("lost %d", 3, extra={"round": 2, "host": 1})
    logging.getLogger("a").error("two\nlines", extra={"client": 0})
    folder.close()
    first, second = map(json.loads, (folder.path / LOG).read_text().splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]{12}\+00:00", first.pop("time"))
    of = {"run": folder.path.name, "round": None, "host": None, "client": None}
    assert first == {**of, "level": "WARNING", "round": 2, "host": 1, "message": "lost 3"}
    assert {**second, "time": None} == {**of, "time": None, "level": "ERROR", "client": 0, "message": "two\nlines"}


def line(number: int, **more: Any) -> dict[str, Any]:
    return {"round": number, "loss": 0.1 * number, **more}


def test_run_path_user_method_counts_by_content(config_of: Configure, tmp_path: Path) -> None:
    names = []
    for place, text in (("one", "a = 1"), ("other", "a = 1"), ("other", "a = 2")):
        file = tmp_path / place / "mine.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        names.append(run_path(config_of(algorithm__name=f"{file}:Mine")))
    assert names[0] == names[1] != names[2]
    assert run_path(config_of(algorithm__name=f"{tmp_path}/other/mine.py:Other")) not in names
    with refused("algorithm.name", says="gone.py cannot be read"):
        run_path(config_of(algorithm__name=f"{tmp_path}/gone.py:Mine"))


def test_one_writer_at_a_time(folder: RunFolder, config_of: Configure) -> None:
    with refused(folder.path, says="another run of this config"):
        RunFolder(run_path(config_of()))
    folder.close()
    RunFolder(run_path(config_of())).close()


def test_warnings_go_to_the_log_while_it_is_open(config_of: Configure, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_path(config_of())
    for full in (False, True):
        folder = RunFolder(path)
        if full:
            (path / LOG).unlink()
            (path / LOG).symlink_to("/dev/full")
        logging.getLogger("shoal").warning("host 1 is back")
        folder.close()
        logging.getLogger("shoal").warning("too late")
        if not full:
            text = (path / LOG).read_text()
            assert "WARNING host 1 is back" in text
            assert "too late" not in text
    # A full disk ends nothing.
    assert capsys.readouterr().err == ""


def test_started_and_finished(folder: RunFolder, config_of: Configure) -> None:
    folder.begin(config_of())
    assert load_config(folder.path) == config_of()
    assert not folder.started
    kept = folder.checkpoints / "round-000003"
    kept.mkdir(parents=True)
    assert folder.started
    kept.rmdir()
    folder.metrics.append(line(1))
    assert folder.started
    assert not folder.finished
    folder.summarize({"rounds": 1, "scopes": {}})
    assert folder.finished
    assert read_summary(folder.path) == {"rounds": 1, "scopes": {}}
    assert not list(folder.path.glob("*.unfinished"))


def test_unreadable_folder_is_not_missing(config_of: Configure) -> None:
    folder = RunFolder(run_path(config_of()))
    folder.begin(config_of())
    folder.close()
    for name in (SUMMARY, METRICS):
        (folder.path / name).symlink_to(name)
    assert folder.finished
    assert folder.started
    with refused(says=f"{SUMMARY}: cannot be read: Too many levels of symbolic links"):
        read_summary(folder.path)
    (folder.path / METRICS).unlink()
    folder.checkpoints.symlink_to(CHECKPOINTS)
    with refused(says="checkpoints: the checkpoints cannot be read: Too many levels"):
        _ = folder.started


def test_a_fresh_start_forgets_all_but_the_config(folder: RunFolder, config_of: Configure) -> None:
    folder.begin(config_of())
    folder.metrics.append(line(1))
    folder.summarize({})
    for name in ("checkpoints", "tensorboard", "export"):
        (folder.path / name).mkdir()
        (folder.path / name / "file").touch()
    folder.clear()
    assert {path.name for path in folder.path.iterdir()} <= {CONFIG, ".lock"}
    # Also where nothing is left.
    folder.clear()


def test_the_config_of_a_run_is_as_it_was_written(folder: RunFolder, config_of: Configure) -> None:
    folder.begin(config_of())
    file = folder.path / CONFIG
    text = file.read_text()
    for changed in (text.replace("seed: 0", "seed: 1", 1), text[: text.index("# seal")], text[: len(text) // 2], ""):
        file.write_text(changed)
        with refused(file, says="not as the run wrote it; copy it out of the run folder"):
            load_config(folder.path)


def test_the_code_of_a_run_is_as_it_was_kept(config_of: Configure, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import beside\nclass Mine: ...")
    (tmp_path / "beside.py").write_text("a = 1")
    config = config_of(algorithm__name=f"{file}:Mine")
    folder = RunFolder(run_path(config))
    folder.begin(config)
    folder.close()
    assert load_config(folder.path).algorithm.name.endswith("/mine.py:Mine")
    for kept in folder.path.glob("code/*/*.py"):
        text = kept.read_text()
        kept.write_text(text + "\n")
        with refused(kept.with_name("mine.py"), "algorithm.name", says="not as the run kept it"):
            load_config(folder.path)
        kept.write_text(text)


def test_a_summary_is_as_it_was_written(folder: RunFolder) -> None:
    file = folder.path / SUMMARY
    with refused(file, says="NaN or infinity"):
        folder.summarize({"scopes": {"deployed": float("nan")}})
    assert not folder.finished
    with refused(folder.path, says="no readable summary.json"):
        read_summary(folder.path)
    folder.summarize({"accuracy": 0.81})
    text = file.read_text()
    for changed, fault in (
        (text.replace("0.81", "0.91"), "changed since it was written"),
        (text[:10], "damaged"),
        ("", "damaged"),
        (json.dumps({"accuracy": 0.81}), "changed since it was written"),
    ):
        file.write_text(changed)
        with refused(file, says=fault):
            read_summary(folder.path)


@pytest.mark.parametrize("name", [CONFIG, SUMMARY])
def test_full_disk_keeps_earlier_files(folder: RunFolder, config_of: Configure, name: str) -> None:
    def write() -> None:
        folder.begin(config_of()) if name == CONFIG else folder.summarize({"rounds": 1})

    write()
    file, unfinished = folder.path / name, folder.path / f"{name}.unfinished"
    before = file.read_bytes()
    # As on a full disk, the first write of more than a byte fails; Python ignores the signal that comes with it.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        with refused(file, says="cannot be written: "):
            write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == before
    assert not os.path.lexists(unfinished)


def test_changed_keys(folder: RunFolder, config_of: Configure) -> None:
    def changed(**keys: Any) -> list[str]:
        return changed_keys(config_of(**keys), folder.path)

    folder.begin(config_of())
    others = {"train__lr": 0.5, "participation__count": 2, "algorithm__weight": "train"}
    assert changed(**others, run__keep=9, name="other") == [
        "algorithm.weight (None -> train)",
        "participation.count (None -> 2)",
        "train.lr (0.01 -> 0.5)",
    ]
    # What an older config lacks is at its default, and keys may have their earlier names.
    path = folder.path / CONFIG
    kept = path.read_text().replace("trainer: auto", "path: loop").splitlines()
    path.write_text("\n".join(line for line in kept if "inductive" not in line and "server_gpus" not in line))
    assert changed(engine__trainer="autograd", run__keep=9) == []
    assert changed(data__inductive=True) == ["data.inductive (False -> True)", "engine.trainer (autograd -> auto)"]


def test_unfinished_runs_of_the_same_name(config_of: Configure) -> None:
    def left(**keys: Any) -> RunFolder:
        folder = RunFolder(run_path(config_of(**keys)))
        folder.begin(config_of(**keys))
        folder.metrics.append(line(1))
        folder.close()
        return folder

    unfinished, finished, own = left(seed=1), left(seed=2), left()
    finished.summarize({})
    left(seed=1, name="small-other")
    # One that was killed before its first round has nothing to go on from.
    early = RunFolder(run_path(config_of(seed=3)))
    early.begin(config_of(seed=3))
    early.close()
    assert unfinished_relatives(config_of()) == [unfinished.path]
    assert unfinished_relatives(config_of(seed=1)) == [own.path]
