"""Classes of a notebook and of a program in the place of `my_file.py:Name`."""

import linecache
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from rooms import ROOT
from support.errors import refused

import shoal
from shoal.storage.user_code.notebook_class import spec_of

CELLS = (
    "import torch as t\nfrom torch import nn\nimport shoal\nSLOPE = 0.25\nx = t.ones(3)",
    "def bent(z):\n    return t.where(z > 0, z, SLOPE * z)",
    """class Bent(shoal.Backbone):
    def __init__(self, features: int, *, hidden: int = 4):
        super().__init__(width=hidden)
        self.linear = nn.Linear(features, hidden)

    def forward(self, x, edge_index):
        return bent(self.linear(x))

class Bound(shoal.Backbone):
    def forward(self, z, edge_index):
        return z + x
""",
)


KERNEL = (
    *CELLS,
    "from dataclasses import dataclass\nimport numpy as np",
    """@dataclass(frozen=True)
class Turns(shoal.Partitioner):
    turns: int = 1

    def assign(self, graph, clients, rng):
        return np.arange(graph.nodes) * self.turns % clients

@dataclass
class Stop(shoal.Callback):
    at: int = 3

    def after_round(self, run, line):
        if line["round"] == self.at:
            run.stop("enough")""",
    """config = {
    "name": "kernel",
    "rounds": 3,
    "evaluation": {"every": 1},
    "data": {"dataset": "sbm", "options": {"nodes": 90}, "root": "data"},
    "partition": {"method": Turns, "clients": 3, "options": {"turns": 2}},
    "model": {"name": Bent, "hidden": 5},
    "algorithm": "fedavg",
    "callbacks": [{"name": Stop, "at": 2}],
    "engine": {"backend": "ray", "hosts": 2},
    "resources": {"cpus_per_host": 0.3},
}
there = shoal.run(config)
here = shoal.run({**config, "engine": {"backend": "local"}, "run": {"root": "here"}})
print(there.summary["rounds"], there.summary["stopped"], there.path.name == here.path.name)
print("same losses:", there.metrics["loss"].to_pylist() == here.metrics["loss"].to_pylist())""",
    """class Wrong(shoal.Backbone):
    def __init__(self, features: int):
        super().__init__(width=features)
        self.linear = nn.Linear(features, features)

    def forward(self, x, edge_index):
        return self.linear(x) / nothing""",
    """try:
    shoal.run({**config, "model": {"name": Wrong}})
except shoal.ShoalError as error:
    print(error)""",
)


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The variables of a notebook after its cells, whose texts are in no file."""
    monkeypatch.chdir(tmp_path)
    module = ModuleType("a_notebook")
    monkeypatch.setitem(sys.modules, "a_notebook", module)
    for number, cell in enumerate(CELLS):
        name = f"<cell {number}>"
        linecache.cache[name] = (len(cell), None, cell.splitlines(keepends=True), name)
        exec(compile(cell, name, "exec"), vars(module))
    yield vars(module)
    for number in range(len(CELLS)):
        del linecache.cache[f"<cell {number}>"]


def test_a_class_of_a_notebook_runs_and_is_kept(notebook: dict[str, Any], elsewhere: dict[str, Any]) -> None:
    found = shoal.run({**elsewhere, "model": {"name": notebook["Bent"], "hidden": 5}})
    (kept,) = (found.path / "code").glob("*/Bent.py")
    text = kept.read_text()
    assert "SLOPE = 0.25" in text
    assert "x = " not in text
    # With a value that the class uses it is another run; with the same, this one.
    same = shoal.load_config({**elsewhere, "model": {"name": notebook["Bent"], "hidden": 5}})
    assert shoal.run(same).path == found.path
    notebook["SLOPE"] = 0.5
    other = shoal.run({**elsewhere, "model": {"name": notebook["Bent"], "hidden": 5}})
    assert other.path != found.path
    assert other.metrics.column("loss") != found.metrics.column("loss")


def test_a_class_of_a_file_is_its_file(tmp_path: Path) -> None:
    assert spec_of(shoal.Backbone, tmp_path).endswith("algorithms/models/user/user_model.py:Backbone")


def test_class_without_source_is_refused(notebook: dict[str, Any], tmp_path: Path) -> None:
    with refused(says="Bound: there is no text of x (Tensor)"):
        spec_of(notebook["Bound"], tmp_path)

    class Within:
        pass

    with refused(says="is defined within another"):
        spec_of(Within, tmp_path)


@pytest.mark.slow
def test_cells_of_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in KERNEL])
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = "".join(output.get("text", "") for cell in notebook.cells for output in cell["outputs"])
    assert "2 enough True\n" in said
    assert "same losses: True\n" in said
    assert "/Wrong.py, line 11: NameError: name 'nothing' is not defined\n" in said
