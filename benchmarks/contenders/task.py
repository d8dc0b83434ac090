"""The work of a round that every contender is given, and how it takes its turns; needs NumPy and torch only."""

import json
import os
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Task:
    """Clients and rounds, written by the benchmark as JSON.

    Attributes:
        folder: Holds `x.npy` (float32 `[clients * rows, F]`), `y.npy` (int64) and `start.npy` (float32 `[P]`).
        clients: All clients there are.
        rows: Rows of a client; its block starts at `client * rows`.
        classes: Number of classes.
        hidden: Width of the hidden layer; 0 is a linear model.
        steps: Full-batch SGD steps of a client in a round.
        lr: Learning rate.
        cohorts: Clients of every round, ascending.
        out: File for the weights after the last round.
    """

    folder: str
    clients: int
    rows: int
    classes: int
    hidden: int
    steps: int
    lr: float
    cohorts: list[list[int]]
    out: str

    def start(self) -> Tensor:
        """Initial parameters, float32 `[P]`."""
        return torch.from_numpy(np.load(Path(self.folder) / "start.npy"))

    def module(self) -> nn.Module:
        """The model, with the initial parameters."""
        features = np.load(Path(self.folder) / "x.npy", mmap_mode="r").shape[1]
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

    def finish(self, w: Tensor) -> None:
        """Leaves the final parameters `[P]` for the comparison."""
        np.save(self.out, w.detach().numpy())


@cache
def read(path: str) -> Task:
    """The task of a file, one thread set for all mathematics of this process."""
    torch.set_num_threads(1)
    return Task(**json.loads(Path(path).read_text()))


class Turns:
    """A round when a line comes in on stdin, and its seconds out on stdout, which nothing else is left to write on."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self._began = 0.0

    def wait(self) -> None:
        """Says that the contender is ready, and waits for its turn."""
        print(json.dumps({}), file=self._out, flush=True)
        sys.stdin.readline()
        self._began = time.perf_counter()

    def finished(self, **more: float) -> None:
        """Says that the round is over."""
        spent = time.perf_counter() - self._began
        print(json.dumps({"seconds": spent, **more}), file=self._out, flush=True)
