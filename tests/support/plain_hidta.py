"""Equations (5) to (7) of FedGPL, written out."""

from math import exp

import numpy as np

from shoal.algorithms.methods.fedgpl.fedgpl import Trained


def by_loops(trained: Trained, diagonal: str, distance: str = "rms") -> tuple[np.ndarray, np.ndarray]:
    """Transferabilities of tasks `[T, T]`, and weights of clients `[T, N]`, one number after another."""
    start, end, task = trained.start_NQ.numpy(), trained.end_NQ.numpy(), trained.task_N.tolist()
    mean, mean_start = {}, {}
    for p in set(task):
        mean[p] = sum(end[i] for i in range(len(task)) if task[i] == p) / task.count(p)
        mean_start[p] = sum(start[i] for i in range(len(task)) if task[i] == p) / task.count(p)
    tau = np.zeros((max(task) + 1,) * 2)
    for p in mean:
        length = float(np.sqrt(sum((a - b) ** 2 for a, b in zip(mean[p], mean_start[p]))))
        for q in mean:
            towards = sum((a - b) * (c - b) for a, b, c in zip(mean[p], mean_start[p], mean[q]))
            tau[p, q] = max(towards / length, 0.0)
        tau[p, p] = float(np.linalg.norm(mean[p])) if diagonal == "weight_norm" else length
    weight = np.zeros((len(tau), len(task)))
    for p in mean:
        for b, q in enumerate(task):
            square = (end[b] - mean[q]) ** 2
            apart = float(np.sqrt(np.mean(square) if distance == "rms" else np.sum(square)))
            # The closeness of the target stands above and below the line.
            weight[p, b] = 0.3 * (1 - 1 / (1 + exp(-apart))) * tau[p, q]
        weight[p] /= weight[p].sum()
    return tau, weight
