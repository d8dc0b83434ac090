"""The examples run as a new user would run them: the notebook to its figure, the callback from any folder."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from rooms import ROOT
from support.small_runs import small_run

import shoal

NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def config(folder: Path, **keys: Any) -> shoal.Config:
    plain = small_run(folder, name="example", rounds=8, propagation={"hops": 3}, train={"lr": 0.002})
    return shoal.load_config(plain, **keys)


def test_callback_ends_the_run_at_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the round that its metrics say, after a resume, too."""
    whole = shoal.run(config(tmp_path)).metrics
    reached = whole["deployed.val.nodes"].to_pylist()
    wanted = (reached[0] + max(reached)) / 2
    first = next(number for number, value in enumerate(reached, 1) if value >= wanted)
    assert 1 < first < 8
    monkeypatch.chdir(ROOT)
    mine = [{"name": "examples/stop_at_accuracy.py:StopAt", "accuracy": wanted}]
    stopped = shoal.run(config(tmp_path, callbacks=mine))
    assert stopped.summary["rounds"] == first
    assert stopped.summary["stopped"].startswith("deployed validation accuracy ")
    assert stopped.metrics["loss"].to_pylist() == whole["loss"].to_pylist()[:first]
    # Each round is a run of its own here, cut off by its time.
    cut = config(tmp_path, callbacks=mine, run={"root": str(tmp_path / "cut"), "max_seconds": 1e-9})
    for number in range(1, first):
        with pytest.raises(KeyboardInterrupt):
            shoal.run(cut, resume=number > 1)
    assert shoal.run(cut, resume=True).metrics["loss"].to_pylist() == stopped.metrics["loss"].to_pylist()


def test_notebook_is_valid_without_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "outputs of a machine are not kept"
    for cell in notebook.cells:
        if cell.cell_type == "code":
            compile(cell.source, NOTEBOOK.name, "exec")


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [2, 6])
def test_notebook_runs_to_its_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    """With six rounds as it is written."""
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace('"rounds": 6', f'"rounds": {rounds}').replace("== 6", f"== {rounds}")
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    texts = "".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in said)
    assert "train.learning_rate: did you mean 'train.lr'?" in texts
    assert f"notebook: {rounds}/{rounds} rounds" in texts
    assert "finished)" in texts
    assert [output for output in said if "image/png" in output.get("data", {})]
    # Two data frames of a run, one of the sweep.
    assert sum("text/html" in output.get("data", {}) for output in said) >= 3
    assert len(list((tmp_path / "runs").glob("notebook-*/summary.json"))) == 2
