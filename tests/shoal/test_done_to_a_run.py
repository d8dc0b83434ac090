"""What is done to a run stands in its head and in its last lines, there with the command that shows more."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.fixtures import Refused, Status
from support.needs import needs
from support.small_runs import small_run
from support.user_graph import user_graph

from shoal.engine.config.config import load_config
from shoal.engine.records.run_folder import read_summary
from shoal.engine.sections.sections import SECTIONS, find_bounding
from shoal.pages.report import report
from shoal.study.study import Study
from shoal.sweeps.sweep import Sweep

STAGE = """
from dataclasses import dataclass
import shoal

@dataclass
class Half(shoal.Stage):
    by: float = 0.5
"""
ONE = r"[0-3]"
# By feature: keys, subject, what is said of it, and the command behind; models have 101 * 3 parameters.
SAID: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "asynchronous": (
        {"schedule": {"name": "fedbuff", "buffer": 2, "concurrency": 3}},
        "schedule",
        r"fedbuff, a step takes 2 uploads in simulated time; one that is s steps stale counts \(1 \+ s\)\^-0\.5",
        "shoal clock {run}",
    ),
    "availability": (
        {"participation": {"dropout": 0.25, "availability": {"kind": "periodic", "period": 4, "share": 0.75}}},
        "availability",
        r"clients are online 75 % of 4 rounds \(periodic\); one that is drawn drops out with chance 0\.25",
        "shoal explain participation.availability",
    ),
    "compression": (
        {"communication": {"upload": "topk", "ratio": 0.1}},
        "compression",
        r"topk, the largest 10 % of the numbers of each change, what is left unsent comes later; "
        r"240 B in place of the 1\.2 KiB of a model",
        "shoal explain communication",
    ),
    "cross_edges": (
        {"data": {"cross_edges": "hops", "cross_share": 0.5}},
        "cross edges",
        "hops run over 50 % of the edges between clients",
        "shoal explain data.cross_edges",
    ),
    "hostile": (
        {"attack": {"kind": "sign_flip", "share": 0.25, "scale": 2.0}},
        "attack",
        rf"1 of 4 clients, by sign_flip \(scale 2\): {ONE}",
        "shoal explain attack",
    ),
    "newcomers": (
        {"data": {"newcomers": 0.3}},
        "newcomers",
        rf"1 of 4 clients come after training: {ONE}",
        "shoal explain data.newcomers",
    ),
    "noise": (
        {"data": {"noise": {"labels": 0.5}}},
        "noise",
        r"50 % of training labels \(seed 0\)",
        "shoal explain data.noise",
    ),
    "privacy": (
        {"privacy": {"unit": "client", "noise": 2.0, "clip": 0.5, "delta": 0.01}},
        "privacy",
        r"epsilon [\d.]+ of a client \(all its data replaced\), delta 0\.01; noise 2, clip 0\.5",
        "shoal privacy {run}",
    ),
    "robust": (
        {"aggregation": {"kind": "trimmed", "share": 0.25}},
        "reduction",
        "trimmed mean in place of the mean of a round, against 25 % hostile clients",
        "shoal explain aggregation",
    ),
    "selection": (
        {"participation": {"selection": "power_of_choice", "count": 1, "candidates": 3}},
        "selection",
        "clients of a round by power_of_choice, among 3 candidates",
        "shoal explain participation.selection",
    ),
    "secure": (
        {"secure": {"kind": "masks", "threshold": 0.75}},
        "secure",
        r"the server reads sums alone, hidden by masks \(simulated\); a round counts where 75 % of the clients drawn "
        "answer",
        "shoal privacy {run}",
    ),
    "targets": (
        {"target": {"kind": "regression", "scale": "client"}},
        "target",
        "regression by squared errors; training sees numbers standardised over the training items of each client, "
        "scores are in their units",
        "shoal explain target",
    ),
    "users": (
        {"stages": [{"name": "mine.py:Half", "by": 0.25}]},
        "stages",
        r"mine\.py:Half \(by 0\.25\), on uploads",
        "shoal explain stages",
    ),
}


@pytest.fixture
def config_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Writes a config of two rounds, with sections changed, into the working directory, and gives its name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(STAGE)

    def write(changes: dict[str, Any]) -> str:
        options = {"nodes": 120, "features": 100, "classes": 3}
        data = {"options": options, **changes.get("data", {})}
        plain = small_run(tmp_path, **{"rounds": 2, **changes, "data": data})
        if "target" in changes:
            y = np.random.default_rng(0).standard_normal(120)
            plain["data"] = {"root": str(tmp_path), "dataset": "files", "path": user_graph(tmp_path, 120, y=y)}
        (tmp_path / "small.yaml").write_text(yaml.safe_dump(plain))
        return "small.yaml"

    return write


def test_every_feature_that_acts_on_a_run_says_so() -> None:
    """Digests of uploads, which are read and stay as they are, are no act."""
    assert {section.feature for section in SECTIONS if not section.says} <= {"digests"}
    names = {"communication": "compression", "attack": "hostile", "aggregation": "robust", "stages": "users"}
    assert {names.get(section.feature, section.feature) for section in SECTIONS if section.says} <= SAID.keys()


@pytest.mark.parametrize("feature", [pytest.param(feature, marks=needs(feature)) for feature in SAID])
def test_head_and_last_lines_say_what_is_done_to_a_run(
    feature: str,
    config_of: Refused,
    status: Status,
    capsys: pytest.CaptureFixture[str],
) -> None:
    keys, subject, text, more = SAID[feature]
    assert status("run", config_of(keys)) == 0
    out, err = capsys.readouterr()
    (folder,) = re.findall(r"(?m)^folder: (.+)$", out)
    assert re.search(rf"(?m)^{subject} +{text}$", err), err
    command = more.format(run=folder)
    assert re.search(rf"(?m)^{subject}: {text}; more: {re.escape(command)}$", out), out
    assert status(*command.split()[1:]) == 0


def test_a_plain_run_says_nothing(config_of: Refused, status: Status, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("run", config_of({})) == 0
    out, err = capsys.readouterr()
    assert "; more: " not in out
    subjects = "|".join(subject for _, subject, _, _ in SAID.values())
    assert not re.search(rf"(?m)^({subjects}) ", err)


@needs("privacy")
def test_last_lines_have_epsilon_of_the_rounds_that_were_trained(
    config_of: Refused, status: Status, capsys: pytest.CaptureFixture[str]
) -> None:
    """A callback ends a run of 200 rounds early; its page says the same."""
    keys = {**SAID["privacy"][0], "rounds": 200, "callbacks": [{"name": "early_stopping", "patience": 2}]}
    assert status("run", config_of(keys)) == 0
    out, err = capsys.readouterr()
    (folder,) = re.findall(r"(?m)^folder: (.+)$", out)
    config, summary = load_config(Path(folder)), read_summary(Path(folder))
    bounding = find_bounding(config)
    assert bounding
    from shoal.engine.sections.section import load

    after_all, after_some = (load(bounding.epsilon)(config, rounds) for rounds in (200, summary["rounds"]))
    assert summary["rounds"] < 100
    said = [float(re.search(r"epsilon ([\d.]+)", text)[1]) for text in (err, out)]  # type: ignore[index]
    assert said == [pytest.approx(after_all, rel=5e-3), pytest.approx(after_some, rel=5e-3)]
    assert f"epsilon {after_some:.3g} of a client" in report([Path(folder)], None, kinds=("svg",)).read_text()


@needs("hostile", "robust")
def test_a_sweep_says_what_its_runs_share(config_of: Refused, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_of(SAID["hostile"][0])
    sweep = Sweep(Study(path, ["aggregation=mean,median", "seed=0,1"]))
    assert sweep.go()
    err = capsys.readouterr().err
    assert len(re.findall(rf"(?m)^attack +{SAID['hostile'][2]}$", err)) == 1
    assert len(re.findall(r"(?m)^reduction +1 of 2 combinations: median in place of the mean of a round$", err)) == 1
    page = " ".join(re.sub(r"<[^>]+>", " ", report([sweep.folder], None, kinds=("svg",)).read_text()).split())
    assert len(re.findall(rf"\bAttack {SAID['hostile'][2]}", page)) == 1
    assert "Reduction none; median in place of the mean of a round" in page
