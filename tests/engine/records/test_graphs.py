"""A finished run needs its store, and no file of the graph that this was made of."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.errors import refused
from support.needs import has, needs
from support.small_runs import small_run
from support.user_graph import user_graph, write_arrays

from shoal.engine.config.config import Config, load_config, parse_config
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.inputs import contents
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import read_summary, run_path
from shoal.engine.runs.export import PREDICTIONS, export
from shoal.engine.runs.run import run
from shoal.past.replay import replay
from shoal.storage.errors import GraphGone
from shoal.storage.files.digest import digest
from shoal.study.figure_data import manifest_of

NODES = 60
OWN = """
import numpy as np
from shoal import Dataset

class Mine(Dataset):
    def files(self, root):
        return (root / "mine.npz",)

    def load(self, root):
        return dict(np.load(root / "mine.npz"))
"""


def config_of(folder: Path, path: object, **data: Any) -> Config:
    """Three rounds on a graph of the user's own."""
    found = {"dataset": "files", "path": str(path), "options": {}, "layout": "auto", **data}
    kept = {"root": str(folder / "runs"), "keep_digests": has("digests"), "checkpoint_every": 1}
    return parse_config(small_run(folder, data=found, run=kept), "a small run")


def arrays(seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "edge_index": rng.integers(NODES, size=(2, 4 * NODES)),
        "x": rng.standard_normal((NODES, 4)).astype(np.float32),
        "y": rng.integers(3, size=NODES),
    }


def as_folder(folder: Path, seed: int = 0) -> Path:
    return write_arrays(folder / "graph", **arrays(seed))


def as_file(folder: Path, seed: int = 0) -> Path:
    return Path(user_graph(folder, NODES, **arrays(seed)))


def as_tables(folder: Path, seed: int = 0) -> Path:
    (graph := folder / "graph").mkdir()
    found = arrays(seed)
    for name, head, columns in (
        ("edges", "source,target", found["edge_index"].T),
        ("nodes", "id,label,f0", np.column_stack([np.arange(NODES), found["y"], found["x"][:, 0]])),
    ):
        np.savetxt(graph / f"{name}.csv", columns, fmt="%g", delimiter=",", header=head, comments="")
    return graph


def remove(graph: Path, leaves_folder: bool = False) -> None:
    if graph.is_file():
        graph.unlink()
        return
    shutil.rmtree(graph)
    if leaves_folder:
        graph.mkdir()
        (graph / "notes.txt").write_text("mine")


@pytest.mark.parametrize(
    ("write", "store", "leaves_folder"), [(as_folder, None, True), (as_file, "mine", False), (as_tables, None, False)]
)
@needs("clock")
def test_a_run_whose_graph_is_gone_is_read_with_its_store(
    tmp_path: Path, write: Any, store: str | None, leaves_folder: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = write(tmp_path)
    config = config_of(tmp_path, graph, **({} if store is None else {"store": str(tmp_path / store)}))
    folder = run(config)
    exported = digest(export(folder) / PREDICTIONS)
    before, kept = run_path(config), contents(config)
    remove(graph, leaves_folder)
    again = load_config(folder)
    assert (run_path(again), contents(again)) == (before, kept)
    assert run(again) == run(config) == folder, "the config's own file is of the finished run, too"
    capsys.readouterr()
    assert digest(export(folder) / PREDICTIONS) == exported
    assert f"{graph.resolve()}: not found; " in capsys.readouterr().err
    assert replay(folder, 2, 1).equal
    from shoal.clock.report import client_work

    assert (client_work(folder).train.flops > 0).all()
    assert manifest_of(folder) is not None
    longer = run(load_config(folder, ["rounds=4"]), resume=True)
    assert [line["round"] for line in read_metrics(longer)] == [1, 2, 3, 4]


def test_a_run_finds_the_store_of_its_own_graph_among_those_of_one_place(tmp_path: Path) -> None:
    folders = []
    for seed in (0, 1):
        graph = as_folder(tmp_path, seed)
        config = config_of(tmp_path, graph)
        folders.append(run(config))
        shutil.rmtree(graph)
    assert folders[0] != folders[1]
    read = [manifest_of(folder) for folder in folders]
    assert [read_summary(folder)["inputs"]["data.path"] for folder in folders] == [
        contents(load_config(folder))["data.path"] for folder in folders
    ]
    assert read[0] is not None
    assert read[1] is not None
    assert read[0].identity != read[1].identity
    with refused("data.path", graph.resolve(), says="different graphs that lay there"):
        run(config)


def test_a_graph_that_is_another_or_lies_elsewhere_is_not_that_of_a_store(tmp_path: Path) -> None:
    graph = as_folder(tmp_path)
    config = config_of(tmp_path, graph)
    folder = run(config)
    with refused(tmp_path / "wrong", kind=GraphGone):
        prepare(config_of(tmp_path, tmp_path / "wrong"))
    with refused(tmp_path / "wrong", kind=GraphGone):
        prepare(load_config(folder, [f"data.path={tmp_path / 'wrong'}"]))
    (graph / "y.npy").unlink()
    with refused(graph / "y.npy"):
        prepare(load_config(folder))
    np.save(graph / "y.npy", arrays(1)["y"])
    with refused(folder, says="data.path"):
        replay(folder, 2, 1)
    shutil.rmtree(graph)
    with refused(graph, kind=GraphGone):
        prepare(config_of(tmp_path, graph, row_normalize=True))
    shutil.rmtree(tmp_path / "stores")
    assert manifest_of(folder) is None, "a page is without the figures of the store"
    with refused(graph, kind=GraphGone):
        export(folder)


def test_several_graphs_of_which_one_is_gone(tmp_path: Path) -> None:
    paths = [user_graph(tmp_path, NODES, name, seed) for seed, name in enumerate(("one", "two"))]
    config = config_of(tmp_path, "").model_copy()
    plain = config.plain() | {"partition": {"clients": [2, 2]}}
    plain["data"] = {**plain["data"], "dataset": ["files", "files"], "path": paths}
    config = parse_config(plain, "two graphs")
    folder = run(config)
    Path(paths[0]).unlink()
    assert contents(load_config(folder))["data.path"] == read_summary(folder)["inputs"]["data.path"]
    assert run(config) == folder
    user_graph(tmp_path, NODES, "two", seed=5)
    with refused(tmp_path / "one.npz", kind=GraphGone):
        prepare(config)


def test_files_of_a_dataset_of_the_user_are_gone(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    np.savez(tmp_path / "mine.npz", **arrays())
    found = {"dataset": f"{tmp_path / 'own.py'}:Mine", "options": {}}
    config = parse_config(small_run(tmp_path, data=found), "a small run")
    folder = run(config)
    exported = digest(export(folder) / PREDICTIONS)
    (tmp_path / "mine.npz").unlink()
    assert digest(export(folder) / PREDICTIONS) == exported
