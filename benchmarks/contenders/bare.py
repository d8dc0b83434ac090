"""The floor: one model, one loop over the clients, one running sum."""

import sys

import torch
import torch.nn.functional as F
from task import Task, Turns, read
from torch.nn.utils import parameters_to_vector


def main() -> None:
    task = read(sys.argv[1], Task)
    turns = Turns(task.a_turn)
    data, module = task.data(), task.module()
    parameters = list(module.parameters())
    served = [p.detach().clone() for p in parameters]
    optimizer = torch.optim.SGD(parameters, lr=task.lr)
    for cohort in task.cohorts:
        turns.wait()
        total = [torch.zeros_like(p) for p in served]
        rows = sum(len(data[client][1]) for client in cohort)
        for client in cohort:
            x, y = data[client]
            with torch.no_grad():
                for p, w in zip(parameters, served):
                    p.copy_(w)
            for _ in range(task.steps):
                optimizer.zero_grad()
                F.cross_entropy(module(x), y).backward()
                optimizer.step()
            with torch.no_grad():
                for t, p in zip(total, parameters):
                    t.add_(p, alpha=len(y) / rows)
        served = total
        turns.finished()
    task.finish(parameters_to_vector(served))
