"""Classes of a notebook's cells in a real kernel, on two hosts of Ray as in the kernel itself."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from rooms import ROOT

CELLS = (
    "from dataclasses import dataclass\nimport numpy as np\nimport torch\nfrom torch import nn\nimport shoal",
    "SLOPE = 0.25",
    "def bent(z):\n    return torch.where(z > 0, z, SLOPE * z)",
    """class Bent(shoal.Backbone):
    def __init__(self, features: int, *, hidden: int = 4):
        super().__init__(width=hidden)
        self.linear = nn.Linear(features, hidden)

    def forward(self, x, edge_index):
        return bent(self.linear(x))""",
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


@pytest.mark.slow
def test_cells_of_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = "".join(output.get("text", "") for cell in notebook.cells for output in cell["outputs"])
    assert "2 enough True\n" in said
    assert "same losses: True\n" in said
    assert "/Wrong.py, line 11: NameError: name 'nothing' is not defined\n" in said
