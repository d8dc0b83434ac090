"""Clients with many small graphs each, of the sizes of COLLAB, for models that answer for graphs."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from contenders.task import ItemTask, Rounds
from contest import GnnCase

# COLLAB: 5,000 graphs of 74.5 nodes and 2,457.8 edges in the mean. Small graphs cannot have that degree: here 1,994.
NODES, DEGREE, CLASSES, FEATURES = 74.5, 66.0, 3, 64
BATCH, LR = 32, 0.01
ITEM_MODELS = ("gin-graphs", "gcn-graphs")


@dataclass(frozen=True)
class ItemCase(GnnCase):
    """GIN or GCN of three layers and width 64, readout by mean, an epoch of batches of 32 graphs a round.

    Attributes:
        graphs: Graphs of a client.
    """

    graphs: int = 200
    floor: ClassVar[str] = "bare_pyg"

    @property
    def name(self) -> str:
        share = "" if self.ratio == 1 else f", {100 * self.ratio:g} % a round"
        return f"{self.model}, {self.clients} clients of {self.graphs} graphs{share}"

    @property
    def data(self) -> Path:
        return self.folder / f"items-{self.clients}x{self.graphs}"

    def sections(self) -> dict[str, Any]:
        graphs = self.clients * self.graphs
        nodes = int(NODES * graphs)
        options = {"graphs": graphs, "nodes": nodes, "classes": CLASSES, "features": FEATURES, "degree": DEGREE}
        return {
            "task": "graph",
            "data": {
                "dataset": "sbm-graphs",
                "store": str(self.data / "store"),
                "fractions": [0.8, 0.1, 0.1],
                "options": options,
            },
            "partition": {"method": "random", "clients": self.clients},
            "propagation": {"hops": 0},
            "model": {"name": self.model.removesuffix("-graphs"), "layers": 3, "hidden": 64, "readout": "mean"},
            "train": {
                "epochs": 1, "batch_size": BATCH, "optimizer": "sgd", "lr": LR, "weight_decay": 0.0, "dropout": 0.0,
            },
        }  # fmt: skip

    def task(self, rounds: Rounds) -> ItemTask:
        job, _ = self.job()
        own = {"store": job.store, "split": job.split, "model": self.model.removesuffix("-graphs"), "batch": BATCH}
        return ItemTask(**{**asdict(rounds), "lr": LR}, **own)

    def make(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        super().make()
