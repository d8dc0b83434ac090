"""Clients of drawn rows without edges, for models that read rows."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from contenders.task import Rounds, Task
from contest import Case

from shoal.storage.options.split_codes import TEST, TRAIN, VAL


@dataclass(frozen=True)
class Shape:
    """Clients and model: hidden width (0: linear), rows of a client, features, classes."""

    hidden: int
    rows: int
    features: int
    classes: int


SHAPES = {
    "linear": Shape(0, 2400, 128, 172),
    "mlp": Shape(256, 2400, 128, 172),
    "tiny": Shape(64, 54, 1433, 7),
    "linear-20": Shape(0, 20, 32, 4),
    "mlp-20": Shape(64, 20, 32, 4),
}


@dataclass(frozen=True)
class DrawnCase(Case):
    """One of `SHAPES`."""

    peers: ClassVar[Sequence[str]] = ("flower", "pfl_research")

    @property
    def name(self) -> str:
        share = "" if self.ratio == 1 else f", {100 * self.ratio:g} % a round"
        return f"{self.model}, {self.clients} clients{share}"

    @property
    def tolerance(self) -> float:
        return 1e-6 if self.model.startswith("linear") else 2e-6

    @property
    def data(self) -> Path:
        shape = SHAPES[self.model]
        return self.folder / f"{shape.rows}x{shape.features}-{self.clients}"

    def sections(self) -> dict[str, Any]:
        hidden, data = SHAPES[self.model].hidden, self.data
        return {
            "data": {"dataset": "files", "path": str(data), "store": str(data / "store"), "split": "public"},
            "partition": {"method": "file", "clients": self.clients},
            "propagation": {"hops": 0},
            "model": {"name": "mlp", "hidden": hidden} if hidden else {"name": "sgc"},
        }

    def task(self, rounds: Rounds) -> Task:
        shape = SHAPES[self.model]
        return Task(
            **asdict(rounds),
            folder=str(self.data),
            clients=self.clients,
            rows=shape.rows,
            classes=shape.classes,
            hidden=shape.hidden,
        )

    def make(self) -> None:
        """Draws the clients, once."""
        shape, folder = SHAPES[self.model], self.data
        if not folder.exists():
            folder.mkdir(parents=True)
            # The last two validate and test, which Shoal asks for and nobody reads.
            rng, nodes = np.random.default_rng(0), self.clients * shape.rows + 2
            y = np.arange(nodes) % shape.classes
            x = rng.standard_normal((nodes, shape.features), dtype=np.float32)
            x += 0.3 * rng.standard_normal((shape.classes, shape.features), dtype=np.float32)[y]
            arrays = {"x": x, "y": y, "edge_index": np.empty((2, 0), dtype=np.int64)}
            arrays["assignment"] = np.minimum(np.arange(nodes) // shape.rows, self.clients - 1)
            arrays["split"] = np.full(nodes, TRAIN, dtype=np.int8)
            arrays["split"][-2:] = VAL, TEST
            for name, array in arrays.items():
                np.save(folder / f"{name}.npy", array)
        super().make()
