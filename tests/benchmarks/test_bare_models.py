"""The bare loops train the models that Shoal trains: same logits, same gradient in all forms, sparse or dense."""

import importlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.errors import refused
from support.small_runs import small_run
from support.user_graph import write_arrays

from shoal.algorithms.client import ClientModel
from shoal.algorithms.protocol import MODEL
from shoal.engine.config.config import parse_config
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.storage.shards.view import Cache

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NODES, FEATURES = 60, 40


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports modules of the benchmarks."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "contenders"))
    return importlib.import_module


def write_graph(folder: Path, density: float) -> None:
    """A random graph of two clients, with a node that has no neighbour."""
    rng = np.random.default_rng(0)
    x = rng.random((NODES, FEATURES), dtype=np.float32) * (rng.random((NODES, FEATURES)) < density)
    edges = rng.integers(1, NODES, size=(2, 70))
    node = np.arange(NODES)
    write_arrays(folder, x=x.astype(np.float32), y=node % 3, edge_index=edges, assignment=node % 2)


@pytest.mark.parametrize("density", [0.05, 0.9])
@pytest.mark.parametrize("name", ["gcn", "sage", "mlp", "sgc", "gamlp"])
def test_bare_loops_have_the_gradient_of_shoal(tmp_path: Path, bench: Any, name: str, density: float) -> None:
    write_graph(tmp_path / "graph", density)
    plain = small_run(
        tmp_path,
        partition={"method": "file", "clients": 2},
        propagation={"hops": 2 if name in ("sgc", "gamlp") else 0},
        model={"name": name, "layers": 2, "hidden": 64},
        train={"dropout": 0.0},
    )
    data = {"dataset": "files", "path": str(tmp_path / "graph"), "store": str(tmp_path / "store")}
    config = parse_config({**plain, "data": data}, "test")
    store = prepare(config)
    job = make_job(config, store, "test")
    (kind,) = job.build_models(store, job.algorithm())[MODEL]
    job.initial(kind, MODEL, 0)
    view, rounds_of = job.view(store, 1, Cache(0)), bench("task")
    model = ClientModel(kind.flat, view, lambda _: 0)
    kind.flat.module.train()
    wanted = model(model.gathered("train")).logits_NC
    F.cross_entropy(wanted, view.train_label).backward()
    wanted_gradient = torch.cat([p.grad.reshape(-1) for p in kind.flat.module.parameters()])

    np.save(tmp_path / "start.npy", rounds_of.by_rows(kind.flat.module).numpy())
    shapes = {n: list(shape) for n, shape in kind.info.shapes.items()}
    own = {"store": job.store, "split": job.split, "kernel": job.propagation, "model": name, "shapes": shapes}
    for form in bench("bare_models").FORMS:
        rounds = rounds_of.Rounds(str(tmp_path / "start.npy"), 1, 1.0, [], 1, 1, form, "")
        client = bench("bare").clients_of(rounds_of.GraphTask(**asdict(rounds), **own))[1]
        weights = client.weights
        leaves = [value.detach().requires_grad_() for value in weights.values]
        torch.testing.assert_close(client.logits(leaves), wanted, rtol=1e-5, atol=1e-5)
        before = weights.flat.clone()
        bench("bare").train(client, leaves if form == "autograd" else [], 1, 1.0)
        moved = weights.vector(before - weights.flat)
        torch.testing.assert_close(moved, wanted_gradient, rtol=1e-4, atol=2e-6)
        assert float(moved.abs().max()) > 1e-3
    if name == "gcn":
        assert client.x.shape[0] < view.nodes


def test_floor_plays_the_cases_that_are_named(tmp_path: Path, bench: Any) -> None:
    chosen, graph_case = bench("floor").chosen, bench("graph_case")
    names = {words: [case.name for case in chosen(words, 2, tmp_path)] for words in ("cora,gcn", "cora", "mlp", "")}
    assert names["cora,gcn"] == ["gcn on cora"]
    assert names["cora"] == [f"{model} on cora" for model in graph_case.MODELS]
    assert names["mlp"] == ["mlp, 50 clients"]
    assert len(names[""]) == 6 * 8 + 4
    with refused("--only"):
        chosen("cora,gcnn", 2, tmp_path)


def test_interval_of_the_median_is_the_sign_tests(bench: Any) -> None:
    """With nine values the second and the eighth: 1 - 2 * (1 + 9) / 2^9 = 96.1 %; the first and the last with six."""
    interval = bench("contest").interval
    assert interval([9, 1, 8, 2, 7, 3, 6, 4, 5]) == (2, 8)
    assert interval([6, 5, 4, 3, 2, 1]) == (1, 6)
