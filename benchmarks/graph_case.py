"""Real graphs of ten Louvain clients, for models that read edges or hops."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from contenders.task import GraphTask, Rounds
from contest import Absent, GnnCase

from shoal.algorithms.protocol import MODEL
from shoal.storage.graph.sparse_matrix import Features, SparseMatrix
from shoal.storage.shards.view import Cache

CLIENTS, HOPS = 10, 2
MODELS = ("gcn", "sage", "sgc", "gamlp", "gat", "gin", "gcnii", "sign")
# Have one bare loop, by autograd.
BY_AUTOGRAD = ("gat", "gin", "gcnii", "sign")
GRAPHS = ("cora", "citeseer", "pubmed", "computers", "cs", "physics")


@dataclass(frozen=True)
class GraphCase(GnnCase):
    """One of `MODELS`, of two layers and width 64, on one of `GRAPHS`.

    Attributes:
        graph: Name of the dataset.
        layout: How the store keeps features (`data.layout`).
    """

    graph: str
    layout: str | None = None
    a_turn: ClassVar[int] = 10
    peers: ClassVar[Sequence[str]] = ("open_fgl",)

    @property
    def name(self) -> str:
        return f"{self.model} on {self.graph}"

    @property
    def data(self) -> Path:
        return self.folder / "-".join((self.graph, self.layout or "auto"))

    def sections(self) -> dict[str, Any]:
        decoupled = self.model in ("sgc", "gamlp", "sign")
        data = {"dataset": self.graph, "store": str(self.data / "store"), "split": "per_client"}
        return {
            "data": data if self.layout is None else {**data, "layout": self.layout},
            "partition": {"method": "louvain", "clients": self.clients},
            "propagation": {"hops": HOPS if decoupled else 0},
            # SIGN's two are a layer of every hop and a classifier.
            "model": {"name": self.model, "layers": 1 if self.model == "sign" else 2, "hidden": 64},
        }

    def task(self, rounds: Rounds) -> GraphTask:
        job, store = self.job()
        (kind,) = job.build_models(store, job.algorithm())[MODEL]
        shapes = {name: list(shape) for name, shape in kind.info.shapes.items()}
        return GraphTask(
            **asdict(rounds), store=job.store, split=job.split, kernel=job.propagation, model=self.model, shapes=shapes
        )

    def lay_out_for(self, peer: str) -> None:
        super().lay_out_for(peer)
        if self.model != "gcn":
            raise Absent(f"{peer}: has no part in {self.name}, it plays GCN alone")
        job, store = self.job()
        folder = self.data / peer
        folder.mkdir(exist_ok=True)
        for client in range(store.clients):
            view = job.view(store, client, Cache(0))
            starts, columns = view.csr
            arrays = {"edge_index": np.stack([np.repeat(np.arange(view.nodes), np.diff(starts)), columns])}
            arrays |= {"x": dense(view.x), "y": view.label.numpy(), "node": view.node}
            arrays |= {name: getattr(view, name).numpy() for name in ("train", "val", "test")}
            np.savez(folder / f"{client}.npz", **arrays)

    def make(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        super().make()


def dense(x_NF: Features) -> np.ndarray:
    """Features as an array of float32."""
    return (x_NF.to_dense() if isinstance(x_NF, SparseMatrix) else x_NF).float().numpy()
