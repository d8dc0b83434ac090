"""Of which form an upload is: an `Upload` of tensors, whose kinds, shapes and weights fit how they are reduced."""

from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from algorithms.faults import Malformed
from algorithms.protocol import How, Upload
from engine.rounds.steps import named, require_tensor, require_tree


def require_form(upload: Any, up: Mapping[str, How], parameters: Mapping[str, torch.Size]) -> None:
    """Checks what `upload` gave; `soundness` then looks at the numbers.

    Args:
        upload: What it gave.
        up: Entries that the round asks for; others are not looked at.
        parameters: Shapes of the client's models, by the names under which their parameters are sent.

    Raises:
        Malformed: No `Upload`; or an entry that is missing, no dense tensor of real numbers, of floats where it is
            summed or mixed, of the model's shape and float32 where it is named as its parameters; or a weight that is
            negative or of another shape than its entry. Names the entry.
    """
    if not isinstance(upload, Upload):
        raise Malformed(f"gives {named(upload)}, wanted an Upload")
    for part in ("entries", "weight", "wire"):
        if not isinstance(getattr(upload, part), Mapping):
            raise Malformed(f"gives Upload({part}) as {named(getattr(upload, part))}, wanted a dict by entry")
    for entry, how in up.items():
        if entry not in upload.entries:
            raise Malformed(f"gives no {entry!r}, which the round asks for")
        tensor = upload.entries[entry]
        require_tensor(tensor, f"the entry {entry!r}")
        _require_kind(entry, tensor, how)
        if entry in parameters:
            require_parameters(entry, tensor, parameters[entry])
        if how is How.SUM and entry in upload.weight:
            _require_weight(entry, upload.weight[entry], tensor.shape)
    for entry, size in upload.wire.items():
        if not isinstance(size, Integral) or size < 0:
            raise Malformed(f"gives {size!r} as the bytes of {entry!r} on the wire, wanted a whole number, 0 or more")


def require_state(state: Any, parameters: Mapping[str, torch.Size]) -> None:
    """Checks what a client keeps.

    Args:
        state: Its new state.
        parameters: Shapes of its models, by their names in the state.

    Raises:
        Malformed: No dict of tensors, or parameters of another shape or type than those of the model.
    """
    require_tree(state, "client.state")
    for name, shape in parameters.items():
        if name in state:
            require_parameters(name, state[name], shape)


def require_parameters(name: str, w: Tensor, shape: torch.Size) -> None:
    """Checks parameters of a model.

    Raises:
        Malformed: They are of another shape than the model's, or no float32.
    """
    if w.shape != shape or w.dtype != torch.float32:
        raise Malformed(
            f"gives {name!r} as {kind(w)} {list(w.shape)}, the model's parameters are float32 {list(shape)}"
        )


def kind(tensor: Tensor) -> str:
    """The type of a tensor's numbers, as `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def _require_kind(entry: str, tensor: Tensor, how: How) -> None:
    if how is How.SUM and not tensor.is_floating_point():
        raise Malformed(f"gives {entry!r} as {kind(tensor)}, a sum needs floats, as .float() gives")
    if how is How.MIX and not tensor.is_floating_point():
        raise Malformed(f"gives {entry!r} as {kind(tensor)}, mixing needs floats, as .float() gives")
    if tensor.is_complex() or tensor.is_quantized:
        raise Malformed(f"gives {entry!r} as {kind(tensor)}, wanted real numbers")


def _require_weight(entry: str, weight: Any, shape: torch.Size) -> None:
    if isinstance(weight, Tensor):
        if weight.is_complex() or not _broadcasts(weight.shape, shape):
            raise Malformed(
                f"weighs {entry!r} by {kind(weight)} {list(weight.shape)}, which does not broadcast to {list(shape)}"
            )
        if bool((weight < 0).any()):
            raise Malformed(f"weighs {entry!r} by a negative number")
    elif not isinstance(weight, Real):
        raise Malformed(f"weighs {entry!r} by {named(weight)}, wanted a number or a tensor")
    elif weight < 0:
        raise Malformed(f"weighs {entry!r} by a negative number, {weight}")


def _broadcasts(small: torch.Size, whole: torch.Size) -> bool:
    return len(small) <= len(whole) and all(a in (1, b) for a, b in zip(reversed(small), reversed(whole), strict=False))
