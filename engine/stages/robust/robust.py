"""Robust reductions of means: they need every upload of a cohort, and no weight counts in them.

As in their papers each client counts once: a hostile client could claim any weight. Who has weight zero is left out;
total weights are those of plain means. `median` and `trimmed` are coordinate by coordinate, over the clients that have
weight there. All others compare clients by the distances of whole messages, all mean entries together, computed once:
Krum's scores, Bulyan's choice and the geometric median need nothing else, and the result is a mean of some rows.

Rows are in the order of clients and read in blocks of `TILE` columns, so that no bit depends on hosts. Memory is that
of the uploads, m clients by P numbers, and of m x m distances. Axes: M clients, B columns of a block.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.protocol import Replies, Tree, Upload
from shoal.engine.config.config import Config
from shoal.engine.messages.cell import Outcome
from shoal.engine.messages.job import Job
from shoal.engine.rounds.reduction import TILE
from shoal.engine.rounds.stage import AtClient, Phase, Stage, require_means, rows_of
from shoal.engine.stages.changes import bound_norm, changes_of, like
from shoal.engine.stages.robust.section import BY_SHARE, ROBUST, AggregationOptions
from shoal.storage.errors import ShoalError

if TYPE_CHECKING:
    from shoal.engine.rounds.sampling import Plan

# Against f hostile clients a reduction needs a f + b in all, by its (a, b).
NEEDED = {"krum": (2, 3), "multi_krum": (2, 3), "bulyan": (4, 3)}
# Reductions are called so where their word alone is none.
WORDS = {"trimmed": "trimmed mean", "geometric_median": "geometric median", "multi_krum": "multi-Krum", "krum": "Krum"}
# The geometric median counts distances below nu as nu (Pillutla et al., section 4); steps end at this accuracy.
NU, STEPS, ACCURACY = 1e-6, 1000, 1e-10
# Divisors are at least this, so that none is zero.
TINY = 1e-30


def count_tolerated(options: AggregationOptions, clients: int) -> int:
    """Computes f of so many clients: `share` of them, rounded up."""
    return math.ceil(options.share * clients - 1e-9)


def require_enough(options: AggregationOptions, clients: int) -> None:
    """Raises a ShoalError if a reduction cannot tolerate its share of hostile clients among so many."""
    f, (times, more) = count_tolerated(options, clients), NEEDED.get(options.kind, (0, 0))
    if clients < times * f + more:
        raise ShoalError(
            "aggregation.kind",
            f"{options.kind} against {f} hostile of {clients} clients needs {times * f + more} in a round or more; "
            "lower aggregation.share, raise participation, or take median",
        )


def require_possible(config: Config, cohort: int) -> None:
    """Raises a ShoalError if a cohort is too small for a reduction, or lacks the client that it trusts."""
    options, clients = ROBUST.of(config), config.partition.clients
    require_enough(options, cohort)
    if options.kind != "fltrust":
        return
    if not options.root < clients:
        raise ShoalError("aggregation.root", f"client {options.root} is none of 0 to {clients - 1}; trust another one")
    if cohort < clients:
        raise ShoalError(
            "aggregation.kind", f"fltrust trusts client {options.root} in every round; take participation.ratio=1"
        )


def describe_run(config: Config, parameters: Sequence[int], rounds: int) -> dict[str, str]:
    """Returns how means of uploads are reduced."""
    options = ROBUST.of(config)
    if options.kind == "norm_bound":
        text = f"means of changes of norm {options.bound:g} at most"
    elif options.kind == "fltrust":
        text = f"fltrust, by likeness to the change of client {options.root}"
    else:
        share = f", against {100 * options.share:g} % hostile clients" if options.kind in BY_SHARE else ""
        text = f"{WORDS.get(options.kind, options.kind)} in place of the mean of a round{share}"
    return {"reduction": text}


class _OfMeans(Stage):
    """A reduction of means, which protects nothing else."""

    def __init__(self, options: AggregationOptions, method: str) -> None:
        """Takes the options of a run, and the name of its method for errors."""
        self._options, self._method = options, method

    def before(self, phase: Phase) -> None:
        require_means(self._method, phase.ask.up, "aggregation.kind", self._options.kind, "reduces", "mean")


class NormBound(_OfMeans):
    """A bound on the norm of changes, whose sums are added up as ever."""

    def at_client(self, upload: Upload, at: AtClient) -> Upload:
        return bound_norm(upload, changes_of(upload, at.received, at.cell), self._options.bound)[0]


class Robust(_OfMeans):
    """A robust reduction of the uploads of all clients."""

    whole = True

    def reduce(self, outcomes: Sequence[Outcome], phase: Phase) -> Replies:
        """Returns the reduced means; raises a ShoalError if clients' shapes differ, or too few have weight."""
        ids, rows, weights = rows_of(outcomes)
        totals = {entry: torch.stack(torch.broadcast_tensors(*several)).sum(0) for entry, several in weights.items()}
        return Replies(ids, reduce_rows(self._options, rows, weights, ids, phase.ask.shared), totals)


def make(job: Job, plan: "Plan | None") -> list[Stage]:
    """Returns the stage of a job."""
    options = job.stages["aggregation"]
    return [(NormBound if options.kind == "norm_bound" else Robust)(options, job.method_name)]


def reduce_rows(
    options: AggregationOptions,
    rows: Mapping[str, Sequence[Tensor]],
    weights: Mapping[str, Sequence[Tensor]],
    ids: Sequence[int] = (),
    shared: Tree | None = None,
) -> Tree:
    """Reduces entries, float32; zero where no client has weight.

    Raises ShoalError: too few clients have weight, or a weight is no number and whole messages are compared.

    Args:
        rows: By entry the tensor of every client, of one shape.
        weights: By entry the float64 weight of every client, a number or a tensor that broadcasts against the entry.
        ids: The clients, of which `fltrust` trusts one.
        shared: What all of them received: entries are changes from tensors of their names.
    """
    if options.kind in ("median", "trimmed"):
        return {entry: _by_coordinate(options, several, weights[entry]) for entry, several in rows.items()}
    for entry, several in weights.items():
        if any(weight.dim() for weight in several):
            raise ShoalError(
                "aggregation.kind",
                f"{options.kind} compares whole uploads, and {entry!r} has a weight for each of its rows, of which "
                "a client may lack some; take median, trimmed or norm_bound",
            )
    by_client = enumerate(zip(*weights.values()))
    counted = [place for place, of_client in by_client if all(weight > 0 for weight in of_client)]
    if not counted:
        return {entry: torch.zeros(several[0].shape) for entry, several in rows.items()}
    require_enough(options, len(counted))
    here = {entry: [several[place].reshape(-1) for place in counted] for entry, several in rows.items()}
    if options.kind == "fltrust":
        reduced = reduce_by_trust(options.root, [ids[place] for place in counted], here, shared or {})
        return {entry: flat.reshape(rows[entry][0].shape) for entry, flat in reduced.items()}
    distances = squared_distances(list(here.values()))
    f = count_tolerated(options, len(counted))
    out = {entry: torch.empty(flat_rows[0].numel()) for entry, flat_rows in here.items()}
    shares = shares_of(options.kind, distances, f)
    for entry, flat_rows in here.items():
        for tile in _tiles(len(flat_rows[0])):
            block_BM = torch.stack([row[tile] for row in flat_rows], 1)
            if options.kind == "bulyan":
                out[entry][tile] = nearest_to_median(block_BM[:, shares > 0], len(counted) - 4 * f)
            else:
                out[entry][tile] = (block_BM * shares).sum(1)
    return {entry: flat.reshape(rows[entry][0].shape) for entry, flat in out.items()}


def reduce_by_trust(root: int, ids: Sequence[int], rows: Mapping[str, Sequence[Tensor]], shared: Tree) -> Tree:
    """Reduces by FLTrust (Cao et al., NDSS 2021, algorithm 2), float32: trust in others is by the root's change g_0.

    g = sum_i TS_i |g_0| / |g_i| g_i / sum_i TS_i with TS_i = max(0, cos(g_i, g_0)), over all clients but the root, of
    whole messages; zero where none is trusted. The server does not train on a set of its own: it owns the root's shard.

    Raises ShoalError: the root is not among the clients, or alone.

    Args:
        root: The client that is trusted.
        ids: Those that have weight, M of them.
        rows: By entry a flat tensor of each.
        shared: What all received: entries are changes from tensors of their names, or from zero.
    """
    if root not in ids or len(ids) == 1:
        raise ShoalError(
            "aggregation.root", f"client {root} and another one must train in every round, found {list(ids[:20])}"
        )
    bases = {entry: like(several[0], shared.get(entry)) for entry, several in rows.items()}
    flat = {
        entry: torch.zeros_like(rows[entry][0]) if base is None else base.reshape(-1) for entry, base in bases.items()
    }
    place, dots_M, squares_M = ids.index(root), *torch.zeros(2, len(ids), dtype=torch.float64)

    def changes(entry: str, tile: slice) -> Tensor:
        return torch.stack([row[tile] for row in rows[entry]]).double() - flat[entry][tile]

    for entry in rows:
        for tile in _tiles(len(flat[entry])):
            change_MB = changes(entry, tile)
            dots_M += (change_MB * change_MB[place]).sum(1)
            squares_M += change_MB.square().sum(1)
    norm_M = squares_M.sqrt()
    trust_M = (dots_M / (norm_M * norm_M[place]).clamp(min=TINY)).clamp(min=0)
    trust_M[place] = 0
    share_M = trust_M / trust_M.sum().clamp(min=TINY) * norm_M[place] / norm_M.clamp(min=TINY)
    out = {entry: base.float().clone() for entry, base in flat.items()}
    for entry, reduced in out.items():
        for tile in _tiles(len(reduced)):
            reduced[tile] = flat[entry][tile] + (changes(entry, tile) * share_M[:, None]).sum(0)
    return out


def _tiles(width: int) -> list[slice]:
    return [slice(start, start + TILE) for start in range(0, width, TILE)]


def _by_coordinate(options: AggregationOptions, rows: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Computes the median of every number, or its trimmed mean (Yin et al., ICML 2018, definitions 1 and 2)."""
    shape = rows[0].shape
    flat = [row.reshape(-1) for row in rows]
    # A weight is a number, or has one for each row of the entry.
    has = [(weight > 0).expand(shape).reshape(-1) if weight.dim() else weight > 0 for weight in weights]
    out = torch.empty(shape.numel())
    for tile in _tiles(len(out)):
        block_BM = torch.stack([row[tile] for row in flat], 1)
        has_BM = torch.stack([mask[tile] if mask.dim() else mask.expand(len(block_BM)) for mask in has], 1)
        sorted_BM = _sort_rows(torch.where(has_BM, block_BM, math.inf)).double()
        count_B1 = has_BM.sum(1, keepdim=True)
        cut_B1 = (count_B1 - 1).clamp(min=0) // 2
        if options.kind == "trimmed":
            f_of = torch.tensor([count_tolerated(options, count) for count in range(len(rows) + 1)])
            cut_B1 = torch.minimum(cut_B1, f_of[count_B1])
        place_M = torch.arange(len(rows))
        inside_BM = (place_M >= cut_B1) & (place_M < count_B1 - cut_B1)
        out[tile] = torch.where(inside_BM, sorted_BM, 0.0).sum(1) / (count_B1 - 2 * cut_B1).clamp(min=1).squeeze(1)
    return out.reshape(shape)


def _sort_rows(block_BM: Tensor) -> Tensor:
    """Sorts each row; NumPy takes a tenth of torch's time."""
    return torch.from_numpy(np.sort(block_BM.numpy(), axis=1))


def squared_distances(entries: Sequence[Sequence[Tensor]]) -> Tensor:
    """Computes squared distances of all pairs of clients over some entries together, float64 `[M, M]`.

    Differences are squared as they are: equal rows are at zero, and ties stay ties.
    """
    total = torch.zeros(len(entries[0]), len(entries[0]), dtype=torch.float64)
    for rows in entries:
        for tile in _tiles(len(rows[0])):
            block_MB = torch.stack([row[tile] for row in rows]).double()
            total += torch.cdist(block_MB, block_MB, compute_mode="donot_use_mm_for_euclid_dist").square()
    return total


def shares_of(kind: str, distances: Tensor, f: int) -> Tensor:
    """Computes the share of every client in the result, float64 `[M]`; `kind` is one of whole messages."""
    if kind == "geometric_median":
        return geometric_shares(distances)
    if kind == "bulyan":
        chosen = chosen_by_bulyan(distances, f)
    else:
        chosen = best_by_krum(distances, f)[: 1 if kind == "krum" else len(distances) - f]
    shares = torch.zeros(len(distances), dtype=torch.float64)
    shares[chosen] = 1 / len(chosen)
    return shares


def best_by_krum(distances: Tensor, f: int) -> list[int]:
    """Sorts clients by Krum's score, of equal ones the first before (Blanchard et al., NeurIPS 2017, section 4).

    The score is the sum of the squared distances to the m - f - 2 nearest others, at least one. Krum takes the best
    client, Multi-Krum the mean of the m - f best.
    """
    # A client is nearest to itself.
    near = distances.sort(1).values[:, 1 : 1 + max(len(distances) - f - 2, 1)].sum(1).tolist()
    return sorted(range(len(near)), key=near.__getitem__)


def chosen_by_bulyan(distances: Tensor, f: int) -> list[int]:
    """Selects the m - 2 f clients that Krum takes one after another, each time among those left.

    El Mhamdi et al., The hidden vulnerability of distributed learning in Byzantium, ICML 2018, section 4.
    """
    left, chosen = list(range(len(distances))), list[int]()
    while len(chosen) < len(distances) - 2 * f:
        chosen.append(left.pop(best_by_krum(distances[left][:, left], f)[0]))
    return chosen


def nearest_to_median(block_BM: Tensor, count: int) -> Tensor:
    """Averages the `count` numbers of each row that are nearest to its median, of equals the smaller; float64."""
    sorted_BM = _sort_rows(block_BM).double()
    last = sorted_BM.shape[1] - 1
    middle_B1 = (sorted_BM[:, last // 2] + sorted_BM[:, (last + 1) // 2])[:, None] / 2
    nearest = (sorted_BM - middle_B1).abs().sort(dim=1, stable=True).indices[:, :count]
    return sorted_BM.gather(1, nearest).mean(1)


def geometric_shares(distances: Tensor) -> Tensor:
    """Computes shares by which rows add up to their geometric median, by the smoothed Weiszfeld algorithm.

    Pillutla et al., Robust aggregation for federated learning, IEEE TSP 2022, algorithm 2: z <- sum_i s_i w_i with
    s_i in inverse ratio to max(nu, |w_i - z|). The point z is always a mean of rows; its distance to each is known
    from those among rows, |w_i - z|^2 = (D s)_i - s' D s / 2, so that no step reads them.
    """
    shares = torch.full((len(distances),), 1 / len(distances), dtype=torch.float64)
    for _ in range(STEPS):
        to_point = distances @ shares
        apart = (to_point - shares @ to_point / 2).clamp(min=0).sqrt()
        inverse = 1 / apart.clamp(min=NU)
        before, shares = shares, inverse / inverse.sum()
        if float((shares - before).abs().max()) < ACCURACY:
            break
    return shares
