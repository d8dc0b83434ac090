"""A run of more rounds goes on from one of fewer with the bits of a run of all rounds, or says why it cannot."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.small_runs import small_run
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from shoal.engine.config.config import Config, parse_config
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import RunFolder, read_summary, run_path
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import run, take_over
from shoal.kept_run import Run

KEPT = {"checkpoint_every": 1, "keep": 2, "keep_best": True, "keep_records": True, "tensorboard": True}


def small(folder: Path, rounds: int, root: str = "runs", run: dict[str, Any] = KEPT, **changes: Any) -> Config:
    return parse_config(
        small_run(folder, rounds=rounds, run={**run, "root": str(folder / root)}, **changes), "a small run"
    )


def files(folder: Path, *kinds: str) -> dict[str, bytes]:
    """Tensors of checkpoints, best rounds and records, by their paths."""
    found = [path for kind in kinds for path in folder.rglob(f"{kind}/**/*.safetensors")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    ("changes", "resumed_after"),
    [
        ({"participation": {"ratio": 0.5}, "algorithm": {"name": "fedgta"}}, 3),
        # The third round was evaluated only because it was the last.
        ({"evaluation": {"every": 2}}, 2),
        # Or evaluated whole.
        ({"evaluation": {"every": 1, "clients": "cohort"}, "participation": {"ratio": 0.5}}, 2),
        # Or as any other round.
        ({"evaluation": {"every": 1, "clients": "cohort", "last": "sample"}, "participation": {"ratio": 0.5}}, 3),
        ({"evaluation": {"every": 2, "last": "none"}}, 2),
        ({"train": {"schedule": {"name": "ExponentialLR", "gamma": 0.5}}}, 3),
    ],
)
def test_more_rounds_end_with_the_bits_of_all_rounds(
    tmp_path: Path, changes: Any, resumed_after: int, capsys: pytest.CaptureFixture[str]
) -> None:
    shorter = run(small(tmp_path, 3, **changes))
    longer = run(small(tmp_path, 5, **changes), resume=True)
    said = capsys.readouterr().err
    assert f"{shorter}: the run of 3 rounds goes on to 5 in {longer}" in said
    assert f"resuming after round {resumed_after}" in said
    assert said.count("for run.keep_best the best round") == 2 * ("clients" in changes.get("evaluation", {}))
    whole = run(small(tmp_path, 5, "others", **changes))
    assert files(longer, "checkpoints", "best", "records") == files(whole, "checkpoints", "best", "records")
    assert files(longer, "checkpoints")
    assert files(longer, "best")
    own, others = (
        [(line["round"], line["loss"], line.get("scopes")) for line in read_metrics(of)] for of in (longer, whole)
    )
    assert own == others
    events = EventAccumulator(str(longer / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3, 4, 5]
    assert Run(longer).clients.equals(Run(whole).clients)
    assert read_summary(longer)["scopes"] == read_summary(whole)["scopes"]
    # The shorter run is as it was.
    assert run(small(tmp_path, 3, **changes)) == shorter
    assert len(read_metrics(shorter)) == 3


COUNTS = """
from dataclasses import dataclass
from shoal import Callback

@dataclass
class Counts(Callback):
    def after_round(self, run, line):
        print(run.rounds - line["round"])
"""


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ({"algorithm": "fedkd"}, {}, "fedkd reads the number of rounds"),
        ({"callbacks": ["{folder}/counts.py:Counts"]}, {}, "counts.py:Counts reads the number of rounds"),
        (
            {"train": {"schedule": {"name": "CosineAnnealingLR", "T_max": 3}}},
            {"train": {"schedule": {"name": "CosineAnnealingLR", "T_max": 5}}},
            "train.schedule, a file that it reads, or the version of Shoal is another",
        ),
        ({}, {}, "none of its checkpoints can be used"),
        ({}, {"seed": 1}, None),
        ({}, {"rounds": 2}, None),
    ],
)
def test_more_rounds_name_the_shorter_run_that_cannot_go_on(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], says: str | None
) -> None:
    (tmp_path / "counts.py").write_text(COUNTS)
    if "callbacks" in before:
        before = {"callbacks": [f"{tmp_path}/counts.py:Counts"]}
    shorter, plan = small(tmp_path, 3, **before), RunPlan.of(small(tmp_path, **{"rounds": 5, **before, **after}))
    with closing(RunFolder(run_path(shorter))) as folder:
        folder.begin(shorter)
    with closing(RunFolder(plan.folder)) as folder:
        found = take_over(plan, folder)
        assert not folder.started
    named = f"{run_path(shorter)}: the run of 3 rounds cannot go on to 5: "
    assert found == (f"{plan.folder}: nothing to resume" if says is None else found)
    assert says is None or (str(found).startswith(named) and str(found).endswith(says))
