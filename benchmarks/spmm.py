"""Products of a sparse matrix with 16 to 128 dense columns, beside torch's CSR product, in GFLOP/s; one thread.

    python benchmarks/spmm.py [--repeats 21]

Of a drawn graph of 22,000 nodes with 29 neighbours; `benchmarks/floor.py` has the matrices of real clients. Both
products take turns; best and median. Then at which share of values that are not zero a product of sparse rows and its
gradient take as long as those of dense ones (`storage/graph/rows.py`).
"""

import argparse
from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import numpy as np
import scipy.sparse as sp
import torch
from figures import print_figures
from torch import Tensor

from shoal.algorithms.models.inputs.neighbourhood import operator_over
from shoal.storage.graph.sparse_matrix import SparseMatrix

WIDTHS, SHARES = (16, 32, 64, 80, 128), (0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5)
NODES, NEIGHBOURS = 22_000, 29


def in_turns(calls: Sequence[Callable[[], object]], repeats: int) -> list[list[float]]:
    """Seconds of every call, which take turns."""
    seconds: list[list[float]] = [[] for _ in calls]
    for turn in range(repeats + 2):
        for call, own in zip(calls, seconds):
            begin = perf_counter()
            call()
            if turn >= 2:
                own.append(perf_counter() - begin)
    return seconds


def compare(name: str, matrix: SparseMatrix, repeats: int) -> dict[str, float]:
    """Prints both products at all widths; gives the ratio of the medians by what was multiplied."""
    return {f"{name}, {width}": at_width(name, matrix.csr, matrix.times, width, repeats) for width in WIDTHS}


def at_width(name: str, csr: Tensor, times: Callable[[Tensor, Tensor], Tensor], width: int, repeats: int) -> float:
    x, out = torch.randn(csr.shape[1], width), torch.empty(csr.shape[0], width)
    theirs, ours = in_turns([lambda: torch.addmm(out, csr, x, beta=0, out=out), lambda: times(x, out)], repeats)
    work = 2e-9 * len(csr.values()) * width
    speeds = [work / pick(own) for own in (theirs, ours) for pick in (min, median)]
    print("{:28} {:4} torch {:6.1f} {:6.1f} ours {:6.1f} {:6.1f}".format(name, width, *speeds), end="  ")
    print(f"{median(theirs) / median(ours):.2f}x, best {min(theirs) / min(ours):.2f}x", flush=True)
    return median(theirs) / median(ours)


def drawn_graph() -> SparseMatrix:
    ends = np.random.default_rng(0).integers(NODES, size=(2, NODES * NEIGHBOURS // 2))
    both = sp.csr_array((np.ones(ends.shape[1], np.float32), ends), shape=(NODES, NODES))
    both = sp.csr_array(both + both.T)
    both.setdiag(0)
    both.eliminate_zeros()
    return operator_over("symmetric", both.indptr.astype(np.int32), both.indices.astype(np.int32))


def break_even(repeats: int) -> dict[str, float]:
    """Time of sparse rows, of that of dense ones, by the share of values that are not zero; 64 columns."""
    found = {str(share): sparse_to_dense(share, repeats) for share in SHARES}
    for share, ratio in found.items():
        print(f"{float(share):.0%} not zero: sparse rows take {ratio:.2f} of the time of dense ones")
    return found


def sparse_to_dense(share: float, repeats: int) -> float:
    rows, features, width = 2_000, 800, 64
    x, of_out = torch.randn(features, width), torch.randn(rows, width)
    dense = torch.randn(rows, features) * (torch.rand(rows, features) < share)
    csr = sp.csr_array(dense.numpy())
    sparse = SparseMatrix.of(csr.indptr.astype(np.int32), csr.indices.astype(np.int32), csr.data, features).prepare()
    calls = [lambda: dense @ x, lambda: dense.t() @ of_out]
    calls += [lambda: sparse.times(x), lambda: sparse.times_transposed(of_out)]
    seconds = [median(own) for own in in_turns(calls, repeats)]
    return sum(seconds[2:]) / sum(seconds[:2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=21)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    ratios = compare("22,000 nodes", drawn_graph(), arguments.repeats)
    print_figures({"ratios": ratios, "sparse to dense": break_even(arguments.repeats)}, {})


if __name__ == "__main__":
    main()
