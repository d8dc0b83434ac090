"""OGB's own Evaluator finds in exported predictions the accuracy that the run logged, and the same ranks of scores."""

import importlib.util
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from support.small_runs import small_run

from shoal.engine.config.config import parse_config
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run
from shoal.engine.scores.counts import precision_bits, twice_wins, values_of
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.synthetic.ogb_layout import write_ogb_layout
from shoal.storage.datasets.synthetic.twin import Twin

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ogb") is None, reason="ogb is not installed: pip install --editable '.[ogb]'"
)


def test_accuracies_are_ogb_s(tmp_path: Path) -> None:
    # Here, as importing it starts a thread that asks the network for newer versions.
    from ogb.nodeproppred import Evaluator

    write_ogb_layout(tmp_path, Twin.of("arxiv-like", DataSource("arxiv-like", scale=0.02)))
    plain = small_run(
        tmp_path,
        data={"dataset": "ogbn-arxiv", "split": "public", "options": {}},
        partition={"method": "metis"},
        propagation={"hops": 2},
        evaluation={"every": 1},
    )
    folder = run(parse_config(plain, "test"))
    batch = pa.ipc.open_file(export(folder) / "predictions.arrow").get_batch(0)
    columns = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in batch.schema.names}
    evaluator = Evaluator(name="ogbn-arxiv")
    logged = read_summary(folder)["scopes"]
    for name, nodes in (("val", 596), ("test", 972)):
        rows = columns["part"] == name
        assert np.count_nonzero(rows) == nodes
        for scope in ("deployed", "global"):
            received = {"y_true": columns["label"][rows][:, None], "y_pred": columns[scope][rows][:, None]}
            official = evaluator.eval(received)["acc"]
            assert 1 / 40 < official < 1
            assert logged[scope]["final"][name]["rows"] == pytest.approx(official, abs=1e-12)


def test_ranks_are_ogb_s() -> None:
    from ogb.graphproppred import Evaluator

    rng = np.random.default_rng(4)
    label, score = rng.integers(2, size=400), rng.integers(40, size=(400, 2)).astype(np.float32) / 8
    support = np.bincount(label)[None]
    # molmuv has 17 tasks, the mean of whose average precisions is its metric.
    for metric, measure, name, tasks, official in (
        ("roc_auc", twice_wins, "molhiv", 1, "rocauc"),
        ("average_precision", precision_bits, "molmuv", 17, "ap"),
    ):
        (found,) = values_of(metric, support, measure(torch.from_numpy(score), torch.from_numpy(label))[None])
        columns = {"y_true": label, "y_pred": score[:, 1] - score[:, 0]}
        theirs = Evaluator(name=f"ogbg-{name}").eval({key: np.tile(of[:, None], tasks) for key, of in columns.items()})
        assert found == pytest.approx(theirs[official], abs=1e-12)
