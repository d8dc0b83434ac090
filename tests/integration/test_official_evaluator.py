"""OGB's own Evaluator finds in exported predictions the accuracy that the run logged."""

import importlib.util
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from engine.commands.export import export
from engine.commands.run import run
from engine.records.run_folder import read_summary
from engine.settings.config import parse_config
from storage.datasets import DataSource
from storage.datasets.ogb_layout import write_ogb_layout
from storage.datasets.twin import Twin
from storage.graph import TEST, VAL

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("ogb") is None, reason="ogb is not installed: pip install --editable '.[ogb]'"
)


def test_accuracies_are_ogb_s(tmp_path: Path) -> None:
    # Here, as importing it starts a thread that asks the network for newer versions.
    from ogb.nodeproppred import Evaluator

    write_ogb_layout(tmp_path, Twin.of("arxiv-like", DataSource("arxiv-like", scale=0.02)))
    plain = {
        "name": "official",
        "rounds": 3,
        "data": {"dataset": "ogbn-arxiv", "root": str(tmp_path), "split": "public"},
        "partition": {"method": "metis", "clients": 4},
        "propagation": {"hops": 2},
        "model": {"name": "sgc"},
        "algorithm": {"name": "fedavg"},
        "evaluation": {"every": 1},
        "engine": {"backend": "local"},
        "run": {"root": str(tmp_path / "runs"), "tensorboard": False},
    }
    folder = run(parse_config(plain, "test"))
    batch = pa.ipc.open_file(export(folder) / "predictions.arrow").get_batch(0)
    columns = {name: batch.column(name).to_numpy() for name in batch.schema.names}
    evaluator = Evaluator(name="ogbn-arxiv")
    logged = read_summary(folder)["scopes"]
    for part, name, nodes in ((VAL, "val", 596), (TEST, "test", 972)):
        rows = columns["part"] == part
        assert np.count_nonzero(rows) == nodes
        for scope in ("served", "global"):
            given = {"y_true": columns["label"][rows][:, None], "y_pred": columns[scope][rows][:, None]}
            official = evaluator.eval(given)["acc"]
            assert 1 / 40 < official < 1
            assert logged[scope]["last"][name]["rows"] == pytest.approx(official, abs=1e-12)
