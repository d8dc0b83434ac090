"""The notebook runs from its first cell to its figure, as a new user would run it."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from rooms import ROOT

NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def test_notebook_runs_to_its_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs of a machine are not kept"
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    texts = "".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in said)
    assert "train.learning_rate: unknown key" in texts
    assert "notebook: 6/6 rounds" in texts
    assert "finished)" in texts
    assert [output for output in said if "image/png" in output.get("data", {})]
    # Two data frames of a run, one of the sweep.
    assert sum("text/html" in output.get("data", {}) for output in said) >= 3
    assert len(list((tmp_path / "runs").glob("notebook-*/summary.json"))) == 2
