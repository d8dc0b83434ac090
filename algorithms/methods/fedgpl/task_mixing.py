"""HiDTA: how much clients of one task learn from those of another, and from each other.

Axes: N clients, T tasks, Q parameters of a client.
"""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Mixing = Literal["hidta", "task_mean", "mean", "none"]
Diagonal = Literal["weight_norm", "delta"]
Distance = Literal["rms", "norm"]
STILL = 1e-12


@dataclass(frozen=True)
class Trained:
    """Parameters of clients before and after a round, float64, and their tasks; of those that have training data."""

    start_NQ: Tensor
    end_NQ: Tensor
    task_N: Tensor

    @property
    def members_TN(self) -> Tensor:
        """Every row the mean over the clients of a task, zero for a task without any, float64."""
        of_task_TN = F.one_hot(self.task_N).T.double()
        return of_task_TN / of_task_TN.sum(1, keepdim=True).clamp(min=1)


def task_weights(trained: Trained, mixing: Mixing, diagonal: Diagonal, distance: Distance = "rms") -> Tensor:
    """The weights of every client's parameters in the next ones of a task, float64 `[T, N]`.

    Rows of tasks with a client sum to one, others are zero. `hidta` is of equations (5) to (7), `task_mean` the mean
    within a task, `mean` that over all clients. `diagonal`: see `transferability`. Equation (6) has the `norm` of a
    client's parameters minus its task's; `rms` divides it by sqrt(Q), so that it does not grow with Q.

    As printed, (6) and (7) have parameters from before the round, by which training would be lost; all here are those
    after it, as in the paper's algorithm 1.
    """
    members_TN = trained.members_TN
    if mixing == "task_mean":
        return members_TN
    there_T1 = members_TN.sum(1, keepdim=True)
    if mixing == "mean":
        return there_T1 / len(trained.task_N) * torch.ones_like(members_TN)
    tau_TN = transferability(trained, diagonal)[:, trained.task_N]
    mean_NQ = (members_TN @ trained.end_NQ)[trained.task_N]
    square_NQ = (trained.end_NQ - mean_NQ).square()
    closeness_N = F.logsigmoid(-(square_NQ.mean(dim=1) if distance == "rms" else square_NQ.sum(dim=1)).sqrt())
    # In the weights of one target the closeness of the target itself cancels.
    weight_TN = torch.softmax(tau_TN.log() + closeness_N, dim=1)
    # Nobody to listen to: the row is 0 / 0.
    return torch.where(there_T1 > 0, torch.where(weight_TN.isnan(), members_TN, weight_TN), 0.0)


def transferability(trained: Trained, diagonal: Diagonal) -> Tensor:
    """How far the step of a task leads towards another one (eq. 5), float64 `[T, T]`, rows being targets.

    tau_pq = <theta'_p - theta_p, theta'_q - theta_p> / ||theta'_p - theta_p||, theta being means over the clients of a
    task. Negative ones, of which the paper says nothing, count as 0: with them the sum below (7) may vanish. By (5)
    tau_pp = ||theta'_p - theta_p|| (`delta`); the published code has ||theta'_p|| (`weight_norm`), which is larger by
    one to two orders: a task then listens mostly to itself. A task that stood still listens to itself alone.
    """
    members_TN = trained.members_TN
    start_TQ, end_TQ = members_TN @ trained.start_NQ, members_TN @ trained.end_NQ
    step_TQ = end_TQ - start_TQ
    length_T = step_TQ.norm(dim=1)
    still_T = length_T < STILL
    towards_TT = step_TQ @ end_TQ.T - (step_TQ * start_TQ).sum(1, keepdim=True)
    tau_TT = (towards_TT / length_T.clamp(min=STILL)[:, None]).clamp(min=0)
    tau_TT[still_T] = 0
    own_T = end_TQ.norm(dim=1) if diagonal == "weight_norm" else length_T
    tau_TT.diagonal().copy_(torch.where(still_T, 1.0, own_T))
    return tau_TT
