"""Configs on a small block model, with dotted keys changed; and a federation of three small graphs."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.settings.config import Config, parse_config
from storage.graph import TEST, TRAIN, VAL

MakeConfig = Callable[..., dict[str, Any]]


@pytest.fixture
def plain(tmp_path: Path) -> MakeConfig:
    """Plain values of a config on a block model of 400 nodes, with dotted keys changed."""

    def make(**changes: Any) -> dict[str, Any]:
        options = {"nodes": 400, "features": 5, "classes": 4, "degree": 6.0}
        config: dict[str, Any] = {
            "name": "prepared",
            "data": {"dataset": "sbm", "store": str(tmp_path / "store"), "root": str(tmp_path), "options": options},
            "partition": {"method": "metis", "clients": 5},
            "propagation": {"hops": 2},
            "algorithm": {"name": "fedavg"},
        }
        for key, value in changes.items():
            section, name = key.split("__")
            config.setdefault(section, {})[name] = value
        return config

    return make


@pytest.fixture
def make_config(plain: MakeConfig) -> Callable[..., Config]:
    return lambda **changes: parse_config(plain(**changes), "test")


@dataclass(frozen=True)
class Drawn:
    """A graph as it was drawn: undirected edges `[E, 2]`, features `[N, 5]`, labels and parts `[N]`."""

    name: str
    edges: np.ndarray
    x: np.ndarray
    y: np.ndarray
    split: np.ndarray


@dataclass(frozen=True)
class ThreeDomains:
    """Graphs whose first two thirds, the first third and the first two thirds are clients 0 and 1, 2, 3 and 4.

    Two of four classes occur in the second; no node of the third is for validation. The keys are over those of
    `configure`.
    """

    graphs: tuple[Drawn, ...]
    keys: dict[str, Any]


TWO_CLASSES = {"north": (60, 2, True), "south": (40, 2, False)}


def _draw(folder: Path, seed: int, nodes: int, classes: int, validates: bool) -> Drawn:
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=nodes)
    y[:classes] = np.arange(classes)
    x = (np.eye(4, 5)[y] + 0.8 * rng.standard_normal((nodes, 5))).astype(np.float32)
    # A ring, and edges from anywhere to anywhere: most neighbours of a node are at other clients, or at none.
    ring = np.stack([np.arange(nodes), (np.arange(nodes) + 1) % nodes], axis=1)
    far = rng.integers(nodes, size=(6 * nodes, 2))
    alike = (y[far[:, 0]] == y[far[:, 1]]) | (rng.random(6 * nodes) < 0.1)
    edges = np.concatenate([ring, far[alike]])
    edges = np.unique(np.sort(edges[edges[:, 0] != edges[:, 1]], axis=1), axis=0)
    split = rng.choice(np.array([TRAIN, VAL if validates else TEST, TEST], dtype=np.int8), size=nodes)
    folder.mkdir()
    for name, array in {"edge_index": edges.T, "x": x, "y": y, "split": split}.items():
        np.save(folder / f"{name}.npy", array)
    return Drawn(folder.name, edges, x, y, split)


@pytest.fixture(scope="session")
def two_classes(tmp_path_factory: pytest.TempPathFactory) -> ThreeDomains:
    """Two graphs of two classes: clients 0 to 2 are thirds of the first, 3 and 4 halves of the second.

    Test nodes of client 4 are of class 1 only, and nobody of the second graph is for validation.
    """
    root = tmp_path_factory.mktemp("two_classes")
    graphs = tuple(_draw(root / name, seed, *how) for seed, (name, how) in enumerate(TWO_CLASSES.items()))
    south = graphs[1]
    south.split[(np.arange(40) >= 20) & (south.y == 0) & (south.split == TEST)] = TRAIN
    np.save(root / "south/split.npy", south.split)
    keys = {
        "data.dataset": ["files"] * 2,
        "data.path": [str(root / name) for name in TWO_CLASSES],
        "data.store": str(root / "store"),
        "data.split": "public",
        "partition.method": "index",
        "partition.clients": [3, 2],
        "model.name": "sgc",
        "train.lr": 0.02,
        "train.epochs": 1,
        "participation.ratio": 0.6,
    }
    return ThreeDomains(graphs, keys)


@pytest.fixture(scope="session")
def three_domains(tmp_path_factory: pytest.TempPathFactory) -> ThreeDomains:
    root = tmp_path_factory.mktemp("domains")
    sizes = {"north": (60, 4, True), "south": (40, 2, True), "west": (36, 4, False)}
    graphs = tuple(_draw(root / name, seed, *how) for seed, (name, how) in enumerate(sizes.items()))
    keys = {
        "data.dataset": ["files"] * 3,
        "data.path": [str(root / name) for name in sizes],
        "data.store": str(root / "store"),
        "data.split": "public",
        "partition.method": "index",
        "partition.clients": [2, 1, 2],
        "partition.chunks": 3,
        "model.name": "sgc",
        "train.lr": 0.1,
    }
    return ThreeDomains(graphs, keys)
