"""Whole rounds: a federation of unequal clients that come, go and fail, and plain torch that does what they do."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.fixtures import ModuleOf, Views
from torch import Tensor, nn

from shoal.algorithms.protocol import Tree
from shoal.algorithms.rng import key
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.rounds.costs import Pool
from shoal.engine.rounds.server import Server
from shoal.storage.shards.view import View

# Client 3 comes late, 4 later still, 2 goes for long. Client 5, alone in round 4, has no training node.
COHORTS = [[0, 1, 2, 5], [0, 1, 3, 5], [0, 1, 3, 5], [5], [0, 1, 3, 4], [2, 5]]


class Recorded:
    """A pool that keeps what the clients of the last phase with uploads were sent and what they sent.

    Attributes:
        downloads: By client, shared and private together.
        uploads: Entries that the server sees or the engine holds, by client.
        weighted: Entries of `Reduce.MEAN`: the tensor times the client's weight, and that weight, by client.
    """

    downloads: dict[int, Tree]
    uploads: dict[int, Tree]
    weighted: dict[int, dict[str, tuple[Tensor, Tensor]]]

    def on(self, pool: Pool) -> Pool:
        """Watches over a pool."""
        self._pool = pool
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        if any(cell.phase for cell in cells):
            self.downloads = {i: {**shared, **cell.private.get(i, {})} for cell in cells for i in cell.ids}
            self.uploads, self.weighted = {}, {}
        for position, outcome in self._pool.run_cells(cells, shared):
            for row, i in enumerate(outcome.ids):
                if cells[position].phase:
                    self.uploads[i] = {name: stacked[row] for name, stacked in outcome.tensors.items()}
                    self.weighted[i] = {
                        name: (total, torch.as_tensor(part.weight[name]))
                        for part in outcome.sums.values()
                        for name, total in part.total.items()
                    }
            yield position, outcome


@dataclass
class TorchClient:
    """A client as torch alone has it: one module and one optimizer for the whole run.

    Attributes:
        number: Of the client.
        view: Its data.
        module: Its model.
        optimizer: SGD, as the config of `unequal` has it.
    """

    number: int
    view: View
    module: nn.Module
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)

    def train(self, round_number: int) -> None:
        """Two epochs of cross-entropy on all training rows; dropout draws what it draws on a host."""
        if not len(self.view.train):
            return
        torch.manual_seed(key(0, round_number, self.number, "train"))
        self.module.train()
        for _ in range(2):
            self.optimizer.zero_grad()
            logits = self.module([self.view.hop(k)[self.view.train] for k in self.module.inputs]).logits_NC
            F.cross_entropy(logits, self.view.label[self.view.train]).backward()
            self.optimizer.step()

    def load(self, w: Tensor) -> None:
        """Replaces the parameters, `[P]`."""
        nn.utils.vector_to_parameters(w.float().clone(), self.module.parameters())

    @property
    def w(self) -> Tensor:
        """The parameters, float64 `[P]`."""
        return nn.utils.parameters_to_vector(self.module.parameters()).detach().double()

    def probabilities(self) -> np.ndarray:
        """Class probabilities of all rows without dropout, float64 `[N, C]`."""
        self.module.eval()
        with torch.no_grad():
            logits = self.module([self.view.hop(k) for k in self.module.inputs]).logits_NC
        return logits.double().softmax(1).numpy()

    def require_kept(self, state: Tree) -> None:
        """The optimizer's moments, as a client's state has them, are ours."""
        mine = [
            self.optimizer.state[p]["momentum_buffer"].flatten()
            for p in self.module.parameters()
            if len(self.view.train)
        ]
        assert [name for name in state if ".opt." in name] == ["model.opt.momentum_buffer"] * bool(mine)
        if mine:
            torch.testing.assert_close(state["model.opt.momentum_buffer"], torch.cat(mine), rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="session")
def unequal(graphs: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Keys of a config: clients of unequal sizes, of which 5 has no training node, and `COHORTS`; half is dropped."""
    folder = tmp_path_factory.mktemp("unequal")
    arrays = {file.stem: np.load(file) for file in graphs["plain"].glob("*.npy")}
    assignment = arrays["assignment"]
    first = assignment < 5
    assignment[first] = np.random.default_rng(3).choice(5, size=first.sum(), p=[0.35, 0.3, 0.15, 0.12, 0.08])
    (folder / "graph").mkdir()
    for name, array in arrays.items():
        np.save(folder / "graph" / f"{name}.npy", array)
    np.save(folder / "trace.npy", np.array([[i in cohort for i in range(6)] for cohort in COHORTS]))
    return {
        "data.path": str(folder / "graph"),
        "data.store": str(folder / "store"),
        "participation.trace": str(folder / "trace.npy"),
        "rounds": len(COHORTS),
        "train.dropout": 0.5,
        "train.optimizer": "sgd",
        "train.lr": 0.05,
        "train.momentum": 0.9,
        "train.weight_decay": 0.01,
        "train.epochs": 2,
    }


@pytest.fixture
def recorded() -> Recorded:
    """Give `recorded.on` as the pool of a server."""
    return Recorded()


@pytest.fixture(scope="session")
def assert_mean_loss() -> Callable[[Mapping[str, Any], Mapping[int, float], Sequence[View]], None]:
    """Asserts that a round's line has the mean of clients' losses over their training rows, none if none trained."""

    def assert_mean_loss(line: Mapping[str, Any], losses: Mapping[int, float], views: Sequence[View]) -> None:
        rows = {i: len(views[i].train) for i in losses if len(views[i].train)}
        if not rows:
            assert line["loss"] is None
            return
        mean = sum(rows[i] * losses[i] for i in rows) / sum(rows.values())
        assert line["loss"] == pytest.approx(mean, rel=1e-3)

    return assert_mean_loss


@pytest.fixture(scope="session")
def torch_clients(views: Views, module_of: ModuleOf) -> Callable[[Server], list[TorchClient]]:
    """Gives the clients of a server that is configured by `unequal`, before their first round."""

    def torch_clients(server: Server) -> list[TorchClient]:
        return [TorchClient(i, view, module_of(server, server._initial)) for i, view in enumerate(views(server))]

    return torch_clients
