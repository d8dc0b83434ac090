"""The second view of a client's graph, which what others know has a part in (FGGP, equations 6 and 7)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shoal.algorithms.client import ClientModel
from shoal.algorithms.graphs.completed_graph import CompletedGraph, completed
from shoal.algorithms.graphs.generated_graph import EdgeOptions, GeneratedGraph
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, Operator, operator_over
from shoal.storage.graph.sparse_matrix import SparseMatrix


class GlobalView:
    """What a client's model reads of A' = A or kNN, or of a graph that a generator draws anew in every step."""

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
        self._data, self._coupled, self._generator = model.data, model.coupled, generator
        self._edges, self._rng = edges, rng
        if nearest_NK is None:
            nearest_NK = torch.zeros(self._data.nodes, 0, dtype=torch.int32)
        # A host may cache data of several runs, whose neighbours differ.
        self._content = hash(nearest_NK.cpu().numpy().tobytes())
        self._graph = self._kept("completed", lambda: completed(*self._data.csr, nearest_NK, self._data.device))
        if generator is None:
            self._completed = self._around(self._operator(self._coupled.operator), self._coupled.depth)
        else:
            # The generator is two layers of a GCN.
            self._completed = self._around(self._operator("symmetric"), 2)

    def draw(self) -> tuple[Neighbourhood, Callable[[], Tensor] | None]:
        """What the model reads, and the term that teaches the generator; None without one."""
        if self._generator is None:
            return self._completed, None
        f_NH = self._generator(self._completed).embedding_NH
        drawn = GeneratedGraph(CompletedGraph(*self._graph), f_NH, self._rng, self._edges)
        return self._around(drawn.operator, self._coupled.depth), drawn.regularizer

    def _kept(self, what: str, build: Callable[[], Any]) -> Any:
        return self._data.cache((what, self._content), build)

    def _operator(self, kind: Operator) -> SparseMatrix:
        starts, columns = self._graph[0].numpy(), self._graph[1].numpy()
        device = self._data.device
        return self._kept(f"completed, {kind}", lambda: operator_over(kind, starts, columns).to(device))

    def _around(self, operator: SparseMatrix, depth: int) -> Neighbourhood:
        return Neighbourhood(self._data.whole(0), (operator,) * depth)
