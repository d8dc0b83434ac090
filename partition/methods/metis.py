"""METIS: balanced parts with few edges between them."""

import mmap
import os
import signal
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from shoal.partition.methods.cover import fill_empty
from shoal.partition.methods.options import PartitionOptions
from shoal.storage.errors import ShoalError
from shoal.storage.graph.graph import Graph
from shoal.storage.parent import ends_with

if TYPE_CHECKING:
    import pymetis


def part_graph(
    adjacency: "pymetis.CSRAdjacency",
    options: PartitionOptions,
    node_weights: np.ndarray | None = None,
    edge_weights: np.ndarray | None = None,
    cuts: int = 1,
) -> np.ndarray:
    """Partitions a graph with a small edge cut, multilevel k-way, int32 `[N]` (Karypis and Kumar, JPDC 48(1), 1998).

    Indices have 64 bits, and weights, of nodes `[N]` and of entries `[E]`, are int64; None: all one. Of several `cuts`
    the best is taken. A ShoalError says that METIS failed, as for lack of memory.
    """

    import pymetis

    def compute() -> np.ndarray:
        result = pymetis.part_graph(
            options.clients,
            adjacency,
            vweights=node_weights,
            eweights=edge_weights,
            recursive=False,
            options=pymetis.Options(
                # METIS seeds the C library's rand(), to which 0 and 1 are the same seed.
                seed=options.seed + 1,
                ufactor=round(1000 * (options.imbalance - 1)),
                ncuts=cuts,
            ),
        )
        return np.asarray(result[1], dtype=np.int32)

    return _in_own_process(compute, len(adjacency.adj_starts) - 1)


def _in_own_process(compute: Callable[[], np.ndarray], length: int) -> np.ndarray:
    """Runs a function in a fork, which shares the graph's memory; returns its result, int32 `[length]`."""
    with mmap.mmap(-1, max(4 * length, 1)) as shared:
        parent = os.getpid()
        child = os.fork()
        if not child:
            _child(compute, shared, parent)
        _, status = os.waitpid(child, 0)
        if status:
            code = os.waitstatus_to_exitcode(status)
            how = f"was ended by {signal.Signals(-code).name}" if code < 0 else "failed"
            raise ShoalError("partition", f"METIS {how}; if memory is short, partition.method semi-external takes less")
        return np.frombuffer(shared[:], dtype=np.int32, count=length).copy()


def _child(compute: Callable[[], np.ndarray], shared: mmap.mmap, parent: int) -> NoReturn:
    """Computes in the fork and ends the process: control never returns to the code that was forked."""
    try:
        if not ends_with(parent, signal.SIGKILL):
            os._exit(1)
        part_N = compute()
        shared[: part_N.nbytes] = part_N.tobytes()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def by_metis(graph: Graph, options: PartitionOptions, *_: object) -> np.ndarray:
    """Partitions a graph with a small edge cut, multilevel k-way, int32 `[N]` (Karypis and Kumar, JPDC 48(1), 1998).

    On tiny graphs METIS may leave a part empty; it then gets one node of the largest part, as `fill_empty`
    says. A graph without edges is cut into blocks of consecutive nodes, since no partition cuts an edge.
    """
    if options.clients == 1:
        return np.zeros(graph.nodes, dtype=np.int32)
    if graph.entries == 0:
        return (np.arange(graph.nodes) * options.clients // graph.nodes).astype(np.int32)
    import pymetis

    adjacency = pymetis.CSRAdjacency(
        np.ascontiguousarray(graph.indptr, dtype=np.int64), np.ascontiguousarray(graph.indices, dtype=np.int64)
    )
    return fill_empty(part_graph(adjacency, options), options.clients)
