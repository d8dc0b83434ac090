"""Runs in which few clients can train: what is said on the screen, in tables and on pages, and what is refused."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.errors import refused
from support.fixtures import Make, Refused, Status
from support.small_runs import small_run
from support.user_graph import user_graph

from shoal.engine.config.config import parse_config
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.dry_run import expected
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import run as run_config
from shoal.pages.report import report
from shoal.storage.options.split_codes import TEST, TRAIN
from shoal.study.study import Study
from shoal.sweeps.sweep import Sweep
from shoal.tables.study_table import Layout, table_of

NODES, CLIENTS = 96, 12
# A method that learns without labels, and one that replaces nothing of the training.
OWN = """
from dataclasses import dataclass
from shoal.algorithms.methods.fedavg import FedAvg

@dataclass(frozen=True)
class WithoutLabels(FedAvg):
    def train(self, client, received, trainer, phase):
        return 0.0

@dataclass(frozen=True)
class ByLabels(FedAvg):
    pass
"""


@pytest.fixture
def plain(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Plain values of a config of twelve clients, node n of client n % 12; in some of them two nodes each train."""

    def make(trained: int, **changes: Any) -> dict[str, Any]:
        nodes = np.arange(NODES)
        client = nodes % CLIENTS
        split = np.where((client < trained) & (nodes < 2 * CLIENTS), TRAIN, TEST).astype(np.int8)
        path = user_graph(tmp_path, NODES, f"graph{trained}", assignment=client, split=split)
        data = {"dataset": "files", "path": path, "split": "public", "options": {}, **changes.pop("data", {})}
        partition = {"method": "file", "clients": CLIENTS}
        return small_run(tmp_path, **{"data": data, "partition": partition, "rounds": 1, **changes})

    return make


def screen_of(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Returns the lines of standard output and error since the last call, each on one line."""
    captured = capsys.readouterr()
    return captured.out, captured.err


@pytest.mark.parametrize(("trained", "said"), [(6, ""), (5, "7 of 12")])
def test_a_run_says_how_many_clients_cannot_train(
    trained: int, said: str, plain: Make, status: Status, capsys: pytest.CaptureFixture[str],
    config_file: Refused,
) -> None:  # fmt: skip
    """Where it is more than half of them: before the first round, below the last table, and on the page."""
    assert status("run", config_file(plain(trained))) == 0
    out, err = screen_of(capsys)
    line = f"{said} clients have no training node and never train ({2 * trained} training nodes in all)"
    folder = re.search(r"(?m)^folder: (.+)$", out)
    assert folder
    if not said:
        assert "never train" not in out + err
        assert "untrained" not in read_summary(Path(folder[1]))
        return
    assert re.search(rf"(?m)^train  +{re.escape(line)}$", err)
    assert line in out.splitlines()
    page = report([Path(folder[1])], None, kinds=("svg",)).read_text()
    assert f'<p class="alarm" role="alert">{line.replace("node", "item")}</p>' in page


@pytest.fixture
def config_file(tmp_path: Path) -> Refused:
    """Writes plain values to a file, and gives its path."""

    def write(values: dict[str, Any]) -> str:
        path = tmp_path / "few.yaml"
        path.write_text(yaml.safe_dump(values))
        return str(path)

    return write


def test_a_run_of_which_nearly_nobody_trains_is_refused(plain: Make) -> None:
    """Before it has a folder; a key of `data` lets it pass, and changes neither its name nor its identity."""
    config = parse_config(plain(1), "test")
    with refused("data.split", says="public: 11 of 12 clients have no training node"):
        run_config(config)
    plan = RunPlan.of(config)
    assert not plan.folder.exists()
    meant = parse_config(plain(1, data={"allow_untrained": True}), "test")
    assert RunPlan.of(meant).folder == plan.folder
    assert read_summary(run_config(meant))["untrained"] == {"clients": 11, "among": 12, "items": 2}


def test_only_clients_that_may_train_are_counted(plain: Make) -> None:
    """Those that are left out are not; nor are clients of a method that trains the whole graph as one."""
    without = {"participation": {"without": list(range(6, 12))}}
    folder = run_config(parse_config(plain(2, **without), "test"))
    assert read_summary(folder)["untrained"] == {"clients": 4, "among": 6, "items": 4}
    whole = plain(1, algorithm={"name": "global"})
    assert "untrained" not in read_summary(run_config(parse_config(whole, "test")))
    newcomers = parse_config(plain(3, data={"newcomers": 0.25}), "test")
    absent = RunPlan.of(newcomers).rounds.absent
    trained = len({0, 1, 2} - set(absent))
    counts = {"clients": 9 - trained, "among": 9, "items": 2 * trained}
    assert read_summary(run_config(newcomers))["untrained"] == counts


def test_a_method_that_replaces_training_is_not_refused(plain: Make, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    config = parse_config(plain(1, algorithm={"name": f"{tmp_path / 'mine.py'}:WithoutLabels"}), "test")
    assert read_summary(run_config(config))["untrained"]["clients"] == 11
    with refused("data.split"):
        run_config(parse_config(plain(1, algorithm={"name": f"{tmp_path / 'mine.py'}:ByLabels"}), "test"))


def test_items_of_other_tasks_are_counted(configure: Make, graph_task: dict[str, Any], tmp_path: Path) -> None:
    """Graphs in place of nodes: the last of six clients, which alone takes part, has none to train on."""
    keys = {**graph_task, "rounds": 1, "participation.without": [0, 1, 2, 3, 4], "run.root": str(tmp_path)}
    with refused("data.split", says="1 of 1 clients have no training graph"):
        run_config(configure(keys))


def test_a_dry_run_says_it_and_refuses_it(plain: Make) -> None:
    """Exactly of a store, and of a graph as far as the number of training nodes tells."""
    config = parse_config(plain(2), "test")
    line = "10 of 12 clients have no training node and never train (4 training nodes in all)"
    assert expected(RunPlan.of(config)).rows["train"] == line.replace("10", "at least 8", 1)
    run_config(config)
    assert expected(RunPlan.of(config)).rows["train"] == line
    # Two training nodes may be of two clients, and are of one.
    few = RunPlan.of(parse_config(plain(1), "test"))
    assert "at least 10 of 12" in expected(few).rows["train"]
    few.prepare()
    with refused("data.split", says="11 of 12"):
        expected(few)
    assert "train" not in expected(RunPlan.of(parse_config(plain(12), "test"))).rows


def test_a_sweep_says_it_and_refuses_it_before_its_first_run(
    plain: Make, config_file: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config_file(plain(2))
    sweep = Sweep(Study(path, ["algorithm=local,fedavg", "seed=0,1"]))
    assert sweep.go()
    line = "10 of 12 clients have no training node and never train (4 training nodes in all)"
    assert capsys.readouterr().err.count(line) == 1
    assert line.replace("node", "item") in table_of(sweep.rows, Layout()).notes
    page = report([sweep.folder], None, kinds=("svg",)).read_text()
    assert line.replace("node", "item") in page
    few = config_file(plain(1))
    sweep = Sweep(Study(few, ["algorithm=local,fedavg"]))
    with refused("algorithm local", says="11 of 12 clients have no training node"):
        sweep.go()
    assert not any(row.path.exists() for row in sweep.rows)
