"""A run in which some clients miss rounds shows the server's model first, and says what the other scores are of."""

import re
from pathlib import Path

import pytest
from support.small_runs import small_run

from shoal.engine.config.config import parse_config
from shoal.engine.records.run_folder import read_summary
from shoal.engine.records.summary import OF_SOME
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import run
from shoal.engine.screen.tables import show_rounds, show_run


@pytest.mark.parametrize(
    ("keys", "one_model"),
    [
        ({}, "all"),
        ({"participation": {"ratio": 0.5}}, "some"),
        ({"participation": {"count": 4}}, "all"),
        ({"participation": {"count": 3}, "algorithm": "fedprox"}, "some"),
        ({"participation": {"ratio": 0.5}, "algorithm": "local"}, ""),
        ({"participation": {"ratio": 0.5}, "algorithm": "fedgta"}, ""),
        ({"participation": {"ratio": 0.5}, "algorithm": "lg_fedavg", "model": "gcn"}, ""),
        ({"algorithm": "global"}, ""),
    ],
)
def test_methods_with_one_model(tmp_path: Path, keys: dict[str, object], one_model: str) -> None:
    assert RunPlan.of(parse_config(small_run(tmp_path, **keys), "x.yaml")).one_model == one_model


@pytest.mark.parametrize(("ratio", "first", "shown"), [(0.5, "global", True), (1.0, "deployed", False)])
def test_first_score_and_last_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ratio: float, first: str, shown: bool
) -> None:
    plain = small_run(tmp_path, participation={"ratio": ratio}, rounds=3)
    folder = run(parse_config(plain, "x.yaml"))
    said = capsys.readouterr().err
    (line,) = [line for line in said.splitlines() if "3/3 rounds" in line]
    assert re.search(r" s left, (\w+) val ", line)[1] == first  # type: ignore[index]
    assert read_summary(folder)["one_model"] == ("some" if shown else "all")
    show_run(folder)
    assert (OF_SOME in capsys.readouterr().out) == shown
    show_rounds(folder)
    (head,) = [line for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("round ")]
    assert head.split()[3:6] == ["trained", "deployed", "global"]
