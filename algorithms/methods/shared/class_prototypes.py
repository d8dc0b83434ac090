"""Base class of methods whose clients share one row for each class instead of parameters."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm, Ask, Client, Context, MappedLoss, Received, Requests, Tree, Upload
from shoal.algorithms.losses.prototypes import bits, class_means, pack, row_bytes, unpack
from shoal.algorithms.protocol import Reduce, Replies
from shoal.storage.graph.sparse_matrix import StoredFeatures


class ClassRows(Algorithm):
    """Rows r_c = sum_i n_ic r_ic / sum_i n_ic over the cohort, r_ic a mean over client i's n_ic training rows of c.

    A class that no client of the cohort has keeps its row. Up: the r_ic of the C_i classes that the client trains on,
    of width K, and all counts, C_i K + C scalars. Down: the known r_c and a bit for every class.
    """

    reads_embedding = True
    client_models = "heterogeneous"

    def rows_of(self, client: Client) -> Tensor:
        """Computes the averaged quantity of every training row, `[n, K]`."""
        raise NotImplementedError

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        got = yield Ask("train", {"proto": Reduce.MEAN}, shared=known_rows(server))
        take_rows(server, got)

    def receive(self, client: Client, down: Tree) -> tuple[Tensor, Tensor] | None:
        """The known rows, `[C, K]`, and which those are, `[C]`; None while there are none."""
        return unpack(down, client.info.classes)

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        return rows_upload(*training_means(client, self.rows_of(client)))


class SendsMeans(MappedLoss):
    """Clients receive and send a model as those of the next class do, or keep their own, and send means of embeddings.

    Means are p_ic `[C, H]` over client i's n_ic training rows of class c, in evaluation mode, of which those that exist
    count as sent.

    Attributes:
        sends_model: Whether there is a model beside the means.
        stacks_means: The server gets those of every client, with a bit for every class (`present`) or with `counts`;
            empty: it gets their mean by n_ic, with the counts.
    """

    sends_model: ClassVar[bool] = True
    stacks_means: ClassVar[Literal["", "present", "counts"]] = ""

    def read(self, down: Tree, classes: int) -> Received:
        """Returns what the loss reads of a download, the same for all clients."""
        raise NotImplementedError

    def receive(self, client: Client, down: Tree) -> Received:
        if self.sends_model:
            super().receive(client, down)
        return self.read(down, client.info.classes)

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        model = super().upload(client, received, phase) if self.sends_model else Upload({})
        mean_CH, count_C = training_means(client, training_embeddings(client))
        if self.stacks_means:
            present_C = count_C > 0
            beside = bits(present_C) if self.stacks_means == "present" else count_C
            sizes = {"proto": row_bytes(present_C, mean_CH.shape[1])}
            means = Upload({"proto": mean_CH, self.stacks_means: beside}, {}, sizes)
        else:
            means = rows_upload(mean_CH, count_C)
        return Upload({**model.entries, **means.entries}, {**model.weight, **means.weight}, means.upload_bytes)


def known_rows(server: Tree) -> Tree:
    """Packs the rows that the server has as a download; empty while it has none."""
    return pack(server["proto"], server["known"]) if "proto" in server else {}


def take_rows(server: Tree, got: Replies) -> None:
    """Replaces the server's rows by the cohort's; a class that no client has keeps its row."""
    fresh = got.weights["proto"][:, 0] > 0
    server.setdefault("proto", torch.zeros_like(got["proto"]))
    server.setdefault("known", torch.zeros_like(fresh))
    server["proto"][fresh] = got["proto"][fresh]
    server["known"] |= fresh


def rows_upload(mean_CK: Tensor, counts_C: Tensor, entry: str = "proto") -> Upload:
    """Averages a client's rows, weighted by its counts, for an upload."""
    sent = row_bytes(counts_C > 0, mean_CK.shape[1]) + 4 * len(counts_C)
    return Upload({entry: mean_CK}, {entry: counts_C[:, None]}, {entry: sent})


def training_embeddings(client: Client) -> Tensor:
    """Embeds the training rows in evaluation mode, `[n, H]`."""
    return client.model.output(client.model.gathered("train")).embedding_NH


def training_means(client: Client, rows_NK: StoredFeatures) -> tuple[Tensor, Tensor]:
    """Means of a quantity of the training rows by class, `[C, K]`, zero for a class without any, and counts, `[C]`."""
    return class_means(rows_NK, client.data.train_label, client.info.classes)
