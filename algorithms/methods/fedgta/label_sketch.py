"""FedGTA's sketch of a client's propagated labels: their moments and their confidence (eqs. 3 to 5)."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.losses.label_propagation import propagate_labels, row_stochastic
from shoal.storage.shards.view import View

# A GPU holds so many rows and powers of them at a time: 256 MB.
NUMBERS_AT_A_TIME = 2**26
# The authors' program takes the confidence of a softmax with this temperature.
TEMPERATURE = 20.0


class SketchForm(NamedTuple):
    """The parts of a sketch; see `shoal.algorithms.methods.fedgta.fedgta.FedGTA` for the names and their choices."""

    lp_steps: int
    lp_seed_weight: float
    rows: Literal["stochastic", "raw", "softmax"]
    orders: int
    moments: Literal["raw", "central", "hybrid"]
    moment_steps: Literal["all", "last"]
    confidence: Literal["paper", "normalized", "uniform"]

    @property
    def moment_rows(self) -> int:
        """Rows of the moments, each of all classes: one for each step, order and kind of moment."""
        rows = self.orders * (2 if self.moments == "hybrid" else 1)
        return rows * (self.lp_steps if self.moment_steps == "all" else 1)


class Sketch(NamedTuple):
    """Moments of a client's labels, float32, one step below the other; a confidence, maybe not synchronised yet."""

    moments_SC: Tensor
    confidence: float | Tensor


def sketch_labels(data: View, seed_NC: Tensor, form: SketchForm) -> Sketch:
    """Propagates Y^0, float32, and sums up every step: on a GPU by torch, else by tiles; zeros without nodes."""
    if not data.nodes:
        return Sketch(seed_NC.new_zeros(form.moment_rows, data.classes), 0.0)
    if form.rows == "softmax":
        return sketch_by_softmax(data, seed_NC, form)
    by = sketch_by_tiles if data.device.type == "cpu" else sketch_by_torch
    return by(data, seed_NC, form)


def sketch_by_torch(data: View, seed_NC: Tensor, form: SketchForm) -> Sketch:
    """Computes `sketch_labels` equation by equation, all steps in one batch: on a GPU launches dominate."""
    y_SNC = torch.stack(list(propagate_labels(data, seed_NC, form.lp_steps, form.lp_seed_weight)))
    if form.moment_steps == "last":
        y_SNC = y_SNC[-1:]
    rows_SNC = row_stochastic(y_SNC) if form.rows == "stochastic" else y_SNC
    sketch_SC = moments(rows_SNC, form.orders, form.moments).flatten(0, 1)
    return Sketch(sketch_SC, confidence(rows_SNC[-1], data.degree, form.confidence))


def sketch_by_softmax(data: View, seed_NC: Tensor, form: SketchForm) -> Sketch:
    """Computes the authors' sketch in memory of one matrix `[N, C]` for each step that counts, and two more.

    In every step training rows get their seed once more. Moments are of softmax(Y^s), the confidence of
    softmax(Y^k / 20) with degrees without self loops, which is nearly the number of edges; training rows are one-hot in
    both. The program also reads labels of nodes that are in no part of the split; here these keep their prediction.
    """
    known_TC = F.one_hot(data.label[data.train], data.classes).to(seed_NC.dtype)
    y_NC, steps = seed_NC, []
    for _ in range(form.lp_steps):
        y_NC = data.smooth(y_NC).lerp_(seed_NC, form.lp_seed_weight)
        y_NC[data.train] += seed_NC[data.train]
        steps.append(y_NC)

    def softmax(y_NC: Tensor, temperature: float = 1.0) -> Tensor:
        return (y_NC / temperature).softmax(1).index_copy(0, data.train, known_TC)

    rows_SNC = torch.stack([softmax(y) for y in (steps if form.moment_steps == "all" else steps[-1:])])
    sketch_SC = moments(rows_SNC, form.orders, form.moments).flatten(0, 1)
    return Sketch(sketch_SC, confidence(softmax(y_NC, TEMPERATURE), data.degree - 1, form.confidence))


def sketch_by_tiles(data: View, seed_NC: Tensor, form: SketchForm) -> Sketch:
    """Computes `sketch_labels` by the passes of `label_tiles`, in memory of three tiles and some columns."""
    steps = range(1, form.lp_steps + 1) if form.moment_steps == "all" else [form.lp_steps]
    tiles_of: dict[int, list[np.ndarray]] = {step: [] for step in steps}
    negative_entropy_N = np.zeros(data.nodes)
    for step, tile in propagate_tiles(data, seed_NC, form):
        if step in tiles_of:
            tiles_of[step].append(moments_of_tile(tile, form))
        if step == form.lp_steps:
            add_negative_entropies(tile, negative_entropy_N, form)
    rows_SC = np.concatenate([np.concatenate(tiles, 1) for tiles in tiles_of.values()])[:, : data.classes]
    h = of_entropies(torch.from_numpy(negative_entropy_N), data.classes, data.degree, form.confidence)
    return Sketch(torch.from_numpy(rows_SC.astype(np.float32)), float(h))


class Tile(NamedTuple):
    """Labels of some classes, see `label_tiles`, and the factors of their rows for moments and confidence."""

    z_NW: np.ndarray
    scales_N: np.ndarray


def propagate_tiles(data: View, seed_NC: Tensor, form: SketchForm) -> Iterator[tuple[int, Tile]]:
    """Gives steps and Y^1 … Y^k, as `propagate_labels` does, of classes in turn; each is valid until the next."""
    # Loading the kernels takes a third of a second and 140 MB: only a host that needs them loads them.
    from shoal.algorithms.methods.fedgta import label_tiles

    graph, entries, share = data.csr, data.edge_weight, form.lp_seed_weight
    degree_N = data.exact_degree.numpy()
    root_N, shares_N = np.sqrt(degree_N), (1 - share) / degree_N
    y_NC = seed_NC.contiguous().numpy()
    scales_SN = [root_N.astype(np.float32)] * form.lp_steps
    if form.rows == "stochastic":
        sums_N = sums_0N = y_NC.sum(1) / root_N
        for step in range(form.lp_steps):
            before_N, sums_N = sums_N, np.empty_like(sums_N)
            label_tiles.propagate_sums(graph, entries, before_N, (sums_0N, share), shares_N, sums_N)
            scales_SN[step] = (root_N / np.maximum(root_N * sums_N, 1e-12)).astype(np.float32)
    sent_N, received_N = (factor_N.astype(np.float32) for factor_N in (1 / root_N, shares_N))
    widths = label_tiles.tile_widths(data.classes)
    memory = label_tiles.empty_tiles(3, data.nodes, widths[0])
    for number, width in enumerate(widths):
        # The last tile may be narrower.
        seed_NW, *others = memory.reshape(-1)[: 3 * data.nodes * width].reshape(3, data.nodes, width)
        label_tiles.fill(y_NC, number * widths[0], sent_N, seed_NW)
        before_NW = seed_NW
        for step, scales_N in enumerate(scales_SN, 1):
            z_NW = others[step % 2]
            label_tiles.propagate(graph, entries, before_NW, (seed_NW, np.float32(share)), received_N, z_NW)
            yield step, Tile(z_NW, scales_N)
            before_NW = z_NW


def moments_of_tile(tile: Tile, form: SketchForm) -> np.ndarray:
    """Computes raw and central moments as `form` wants them, float64 `[K, W]`, one below the other."""
    from shoal.algorithms.methods.fedgta import label_tiles

    nodes, width = tile.z_NW.shape

    def around(origin_1W: np.ndarray, orders: int) -> np.ndarray:
        sums_KW = np.empty((orders, width))
        label_tiles.sum_powers(*tile, origin_1W.astype(np.float32), sums_KW)
        return sums_KW / nodes

    raw_KW = around(np.zeros((1, width)), 1 if form.moments == "central" else form.orders)
    if form.moments == "raw":
        return raw_KW
    central_KW = around(raw_KW[:1], form.orders)
    return central_KW if form.moments == "central" else np.concatenate([raw_KW, central_KW])


def add_negative_entropies(tile: Tile, negative_entropy_N: np.ndarray, form: SketchForm) -> None:
    """Adds the part of these classes, float64, where the confidence reads it."""
    from shoal.algorithms.methods.fedgta import label_tiles

    if form.confidence != "uniform":
        label_tiles.add_negative_entropies(*tile, negative_entropy_N)


def moments(y_SNC: Tensor, orders: int, kind: str) -> Tensor:
    """Computes moments 1..K over nodes, class by class, of the labels of S steps (FedGTA, eq. 5).

    `raw` and `central` give `[S, K, C]`; `hybrid`, raw then central, gives `[S, 2K, C]`.
    """
    mean_S1C = y_SNC.mean(1, keepdim=True)
    choices: dict[str, list[Tensor | None]] = {"raw": [None], "central": [mean_S1C], "hybrid": [None, mean_S1C]}
    steps, nodes, classes = y_SNC.shape
    total_SOKC: Tensor | None = None
    for part in y_SNC.split(max(1, NUMBERS_AT_A_TIME // (2 * steps * classes)), dim=1):
        base_SONC = torch.stack([part if origin is None else part - origin for origin in choices[kind]], 1)
        power_SONC, sums = base_SONC, [base_SONC.sum(2)]
        for _ in range(orders - 1):
            power_SONC = power_SONC * base_SONC
            sums.append(power_SONC.sum(2))
        sum_SOKC = torch.stack(sums, 2)
        total_SOKC = sum_SOKC if total_SOKC is None else total_SOKC + sum_SOKC
    assert total_SOKC is not None
    return total_SOKC.flatten(1, 2) / max(nodes, 1)


def confidence(y_NC: Tensor, degree_N: Tensor, kind: str) -> Tensor:
    """Computes the local smoothing confidence (FedGTA, eq. 4): sum_v d_v sum_c (1/e + y_vc log y_vc), d with loop.

    y log y is smallest at y = 1/e, where it is -1/e: no term is negative, whatever rows sum to. Where they sum to one,
    the inner sum is C/e - entropy and lies in [C/e - log C, C/e]; else it has no upper bound. `normalized`, for rows
    that sum to one, is sum_v d_v (1 - entropy_v / log C), and `uniform` is 1. A scalar, float64.
    """
    # This is three times as fast as xlogy; zero times the logarithm of the smallest number is zero, too.
    negative_entropy_N = (y_NC * y_NC.clamp_min(torch.finfo(y_NC.dtype).tiny).log()).sum(-1)
    return of_entropies(negative_entropy_N, y_NC.shape[-1], degree_N, kind)


def of_entropies(negative_entropy_N: Tensor, classes: int, degree_N: Tensor, kind: str) -> Tensor:
    """Computes `confidence` from every row's sum over c of y_vc log y_vc, and the number of classes."""
    if kind == "uniform":
        return degree_N.new_ones((), dtype=torch.float64)
    if kind == "paper":
        of_nodes_N = classes * torch.exp(torch.tensor(-1.0, device="cpu")) + negative_entropy_N
    else:
        of_nodes_N = 1 + negative_entropy_N / torch.log(torch.tensor(float(max(classes, 2)), device="cpu"))
    return (degree_N.double() * of_nodes_N.double()).sum()
