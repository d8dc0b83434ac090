"""Flower's simulation on Ray with one CPU: FedAvg of its own, data and model kept by the worker between calls."""

import sys
import time
from collections.abc import Iterable
from functools import cache

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from task import Task, Turns, read
from torch import Tensor, nn

client_app, server_app = ClientApp(), ServerApp()


@cache
def kept(path: str) -> tuple[Task, list[tuple[Tensor, Tensor]], nn.Module]:
    """What a worker opens once; Flower itself would open it in every call."""
    task = read(path, Task)
    return task, task.data(), task.module()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Trains one client."""
    config = message.content["config"]
    task, data, module = kept(config["task"])
    x, y = data[config["client"]]
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(module.parameters(), lr=task.lr)
    for _ in range(task.steps):
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()
    content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(content), reply_to=message)


class InTurns(FedAvg):
    """FedAvg on given cohorts, a round a turn."""

    def __init__(self, path: str, turns: Turns) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.path, self.turns, self.task = path, turns, read(path, Task)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message to a node for every client of the cohort; which node plays it makes no difference."""
        while len(nodes := sorted(grid.get_node_ids())) < self.task.clients:
            time.sleep(0.1)
        self.turns.wait()
        for node, client in zip(nodes, self.task.cohorts[server_round - 1]):
            request = ConfigRecord({"task": self.path, "client": client})
            yield Message(
                RecordDict({"arrays": arrays, "config": request}), dst_node_id=node, message_type=MessageType.TRAIN
            )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """FedAvg's own, then the end of the turn."""
        result = super().aggregate_train(server_round, replies)
        self.turns.finished()
        return result


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Runs as many rounds as there are turns."""
    path = sys.argv[1]
    task = read(path, Task)
    turns = Turns(task.a_turn)
    strategy = InTurns(path, turns)
    result = strategy.start(grid, ArrayRecord(task.module().state_dict()), num_rounds=len(task.cohorts), timeout=600)
    task.finish(torch.cat([t.reshape(-1) for t in result.arrays.to_torch_state_dict().values()]))


def main() -> None:
    one_cpu = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 1}}
    run_simulation(server_app, client_app, read(sys.argv[1], Task).clients, backend_config=one_cpu)
