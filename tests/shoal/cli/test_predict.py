"""`shoal predict` says of the nodes in files what `Run.predict` says of the same graph, in three forms."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from support.small_runs import small_run
from support.user_graph import user_graph
from torch_geometric.data import Data

import shoal

Shoal, Refused = Callable[..., None], Callable[..., str]
NAMES = ["an ant", "bee", 'c, "sea"']


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run on a graph of the user's, whose classes have names."""
    folder = tmp_path_factory.mktemp("named")
    path = user_graph(folder, 60, y=np.array(NAMES)[np.arange(60) % 3])
    return small_run(folder, data={"dataset": "files", "path": path, "options": {}}, rounds=2)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Data]:
    """Tables of five nodes with ids, and the same graph as PyG has it."""
    folder = tmp_path_factory.mktemp("graph")
    x_NF = np.random.default_rng(3).normal(size=(5, 4)).astype(np.float32)
    rows = [f"n{i},{','.join(map(repr, map(float, x_F)))}" for i, x_F in enumerate(x_NF)]
    (folder / "nodes.csv").write_text("\n".join(["id,a,b,c,d", *rows]) + "\n")
    (folder / "edges.csv").write_text("source,target\nn0,n1\nn1,n2\nn3,n4\n")
    return str(folder), Data(x=torch.from_numpy(x_NF), edge_index=torch.tensor([[0, 1, 3], [1, 2, 4]]))


def expected(run: shoal.Run, graph: Data, client: int | None) -> tuple[list[str], np.ndarray]:
    table = run.predict(graph, client)
    p_NC = np.array(table["probability"].to_pylist())
    return [NAMES[place] for place in table["predicted"].to_pylist()], p_NC.max(1)


def test_predictions_of_the_servers_model(
    named: dict[str, Any], graph: tuple[str, Data], tmp_path: Path, shoal: Shoal
) -> None:
    run, (folder, data) = run_of(named), graph
    classes, p_N = expected(run, data, None)
    for form in ("csv", "parquet", "npz"):
        out = tmp_path / f"found.{form}"
        shoal("predict", run.path, folder, "--out", out)
        if form == "npz":
            found = {name: array.tolist() for name, array in np.load(out).items()}
        else:
            read = pyarrow.csv.read_csv if form == "csv" else pyarrow.parquet.read_table
            found = read(out).to_pydict()
        assert list(found) == ["node", "predicted", "probability"]
        assert (found["node"], found["predicted"]) == ([f"n{i}" for i in range(5)], classes), form
        assert found["probability"] == pytest.approx(p_N, rel=1e-6)


def test_predictions_of_each_clients_model(
    named: dict[str, Any], graph: tuple[str, Data], tmp_path: Path, shoal: Shoal, refused: Refused
) -> None:
    run, (folder, data) = run_of({**named, "algorithm": {"name": "local"}}), graph
    shoal("predict", run.path, folder, "--client", "all", "--out", tmp_path / "all.csv")
    found = pyarrow.csv.read_csv(tmp_path / "all.csv").to_pydict()
    assert found["client"] == [client for client in range(4) for _ in range(5)]
    alone = [expected(run, data, client) for client in range(4)]
    assert found["predicted"] == [name for names, _ in alone for name in names]
    assert found["probability"] == pytest.approx(np.concatenate([p_N for _, p_N in alone]), rel=1e-6)
    line = refused("predict", run.path, folder)
    assert line == "shoal: --client: local has no global model; name a client, 0 to 3"
    assert "--client: expected 0 to 3, got 4" in refused("predict", run.path, folder, "--client", "4")
    assert "number of a client, or all, got 'x'" in refused("predict", run.path, folder, "--client", "x")


def test_what_cannot_be_predicted_is_one_line(
    named: dict[str, Any], graph: tuple[str, Data], tmp_path: Path, refused: Refused
) -> None:
    run, (folder, _) = run_of(named), graph
    wide = user_graph(tmp_path, 8, x=np.ones((8, 7), dtype=np.float32), y=None)
    line = refused("predict", run.path, wide, "--out", tmp_path / "no.csv")
    assert line == f"shoal: {wide}: expected 4 features a node, as in {run.path}, got 7"
    assert f"{tmp_path}/none: not found" in refused("predict", run.path, tmp_path / "none")
    assert "no.txt: expected a file that ends in .csv, .parquet, .npz" in refused(
        "predict", run.path, folder, "--out", tmp_path / "no.txt"
    )
    gone = shutil.copytree(run.path, tmp_path / "gone")
    shutil.rmtree(gone / "checkpoints")
    assert "no checkpoint of round 2; " in refused("predict", gone, folder)
    (gone / "summary.json").unlink()
    assert "no finished run" in refused("predict", gone, folder)
    assert not list(tmp_path.glob("no.*"))


def run_of(config: dict[str, Any]) -> shoal.Run:
    return shoal.run(config)
