"""The folder of a run: one writer, what a kill leaves of it, and which runs are the same."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.engine.config import run_identity
from shoal.engine.config.config import Config, load_config
from shoal.engine.records import checkpoint
from shoal.engine.records.checkpoint import Checkpoint
from shoal.engine.records.metrics import METRICS
from shoal.engine.records.run_folder import (
    CHECKPOINTS,
    CONFIG,
    LOG,
    SUMMARY,
    RunFolder,
    changed_contents,
    changed_keys,
    read_summary,
    run_path,
    unfinished_relatives,
)
from shoal.engine.rounds.state import FederationState
from shoal.storage.errors import ShoalError

MakeConfig = Callable[..., Config]
HOLD = """
import sys
from shoal.engine.records.run_folder import RunFolder, run_path
from shoal.engine.config.config import load_config
folder = RunFolder(run_path(load_config(sys.argv[1])))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def config_of(configure: MakeConfig, tmp_path: Path) -> MakeConfig:
    return lambda **keys: configure(
        {"run.root": str(tmp_path), **{name.replace("__", "."): value for name, value in keys.items()}}
    )


@pytest.fixture
def folder(config_of: MakeConfig) -> Iterator[RunFolder]:
    folder = RunFolder(run_path(config_of()))
    yield folder
    folder.close()


def line(number: int, **more: Any) -> dict[str, Any]:
    return {"round": number, "loss": 0.1 * number, **more}


def test_its_name_is_of_the_keys_that_change_numbers(config_of: MakeConfig, tmp_path: Path) -> None:
    path = run_path(config_of())
    assert path.parent == tmp_path
    assert path.name.startswith("small-")
    assert len(path.name) == len("small-") + 8
    assert run_path(config_of(engine__hosts=7, run__keep=5, resources__server_cpus=1.0)) == path
    others = {
        run_path(config_of(**{key: value}))
        for key, value in {"seed": 1, "train__lr": 0.5, "engine__threads": 2, "resources__server_gpus": 0.5}.items()
    }
    assert len(others | {path}) == 5


def test_run_path_of_another_version_of_numbers_differs(config_of: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run_path(config_of())
    monkeypatch.setattr(run_identity, "NUMBERS", run_identity.NUMBERS + 1)
    assert run_path(config_of()) != path


def test_run_path_user_method_counts_by_content(config_of: MakeConfig, tmp_path: Path) -> None:
    names = []
    for place, text in (("one", "a = 1"), ("other", "a = 1"), ("other", "a = 2")):
        file = tmp_path / place / "mine.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        names.append(run_path(config_of(algorithm__name=f"{file}:Mine")))
    assert names[0] == names[1] != names[2]
    assert run_path(config_of(algorithm__name=f"{tmp_path}/other/mine.py:Other")) not in names
    with pytest.raises(ShoalError, match=r"algorithm\.name: .*gone\.py cannot be read"):
        run_path(config_of(algorithm__name=f"{tmp_path}/gone.py:Mine"))


def test_one_writer_at_a_time(folder: RunFolder, config_of: MakeConfig) -> None:
    line = f"^{folder.path}: another run of this config is writing here; wait for it or change name or run.root$"
    with pytest.raises(ShoalError, match=line):
        RunFolder(run_path(config_of()))
    folder.close()
    RunFolder(run_path(config_of())).close()
    other = RunFolder(run_path(config_of(seed=1)))
    other.close()


def test_a_writer_that_was_killed_holds_nothing(config_of: MakeConfig, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config_of().plain()))
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ShoalError, match="another run"):
            RunFolder(run_path(config_of()))
        holder.kill()
        holder.wait()
        RunFolder(run_path(config_of())).close()


def test_a_folder_that_cannot_be_made(config_of: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ShoalError, match=r"cannot be made: .*; set run\.root to a folder that can be written$"):
        RunFolder(run_path(config_of(run__root=str(tmp_path / "file"))))


def test_warnings_go_to_the_log_while_it_is_open(folder: RunFolder) -> None:
    logging.getLogger("shoal").warning("host 1 is back")
    folder.close()
    logging.getLogger("shoal").warning("too late")
    text = (folder.path / LOG).read_text()
    assert "WARNING host 1 is back" in text
    assert "too late" not in text


def test_a_log_on_a_full_disk_ends_nothing(config_of: MakeConfig, capsys: pytest.CaptureFixture[str]) -> None:
    path = run_path(config_of())
    path.mkdir()
    (path / LOG).symlink_to("/dev/full")
    folder = RunFolder(run_path(config_of()))
    logging.getLogger("shoal").warning("host 1 is back")
    folder.close()
    assert capsys.readouterr().err == ""


def test_started_and_finished(folder: RunFolder, config_of: MakeConfig) -> None:
    folder.begin(config_of())
    assert load_config(folder.path) == config_of()
    assert not folder.started
    folder.metrics.append(line(1))
    assert folder.started
    assert not folder.finished
    folder.summarize({"rounds": 1, "scopes": {}})
    assert folder.finished
    assert read_summary(folder.path) == {"rounds": 1, "scopes": {}}
    assert not list(folder.path.glob("*.unfinished"))


def test_checkpoints_without_metrics_are_a_run_that_has_started(folder: RunFolder) -> None:
    (folder.checkpoints / "round-000003").mkdir(parents=True)
    assert folder.started


def test_unreadable_folder_is_not_missing(config_of: MakeConfig) -> None:
    folder = RunFolder(run_path(config_of()))
    folder.close()
    for name in (SUMMARY, METRICS):
        (folder.path / name).symlink_to(name)
    assert folder.finished
    assert folder.started
    with pytest.raises(ShoalError, match=rf"{SUMMARY}: cannot be read: Too many levels of symbolic links"):
        read_summary(folder.path)
    (folder.path / METRICS).unlink()
    folder.checkpoints.symlink_to(CHECKPOINTS)
    with pytest.raises(ShoalError, match=r"checkpoints: the checkpoints cannot be read: Too many levels"):
        _ = folder.started


def test_a_fresh_start_forgets_all_but_the_config(folder: RunFolder, config_of: MakeConfig) -> None:
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


def test_the_config_of_a_run_is_as_it_was_written(folder: RunFolder, config_of: MakeConfig) -> None:
    folder.begin(config_of())
    file = folder.path / CONFIG
    text = file.read_text()
    for changed in (text.replace("seed: 0", "seed: 1", 1), text[: text.index("# seal")], text[: len(text) // 2], ""):
        file.write_text(changed)
        with pytest.raises(ShoalError, match=rf"^{file}: not as the run wrote it; copy it out of the run folder"):
            load_config(folder.path)


def test_a_summary_without_nan(folder: RunFolder) -> None:
    with pytest.raises(ShoalError, match=r"summary\.json: NaN or infinity in the summary; not written"):
        folder.summarize({"scopes": {"served": float("nan")}})
    assert not folder.finished


def test_a_summary_is_as_it_was_written(folder: RunFolder) -> None:
    with pytest.raises(ShoalError, match=rf"^{folder.path}: no readable summary\.json, so no finished run"):
        read_summary(folder.path)
    folder.summarize({"accuracy": 0.81})
    file = folder.path / SUMMARY
    text = file.read_text()
    for changed, fault in (
        (text.replace("0.81", "0.91"), "changed since it was written"),
        (text[:10], "damaged"),
        ("", "damaged"),
        (json.dumps({"accuracy": 0.81}), "changed since it was written"),
    ):
        file.write_text(changed)
        with pytest.raises(ShoalError, match=rf"^{file}: {fault}.*; delete it, and --resume writes it again"):
            read_summary(folder.path)


@pytest.mark.parametrize("write", ["begin", "summarize"])
def test_full_disk_keeps_earlier_files(folder: RunFolder, config_of: MakeConfig, write: str) -> None:
    def call() -> None:
        folder.begin(config_of()) if write == "begin" else folder.summarize({"rounds": 1})

    call()
    file = folder.path / {"begin": CONFIG, "summarize": SUMMARY}[write]
    before = file.read_bytes()
    file.with_name(file.name + ".unfinished").symlink_to("/dev/full")
    with pytest.raises(ShoalError, match=rf"^{file}: cannot be written: No space left on device; free space"):
        call()
    assert file.read_bytes() == before
    assert not os.path.lexists(file.with_name(file.name + ".unfinished"))


def test_changed_keys(folder: RunFolder, config_of: MakeConfig) -> None:
    folder.begin(config_of())
    changed = config_of(train__lr=0.5, engine__hosts=9, participation__count=2, algorithm__weight="train", name="other")
    assert changed_keys(changed, folder.path) == [
        "algorithm.weight (None -> train)",
        "participation.count (None -> 2)",
        "train.lr (0.01 -> 0.5)",
    ]
    assert changed_keys(config_of(engine__hosts=9), folder.path) == []


def test_changed_keys_fill_what_an_older_config_lacks_with_defaults(folder: RunFolder, config_of: MakeConfig) -> None:
    folder.begin(config_of())
    path = folder.path / CONFIG
    older = [line for line in path.read_text().splitlines() if "inductive" not in line and "server_gpus" not in line]
    path.write_text("\n".join(older))
    assert changed_keys(config_of(), folder.path) == []
    assert changed_keys(config_of(data__inductive=True), folder.path) == ["data.inductive (False -> True)"]


def test_changed_keys_read_earlier_names(folder: RunFolder, config_of: MakeConfig) -> None:
    folder.begin(config_of())
    path = folder.path / CONFIG
    path.write_text(path.read_text().replace("trainer: auto", "path: loop"))
    assert changed_keys(config_of(engine__trainer="autograd"), folder.path) == []
    assert changed_keys(config_of(), folder.path) == ["engine.trainer (autograd -> auto)"]


def test_changed_contents(config_of: MakeConfig, tmp_path: Path) -> None:
    """A file counts by what is in it, not by its name."""
    trace, moved = tmp_path / "trace.npy", tmp_path / "moved.npy"
    trace.write_text("1")
    config = config_of(participation__trace=str(trace))
    folder = RunFolder(run_path(config))
    folder.begin(config)
    kept = Checkpoint(FederationState(round=1), {}, {"participation.trace": "another digest"}, "")
    checkpoint.save(folder.checkpoints, kept, keep=1)
    folder.close()
    assert changed_keys(config, folder.path) == []
    assert changed_contents(config, folder.path) == ["the content of participation.trace"]
    trace.rename(moved)
    assert run_path(config_of(participation__trace=str(moved))) == folder.path
    moved.write_text("2")
    assert run_path(config_of(participation__trace=str(moved))) != folder.path
    with pytest.raises(ShoalError, match=rf"^participation\.trace: {trace}: cannot be read: No such file"):
        run_path(config)


def test_unfinished_runs_of_the_same_name(config_of: MakeConfig) -> None:
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
