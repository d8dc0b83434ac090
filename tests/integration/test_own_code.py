"""Code of one's own, from outside of the repository: run anywhere, kept with the run, told apart when edited."""

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml
from integration.runs import Runs, until
from rooms import ROOT
from safetensors.numpy import load_file

from shoal.engine.config.config import Config, load_config, parse_config
from shoal.engine.preparing.checks import require_known
from shoal.engine.preparing.identity import store_path
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import run_path
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run
from shoal.storage.errors import ShoalError

NAMES = {"model": "Residual", "partitioner": "ByDegree", "dataset": "Moons", "method": "TrimmedMean"}
# So many that a kill comes in the midst of them.
ROUNDS = 15


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The examples, as a user's own files."""
    shutil.copytree(ROOT / "examples", tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture
def plain(own: Path, tmp_path: Path) -> dict[str, Any]:
    place = {what: f"{own / what}.py:{name}" for what, name in NAMES.items()}
    return {
        "name": "same",
        "rounds": ROUNDS,
        "data": {"dataset": place["dataset"], "options": {"nodes": 240}},
        "partition": {"method": place["partitioner"], "clients": 6},
        "propagation": {"hops": 1},
        "train": {"epochs": 10},
        "model": {"name": place["model"], "hidden": 8},
        "algorithm": {"name": place["method"], "trim": 0.2},
        "participation": {"ratio": 0.9},
        "evaluation": {"every": 5},
    }


def last(folder: Path) -> dict[str, bytes]:
    """The state after the last round."""
    state = load_file(folder / "checkpoints" / f"round-{ROUNDS:06d}" / "state.safetensors")
    return {name: tensor.tobytes() for name, tensor in state.items()}


def test_killed_edited_and_resumed_on_two_hosts(own: Path, plain: dict[str, Any], tmp_path: Path) -> None:
    whole, killed = (Runs(_made(tmp_path / name), tmp_path / "data", **plain) for name in ("whole", "killed"))
    before = whole.here()
    process = killed.start()
    until(lambda: killed.rounds() >= 4, process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert killed.rounds() < ROUNDS
    interrupted = killed.run

    # The file is another one now, and so is its run; that of before goes on with what it keeps.
    model = own / "model.py"
    text = model.read_text()
    model.write_text(text.replace("h = h + self.dropout", "h = 2 * h + self.dropout"))
    edited = load_config(killed.config)
    assert run_path(edited) != interrupted
    assert store_path(edited) == store_path(load_config(interrupted))
    shutil.rmtree(own)
    resumed = run(load_config(interrupted, ["engine.backend=ray", "engine.hosts=2"]), resume=True)
    assert resumed == interrupted
    assert last(resumed) == last(before)
    assert [line["loss"] for line in read_metrics(resumed)] == [line["loss"] for line in read_metrics(before)]

    exported = [export(folder) for folder in (before, resumed)]
    predictions = [(folder / "predictions.arrow").read_bytes() for folder in exported]
    assert predictions[0] == predictions[1]
    kept = next((resumed / "code").glob("*/model.py"))
    assert kept.read_text() == text
    # With the text as it was, elsewhere, it is the same run.
    shutil.copytree(ROOT / "examples", tmp_path / "moved")
    moved = yaml.safe_load(killed.config.read_text().replace(str(own), str(tmp_path / "moved")))
    assert run_path(parse_config(moved, "moved")) == interrupted


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_a_model_of_hops_and_a_readout(own: Path, tmp_path: Path) -> None:
    common = {
        "name": "own",
        "rounds": 2,
        "partition": {"method": "random", "clients": 3},
        "algorithm": {"name": "fedavg"},
        "engine": {"backend": "local"},
        "run": {"root": str(tmp_path / "runs"), "tensorboard": False},
    }
    nodes = {"dataset": "sbm", "root": str(tmp_path), "options": {"nodes": 90, "features": 6, "classes": 3}}
    several = [{"name": f"{own / 'model.py'}:HopAttention", "hidden": 8}, {"name": "gcn", "hidden": 8}]
    found = run(
        parse_config(common | {"data": nodes, "model": several, "algorithm": {"name": "fedproto"}}, "several models")
    )
    assert len(read_metrics(found)) == 2
    graphs = {"dataset": "sbm-graphs", "root": str(tmp_path), "options": {"graphs": 40, "features": 6, "classes": 2}}
    gin = {"name": "gin", "hidden": 8, "readout": f"{own / 'readout.py'}:MeanAndMax"}
    of_graphs = run(parse_config(common | {"data": graphs, "model": gin, "task": "graph"}, "graphs"))
    assert (load_config(of_graphs).model.options["readout"]).startswith(str(of_graphs / "code"))  # type: ignore
    shutil.rmtree(own)
    assert (export(of_graphs) / "predictions.arrow").exists()
    assert (export(found) / "predictions.arrow").exists()


MODEL = """
import torch
from torch import nn
import shoal

class Mine(shoal.Backbone):
    def __init__(self, features: int, *, hidden: int = 4):
        super().__init__(width=hidden)
        self.linear = nn.Linear(features, hidden)

    def forward(self, x, edge_index):
        return self.linear(x)
"""
PARTITIONER = """
import numpy as np
import shoal

class Mine(shoal.Partitioner):
    def assign(self, graph, clients, rng):
        return np.arange(graph.nodes) % clients
"""
DATASET = """
import numpy as np
import shoal

class Mine(shoal.Dataset):
    def __init__(self, *, nodes: int = 60):
        self.nodes = nodes

    def load(self, root):
        ring = np.arange(self.nodes)
        x = np.ones((self.nodes, 2))
        return {"edge_index": np.stack([ring, (ring + 1) % self.nodes]), "x": x, "y": ring % 2}
"""


@pytest.mark.parametrize(
    ("key", "text", "old", "new", "line"),
    [
        ("model.name", MODEL, "import torch\n", "import nothing_like_it\n", "line 2: fails while it is read: Module"),
        ("model.name", MODEL, "class Mine", "class Other", "mine.py: has no class Mine; it has Other"),
        ("model.name", MODEL, "(shoal.Backbone)", "(nn.Module)", "line 6: a class Mine is no model; derive"),
        (
            "model.name",
            MODEL,
            "features: int,",
            "features: int, depth: int,",
            "Mine: nothing is given for depth",
        ),
        ("model.name", MODEL, "hidden: int = 4", "hidden = 4", "Mine: option hidden needs a type and a default"),
        ("model.name", MODEL, "width=hidden", "width=None", "Mine.width must be a number of columns, found None"),
        ("model.name", MODEL, "nn.Linear(features, hidden)", "nn.Linear(1 / 0)", "line 9: ZeroDivisionError"),
        (
            "model.name",
            MODEL,
            "nn.Linear(features",
            "nn.BatchNorm1d(features",
            "keeps linear.running_mean, which is no",
        ),
        ("model.name", MODEL, "self.linear(x)", "self.linear(x)[1:]", "Mine.forward must give a tensor ["),
        ("model.name", MODEL, "self.linear(x)", "self.linear(edge_index)", "line 12: RuntimeError: mat1 and mat2"),
        ("model.name", MODEL, "def forward", "def backward", "Mine has no forward(self, x, edge_index)"),
        ("partition.method", PARTITIONER, "% clients", "% (clients + 1)", "row 3 is client 3, not in -1..2"),
        ("partition.method", PARTITIONER, "% clients", "% 2", "client 2 gets nothing; every client needs an item"),
        ("partition.method", PARTITIONER, "graph.nodes)", "9)", "must give integers [60], found int64 [9]"),
        ("partition.method", PARTITIONER, "graph.nodes", "graph.edges", "line 7: AttributeError: 'Graph'"),
        ("partition.method", PARTITIONER, "(shoal.Partitioner)", "", "Mine is no partitioner; derive it from"),
        (
            "partition.method",
            PARTITIONER,
            "return ",
            "graph.y[0] = 1; return ",
            "line 7: ValueError: assignment destin",
        ),
        ("data.dataset", DATASET, '"y": ring % 2', '"z": ring', "load gives 'z', which is none of edge_index, x, y"),
        ("data.dataset", DATASET, '"y": ring % 2', '"y": ring[1:]', "y: shape [59], but x has 60 rows"),
        ("data.dataset", DATASET, "np.ones(", "np.nan * np.ones(", "x: row 0 of the features has NaN"),
        ("data.dataset", DATASET, "np.ones(", "np.once(", "line 11: AttributeError"),
        ("data.dataset", DATASET, "(shoal.Dataset)", "", "Mine is no dataset; derive it from shoal.Dataset"),
        ("data.dataset", DATASET, "nodes: int", "points: int", "data.options.nodes: unknown; Mine has points"),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, key: str, text: str, old: str, new: str, line: str) -> None:
    assert old in text
    file = tmp_path / "mine.py"
    file.write_text(text.replace(old, new))
    plain: dict[str, Any] = {
        "name": "wrong",
        "rounds": 1,
        "data": {"dataset": "sbm", "root": str(tmp_path), "options": {"nodes": 60}},
        "partition": {"method": "random", "clients": 3},
        "propagation": {"hops": 1},
        "model": {"name": "sgc"},
        "algorithm": {"name": "fedavg"},
        "engine": {"backend": "local"},
        "run": {"root": str(tmp_path / "runs"), "tensorboard": False},
    }
    section, name = key.split(".")
    plain[section][name] = f"{file}:Mine"
    with pytest.raises(ShoalError) as caught:
        run(parse_config(plain, "wrong"))
    said = str(caught.value)
    assert line in said
    assert "\n" not in said
    assert str(file) in said or said.startswith("data.options.nodes")
    assert_traceback_is_kept(caught.value, tmp_path / "runs", file)


def assert_traceback_is_kept(error: ShoalError, runs: Path, file: Path) -> None:
    """The traceback, where there is one, is in the log that the error names."""
    if error.detail:
        (log,) = runs.glob("*/run.log")
        assert error.log == log
        assert "Traceback (most recent call last)" in log.read_text()
        # What is looked at after it was given has no line of its own.
        assert f'File "{file}", line ' in log.read_text() or "must give" in str(error)
    else:
        assert error.log is None


CALLBACK = """
from dataclasses import dataclass
import shoal

@dataclass
class Mine(shoal.Callback):
    when: str = ""

    def __post_init__(self):
        self._fail("made")

    def start(self, run):
        self._fail("start")

    def after_round(self, run, line):
        self._fail("round")

    def _fail(self, now):
        if now == self.when:
            raise RuntimeError(f"no {now}")
"""
READOUT = """
from torch import nn

class Mine(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.made = 1

    def forward(self, x, index, dim_size):
        return x[dim_size + len(x)]
"""


@pytest.mark.parametrize(
    ("when", "line"),
    [
        ("made", "callbacks: HERE, line 20: RuntimeError: no made"),
        ("start", "callbacks: HERE:Mine: HERE, line 20, in start(): RuntimeError: no start"),
        ("round", "callbacks: HERE:Mine: HERE, line 20, in after_round(): RuntimeError: no round"),
        ("forward", "round 1, client 0: model.readout: HERE, line 10: IndexError: index "),
        ("module", "model.readout: HERE, line 7: NameError: name 'one' is not defined"),
    ],
)
def test_mistakes_of_callbacks_and_readouts_are_one_line(tmp_path: Path, when: str, line: str) -> None:
    file, of_callback = tmp_path / "mine.py", when in ("made", "start", "round")
    file.write_text(CALLBACK if of_callback else READOUT.replace("= 1", "= one") if when == "module" else READOUT)
    plain: dict[str, Any] = {
        "name": "wrong",
        "rounds": 1,
        "data": {
            "dataset": "sbm-graphs",
            "root": str(tmp_path),
            "options": {"graphs": 20, "features": 4, "classes": 2},
        },
        "task": "graph",
        "partition": {"method": "random", "clients": 2},
        "model": {"name": "gin", "hidden": 4},
        "algorithm": {"name": "fedavg"},
        "engine": {"backend": "local"},
        "run": {"root": str(tmp_path / "runs"), "tensorboard": False},
    }
    if of_callback:
        plain["callbacks"] = [{"name": f"{file}:Mine", "when": when}]
    else:
        plain["model"]["readout"] = f"{file}:Mine"
    with pytest.raises(ShoalError) as caught:
        run(parse_config(plain, "wrong"))
    said = str(caught.value)
    assert said.startswith(line.replace("HERE", str(file)))
    assert "\n" not in said
    assert_traceback_is_kept(caught.value, tmp_path / "runs", file)


def test_options_of_a_partitioner_are_those_of_its_store(own: Path, tmp_path: Path) -> None:
    def with_options(**options: Any) -> Config:
        data = {"dataset": "sbm", "root": str(tmp_path), "options": {"nodes": 90, "degree": 5.0}}
        partition = {"method": f"{own / 'partitioner.py'}:ByDegree", "clients": 3, "options": options}
        return parse_config({"name": "x", "data": data, "partition": partition, "algorithm": "fedavg"}, "x.yaml")

    plain, turned = with_options(), with_options(descending=True)
    assert len({store_path(plain), store_path(turned), store_path(with_options(descending=False))}) == 3
    assert len({run_path(plain), run_path(turned)}) == 2
    first, last = ([client.entries for client in prepare(config).manifest.clients] for config in (plain, turned))
    assert first[0] < first[2]
    assert last[0] > last[2]
    # By the dotted key, too, as a sweep does; and what is wrong is said before the graph is read.
    partitioner = f"partition.method={own / 'partitioner.py'}:ByDegree"
    config = tmp_path / "x.yaml"
    config.write_text("{name: x, data: {dataset: sbm}, algorithm: fedavg, partition: {clients: 3}}")
    assert load_config(config, [partitioner, "partition.options.descending=true"]).partition == turned.partition
    for wrong, line in (
        ({"decending": True}, "decending: unknown; ByDegree has descending; did you mean 'descending'?"),
        ({"descending": 1}, "descending: Input should be a valid boolean, found 1"),
    ):
        with pytest.raises(ShoalError) as caught:
            require_known(with_options(**wrong))
        assert str(caught.value) == f"partition.options.{line}"
    with pytest.raises(ShoalError, match=r"partition: options are for my_file\.py:Name; metis reads the keys beside"):
        load_config(config, ["partition.options.descending=true"])


@pytest.mark.parametrize(
    ("fields", "options", "line"),
    [
        ("    most: int\n", {}, "partition.options.most: missing"),
        ("    most: 'Unknown' = 1\n", {}, "line 7: the types of Mine cannot be found: NameError"),
        ("    most: int = 'x'\n", {}, "line 7: the default of Mine.most: Input should be a valid integer"),
        (
            "    most: int = 1\n    def __post_init__(self):\n        raise ValueError('odd')\n",
            {},
            "line 10: ValueError: odd",
        ),
        (None, {"most": 1}, "line 5: Mine has no options; write @dataclass(frozen=True) above it, and fields"),
    ],
)
def test_wrong_options_of_a_partitioner(tmp_path: Path, fields: str | None, options: Any, line: str) -> None:
    text = PARTITIONER
    if fields is not None:
        head = "from dataclasses import dataclass\n\n@dataclass(frozen=True)\nclass Mine(shoal.Partitioner):\n" + fields
        text = text.replace("\nclass Mine(shoal.Partitioner):\n", head)
    (tmp_path / "mine.py").write_text(text)
    partition = {"method": f"{tmp_path}/mine.py:Mine", "clients": 3, "options": options}
    plain = {"name": "x", "data": {"dataset": "sbm"}, "partition": partition, "algorithm": "fedavg"}
    with pytest.raises(ShoalError) as caught:
        require_known(parse_config(plain, "x"))
    assert line in str(caught.value)


def test_a_file_that_is_not_there_and_a_name_that_is_none(tmp_path: Path) -> None:
    plain = {
        "name": "x",
        "data": {"dataset": "sbm"},
        "algorithm": "fedavg",
        "model": {"name": f"{tmp_path}/no.py:Mine"},
    }
    with pytest.raises(ShoalError, match=rf"model\.name: {tmp_path}/no\.py cannot be read: No such file"):
        run_path(parse_config(plain, "x"))
    with pytest.raises(ShoalError, match=r"partition\.method: Input should be 'metis'"):
        parse_config({**plain, "partition": {"method": "mine.py"}}, "x")
