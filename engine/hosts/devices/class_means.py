"""Means by class of what clients of a stack embed, for methods that send these beside their model.

Axes: B clients, N training rows of the longest, C classes, H width.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.shared.class_prototypes import SendsMeans
from shoal.algorithms.protocol import Reduce
from shoal.engine.messages.cell import Outcome

MEANS, PRESENT = "proto", "present"


def sends_means(method: object) -> bool:
    """Returns whether clients of a method receive and send as `SendsMeans` has it, beside FedAvg's model or none."""
    cls: Any = type(method)
    if not isinstance(method, SendsMeans):
        return False
    alone = cls.receive is SendsMeans.receive and cls.upload is SendsMeans.upload
    if not method.sends_model or not isinstance(method, FedAvg):
        return alone and not method.sends_model
    # The hooks of `SendsMeans` call those of FedAvg.
    behind = cls.__mro__[cls.__mro__.index(SendsMeans) + 1 :]
    between = any({"receive", "upload"} & vars(other).keys() for other in behind[: behind.index(FedAvg)])
    return alone and not between


def means_by_class(z_BNH: Tensor, label_BN: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Averages embeddings by class, `[B, C, H]`, zero without any, and counts rows, float32 `[B, C]`.

    Labels of padded rows are negative.
    """
    clients, width = len(z_BNH), z_BNH.shape[2]
    # Padded rows are a class of their own.
    class_BN = label_BN.where(label_BN >= 0, classes)
    place_M = (class_BN + (classes + 1) * torch.arange(clients, device=z_BNH.device)[:, None]).flatten()
    sums = z_BNH.new_zeros(clients * (classes + 1), width).index_add_(0, place_M, z_BNH.flatten(0, 1))
    counts = z_BNH.new_zeros(clients * (classes + 1)).index_add_(0, place_M, z_BNH.new_ones(len(place_M)))
    sums_BCH, count_BC = sums.view(clients, classes + 1, width)[:, :-1], counts.view(clients, classes + 1)[:, :-1]
    return sums_BCH / count_BC.clamp_min(1)[:, :, None], count_BC


@dataclass
class ClassMeans:
    """Means `[B, C, H]` and counts `[B, C]` of a stack, float32.

    Attributes:
        stacks: The server gets those of every client, and this beside, see `SendsMeans`; empty: their mean.
    """

    mean_BCH: Tensor
    count_BC: Tensor
    stacks: str

    @classmethod
    def of(cls, parts: Sequence[tuple[Tensor, Tensor]], clients: int, stacks: str) -> "ClassMeans":
        """Joins those of batches; clients without a training row lie behind."""
        means, counts = (torch.cat(of_batches) for of_batches in zip(*parts))
        if missing := clients - len(means):
            means = torch.cat([means, means.new_zeros(missing, *means.shape[1:])])
            counts = torch.cat([counts, counts.new_zeros(missing, counts.shape[1])])
        return cls(means, counts, stacks)

    def weighted(self) -> dict[str, Tensor]:
        """Returns what is added up, float64 `[B, C H]`."""
        weighted_BCH = self.mean_BCH.double() * self.count_BC.double()[:, :, None]
        return {} if self.stacks else {MEANS: weighted_BCH.flatten(1)}

    def to_fetch(self) -> list[Tensor]:
        """Lists what must come to the processor."""
        return [self.count_BC, *([self.mean_BCH] if self.stacks else [])]

    def take(self, fetched: Sequence[Tensor]) -> None:
        """Takes what `to_fetch` gave, on the processor."""
        self.count_BC, self.mean_BCH = fetched[0], fetched[1] if self.stacks else self.mean_BCH

    def sizes(self) -> list[int]:
        """Counts the bytes of every client's means in an upload, counts or bits of classes included."""
        classes, width = self.mean_BCH.shape[1:]
        present_B = (self.count_BC > 0).sum(1)
        return (4 * width * present_B + (-(-classes // 8) if self.stacks == PRESENT else 4 * classes)).tolist()

    def weight_of(self, rows: Sequence[int]) -> Tensor:
        """Adds up the weights of some clients, float64 `[C, 1]`."""
        return self.count_BC[list(rows)].double().sum(0)[:, None]

    def put(self, outcome: Outcome, rows: Sequence[int]) -> None:
        """Puts the means of the clients of some rows into their outcome, where the server gets them all."""
        if self.stacks and rows:
            chosen = list(rows)
            outcome.tensors[MEANS] = self.mean_BCH[chosen]
            count_BC = self.count_BC[chosen]
            bits = torch.from_numpy(np.packbits((count_BC > 0).numpy(), axis=1))
            outcome.tensors[self.stacks] = bits if self.stacks == PRESENT else count_BC.int()


def reductions(stacks: str) -> dict[str, Reduce]:
    """Returns how the entries of means are reduced."""
    return {MEANS: Reduce.STACK, stacks: Reduce.STACK} if stacks else {MEANS: Reduce.MEAN}
