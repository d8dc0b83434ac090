"""The work of a round that every contender is given, and how it takes its turns; needs NumPy and torch only."""

import json
import os
import sys
import time
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

R = TypeVar("R", bound="Rounds")


@dataclass(frozen=True)
class Rounds:
    """What is trained in which round, whatever on; written by the benchmark as JSON.

    Attributes:
        start_file: Initial parameters, float32 `[P]`: all of the model, one behind the other, each row by row.
        steps: Full-batch SGD steps of a client in a round.
        lr: Learning rate.
        cohorts: Clients of every round, ascending.
        a_turn: Rounds of a turn.
        compared: Number of rounds after which all weights are compared.
        form: How a bare loop finds gradients, one of `bare_models.FORMS`.
        out: File for the weights then, in the order of the initial ones.
    """

    start_file: str
    steps: int
    lr: float
    cohorts: list[list[int]]
    a_turn: int
    compared: int
    form: str
    out: str

    def start(self) -> Tensor:
        """Initial parameters, float32 `[P]`."""
        return torch.from_numpy(np.load(self.start_file))

    def finish(self, w: Tensor) -> None:
        """Leaves the parameters `[P]` for the comparison."""
        np.save(self.out, w.detach().numpy())


@dataclass(frozen=True)
class Task(Rounds):
    """Rounds of clients that have rows and no edges.

    Attributes:
        folder: Holds `x.npy` (float32 `[clients * rows, F]`) and `y.npy` (int64).
        clients: All clients there are.
        rows: Rows of a client; its block starts at `client * rows`.
        classes: Number of classes.
        hidden: Width of the hidden layer; 0 is a linear model.
    """

    folder: str
    clients: int
    rows: int
    classes: int
    hidden: int

    @property
    def features(self) -> int:
        """Width of a row."""
        return int(np.load(Path(self.folder) / "x.npy", mmap_mode="r").shape[1])

    @property
    def shapes(self) -> dict[str, list[int]]:
        """Shape of every parameter by its name, in the order of the initial ones."""
        widths = [self.features, *([self.hidden] if self.hidden else []), self.classes]
        layers = {f"head.linears.{number}": pair for number, pair in enumerate(zip(widths[1:], widths))}
        kinds = (("weight", 2), ("bias", 1))
        return {f"{name}.{kind}": list(pair)[:axes] for name, pair in layers.items() for kind, axes in kinds}

    def module(self) -> nn.Module:
        """The model, with the initial parameters."""
        features = self.features
        if self.hidden:
            hidden = nn.Linear(features, self.hidden)
            module: nn.Module = nn.Sequential(hidden, nn.ReLU(), nn.Linear(self.hidden, self.classes))
        else:
            module = nn.Linear(features, self.classes)
        nn.utils.vector_to_parameters(self.start(), module.parameters())
        return module

    def data(self) -> list[tuple[Tensor, Tensor]]:
        """Rows and labels of every client, in memory."""
        x, y = (np.load(Path(self.folder) / f"{name}.npy", mmap_mode="r") for name in ("x", "y"))
        blocks = [slice(c * self.rows, (c + 1) * self.rows) for c in range(self.clients)]
        return [(torch.from_numpy(x[block].copy()), torch.from_numpy(y[block].copy())) for block in blocks]


@dataclass(frozen=True)
class GraphTask(Rounds):
    """Rounds of clients that have a graph each.

    Attributes:
        store: Folder of Shoal's store with their shards.
        split: Name of the split in it.
        kernel: Name of the hops in it; None if only the features are used.
        model: Name of the model.
        shapes: Shape of every parameter by its name, in the order of the initial ones.
    """

    store: str
    split: str
    kernel: str | None
    model: str
    shapes: dict[str, list[int]]


@dataclass(frozen=True)
class ItemTask(Rounds):
    """Rounds of clients that have many small graphs each; one pass over them a round.

    Attributes:
        store: Folder of Shoal's store with their shards.
        split: Name of the split in it.
        model: `gin` or `gcn`.
        batch: Graphs of a step.
    """

    store: str
    split: str
    model: str
    batch: int


@cache
def read(path: str, kind: type[R]) -> R:
    """The task of a file, as far as `kind` knows it, one thread set for all mathematics of this process."""
    torch.set_num_threads(1)
    written = json.loads(Path(path).read_text())
    return kind(**{field.name: written[field.name] for field in fields(kind)})


def by_rows(module: nn.Module) -> Tensor:
    """All parameters one behind the other, each row by row, however they lie in memory, `[P]`."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


class Turns:
    """Rounds when a line comes in on stdin, and their seconds out on stdout, which nothing else is left to write on."""

    def __init__(self, rounds: int) -> None:
        """Rounds of a turn."""
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._rounds, self._played = rounds, 0
        self._began = self._training = 0.0

    def wait(self) -> None:
        """Begins a round: the first of a turn says that the contender is ready, and waits."""
        if self._played % self._rounds == 0:
            print(json.dumps({}), file=self._out, flush=True)
            sys.stdin.readline()
            self._began, self._training = time.perf_counter(), 0.0

    def finished(self, training: float = 0.0) -> None:
        """Ends a round: the last of a turn says what one took, and what of it was training, where that is known."""
        self._played += 1
        self._training += training
        if self._played % self._rounds == 0:
            spent = {"seconds": time.perf_counter() - self._began, "training": self._training}
            print(json.dumps({key: value / self._rounds for key, value in spent.items()}), file=self._out, flush=True)
