"""FedPG's annotation of several clients at once, their nodes side by side in one graph.

Axes: B clients, N nodes of the largest of them, V = B N nodes of all, L levels, C classes, P = B C prototypes of a
level, H width.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from shoal.algorithms.client import Client
from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.methods.fedpg.annotation import KnownEdges
from shoal.algorithms.methods.fedpg.batched_hop_weights import hop_weights_by_products
from shoal.algorithms.methods.fedpg.hop_prototypes import hop_prototypes
from shoal.algorithms.training.batched.batched_inputs import batched_inputs, joined, padded, training_places
from shoal.algorithms.training.batched.batched_model import outputs
from shoal.algorithms.training.batched.size_groups import size_groups

# Of the hops that a pass of the model reads, and of what is computed of every node.
BYTES_AT_A_TIME = 2**28


class SideBySide(NamedTuple):
    """What the models of several clients say of their nodes, in evaluation mode.

    Nodes of the i-th client begin at i N; those beyond its own have no neighbours and are no centres.

    Attributes:
        graph: What all nodes' neighbours are.
        class_V: The label of a training row, else the predicted class, int64.
        place_V: Where the prototype of that class lies among those of all clients, int64.
        centre_V: Nodes whose class is trusted, bool.
        z_VH: Embeddings of length one.
        clients: B.
    """

    graph: KnownEdges
    class_V: Tensor
    place_V: Tensor
    centre_V: Tensor
    z_VH: Tensor
    clients: int

    @property
    def prototypes(self) -> int:
        """P."""
        return self.clients * self.graph.classes

    def weights(self, hops: int) -> tuple[Tensor, Tensor]:
        """Weights, float32 `[L, V]`, and counts, int32 `[L, P]`, as `hop_weights` gives them without attention."""
        of_all = self.place_V, self.prototypes
        return hop_weights_by_products(self.graph, self.class_V, self.centre_V, hops, *of_all)


def at_once(clients: Sequence[Client], levels: int) -> list[list[int]]:
    """Clients by their places, those together that are annotated together."""
    model, data = clients[0].model, clients[0].data
    layers = 1 if model.coupled is None else model.coupled.depth
    # Features; embeddings, and these with the weight of every level; counts by class in float64 and their products.
    features = data.features * len(model.pattern.inputs)
    of_node = features + (layers + 2 * levels) * model.pattern.embedding_width + 6 * data.classes
    return size_groups(
        [client.data.nodes for client in clients], 4 * of_node, 4 * len(model.pattern.w), BYTES_AT_A_TIME
    )


def side_by_side(clients: Sequence[Client], w: Sequence[Tensor], confident: float | None = None) -> SideBySide:
    """Annotates all nodes of clients of one kind; see `annotate`.

    Args:
        clients: The clients.
        w: Their parameters `[P]`.
        confident: As there.
    """
    data = [client.data for client in clients]
    inputs = batched_inputs([client.model.gathered("all") for client in clients])
    out = outputs(clients[0].model.pattern, torch.stack(list(w)), inputs)
    logits_VC, most = out.logits_NC.flatten(0, 1).float(), out.logits_NC.shape[1]
    place_R, label_R = training_places(data, most)
    guess_V, nodes, classes = logits_VC.argmax(1), len(logits_VC), data[0].classes
    # What is padded among the training rows is written behind all nodes, and cut off.
    class_V = torch.cat([guess_V, guess_V.new_zeros(1)]).index_put_((place_R,), label_R)[:-1]
    centre_V = torch.zeros(nodes + 1, dtype=torch.bool, device=guess_V.device)
    centre_V = centre_V.index_fill_(0, place_R, True)[:-1]
    adjacency = joined([view.adjacency for view in data], most)
    if confident is not None:
        # A degree counts a node itself.
        real_V = padded([view.degree for view in data], 0).flatten() > 0
        centre_V |= real_V & (logits_VC.softmax(1).amax(1) >= confident)
    graph = KnownEdges(classes, nodes, (adjacency.crow_indices(), adjacency.col_indices()))
    first_V = torch.arange(0, len(data) * classes, classes, device=class_V.device).repeat_interleave(
        most, output_size=nodes
    )
    z_VH = unit(out.embedding_NH.flatten(0, 1).float())
    return SideBySide(graph, class_V, class_V + first_V, centre_V, z_VH, len(data))


def prototypes_of_several(nodes: SideBySide, hops: int) -> tuple[Tensor, Tensor, list[int]]:
    """Of every client its prototypes `[B, L, C, H]`, on how many centres each rests `[B, L, C]`, how many exist."""
    weight_LV, counts_LP = nodes.weights(hops)
    proto_LPH = hop_prototypes(nodes.z_VH, nodes.place_V, weight_LV, nodes.prototypes)
    by_client = nodes.clients, nodes.graph.classes
    counts_BLC = counts_LP.unflatten(1, by_client).movedim(1, 0)
    proto_BLCH = proto_LPH.unflatten(1, by_client).movedim(1, 0)
    # The one thing that is looked at, for all clients.
    return proto_BLCH, counts_BLC, (counts_BLC > 0).sum((1, 2)).tolist()
