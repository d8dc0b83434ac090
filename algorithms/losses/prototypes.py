"""Class prototypes: mean embeddings of the classes a client has, and a mask that says which those are.

A prototype array is padded to all classes, `[C, H]` or `[L, C, H]` with L levels (hops), with a mask `[C]` or
`[L, C]`. Rows outside the mask are zero and must not be read: a zero vector is no prototype.
"""

import math

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.protocol import Tree
from shoal.storage.graph.sparse_matrix import SparseMatrix, StoredFeatures

EPS = 1e-12


def class_sums(z_NH: StoredFeatures, y_N: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Sums the rows of every class, `[C, H]`, and counts them, int32 `[C]`; label -1 is left out."""
    if not isinstance(z_NH, Tensor | SparseMatrix):
        z_NH = z_NH.to_dense()
    labelled_N = y_N >= 0
    if not bool(labelled_N.all()):
        rows = labelled_N.nonzero()[:, 0]
        z_NH, y_N = z_NH[rows] if isinstance(z_NH, Tensor) else z_NH.rows(rows), y_N[rows]
    if isinstance(z_NH, Tensor):
        sums_CH = z_NH.new_zeros(classes, z_NH.shape[1]).index_add(0, y_N, z_NH)
    else:
        sums_CH = _sums_of_sparse(z_NH, y_N, classes)
    return sums_CH, torch.bincount(y_N, minlength=classes).int()


def _sums_of_sparse(z_NH: SparseMatrix, y_N: Tensor, classes: int) -> Tensor:
    indptr, columns, values = z_NH.parts()
    width = z_NH.shape[1]
    place = (y_N * width).repeat_interleave(indptr.diff()) + columns
    return values.new_zeros(classes * width).index_add_(0, place, values).view(classes, width)


def class_means(z_NH: StoredFeatures, y_N: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Averages the rows of every class: prototypes `[C, H]`, zero without rows, and counts, int32 `[C]`."""
    sums_CH, counts_C = class_sums(z_NH, y_N, classes)
    return sums_CH / counts_C.clamp_min(1)[:, None], counts_C


def unit(z: Tensor) -> Tensor:
    """Scales rows to length one; a zero row stays zero and has no gradient, where `F.normalize` gives 1 / EPS."""
    length = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    return z / length.where(length > EPS, torch.inf)


def direction(z: Tensor) -> Tensor:
    """Scales embeddings as `unit` does, where a loss reads them elsewhere, too: adds its gradients up first."""
    return unit(z.view_as(z))


def noisy(proto: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Adds noise of the prototypes' deviation to a random `share` of dimensions, the same for all (FedPG)."""
    width = proto.shape[-1]
    chosen = torch.randperm(width, generator=generator)[: round(share * width)]
    noise = torch.zeros_like(proto)
    noise[..., chosen] = torch.randn(*proto.shape[:-1], len(chosen), generator=generator)
    return proto + proto.std(-1, correction=0, keepdim=True) * noise


def row_bytes(present: Tensor, width: int) -> int:
    """Counts the bytes of the prototypes that exist, float32 rows of some width."""
    return 4 * width * int(present.sum())


def bit_bytes(present: Tensor) -> int:
    """Counts the bytes of a mask with a bit for every prototype that could exist."""
    return math.ceil(present.numel() / 8)


def bits(present: Tensor) -> Tensor:
    """Packs a mask for a message, uint8: eight entries a byte."""
    return torch.from_numpy(np.packbits(present.flatten().cpu().numpy()))


def from_bits(sent: Tensor, *shape: int) -> Tensor:
    """Unpacks the mask of `bits` to this shape, or several masks `[…, bytes]`, on the device of the bits."""
    count, shape = math.prod(shape), (*sent.shape[:-1], *shape)
    if sent.device.type == "cpu":
        return torch.from_numpy(np.unpackbits(sent.numpy(), axis=-1, count=count).astype(bool)).view(shape)
    # The way to the processor and back would be two waits.
    entries = (sent[..., None] >> torch.arange(7, -1, -1, dtype=torch.uint8, device=sent.device)) & 1
    return entries.flatten(-2)[..., :count].reshape(shape).bool()


def pack(proto: Tensor, present: Tensor) -> Tree:
    """Packs prototypes for a download: the rows that exist, and the mask in bits."""
    return {"proto.rows": proto[present], "proto.present": bits(present)}


def unpack(down: Tree, *shape: int, entry: str = "proto") -> tuple[Tensor, Tensor] | None:
    """Unpacks prototypes `[*shape, H]` and mask `[*shape]` of a download; None if it has none."""
    if f"{entry}.rows" not in down:
        return None
    rows, present = down[f"{entry}.rows"], from_bits(down[f"{entry}.present"], *shape)
    proto = rows.new_zeros(*shape, rows.shape[1])
    return proto.masked_scatter_(present[..., None], rows), present
