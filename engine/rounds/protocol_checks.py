"""Of which form an upload is: an `Upload` of tensors, whose kinds, shapes and weights fit how they are reduced."""

import math
from collections.abc import Collection, Generator, Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from shoal.algorithms.method_errors import ProtocolError
from shoal.algorithms.protocol import Ask, Mix, Reduce, Tree, Upload
from shoal.algorithms.training.local_training import finite_loss
from shoal.storage.errors import ShoalError


def require_generator(steps: Any) -> None:
    """Checks what `round` gave.

    Raises:
        Malformed: It is no generator.
    """
    if not isinstance(steps, Generator):
        raise ProtocolError(f"gives {named(steps)}, wanted a generator: it must `yield` an Ask or a Mix")


def require_step(step: Any, clients: int) -> None:
    """Checks what `round` yields.

    Args:
        step: What it yields.
        clients: Number of clients of the federation.

    Raises:
        Malformed: Neither an `Ask` nor a `Mix`, or one with arguments that cannot be.
    """
    if isinstance(step, Ask):
        _require_ask(step, clients)
    elif isinstance(step, Mix):
        if not isinstance(step.entry, str):
            raise ProtocolError(f"Mix(entry={named(step.entry)}), wanted the name of an entry")
        require_tensor(step.rows, "Mix(rows)")
        if not step.rows.dim() or step.rows.is_complex():
            raise ProtocolError("Mix(rows) is no matrix of real numbers")
        if step.dst is not None:
            _require_clients(step.dst, "Mix(dst)", clients)
    else:
        raise ProtocolError(f"yields {named(step)}, wanted an Ask or a Mix")


def require_tree(tree: Any, what: str) -> None:
    """Checks tensors by name.

    Args:
        tree: What should be a `Tree`.
        what: What an error calls it.

    Raises:
        Malformed: No dict, a name that is no text, or a value that is no plain tensor; names the entry.
    """
    if not isinstance(tree, Mapping):
        raise ProtocolError(f"{what} is {named(tree)}, wanted a dict of tensors by name")
    for name, value in tree.items():
        if not isinstance(name, str):
            raise ProtocolError(f"{what} has the name {name!r}, wanted a text")
        require_tensor(value, f"{what} {name!r}")


def require_tensor(value: Any, what: str) -> None:
    """Checks that something is a tensor that can be sent and stored.

    Raises:
        Malformed: It is none, or a sparse one.
    """
    if not isinstance(value, torch.Tensor):
        raise ProtocolError(f"{what} is {named(value)}, wanted a tensor")
    if value.layout != torch.strided:
        raise ProtocolError(f"{what} is a sparse tensor, wanted a dense one")


def noted(notes: Any) -> dict[str, float | None]:
    """A method's notes as metrics keep them: what is not finite is None.

    Raises:
        Malformed: A note is no number; names it.
    """
    for name, value in notes.items():
        if not isinstance(name, str) or not isinstance(value, Real):
            raise ProtocolError(f"ctx.notes[{name!r}] is {named(value)}, wanted a number, as float(...) gives")
    return {name: float(value) if math.isfinite(value) else None for name, value in notes.items()}


def named(value: Any) -> str:
    """A value in an error: None, or what type it has."""
    return "None" if value is None else f"a {type(value).__name__}"


def _require_ask(ask: Ask, clients: int) -> None:
    if not isinstance(ask.phase, str) or not ask.phase:
        raise ProtocolError(f"Ask(phase={ask.phase!r}), wanted the name of a phase")
    if not isinstance(ask.up, Mapping):
        raise ProtocolError(f"Ask(up) is {named(ask.up)}, wanted a dict of entries and how each is reduced")
    for entry, how in ask.up.items():
        if not isinstance(entry, str) or not isinstance(how, Reduce):
            raise ProtocolError(
                f"Ask(up) has {entry!r}: {how!r}, wanted a name and one of {', '.join(map(str, Reduce))}"
            )
    require_tree(ask.shared, "Ask(shared)")
    require_tree(ask.score_with, "Ask(score_with)")
    if not isinstance(ask.private, Mapping):
        raise ProtocolError(f"Ask(private) is {named(ask.private)}, wanted a dict of downloads by client")
    _require_clients(ask.private, "Ask(private)", clients)
    for client, tree in ask.private.items():
        require_tree(tree, f"Ask(private) of client {client}")
    if ask.to is not None:
        _require_clients(ask.to, "Ask(to)", clients)


def _require_clients(ids: Any, what: str, clients: int) -> None:
    if not isinstance(ids, Collection) or isinstance(ids, str | torch.Tensor):
        raise ProtocolError(f"{what} is {named(ids)}, wanted numbers of clients")
    for i in ids:
        if not isinstance(i, Integral) or not 0 <= int(i) < clients:
            raise ProtocolError(f"{what} names client {i!r}, there are 0 to {clients - 1}")


def require_form(upload: Any, up: Mapping[str, Reduce], parameters: Mapping[str, torch.Size]) -> None:
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
        raise ProtocolError(f"gives {named(upload)}, wanted an Upload")
    for part in ("entries", "weight", "upload_bytes"):
        if not isinstance(getattr(upload, part), Mapping):
            raise ProtocolError(f"gives Upload({part}) as {named(getattr(upload, part))}, wanted a dict by entry")
    for entry, how in up.items():
        if entry not in upload.entries:
            raise ProtocolError(f"gives no {entry!r}, which the round asks for")
        tensor = upload.entries[entry]
        require_tensor(tensor, f"the entry {entry!r}")
        _require_kind(entry, tensor, how)
        if entry in parameters:
            require_parameters(entry, tensor, parameters[entry])
        if how is Reduce.MEAN and entry in upload.weight:
            _require_weight(entry, upload.weight[entry], tensor.shape)
    for entry, size in upload.upload_bytes.items():
        if not isinstance(size, Integral) or size < 0:
            raise ProtocolError(
                f"gives {size!r} as the bytes of {entry!r} on the wire, wanted a whole number, 0 or more"
            )


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
        raise ProtocolError(
            f"gives {name!r} as {kind(w)} {list(w.shape)}, the model's parameters are float32 {list(shape)}"
        )


def kind(tensor: Tensor) -> str:
    """The type of a tensor's numbers, as `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def _require_kind(entry: str, tensor: Tensor, how: Reduce) -> None:
    if how is Reduce.MEAN and not tensor.is_floating_point():
        raise ProtocolError(f"gives {entry!r} as {kind(tensor)}, a sum needs floats, as .float() gives")
    if how is Reduce.MIX and not tensor.is_floating_point():
        raise ProtocolError(f"gives {entry!r} as {kind(tensor)}, mixing needs floats, as .float() gives")
    if tensor.is_complex() or tensor.is_quantized:
        raise ProtocolError(f"gives {entry!r} as {kind(tensor)}, wanted real numbers")


def _require_weight(entry: str, weight: Any, shape: torch.Size) -> None:
    if isinstance(weight, Tensor):
        if weight.is_complex() or not _broadcasts(weight.shape, shape):
            raise ProtocolError(
                f"weighs {entry!r} by {kind(weight)} {list(weight.shape)}, which does not broadcast to {list(shape)}"
            )
        if bool((weight < 0).any()):
            raise ProtocolError(f"weighs {entry!r} by a negative number")
    elif not isinstance(weight, Real):
        raise ProtocolError(f"weighs {entry!r} by {named(weight)}, wanted a number or a tensor")
    elif weight < 0:
        raise ProtocolError(f"weighs {entry!r} by a negative number, {weight}")


def _broadcasts(small: torch.Size, whole: torch.Size) -> bool:
    return len(small) <= len(whole) and all(a in (1, b) for a, b in zip(reversed(small), reversed(whole), strict=False))


def require_sound(upload: Upload, up: Mapping[str, Reduce]) -> None:
    """Checks the numbers of what one client sends, whose form `upload_form` has checked.

    Raises:
        ShoalError: An entry holds NaN or infinity where it has weight.
    """
    for entry, how in up.items():
        read, weight = upload.entries[entry], upload.weight.get(entry, 1.0)
        if how is Reduce.MEAN:
            read = counted(read, weight)
        if not (_finite(read) and _finite(weight)):
            raise ShoalError(f"upload() gives NaN or infinity in {entry!r}; a smaller train.lr may help")


def loss_value(loss: Any) -> float:
    """The loss that a method's `train` gave, NaN where it says none.

    Raises:
        Malformed: It is no number.
        ShoalError: It is infinite.
    """
    if not isinstance(loss, Real) and not (isinstance(loss, Tensor) and loss.numel() == 1):
        raise ProtocolError(f"gives {type(loss).__name__}, wanted the loss as a float, NaN where nothing was trained")
    number = float(loss)
    return number if math.isnan(number) else finite_loss(number)


def require_finite(tree: Tree, where: str) -> None:
    """Checks what the server's part of a method made.

    Args:
        tree: Tensors by name.
        where: What an error says of the round, the method and the place.

    Raises:
        ShoalError: A tensor holds NaN or infinity.
    """
    for name, tensor in tree.items():
        if not _finite(tensor):
            raise ShoalError(f"{where} {name!r} holds NaN or infinity; the round is not committed")


def counted(tensor: Tensor, weight: float | Tensor) -> Tensor:
    """The tensor with zeros where its weight is zero: there it may hold anything, and nothing is read."""
    if not isinstance(weight, Tensor):
        return tensor if weight else torch.zeros_like(tensor)
    return tensor if bool(weight.all()) else torch.where(weight != 0, tensor, 0.0)


def _finite(numbers: float | Tensor) -> bool:
    """Whether all numbers are finite; their sum, which takes a tenth of the time, can only raise a false alarm."""
    if not isinstance(numbers, Tensor):
        return math.isfinite(numbers)
    return math.isfinite(numbers.sum()) or bool(torch.isfinite(numbers).all())
