"""Counts what a device is told, by the operators of torch that are called: on a GPU, or on a device like one.

A profiler counts calls of CUDA, of which there are none without a GPU, or operators, without where tensors lie.
"""

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

VIEWS = {"view", "slice", "select", "detach", "transpose", "t", "as_strided", "expand", "unsqueeze", "squeeze", "alias"}
VIEWS |= {"permute", "narrow", "split", "split_with_sizes", "unbind", "reshape", "empty", "empty_strided", "empty_like"}
VIEWS |= {"result_type", "_unsafe_view", "unflatten", "resolve_conj", "resolve_neg", "is_nonzero"}
VIEWS |= {"lift_fresh", "new_empty", "new_empty_strided", "set_", "crow_indices", "col_indices", "values"}
# A GPU is asked how many rows there are of what they give, or for a number.
ASKING = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount"}
ASKING |= {"equal", "_linalg_svd", "_sparse_coo_tensor_with_dims_and_tensors"}


class DeviceCounts(TorchDispatchMode):
    """Counts what a device is told inside a block, backward passes of this thread included.

    `launches` are operators on the device that are no mere views, and copies on it; one may be several kernels. In
    `synchronisations` the processor waits for it: copies that do not say `non_blocking`, whichever way, numbers that
    are read, and results whose size depends on numbers. `copies` are those between the two. `named` has the same by
    kind and operator, such as `copies _to_copy`.
    """

    def __init__(self, device: torch.device) -> None:
        """Of a device that is not the processor; begins with zeros."""
        super().__init__()
        self._kind = device.type
        self.launches = self.synchronisations = self.copies = 0
        self.named: Counter[str] = Counter()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        received = kwargs or {}
        result = op(*args, **received)
        name = op.overloadpacket.__name__
        tensors = [t for t in tree_leaves((args, received)) if isinstance(t, Tensor)]
        made = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        kinds = {t.device.type for t in (*tensors, *made)}
        if self._kind not in kinds:
            return result
        if name in ("_to_copy", "copy_") and len(kinds) > 1:
            self._add("copies", name)
            if not (args[2:] and args[2]) and not received.get("non_blocking", False):
                self._add("synchronisations", name)
            return result
        if name == "lift_fresh":
            # The end of `torch.tensor(numbers, device=…)`, which has copied them already.
            self._add("copies", name)
            self._add("synchronisations", name)
        if name not in VIEWS and name != "_local_scalar_dense":
            self._add("launches", name)
        if name in ASKING or self._chooses(name, args, received):
            self._add("synchronisations", name)
        return result

    def _chooses(self, name: str, args: Any, received: Any) -> bool:
        """Whether rows are chosen by a mask, or repeated as often as a tensor says."""
        if name == "repeat_interleave":
            return received.get("output_size") is None
        if name in ("index", "index_put_", "_index_put_impl_"):
            return any(isinstance(t, Tensor) and t.dtype == torch.bool for t in args[1])
        return False

    def _add(self, what: str, name: str) -> None:
        setattr(self, what, getattr(self, what) + 1)
        self.named[f"{what} {name}"] += 1

    def counts(self) -> dict[str, int]:
        """What was counted so far, by name."""
        return {name: getattr(self, name) for name in ("launches", "synchronisations", "copies")}
