"""What models of several clients read at once: rows of hops, or whole graphs, padded to those of the longest.

Axes: B clients, N rows or nodes of the longest of them, T training rows of the one that has most, F features.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from algorithms.backbones.coupled import Coupled
from algorithms.backbones.graph_batch import ItemBatch
from algorithms.backbones.neighbourhood import Inputs, Neighbourhood, alike
from algorithms.joined_graphs import JoinedMatrices
from algorithms.padding import padded
from storage.sparse_matrix import Features


class StackedInputs(Protocol):
    """The inputs of all clients.

    Attributes:
        tensors: By client along the first axis.
    """

    tensors: Sequence[Tensor]

    def of_one(self, tensors: Sequence[Tensor]) -> Inputs:
        """What the model reads, from one client's part of the tensors, inside `torch.vmap`."""
        ...

    def example(self) -> Inputs:
        """A small input of the same kind, for a look at what the model does."""
        ...

    def lengths(self, seen: int) -> Sequence[int]:
        """How many rows every client has where the model has so many rows of the example."""
        ...

    def alike(self, x_NF: Tensor) -> Inputs:
        """What the model reads of nodes with neighbours all like them (`ClientModel.alike`), inside `torch.vmap`."""
        ...


def stacked_inputs(gathered: Sequence[Inputs]) -> StackedInputs:
    """Of what the model of every client gathered for its training rows."""
    first = gathered[0]
    if isinstance(first, Neighbourhood):
        return StackedGraphs([one for one in gathered if isinstance(one, Neighbourhood)])
    assert not isinstance(first, ItemBatch)
    return StackedRows([one for one in gathered if not isinstance(one, Neighbourhood | ItemBatch)])


class StackedRows:
    """Rows of hops, for decoupled models; the attributes of `StackedInputs`."""

    def __init__(self, gathered: Sequence[Sequence[Features]]) -> None:
        """Of every client the hops' rows."""
        self.tensors: Sequence[Tensor] = [padded(list(parts), 0) for parts in zip(*gathered)]
        self._rows = [len(own[0]) for own in gathered]

    def of_one(self, tensors: Sequence[Tensor]) -> Inputs:
        return list(tensors)

    def example(self) -> Inputs:
        return [hop[0, :1] for hop in self.tensors]

    def lengths(self, seen: int) -> Sequence[int]:
        return self._rows

    def alike(self, x_NF: Tensor) -> Inputs:
        return [x_NF] * len(self.tensors)


class StackedGraphs:
    """Whole graphs, for coupled models, and the rows that are asked for; the attributes of `StackedInputs`.

    Sparse features are made dense. Nodes that are padded hear nobody and are heard by nobody.
    """

    # Of the example, and of its rows that are asked for.
    NODES, ROWS = 2, 1

    def __init__(self, gathered: Sequence[Neighbourhood]) -> None:
        """Of every client its neighbourhood."""
        rows = [own.rows for own in gathered if own.rows is not None]
        x_BNF = padded([own.x_NF for own in gathered], 0)
        # Without rows that are asked for the model answers for all nodes.
        self.tensors: Sequence[Tensor] = [x_BNF, *([padded(rows, 0)] if rows else [])]
        self._nodes, self._rows = [len(own.x_NF) for own in gathered], [len(own) for own in rows]
        # One matrix serves several layers.
        made: dict[int, JoinedMatrices] = {}
        for layer in zip(*(own.operators for own in gathered)):
            if id(layer[0]) not in made:
                made[id(layer[0])] = JoinedMatrices(layer, x_BNF.shape[1])
        self._operators = tuple(made[id(operator)] for operator in gathered[0].operators)

    def of_one(self, tensors: Sequence[Tensor]) -> Inputs:
        return Neighbourhood(tensors[0], self._operators, *tensors[1:])  # type: ignore[arg-type]

    def example(self) -> Inputs:
        x_BNF, *asked = self.tensors
        around = alike(x_BNF.new_zeros(self.NODES, x_BNF.shape[2]), "sum", len(self._operators))
        return around._replace(rows=asked[0].new_zeros(self.ROWS)) if asked else around

    def lengths(self, seen: int) -> Sequence[int]:
        return self._nodes if seen == self.NODES else self._rows

    def alike(self, x_NF: Tensor) -> Inputs:
        return Neighbourhood(x_NF, (Itself(len(x_NF)),) * len(self._operators))  # type: ignore[arg-type]


class Itself:
    """What a node hears whose neighbours are like it, for sums, means and symmetric matrices: itself, once."""

    def __init__(self, nodes: int) -> None:
        """Of so many nodes."""
        self._nodes = nodes

    def __len__(self) -> int:
        return self._nodes

    def __matmul__(self, dense: Tensor) -> Tensor:
        """The product with a `[nodes, H]`."""
        return dense


def numbers_of_row(inputs: Inputs, coupled: Coupled | None) -> tuple[int, int]:
    """Rows that are padded, and about how many numbers each takes in training, what is computed from it included."""
    if coupled is None or not isinstance(inputs, Neighbourhood):
        assert not isinstance(inputs, Neighbourhood | ItemBatch)
        return len(inputs[0]), 3 * sum(part.shape[1] for part in inputs)
    width = coupled.head.linears[-1].in_features
    return len(inputs.x_NF), 3 * inputs.x_NF.shape[1] + 6 * coupled.depth * int(width)  # type: ignore[arg-type]
