"""The floor on graphs: one model, one loop over the clients, one running sum; the fastest that we know in plain torch.

Matrices are made once, a weight lies the way its product reads it, and layers multiply by the weight before they sum
over neighbours. What is constant in a first layer, the sums over neighbours of the features, is not computed ahead: the
loops of libraries do not do so, nor does Shoal.
"""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from graph_models import MODELS
from graph_weights import Weights
from task import GraphTask, Turns, read

from shoal.storage.store.store import Store
from shoal.storage.store.view import Cache, View


def main() -> None:
    task = read(sys.argv[1], GraphTask)
    turns = Turns(task.a_turn)
    store, weights, nothing = Store(Path(task.store)), Weights(task), Cache(0)
    clients = range(store.clients)
    views = [View(c, *store.data(task.split, task.kernel, c), store.manifest.classes, nothing) for c in clients]
    forward, y = MODELS[task.model](weights, views), [view.train_label for view in views]
    del views  # and with them the maps of the store
    leaves = weights.leaves()
    served = [w.detach().clone() for w in leaves]
    optimizer = torch.optim.SGD(leaves, lr=task.lr)
    for number, cohort in enumerate(task.cohorts, 1):
        turns.wait()
        total = [torch.zeros_like(w) for w in served]
        rows = sum(len(y[client]) for client in cohort)
        for client in cohort:
            with torch.no_grad():
                torch._foreach_copy_(leaves, served)
            for _ in range(task.steps):
                optimizer.zero_grad()
                F.cross_entropy(forward[client](), y[client]).backward()
                optimizer.step()
            with torch.no_grad():
                torch._foreach_add_(total, leaves, alpha=len(y[client]) / rows)
        served = total
        turns.finished()
        if number == task.compared:
            task.finish(weights.vector(served))
