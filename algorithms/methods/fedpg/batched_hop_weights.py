"""`hop_weights` without attention by products with the adjacency: a GPU is told little, and nothing of it is looked at.

With Y the annotations as rows of zeros and a one, and A_h = A^h, row v of A_h Y counts by class where walks of h steps
from v end; those of two steps that come back, deg(v) in number, end at a node annotated like v. The same product with
the centres' shares in the place of ones gives every node what the walks that end in it bring.

Axes: N nodes, C classes, L = hops + 1 levels.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from shoal.algorithms.methods.fedpg.annotation import ItemGraph

# Of a product, in float64: 512 MB. Classes beyond wait for the next one.
NUMBERS_OF_A_PRODUCT = 2**26


class _Block(NamedTuple):
    """Some successive classes.

    Attributes:
        width: How many.
        place_N1: Place among them of every node's class, int64; 0 of one that is of another class.
        mine_N: Nodes of these classes, as zeros and ones, float64; None: all.
    """

    width: int
    place_N1: Tensor
    mine_N: Tensor | None

    @staticmethod
    def of(annotation_N: Tensor, first: int, width: int, classes: int) -> "_Block":
        """The classes from `first` on, of all `classes`."""
        if width == classes:
            return _Block(width, annotation_N[:, None], None)
        place_N = annotation_N - first
        mine_N = (place_N >= 0) & (place_N < width)
        return _Block(width, torch.where(mine_N, place_N, 0)[:, None], mine_N.double())

    def walked(self, adjacency: Tensor, x_N: Tensor, steps: int) -> Tensor:
        """Sum of x over the ends, annotated like the node, of the walks of nodes of these classes; else zero."""
        x_N1 = (x_N if self.mine_N is None else self.mine_N * x_N)[:, None]
        y_NC = x_N.new_zeros(len(x_N), self.width).scatter_(1, self.place_N1, x_N1)
        for _ in range(steps):
            y_NC = torch.sparse.mm(adjacency, y_NC)
        found_N = y_NC.gather(1, self.place_N1)[:, 0]
        return found_N if self.mine_N is None else self.mine_N * found_N


def hop_weights_by_products(
    graph: ItemGraph,
    annotation_N: Tensor,
    centre_N: Tensor,
    hops: int,
    place_N: Tensor | None = None,
    places: int | None = None,
) -> tuple[Tensor, Tensor]:
    """What `hop_weights` gives, of one client or of several whose nodes lie side by side in a graph.

    Args:
        graph: As there.
        annotation_N: As there.
        centre_N: As there.
        hops: As there.
        place_N: The prototype of every node among those of all clients, int64; the annotation, if left out.
        places: P, how many such prototypes a level has; the number of classes, if left out.

    Returns:
        Weights, float32 `[L, N]`, and counts, int32 `[L, P]`.
    """
    starts, columns = graph.edges
    nodes, classes = graph.items, graph.classes
    if place_N is None or places is None:
        place_N, places = annotation_N, classes
    # Differences of sums: float64 makes counts exact and what should vanish vanish.
    ones_E = torch.ones(len(columns), dtype=torch.float64, device=columns.device)
    adjacency = torch.sparse_csr_tensor(starts, columns, ones_E, (nodes, nodes), check_invariants=False)
    degree_N = starts.diff().double()
    width = max(1, NUMBERS_OF_A_PRODUCT // max(nodes, 1))
    blocks = [_Block.of(annotation_N, c, min(width, classes - c), classes) for c in range(0, classes, width)]

    def walked(x_N: Tensor, steps: int) -> Tensor:
        """Sum of x over the ends, annotated like the node, of every node's walks."""
        total_N = blocks[0].walked(adjacency, x_N, steps)
        for block in blocks[1:]:
            total_N += block.walked(adjacency, x_N, steps)
        return total_N if steps == 1 else total_N.addcmul_(degree_N, x_N, value=-1)

    def counted(found_N: Tensor) -> Tensor:
        zeros_P = torch.zeros(places, dtype=torch.int64, device=columns.device)
        return zeros_P.index_add_(0, place_N, found_N.long())

    ones_N = torch.ones(nodes, dtype=torch.float64, device=columns.device)
    counts = [counted(centre_N)]
    weights = [centre_N / counts[0].clamp_min(1)[place_N]]
    for steps in range(1, hops + 1):
        mass_N = walked(ones_N, steps)
        found_N = centre_N & (mass_N > 0.5)
        counts.append(counted(found_N))
        share_N = found_N / (torch.where(found_N, mass_N, 1) * counts[-1].clamp_min(1)[place_N])
        weights.append(walked(share_N, steps).clamp_min(0).float())
    return torch.stack(weights), torch.stack(counts).int()
