"""OGB's Evaluator finds in the predictions of a run what our measures find, of every kind of labels that OGB has."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.errors import refused
from support.small_molecules import write_molecules
from support.small_runs import run_small

from shoal.engine.records.run_folder import read_summary
from shoal.evaluator.evaluator import EvaluatorReader, _differ
from shoal.past.rewind import PastRun
from shoal.storage.datasets.readers.ogb_molecules import LABELS_OF
from shoal.storage.datasets.sources.atoms import ATOM_FEATURES
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.synthetic.ogb_layout import write_ogb_layout
from shoal.storage.datasets.synthetic.twin import Twin

GRAPHS, ATOMS = 60, 4
installed = pytest.mark.skipif(
    importlib.util.find_spec("ogb") is None, reason="ogb is not installed: pip install --editable '.[ogb]'"
)


def write_rings(root: Path, name: str) -> None:
    """Writes rings of four atoms; the first atom's features tell the label with noise, of several labels some lack."""
    rng = np.random.default_rng(5)
    atoms = np.stack([rng.integers(width, size=GRAPHS * ATOMS) for width in ATOM_FEATURES.values()], 1)
    kind = name.removeprefix("ogbg-mol")
    tasks = LABELS_OF.get(kind, 1)
    signal = (atoms[::ATOMS, 1:2] / 4 + rng.normal(size=(GRAPHS, tasks))) > 0.5
    y: Any = np.where(rng.random(signal.shape) < 0.2, np.nan, signal) if kind in LABELS_OF else signal.astype(int)
    y = rng.normal(size=(GRAPHS, 1)) * 3 - 4 if kind == "esol" else y
    # Training items have all labels, so that no loss lacks one.
    order = rng.permutation(GRAPHS)
    parts = dict(zip(("train", "valid", "test"), np.split(order, [20, 40])))
    lines = {
        "raw/edge": [f"{k},{(k + 1) % ATOMS}" for _ in range(GRAPHS) for k in range(ATOMS)],
        "raw/edge-feat": [f"{k},0,{k % 2}" for _ in range(GRAPHS) for k in range(ATOMS)],
        "raw/node-feat": [",".join(map(str, row)) for row in atoms],
        "raw/graph-label": [",".join("" if value != value else f"{value:g}" for value in row) for row in y],
        "raw/num-node-list": [str(ATOMS)] * GRAPHS,
        "raw/num-edge-list": [str(ATOMS)] * GRAPHS,
        **{f"split/scaffold/{part}": sorted(map(str, numbers)) for part, numbers in parts.items()},
    }
    write_molecules(root, name, {part: "\n".join(rows) + "\n" for part, rows in lines.items()})


def run_on(root: Path, name: str, target: str) -> Path:
    write_rings(root, name)
    return run_small(
        root,
        task="graph",
        target=target,
        data={"dataset": name, "root": str(root), "split": "public", "options": {}},
        partition={"method": "random", "clients": 3},
        model={"name": "gin", "hidden": 8},
        algorithm="fedavg",
    )


@installed
@pytest.mark.parametrize(
    ("name", "target", "metric"),
    [
        ("ogbg-molhiv", "classification", "rocauc"),
        ("ogbg-moltox21", "multilabel", "rocauc"),
        ("ogbg-molmuv", "multilabel", "ap"),
        ("ogbg-molesol", "regression", "rmse"),
    ],
)
def test_molecules(
    tmp_path: Path,
    name: str,
    target: str,
    metric: str,
    shoal: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = run_on(tmp_path, name, target)
    capsys.readouterr()
    shoal("read", run, "ogb", "--json")
    answer = json.loads(capsys.readouterr().out)
    assert (answer["as_recorded"], answer["verdict"]) == (True, "ours and OGB's Evaluator agree")
    assert [(row["scope"], row["part"]) for row in answer["rows"]] == [
        (scope, part) for scope in ("deployed", "global") for part in ("val", "test")
    ]
    for row in answer["rows"]:
        assert (row["metric"], int(row["items"])) == (metric, 20)
        assert float(row["ours"]) == pytest.approx(float(row["OGB's Evaluator"]), abs=1e-9)


@installed
def test_accuracy_is_the_one_that_the_run_recorded(tmp_path: Path) -> None:
    write_ogb_layout(tmp_path, Twin.of("arxiv-like", DataSource("arxiv-like", scale=0.02)))
    run = run_small(
        tmp_path,
        data={"dataset": "ogbn-arxiv", "split": "public", "options": {}},
        partition={"method": "metis"},
        propagation={"hops": 2},
    )
    (table,) = EvaluatorReader().read(PastRun(run)).tables
    scopes = read_summary(run)["scopes"]
    for scope, part, _, metric, ours, theirs, _ in table.rows:
        assert metric == "acc"
        recorded = scopes[scope]["final"][part]["rows"]
        assert (float(ours), float(theirs)) == pytest.approx((recorded, recorded), abs=1e-6)
    assert any("synthetic" in note for note in table.notes)


def test_other_datasets_are_refused(tmp_path: Path) -> None:
    with refused("data.dataset", says="found sbm"):
        EvaluatorReader().read(PastRun(run_small(tmp_path)))


@pytest.mark.parametrize(
    ("ours", "theirs", "differ"),
    [(0.5, 0.5, False), (0.5, 0.6, True), (np.nan, 0.5, True), (0.5, np.nan, True), (np.nan, np.nan, False)],
)
def test_a_score_beside_none_is_a_difference(ours: float, theirs: float, differ: bool) -> None:
    assert _differ(ours, theirs) == differ
