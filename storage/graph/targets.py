"""Targets that are no classes: measured numbers, or several labels an item, of which some may be missing."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shoal.storage.errors import ShoalError
from shoal.storage.options.target_names import MULTILABEL, Target

if TYPE_CHECKING:
    # Processes that open no shard do without torch.
    from torch import Tensor

# More targets than this are features, or a transposed array.
MOST_TARGETS = 10_000


def describe_outputs(count: int, of_classes: bool) -> str:
    """Returns the number of classes, or of targets, in words."""
    return f"{count} classes" if of_classes else f"{count} target{'s' * (count != 1)}"


class Scale(NamedTuple):
    """Mean and standard deviation of numbers over training items, float64 `[T]`.

    `own`: a client with training items takes that of these instead.
    """

    mean_T: np.ndarray
    spread_T: np.ndarray
    own: bool = False

    @classmethod
    def of(cls, moments_3T: np.ndarray, other: "Scale | None" = None) -> "Scale":
        """Computes it from counts, sums and sums of squares, float64 `[3, T]`.

        A target without a number has the mean of `other`, and one without a spread its spread; without it 0 and 1.
        """
        count_T, sum_T, squares_T = moments_3T
        mean_T = sum_T / np.maximum(count_T, 1)
        variance_T = squares_T / np.maximum(count_T, 1) - mean_T**2
        # What is left of equal numbers is rounding.
        same_T = variance_T <= 1e-12 * np.maximum(mean_T**2, 1e-300)
        spread_T = np.where(same_T, 1.0, np.sqrt(np.where(same_T, 1.0, variance_T)))
        if other is None:
            return cls(mean_T, spread_T)
        return cls(np.where(count_T > 0, mean_T, other.mean_T), np.where(same_T, other.spread_T, spread_T))

    def standardized(self, label_NT: "Tensor") -> "Tensor":
        """Gives labels, float32 `[n, T]`, mean 0 and spread 1."""
        return (label_NT - label_NT.new_tensor(self.mean_T)) / label_NT.new_tensor(self.spread_T)

    def in_units(self, scores_NT: "Tensor") -> "Tensor":
        """Inverts `standardized`."""
        return scores_NT * scores_NT.new_tensor(self.spread_T) + scores_NT.new_tensor(self.mean_T)


def moments_of(target_NT: np.ndarray) -> np.ndarray:
    """Computes counts, sums and sums of squares of targets, float64 `[3, T]`, without those that are missing."""
    given_NT, value_NT = ~np.isnan(target_NT), np.nan_to_num(target_NT.astype(np.float64))
    return np.stack([given_NT.sum(0), value_NT.sum(0), (value_NT**2).sum(0)])


def scale_of(scale: Scale | None, target_NT: np.ndarray | None, items: Sequence[int] | np.ndarray) -> Scale | None:
    """Returns the scale of a client, by the targets of its training items where it has its own."""
    if scale is None or not scale.own or target_NT is None or not len(items):
        return scale
    return Scale.of(moments_of(target_NT[items]), other=scale)


def clean_targets(y: Any, target: Target, items: int, where: str, what: str) -> np.ndarray:
    """Checks what is to be predicted of every item, float32 `[items, T]`; NaN stands for a target that is missing.

    Args:
        y: Numbers `[items]` or `[items, T]`, of NumPy or, of labels, SciPy. Labels are 0 or 1; NaN, and of labels -1,
            is none.
        target: `regression` or `multilabel`.
        where: Name of y in error messages.
        what: How many items there are, for these.

    Raises:
        ShoalError: y has another shape or type, no item has a target, one target no item, or a value is infinite, too
            large for float32 or no label; names the row and the target.
    """
    values = y.toarray() if hasattr(y, "toarray") else np.asarray(y)
    if values.dtype == object:
        values = _numbers(values, where)
    if values.dtype.kind not in "biuf" or values.ndim not in (1, 2) or not values.shape[-1]:
        raise ShoalError(
            where, f"expected numbers [items] or [items, targets], got {values.dtype} {list(values.shape)}"
        )
    if len(values) != items:
        raise ShoalError(where, f"shape {list(values.shape)}, but {what}")
    values_NT = values.reshape(items, -1)
    if values_NT.shape[1] > MOST_TARGETS:
        raise ShoalError(where, f"expected at most {MOST_TARGETS:,} targets, got {values_NT.shape[1]:,}")
    # A number too large for float32 becomes infinity, which is refused.
    with np.errstate(over="ignore"):
        target_NT = values_NT.astype(np.float32)
    if target == MULTILABEL:
        target_NT[values_NT == -1] = np.nan
        _refuse(~np.isnan(target_NT) & (target_NT != 0) & (target_NT != 1), values_NT, where, "a label is 0 or 1")
    _refuse(np.isinf(target_NT), values_NT, where, "expected a finite number, or NaN where there is none")
    given_T = (~np.isnan(target_NT)).any(0)
    if not given_T.any():
        raise ShoalError(where, "no item has a target; there is nothing to learn")
    if not given_T.all():
        raise ShoalError(where, f"no item has target {int(given_T.argmin())}; take its column out")
    return target_NT


def present(target_NT: np.ndarray) -> np.ndarray:
    """Says which items have a target, as labels of one class: int64 `[items]`, 0, or -1 where all are missing."""
    return np.where(np.isnan(target_NT).all(1), -1, 0)


def _numbers(values: np.ndarray, where: str) -> np.ndarray:
    """Converts an array of objects to float64; None is missing."""
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ShoalError(where, f"expected numbers, got objects ({error})") from None


def _refuse(fault_NT: np.ndarray, values_NT: np.ndarray, where: str, expected: str) -> None:
    """Raises ShoalError: there is a fault; names the first row with one."""
    if fault_NT.any():
        row, column = np.argwhere(fault_NT)[0].tolist()
        which = f", target {column}," if values_NT.shape[1] > 1 else ""
        raise ShoalError(where, f"row {row}{which} is {values_NT[row, column]}; {expected}")
