"""FGGP where clients train several architectures: their server averages within each; one classifier is common to all.

The parameters of all architectures lie behind one another in `w`. Clients upload those of their own one, which the
server keeps apart (`Reduce.GATHER`), for they are of several sizes.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from shoal.algorithms.base import Context, Replies, Tree
from shoal.algorithms.client import FlatModel
from shoal.algorithms.methods.shared.body import classifier_of
from shoal.algorithms.protocol import MODEL
from shoal.storage.errors import ShoalError

GKIC = Literal["both", "knn_only", "gen_only", "off"]
# The server's state and the download before an evaluation have numbers of parameters by the first name; downloads
# have the classifier with which all start by the second.
SIZES, HEAD = "sizes", "head"


def what_fits(model: FlatModel) -> GKIC:
    """Returns the most that a model can have of a second view (`gkic: fitting`)."""
    if model.coupled is None or model.prompted or model.coupled.fanouts:
        return "off"
    return "both" if draws_for(model) else "knn_only"


def draws_for(model: FlatModel) -> bool:
    """Returns whether the matrices of the model can be drawn."""
    return model.coupled is not None and model.coupled.operator in ("symmetric", "sum")


def common_classifier(models: Sequence[FlatModel], ctx: Context) -> Tensor:
    """Returns the initial classifier of client 0's model, `[P_h]`; raises a ShoalError if others have other sizes."""
    kinds, sizes = ctx.models[MODEL], [model.classifier.stop - model.classifier.start for model in models]
    for size, kind in zip(sizes, kinds):
        if size != sizes[0]:
            raise ShoalError(
                "model.head",
                f"all clients start from one classifier, but that of {kinds[0].name} has {sizes[0]} parameters and "
                f"that of {kind.name} {size}; give all models head: linear",
            )
    return classifier_of(models[ctx.clients[0].model])


def parts_of(w: Tensor, sizes: Tensor) -> list[Tensor]:
    """Splits the parameters of all architectures, `[sum of P]`."""
    return list(w.split(sizes.tolist()))


def own_part(down: Tree, kind: int) -> Tensor:
    """Returns the parameters of the client's architecture, sent alone or, before an evaluation, with all others."""
    return parts_of(down["w"], down[SIZES])[kind] if SIZES in down else down["w"]


def average_by_kind(server: Tree, ctx: Context, got: Replies) -> None:
    """Averages within each architecture by the weights `n`; one without weight keeps what it had."""
    parts = parts_of(server["w"], server[SIZES])
    for kind in range(len(parts)):
        replies = zip(got.ids, got.lists["w"], got["n"].tolist())
        members = [(w, n) for i, w, n in replies if ctx.clients[i].model == kind and n]
        if members:
            total = sum((n * w.double() for w, n in members), torch.zeros_like(parts[kind], dtype=torch.float64))
            parts[kind] = (total / sum(n for _, n in members)).to(parts[kind].dtype)
    server["w"] = torch.cat(parts)
