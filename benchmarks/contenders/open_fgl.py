"""OpenFGL's own trainer on Shoal's clients and split: FedAvg, its GCN of two convolutions.

As everybody here it takes plain SGD steps, drops nothing out and evaluates in no round; it weighs clients by all of
their nodes. Its own loader would download and partition the graph anew.
"""

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from openfgl.config import args
from openfgl.flcore import trainer
from task import GraphTask, Turns, read
from torch_geometric.data import Data


class Clients:
    """In the place of OpenFGL's dataset: what it would hand to clients and server, from the benchmark's files."""

    def __init__(self, args: Any) -> None:
        """Reads all clients, and writes their split where OpenFGL looks for it."""
        self.processed_dir = args.root
        files = [np.load(Path(args.root) / f"{client}.npz") for client in range(args.num_clients)]
        classes = 1 + max(int(file["y"].max()) for file in files)
        split = Path(args.root) / "node_cls" / "default_split"
        split.mkdir(parents=True, exist_ok=True)
        self.local_data = []
        for client, file in enumerate(files):
            x, y, edges = (torch.from_numpy(file[name]) for name in ("x", "y", "edge_index"))
            self.local_data.append(Data(x=x, y=y, edge_index=edges.long(), num_global_classes=classes))
            for part in ("train", "val", "test"):
                torch.save(
                    torch.zeros(len(y), dtype=torch.bool).index_fill_(0, torch.from_numpy(file[part]), True),
                    split / f"{part}_{client}.pt",
                )
                (split / f"glb_{part}_{client}.pkl").write_bytes(pickle.dumps(file["node"][file[part]].tolist()))
        self.global_data = self._whole(files, classes)

    def _whole(self, files: list[Any], classes: int) -> Data:
        """All clients as one graph, whose nodes have the dataset's numbers."""
        node = np.concatenate([file["node"] for file in files])
        back = np.argsort(node)
        x, y = (torch.from_numpy(np.concatenate([file[name] for file in files])[back]) for name in ("x", "y"))
        edges = torch.from_numpy(np.concatenate([file["node"][file["edge_index"]] for file in files], axis=1))
        return Data(x=x, y=y, edge_index=edges, num_global_classes=classes)


class InTurns(trainer.FGLTrainer):
    """OpenFGL's trainer, a round a turn, without the evaluation at the end of a round."""

    def __init__(self, task: GraphTask, turns: Turns) -> None:
        super().__init__(args)
        self.turns, self.left = turns, len(task.cohorts)
        for client in self.clients:
            client.task.optim = torch.optim.SGD(client.task.model.parameters(), lr=task.lr)

    def train(self) -> None:
        """Begins the first round; `evaluate` ends one and begins the next."""
        self.turns.wait()
        super().train()

    def evaluate(self) -> None:
        self.turns.finished()
        self.left -= 1
        if self.left:
            self.turns.wait()


def main() -> None:
    task = read(sys.argv[1], GraphTask)
    turns = Turns(task.a_turn)
    args.root = str(Path(task.start_file).parent / "open_fgl")
    args.dataset, args.model, args.metrics, args.dropout = ["Cora"], ["gcn"], ["accuracy"], 0.0
    args.num_rounds, args.num_clients, args.num_epochs = len(task.cohorts), len(task.cohorts[0]), task.steps
    trainer.FGLDataset = Clients
    InTurns(task, turns).train()
