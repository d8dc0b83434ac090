"""The inputs of a step of FGGP: a client's graph, or some of its small graphs, and a second view of these.

The second view of small graphs is made in each of them: neighbours, candidates and edges join no two.

Axes: N nodes, G graphs, H width of features, K neighbours.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.client import ClientModel
from shoal.algorithms.graphs.completed_graph import CompletedGraph, complete_graph
from shoal.algorithms.graphs.generated_graph import Drawn, EdgeOptions, GeneratedGraph
from shoal.algorithms.graphs.nearest import nearest
from shoal.algorithms.models.inputs.neighbourhood import (
    Gathered,
    GraphBatch,
    Inputs,
    Neighbourhood,
    Operator,
    operator_over,
)
from shoal.algorithms.models.items.client_graphs import ClientGraphs
from shoal.algorithms.models.layers.readout import embedded_nodes
from shoal.algorithms.rng import Stream
from shoal.storage.graph.sparse_matrix import SparseMatrix

# The generator is two layers of a GCN.
LAYERS = 2


class Step(NamedTuple):
    """The inputs of a step, the rows of its outputs that have labels, these, and the term of the generator, if any."""

    own: Inputs | Gathered
    other: Inputs
    rows: Tensor
    labels: Tensor
    regularizer: Callable[[], Tensor] | None


class SecondView:
    """A' of a client: A, and an edge from every node to its nearest ones; on it, or on A^g, the second view is read."""

    def __init__(
        self,
        model: ClientModel,
        nearest_NK: Tensor | None,
        generator: ClientModel | None,
        edges: EdgeOptions,
        rng: torch.Generator,
    ) -> None:
        """Builds A' of the `nearest` nodes, if the host does not have it; A' = A without these.

        The model is coupled. Without a generator, which draws by `edges` and `rng`, the view is A' itself.
        """
        assert model.coupled is not None
        self._model, self._data, self._coupled, self._generator = model, model.data, model.coupled, generator
        self._edges, self._rng = edges, rng
        if nearest_NK is None:
            nearest_NK = torch.zeros(self._data.nodes, 0, dtype=torch.int32)
        # A host may cache data of several runs, whose neighbours differ.
        self._content = hash(nearest_NK.cpu().numpy().tobytes())
        self._graph = self._cache("completed", lambda: complete_graph(*self._data.csr, nearest_NK, self._data.device))

    def step(self, chosen: Tensor | None) -> Step:
        """Draws what a step reads, of all training items or those at some places among them, int64."""
        raise NotImplementedError

    @property
    def _kind(self) -> Drawn:
        """The kind of matrices that are drawn for the model."""
        return "sum" if self._coupled.operator == "sum" else "symmetric"

    def _cache(self, what: str, build: Callable[[], Any]) -> Any:
        return self._data.cache((what, self._content), build)

    def _operator(self, kind: Operator) -> SparseMatrix:
        starts, columns = self._graph[0].numpy(), self._graph[1].numpy()
        device = self._data.device
        return self._cache(f"completed, {kind}", lambda: operator_over(kind, starts, columns).to(device))


class ViewOfNodes(SecondView):
    """Both inputs of a client whose nodes are classified: every step reads its whole graph."""

    def __init__(self, model: ClientModel, nearest_NK: Tensor | None, *drawn: Any) -> None:
        """Takes the arguments of `SecondView`."""
        super().__init__(model, nearest_NK, *drawn)
        self._own = model.gathered("all")
        if self._generator is None:
            self._completed = self._around(self._operator(self._coupled.operator), self._coupled.depth)
        else:
            self._completed = self._around(self._operator("symmetric"), LAYERS)

    def step(self, chosen: Tensor | None) -> Step:
        assert chosen is None
        data = self._data
        if self._generator is None:
            return Step(self._own, self._completed, data.train, data.train_label, None)
        f_NH = self._generator(self._completed).embedding_NH
        drawn = GeneratedGraph(CompletedGraph(*self._graph), f_NH, self._rng, self._edges, self._kind)
        around = self._around(drawn.operator, self._coupled.depth)
        return Step(self._own, around, data.train, data.train_label, drawn.regularizer)

    def _around(self, operator: SparseMatrix, depth: int) -> Neighbourhood:
        return Neighbourhood(self._data.whole(0), (operator,) * depth)


class _Completed(NamedTuple):
    """Some small graphs, their rows of A' as the model reads it, or A' and its matrix for the generator."""

    own: GraphBatch
    matrix: SparseMatrix
    graph: CompletedGraph | None


class ViewOfGraphs(SecondView):
    """Both inputs of a client whose small graphs are classified: a step reads some of those that train."""

    def __init__(self, model: ClientModel, nearest_NK: Tensor | None, *drawn: Any) -> None:
        """Takes the arguments of `SecondView`."""
        super().__init__(model, nearest_NK, *drawn)
        self._whole: _Completed | None = None

    def step(self, chosen: Tensor | None) -> Step:
        data = self._data
        if chosen is None:
            self._whole = completed = self._whole or self._complete(data.train, whole=True)
        else:
            completed = self._complete(data.train[chosen])
        labels = data.train_label if chosen is None else data.train_label[chosen]
        rows = torch.arange(len(labels), device=data.device)
        batch, operator, regularizer = completed.own, completed.matrix, None
        if completed.graph is not None:
            assert self._generator is not None
            around = Neighbourhood(batch.hops[0], (operator,) * LAYERS)
            f_NH = self._generator(around).embedding_NH
            drawn = GeneratedGraph(completed.graph, f_NH, self._rng, self._edges, self._kind, batch.first)
            operator, regularizer = drawn.operator, drawn.regularizer
        other = replace(batch, operators=(operator,) * self._coupled.depth)
        return Step(batch, other, rows, labels, regularizer)

    def _complete(self, graphs: Tensor, whole: bool = False) -> _Completed:
        items = self._model.items
        assert isinstance(items, ClientGraphs)
        batch = items.part("train") if whole else items.some(graphs)
        if self._generator is None:
            return _Completed(batch, self._operator(self._coupled.operator).diagonal_blocks(items.ptr, graphs), None)
        symmetric = self._operator("symmetric").diagonal_blocks(items.ptr, graphs)
        starts, columns = (part.cpu().numpy() for part in symmetric.parts()[:2])
        row = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
        upper = columns > row
        pairs_2M = torch.from_numpy(np.stack([row[upper], columns[upper]]).astype(np.int32)).to(self._data.device)
        # Drawn graphs read nothing of it but pairs and the number of nodes.
        return _Completed(batch, symmetric, CompletedGraph(symmetric.parts()[0], symmetric.parts()[1], pairs_2M))


def nearest_in_graphs(model: ClientModel, k: int, relu: bool) -> Tensor:
    """Finds the k nearest of every node of a training graph within it, as `nearest` does, int32 `[N, k]`; others: -1.

    Compared are embeddings of nodes, below readout and adapter, in evaluation mode, where they are positive by `relu`.
    """
    items, data = model.items, model.data
    assert isinstance(items, ClientGraphs)
    batch = items.part("train")
    model.flat.set_training(False)
    with torch.no_grad():
        z_NH = embedded_nodes(model.flat.backbone, batch)
    z_NH = z_NH.relu() if relu else z_NH
    near_NK = torch.full((data.nodes, k), -1, dtype=torch.int32, device=data.device)
    rows, ends = data.rows_of(data.train), batch.first.tolist()
    for start, stop in pairwise(ends):
        of_graph = rows[start:stop]
        near = nearest(z_NH[start:stop], k)
        near_NK[of_graph] = torch.where(near >= 0, of_graph[near.long()], -1).int()
    return near_NK


def batches_of(train: Tensor, size: int | None, draws: Stream) -> Sequence[Tensor | None]:
    """Draws the batches of an epoch: places among the training items, int64, or None for all of them in one step."""
    if size is None or size >= len(train):
        return [None]
    with draws:
        return torch.randperm(len(train), device=train.device).split(size)
