"""The folder of a run: one writer, what a kill leaves of it, and which runs are the same."""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.records.run_folder import (
    CONFIG,
    LOG,
    METRICS,
    SUMMARY,
    RunFolder,
    changed_keys,
    read_metrics,
    read_summary,
    run_path,
    unfinished_relatives,
)
from engine.settings.config import Config, load_config
from storage.errors import ShoalError

MakeConfig = Callable[..., Config]
HOLD = """
import sys
from engine.records.run_folder import RunFolder
from engine.settings.config import load_config
folder = RunFolder(load_config(sys.argv[1]))
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
    folder = RunFolder(config_of())
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


def test_a_method_of_ones_own_counts_with_its_text_and_not_with_its_place(
    config_of: MakeConfig, tmp_path: Path
) -> None:
    names = []
    for place, text in (("one", "a = 1"), ("other", "a = 1"), ("other", "a = 2")):
        file = tmp_path / place / "mine.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        names.append(run_path(config_of(algorithm__name=f"{file}:Mine")))
    assert names[0] == names[1] != names[2]
    with pytest.raises(ShoalError, match=r"algorithm\.name: .*gone\.py cannot be read"):
        run_path(config_of(algorithm__name=f"{tmp_path}/gone.py:Mine"))


def test_one_writer_at_a_time(folder: RunFolder, config_of: MakeConfig) -> None:
    line = f"^{folder.path}: another run of this config is writing here; wait for it or change name or run.root$"
    with pytest.raises(ShoalError, match=line):
        RunFolder(config_of())
    folder.close()
    RunFolder(config_of()).close()
    other = RunFolder(config_of(seed=1))
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
            RunFolder(config_of())
        holder.kill()
        holder.wait()
        RunFolder(config_of()).close()


def test_a_folder_that_cannot_be_made(config_of: MakeConfig, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ShoalError, match=r"cannot be made: .*; set run\.root to a folder that can be written$"):
        RunFolder(config_of(run__root=str(tmp_path / "file")))


def test_warnings_go_to_the_log_while_it_is_open(folder: RunFolder) -> None:
    logging.getLogger("engine").warning("host 1 is back")
    folder.close()
    logging.getLogger("engine").warning("too late")
    text = (folder.path / LOG).read_text()
    assert "WARNING host 1 is back" in text
    assert "too late" not in text


def test_started_and_finished(folder: RunFolder, config_of: MakeConfig) -> None:
    folder.begin(config_of())
    assert load_config(folder.path) == config_of()
    assert not folder.started
    folder.append(line(1))
    assert folder.started
    assert not folder.finished
    folder.summarize({"rounds": 1, "scopes": {}})
    assert folder.finished
    assert read_summary(folder.path) == {"rounds": 1, "scopes": {}}
    assert not list(folder.path.glob("*.unfinished"))


def test_a_restart_forgets_all_but_the_config(folder: RunFolder, config_of: MakeConfig) -> None:
    folder.begin(config_of())
    folder.append(line(1))
    folder.summarize({})
    for name in ("checkpoints", "tensorboard", "export"):
        (folder.path / name).mkdir()
        (folder.path / name / "file").touch()
    folder.restart()
    assert {path.name for path in folder.path.iterdir()} <= {CONFIG, ".lock"}
    # Also where nothing is left.
    folder.restart()


def test_metrics_are_cut_to_the_checkpoint(folder: RunFolder) -> None:
    lines = [line(number, scopes={"served": {"val": {"nodes": 0.1}}}) for number in range(1, 6)]
    for one in lines:
        folder.append(one)
    with (folder.path / METRICS).open("a") as f:
        f.write('{"round": 6, "lo')
    assert read_metrics(folder.path) == lines
    folder.cut_metrics(3)
    assert read_metrics(folder.path) == lines[:3]
    folder.append(line(4))
    assert [one["round"] for one in read_metrics(folder.path)] == [1, 2, 3, 4]
    folder.cut_metrics(0)
    assert read_metrics(folder.path) == []


def test_a_damaged_line_in_the_middle_is_named(folder: RunFolder) -> None:
    (folder.path / METRICS).write_text(f'{json.dumps(line(1))}\n{{"round": 2, "lo\n{json.dumps(line(3))}\n')
    with pytest.raises(ShoalError, match=rf"^{folder.path / METRICS}: line 2 is damaged; delete it, or run again with"):
        read_metrics(folder.path)


def test_nothing_logged_and_no_summary(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
    with pytest.raises(ShoalError, match=rf"^{tmp_path}: no readable summary\.json, so no finished run"):
        read_summary(tmp_path)
    (tmp_path / SUMMARY).write_text("{")
    with pytest.raises(ShoalError, match="no finished run"):
        read_summary(tmp_path)


def test_changed_keys(folder: RunFolder, config_of: MakeConfig) -> None:
    folder.begin(config_of())
    changed = config_of(train__lr=0.5, engine__hosts=9, participation__count=2, algorithm__weight="train", name="other")
    assert changed_keys(changed, folder.path) == [
        "algorithm.weight (None -> train)",
        "participation.count (None -> 2)",
        "train.lr (0.01 -> 0.5)",
    ]
    assert changed_keys(config_of(engine__hosts=9), folder.path) == []


def test_unfinished_runs_of_the_same_name(config_of: MakeConfig) -> None:
    def left(**keys: Any) -> RunFolder:
        folder = RunFolder(config_of(**keys))
        folder.begin(config_of(**keys))
        folder.append(line(1))
        folder.close()
        return folder

    unfinished, finished, own = left(seed=1), left(seed=2), left()
    finished.summarize({})
    left(seed=1, name="small-other")
    # One that was killed before its first round has nothing to go on from.
    early = RunFolder(config_of(seed=3))
    early.begin(config_of(seed=3))
    early.close()
    assert unfinished_relatives(config_of()) == [unfinished.path]
    assert unfinished_relatives(config_of(seed=1)) == [own.path]
