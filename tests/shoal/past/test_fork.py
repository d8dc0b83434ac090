"""A fork shares the first rounds of its parent, and ends with its bits where no option changed."""

import html
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.errors import refused
from support.needs import needs
from support.same_runs import require_same_runs
from support.small_runs import run_small, stopped_after
from support.started_at_once import start_at_once

from shoal.engine.config.config import load_config
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import parent_of, read_summary
from shoal.engine.runs.run import run
from shoal.kept.listing import compare, kept_in, make_tables
from shoal.pages.report import report
from shoal.past.fork import fork
from shoal.storage.errors import ShoalError

# Uploads that are made again are compared with their digests.
pytestmark = needs("digests")
KEPT = {"checkpoint_every": 1, "keep": 9, "keep_digests": True, "keep_records": True}


def made(folder: Path, **changes: Any) -> Path:
    plain = {"participation": {"ratio": 0.5}, "rounds": 5, "algorithm": {"name": "fedgta"}, "run": KEPT}
    return run_small(folder, **{**plain, **changes})


def test_a_fork_without_changes_has_the_bits_of_the_run_and_trains_no_shared_round(
    tmp_path: Path, rounds_trained: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = made(tmp_path)
    rounds_trained.clear()
    forked = fork(whole, 3, [])
    assert rounds_trained == [4, 5]
    assert "was changed or cut off" not in capsys.readouterr().err
    require_same_runs(whole, forked)
    assert parent_of(forked) == {"run": str(whole), "round": 3}
    shared = [folder / "checkpoints/round-000003/state.safetensors" for folder in (whole, forked)]
    assert shared[0].stat().st_ino == shared[1].stat().st_ino
    assert read_metrics(forked)[:3] == read_metrics(whole)[:3]
    seconds = [line["seconds"]["round"] for line in read_metrics(forked)]
    assert read_summary(forked)["seconds"]["rounds"] == pytest.approx(sum(seconds[3:]))
    assert read_summary(whole)["seconds"]["rounds"] > sum(seconds[:3])


def test_a_fork_of_a_round_without_checkpoint_says_what_it_trains(
    tmp_path: Path, rounds_trained: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    whole = made(tmp_path, run={**KEPT, "checkpoint_every": 2})
    rounds_trained.clear()
    forked = fork(whole, 3, [])
    assert "from the checkpoint of round 2; rounds 3 to 3 are trained once more" in capsys.readouterr().err
    assert rounds_trained == [3, 4, 5]
    require_same_runs(whole, forked)


def test_a_fork_with_another_rate_parts_behind_its_round(tmp_path: Path) -> None:
    whole = made(tmp_path)
    forked = fork(whole, 3, ["train.lr=0.2", "rounds=6", "participation.ratio=1.0"])
    assert read_metrics(forked)[:3] == read_metrics(whole)[:3]
    assert [len(line["cohort"]) for line in read_metrics(forked)] == [2, 2, 2, 4, 4, 4]
    said = "\n".join(table.text() for table in compare(whole, forked))
    assert "rounds: equal up to round 3; in the next" in said
    text = "\n".join(table.text() for table in make_tables(list(kept_in(tmp_path / "runs"))))
    assert f"fork of {whole.name} after round 3" in text


def test_a_fork_that_was_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole = made(tmp_path)
    with stopped_after(4, ShoalError("killed")), pytest.raises(ShoalError, match="killed"):
        fork(whole, 3, [])
    require_same_runs(whole, fork(whole, 3, []))


@pytest.mark.parametrize(
    "changes",
    [
        ["train.lr=0.2", "rounds=6", "name=mine"],
        pytest.param(["algorithm=fedprox", "algorithm.mu=0.3"], marks=pytest.mark.slow),
        pytest.param([], marks=pytest.mark.slow),
    ],
)
def test_the_command_of_a_forks_page_makes_the_fork_again(tmp_path: Path, changes: list[str]) -> None:
    whole = made(tmp_path, algorithm={"name": "fedavg"})
    forked = fork(whole, 3, changes)
    page = report([forked], None, kinds=("svg",)).read_text()
    (command,) = re.findall(r'<pre class="command">(.*?)</pre>', page)
    _, verb, parent, _, number, *words = shlex.split(html.unescape(command))
    assert (verb, Path(parent)) == ("fork", whole)
    assert fork(Path(parent), int(number), words) == forked


def test_what_cannot_change_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    whole = made(tmp_path, algorithm={"name": "fedavg"})
    for change in ("data.split_seed=3", "partition.clients=5", "model.hidden=8", "seed=1", "propagation.hops=2"):
        with refused(change.partition("=")[0]):
            fork(whole, 3, [change])
    with refused("algorithm.name"):
        fork(whole, 3, ["algorithm=local"])
    with refused("rounds"):
        fork(whole, 3, ["rounds=3"])
    with refused(whole, "--round"):
        fork(whole, 6, [])
    assert [path.name for path in (tmp_path / "runs").iterdir() if path.name.startswith("small-")] == [whole.name]


def test_a_fork_without_its_parent_goes_on_and_a_new_one_names_it(tmp_path: Path) -> None:
    whole = made(tmp_path)
    forked = fork(whole, 3, [])
    (forked / "summary.json").unlink()
    shutil.rmtree(whole)
    with refused(whole, says="no run is here"):
        fork(whole, 3, [])
    # As its own folder says all of it, it needs no parent any more.
    assert run(load_config(forked), resume=True) == forked
    assert len(read_metrics(forked)) == 5


def test_of_two_forks_into_one_folder_one_is_refused_or_all_is_the_same(tmp_path: Path) -> None:
    whole = made(tmp_path)
    expected = fork(whole, 3, ["name=alone"])
    ended = start_at_once(tmp_path, 2, ["fork", str(whole), "--round", "3", "name=both"], ["shoal.past.fork"])
    assert 0 in {status for status, _ in ended}
    assert all(status == 0 or "another run of this config is writing here" in said for status, said in ended)
    (both,) = (tmp_path / "runs").glob("both-*")
    require_same_runs(both, expected)


def test_a_fork_never_starts_over(tmp_path: Path) -> None:
    whole = made(tmp_path)
    other = made(tmp_path, name="other")
    forked = fork(whole, 3, ["name=mine"])
    with refused(forked, says="another name"):
        fork(other, 3, ["name=mine"])
    with refused(forked, "--fresh"):
        run(load_config(whole, ["name=mine"]), fresh=True)
    assert len(read_metrics(forked)) == 5
    (forked / "summary.json").unlink()
    for path in (forked / "checkpoints").rglob("state.json"):
        path.write_text("{}")
    with pytest.raises(ShoalError, match="no checkpoint can be used"):
        fork(whole, 3, ["name=mine"])
