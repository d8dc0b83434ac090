"""Code of one's own, from outside of the repository: run anywhere, kept with the run, told apart when edited."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from integration.runs import Runs, last_state
from rooms import ROOT
from support.errors import refused
from support.small_runs import small_run

from shoal.engine.config.config import Config, load_config, parse_config
from shoal.engine.preparing.checks import require_known
from shoal.engine.preparing.identity import store_path
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import run_path
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run
from shoal.storage.errors import ShoalError

NAMES = {"model": "Residual", "partitioner": "ByDegree", "dataset": "Moons", "method": "TrimmedMean", "metric": "ECE"}
ROUNDS = 4
GRAPHS: dict[str, Any] = {
    "task": "graph",
    "data": {"dataset": "sbm-graphs", "options": {"graphs": 40, "features": 4, "classes": 2}},
    "partition": {"clients": 3, "method": "random"},
}


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The examples, as a user's own files."""
    shutil.copytree(ROOT / "examples", tmp_path / "own")
    return tmp_path / "own"


@pytest.fixture
def plain(own: Path) -> dict[str, Any]:
    place = {what: f"{own / what}.py:{name}" for what, name in NAMES.items()}
    return {
        "rounds": ROUNDS,
        "data": {"dataset": place["dataset"], "options": {"nodes": 240}},
        "partition": {"method": place["partitioner"], "clients": 6},
        "propagation": {"hops": 1},
        "train": {"epochs": 3},
        "model": {"name": place["model"], "hidden": 8},
        "algorithm": {"name": place["method"], "trim": 0.2},
        "participation": {"ratio": 0.9},
        "evaluation": {"every": 2, "metrics": ["accuracy", place["metric"]]},
    }


def test_stopped_edited_and_resumed(own: Path, plain: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    (tmp_path / "stopped").mkdir()
    whole, stopped = (Runs(tmp_path / name, tmp_path / "data", **plain) for name in ("whole", "stopped"))
    before = whole.here()
    with pytest.raises(KeyboardInterrupt):
        run(load_config(stopped.config, ["run.max_seconds=1e-9"]))
    interrupted = stopped.run

    # The file is another one now, and so is its run; that of before goes on with what it keeps.
    model = own / "model.py"
    text = model.read_text()
    model.write_text(text.replace("h = h + self.dropout", "h = 2 * h + self.dropout"))
    edited = load_config(stopped.config)
    assert run_path(edited) != interrupted
    assert store_path(edited) == store_path(load_config(interrupted))
    shutil.rmtree(own)
    resumed = run(load_config(interrupted, ["run.max_seconds=null"]), resume=True)
    assert resumed == interrupted
    assert last_state(resumed, ROUNDS) == last_state(before, ROUNDS)
    assert [line["loss"] for line in read_metrics(resumed)] == [line["loss"] for line in read_metrics(before)]

    exported = [export(folder) for folder in (before, resumed)]
    predictions = [(folder / "predictions.arrow").read_bytes() for folder in exported]
    assert predictions[0] == predictions[1]
    kept = next((resumed / "code").glob("*/model.py"))
    assert kept.read_text() == text
    # With the text as it was, elsewhere, it is the same run.
    shutil.copytree(ROOT / "examples", tmp_path / "moved")
    moved = yaml.safe_load(stopped.config.read_text().replace(str(own), str(tmp_path / "moved")))
    assert run_path(parse_config(moved, "moved")) == interrupted


def test_dataset_of_the_guide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its masks are read by `data.split: public`, or it is said that they are not; other content is another dataset."""
    text = (ROOT / "docs" / "extending.md").read_text()
    source = text.split("## A dataset")[1].split("```python\n")[1].split("```")[0]
    assert len(source.splitlines()) <= 30
    (tmp_path / "folder.py").write_text(source)
    rng = np.random.default_rng(0)
    y, rows = rng.integers(2, size=100), tmp_path / "mine-rows.npz"
    np.save(tmp_path / "mine-edges.npy", rng.integers(100, size=(2, 300)))
    np.savez(rows, x=y[:, None] + rng.standard_normal((100, 3)), y=y)

    def config(**data: Any) -> Config:
        data = {"dataset": f"{tmp_path / 'folder.py'}:Folder", "root": str(tmp_path), "options": {}, **data}
        return parse_config({**small_run(tmp_path, partition={"clients": 2, "method": "random"}), "data": data}, "own")

    unread = "data.split stratified: the split of the data is not read; public takes it"
    run(config())
    assert unread in capsys.readouterr().err
    folder = run(config(split="public"))
    printed = capsys.readouterr().err
    assert "split public: 60 train, 20 validation, 20 test nodes" in printed
    assert unread not in printed
    run(config(split="public"))
    assert "already finished" in capsys.readouterr().err
    np.savez(rows, x=y[:, None] + rng.standard_normal((100, 3)), y=y)
    with refused(str(folder), says=f"the file {rows} changed since this run started; restore the content"):
        run(config(split="public"))
    fresh = run(config(split="public"), fresh=True)
    assert fresh == folder
    assert "split public: 60 train" in capsys.readouterr().err
    # Those of a finished run may be gone.
    rows.unlink()
    (tmp_path / "mine-edges.npy").unlink()
    assert run(config(split="public")) == folder


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "two.py").write_text(TWO_FILES)
    fingerprints = []
    for number in (0, 1, 2):
        for place in ("a", "b"):
            (tmp_path / place).mkdir(exist_ok=True)
            np.save(tmp_path / place / "x.npy", np.full((4, 1), float(number if place == "a" else 0)))
        data = {"dataset": f"{tmp_path / 'two.py'}:Two", "root": str(tmp_path)}
        fingerprints.append(store_path(parse_config({**small_run(tmp_path), "data": data}, "own")))
    assert len(set(fingerprints)) == 3


TWO_FILES = """
import numpy as np
import shoal

class Two(shoal.Dataset):
    def files(self, root):
        return [root / "a" / "x.npy", root / "b" / "x.npy"]

    def load(self, root):
        return {"edge_index": np.array([[0, 1], [1, 2]]), "x": np.load(self.files(root)[0]), "y": np.arange(4) % 2}
"""


def test_a_model_of_hops_and_a_readout(own: Path, tmp_path: Path) -> None:
    several = [{"name": f"{own / 'model.py'}:HopAttention", "hidden": 8}, {"name": "gcn", "hidden": 8}]
    found = run(parse_config(small_run(tmp_path, model=several, algorithm={"name": "fedproto"}), "several models"))
    assert len(read_metrics(found)) == 3
    gin = {"name": "gin", "hidden": 8, "readout": f"{own / 'readout.py'}:MeanAndMax"}
    of_graphs = run(parse_config(small_run(tmp_path, **GRAPHS, model=gin), "graphs"))
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


# An object with attributes, in place of a mapping.
OBJECT = """def load(self, root):
        from types import SimpleNamespace
        return SimpleNamespace(edge_attr=1, **self.arrays(root))

    def arrays(self, root):"""


MISTAKES = {
    ("model.name", MODEL): [
        ("import torch\n", "import nothing_like_it\n", "line 2: fails while it is read: Module"),
        ("class Mine", "class Other", "mine.py: has no class Mine; it has Other"),
        ("(shoal.Backbone)", "(nn.Module)", "line 6: a class Mine is no model; derive"),
        ("features: int,", "features: int, depth: int,", "Mine: nothing is given for depth"),
        ("hidden: int = 4", "hidden = 4", "Mine: option hidden needs a type and a default"),
        ("width=hidden", "width=None", "Mine.width must be a number of columns, found None"),
        ("nn.Linear(features, hidden)", "nn.Linear(1 / 0)", "line 9: ZeroDivisionError"),
        ("nn.Linear(features", "nn.BatchNorm1d(features", "keeps linear.running_mean, which is no"),
        ("self.linear(x)", "self.linear(x)[1:]", "Mine.forward must give a tensor ["),
        ("self.linear(x)", "self.linear(edge_index)", "line 12: RuntimeError: mat1 and mat2"),
        ("def forward", "def backward", "Mine has no forward(self, x, edge_index)"),
    ],
    ("partition.method", PARTITIONER): [
        ("% clients", "% (clients + 1)", "row 3 is client 3, not in -1..2"),
        ("% clients", "% 2", "client 2 gets nothing; every client needs an item"),
        ("graph.nodes)", "9)", "must give integers [60], found int64 [9]"),
        ("graph.nodes", "graph.edges", "line 7: AttributeError: 'Graph'"),
        ("(shoal.Partitioner)", "", "Mine is no partitioner; derive it from"),
        ("return ", "graph.y[0] = 1; return ", "line 7: ValueError: assignment destin"),
    ],
    ("data.dataset", DATASET): [
        ('"y": ring % 2', '"z": ring', "load gives 'z', which is none of edge_index, x, y"),
        ("def load(self, root):", OBJECT, "edge_attr: must be a tensor or an array, found int"),
        ('"y": ring % 2', '"y": ring[1:]', "y: shape [59], but x has 60 rows"),
        ("np.ones(", "np.nan * np.ones(", "x: row 0 of the features has NaN"),
        ("np.ones(", "np.once(", "line 11: AttributeError"),
        ("(shoal.Dataset)", "", "Mine is no dataset; derive it from shoal.Dataset"),
        ("nodes: int", "points: int", "data.options.nodes: unknown; Mine has points"),
    ],
}


@pytest.mark.parametrize(
    ("key", "text", "old", "new", "line"),
    [(*of, *mistake) for of, mistakes in MISTAKES.items() for mistake in mistakes],
)
def test_mistakes_are_one_line(tmp_path: Path, key: str, text: str, old: str, new: str, line: str) -> None:
    assert old in text
    file = tmp_path / "mine.py"
    file.write_text(text.replace(old, new))
    section, name = key.split(".")
    plain = small_run(tmp_path, rounds=1, partition={"clients": 3}, data={"options": {"nodes": 60}})
    plain[section] |= {name: f"{file}:Mine"}
    said = mistake(plain, tmp_path / "runs", file)
    assert line in said
    assert str(file) in said or said.startswith("data.options.nodes")


def mistake(plain: dict[str, Any], runs: Path, file: Path) -> str:
    """The line that a run ends with; its traceback, where there is one, is in the log that the error names."""
    with pytest.raises(ShoalError) as caught:
        run(parse_config(plain, "wrong"))
    error = caught.value
    if error.detail:
        (log,) = runs.glob("*/run.log")
        assert error.log == log
        assert "Traceback (most recent call last)" in log.read_text()
        # What is looked at after it was given has no line of its own.
        assert f'File "{file}", line ' in log.read_text() or "must give" in str(error)
    else:
        assert error.log is None
    return error.line


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
    plain = small_run(tmp_path, **GRAPHS, rounds=1, model={"name": "gin", "hidden": 4})
    if of_callback:
        plain["callbacks"] = [{"name": f"{file}:Mine", "when": when}]
    else:
        plain["model"]["readout"] = f"{file}:Mine"
    assert mistake(plain, tmp_path / "runs", file).startswith(line.replace("HERE", str(file)))


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
    for wrong in ({"decending": True}, {"descending": 1}):
        with refused(f"partition.options.{next(iter(wrong))}"):
            require_known(with_options(**wrong))
    with refused("command line", "partition.options", says="is for partition.method my_file.py:Name, found metis"):
        load_config(config, ["partition.options.descending=true"])


RAISES = "    def __post_init__(self):\n        raise ValueError('odd')\n"


@pytest.mark.parametrize(
    ("fields", "options", "line"),
    [
        ("    most: int\n", {}, "partition.options.most: missing"),
        ("    most: 'Unknown' = 1\n", {}, "line 7: the types of Mine cannot be found: NameError"),
        ("    most: int = 'x'\n", {}, "line 7: the default of Mine.most: expected a whole number"),
        (f"    most: int = 1\n{RAISES}", {}, "line 10: ValueError: odd"),
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
    with refused(says=line):
        require_known(parse_config(plain, "x"))


def test_a_file_that_is_not_there_and_a_name_that_is_none(tmp_path: Path) -> None:
    with refused("model.name", says="cannot be read"):
        run_path(parse_config(small_run(tmp_path, model={"name": f"{tmp_path}/no.py:Mine"}), "x"))
    with refused("partition.method"):
        parse_config(small_run(tmp_path, partition={"method": "mine.py"}), "x")
