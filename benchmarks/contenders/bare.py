"""The floor: one model, one loop over the clients, one running sum; the gradient by autograd or by formulas.

`bare.py TASK`, whose clients are rows of a folder or those of a store.
"""

import json
import sys
from pathlib import Path

import scipy.sparse as sp
import torch
import torch.nn.functional as F
from bare_layers import LAYERED
from bare_models import MODELS, Client, Linear, Mlp, client_of, share_memory
from bare_weights import Weights
from task import GraphTask, Task, Turns, read
from torch import Tensor

from shoal.storage.shards.view import Cache, View
from shoal.storage.store.store import Store


def clients_of(task: Task | GraphTask) -> list[Client]:
    """All clients, in memory."""
    made: list[Client]
    if isinstance(task, Task):
        kind = Mlp if task.hidden else Linear
        weights = Weights(task.start(), task.shapes, kind.blocks)
        made = [kind(weights, sp.csr_array(x.numpy()), y, task.form) for x, y in task.data()]
    else:
        store, nothing = Store(Path(task.store)), Cache(0)
        kind_of_graph = {**MODELS, **LAYERED}[task.model]
        weights = Weights(task.start(), task.shapes, kind_of_graph.blocks)
        data = (store.data(task.split, task.kernel, client) for client in range(store.clients))
        views = (View(client, *files, store.manifest.classes, nothing) for client, files in enumerate(data))
        if task.model in LAYERED:
            made = [kind_of_graph(weights, view, task.form) for view in views]  # type: ignore[call-arg, arg-type]
        else:
            made = [client_of(task.model, weights, view, task.form) for view in views]
    share_memory(made)
    return made


def train(client: Client, leaves: list[Tensor], steps: int, lr: float) -> None:
    """Full-batch steps of SGD; without leaves, which share the weights' memory, by formulas."""
    weights = client.weights
    for _ in range(steps):
        if leaves:
            found = torch.autograd.grad(F.cross_entropy(client.logits(leaves), client.label_T), leaves)
            with torch.no_grad():
                torch._foreach_add_(leaves, found, alpha=-lr)
        else:
            client.write_gradients()
            weights.flat.add_(weights.gradient, alpha=-lr)


def main() -> None:
    kind = GraphTask if "store" in json.loads(Path(sys.argv[1]).read_text()) else Task
    task: Task | GraphTask = read(sys.argv[1], kind)
    turns = Turns(task.a_turn)
    clients = clients_of(task)
    weights = clients[0].weights
    leaves = [value.detach().requires_grad_() for value in weights.values] if task.form == "autograd" else []
    served, total = weights.flat.clone(), weights.flat.clone()
    for number, cohort in enumerate(task.cohorts, 1):
        turns.wait()
        total.zero_()
        rows = sum(len(clients[client].label_T) for client in cohort)
        for client in cohort:
            with torch.no_grad():
                weights.flat.copy_(served)
            train(clients[client], leaves, task.steps, task.lr)
            total.add_(weights.flat, alpha=len(clients[client].label_T) / rows)
        served, total = total, served
        turns.finished()
        if number == task.compared:
            task.finish(weights.vector(served))
