"""Checks the form of what a method gives: requests, trees, uploads, states, losses.

They run in the first round of each phase, and in every round for a method of the user's (`checks_always`), whose
writes into what it may only read are noticed, too.
"""

import os
from collections.abc import Collection, Generator, Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm
from shoal.algorithms.method_errors import OURS, ProtocolError, describe, kind
from shoal.algorithms.protocol import Ask, Mix, Reduce, Tree, Upload
from shoal.storage.errors import ShoalError
from shoal.storage.shards.view import View

# If it is 1, methods of ours are checked in every round, too, and guarded against writes: as in tests.
ALWAYS = "SHOAL_CHECK_ALWAYS"
NEEDS_FLOATS = {Reduce.MEAN: "a sum", Reduce.MIX: "mixing"}


def checks_always(method: Algorithm) -> bool:
    """Returns whether a method is checked in every round: one of the user's, or any under `SHOAL_CHECK_ALWAYS=1`."""
    return not type(method).__module__.startswith(OURS) or os.environ.get(ALWAYS) == "1"


def require_generator(steps: Any) -> None:
    """Raises a ProtocolError if `round` gave no generator."""
    if not isinstance(steps, Generator):
        raise ProtocolError(f"gives {describe(steps)}, expected a generator: it must `yield` an Ask or a Mix")


def require_request(step: Any, clients: int) -> None:
    """Raises a ProtocolError if `round` yields no `Ask` or `Mix`, or one with arguments that cannot be."""
    if isinstance(step, Ask):
        _require_ask(step, clients)
    elif isinstance(step, Mix):
        if not isinstance(step.entry, str):
            raise ProtocolError(f"Mix(entry={describe(step.entry)}), expected the name of an entry")
        require_tensor(step.rows, "Mix(rows)")
        if not step.rows.dim() or step.rows.is_complex():
            raise ProtocolError("Mix(rows) is no matrix of real numbers")
        if step.dst is not None:
            _require_clients(step.dst, "Mix(dst)", clients)
    else:
        raise ProtocolError(f"yields {describe(step)}, expected an Ask or a Mix")


def require_tree(tree: Any, what: str) -> None:
    """Raises a ProtocolError for no dict, a name that is no text, or a value that is no plain tensor."""
    if not isinstance(tree, Mapping):
        raise ProtocolError(f"{what} is {describe(tree)}, expected a dict of tensors by name")
    for name, value in tree.items():
        if not isinstance(name, str):
            raise ProtocolError(f"{what} has the name {name!r}, expected a text")
        require_tensor(value, f"{what} {name!r}")


def require_tensor(value: Any, what: str) -> None:
    """Raises a ProtocolError if something is no dense tensor, which can be sent and stored."""
    if not isinstance(value, torch.Tensor):
        raise ProtocolError(f"{what} is {describe(value)}, expected a tensor")
    if value.layout != torch.strided:
        raise ProtocolError(f"{what} is a sparse tensor, expected a dense one")
    if value.is_quantized or value.is_nested or value.is_meta or value.dtype == torch.complex128:
        form = "nested" if value.is_nested else "meta" if value.is_meta else kind(value)
        raise ProtocolError(f"{what} is a {form} tensor, which no file can hold; expected plain numbers, as float32")


def require_notes(notes: Any) -> None:
    """Raises a ProtocolError for a note that is no number; names it."""
    for name, value in notes.items():
        if not isinstance(name, str) or not isinstance(value, Real) or not _is_float(value):
            raise ProtocolError(f"ctx.notes[{name!r}] is {describe(value)}, expected a number, as float(...) gives")


def _is_float(value: Any) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True


def require_untouched(server: Tree, before: Tree) -> None:
    """Raises a ProtocolError if the server's state is not, to the bit, the copy that was made of it."""
    for name in server.keys() | before.keys():
        if name not in server or name not in before or not same_bits(server[name], before[name]):
            raise ProtocolError(f"changes {name!r} of the server's state, which it only reads; take a copy first")


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors are of one type and shape, and of the same bits, NaN included."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    first, second = (t.detach().contiguous().view(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(first, second)


def require_same(one: Tree, other: Tree, where: str) -> None:
    """Raises MethodFault if two visits of a client from the same values differ in a bit; names the first entry."""
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other or not same_bits(one[name], other[name]):
            raise MethodFault(
                f"{where} is not deterministic: {name} differs when the same visit is made "
                "again; draw from client.rng(purpose), keep what changes in client.state, and read no clock"
            )


def _require_ask(ask: Ask, clients: int) -> None:
    if not isinstance(ask.phase, str) or not ask.phase:
        raise ProtocolError(f"Ask(phase={ask.phase!r}), expected the name of a phase")
    if not isinstance(ask.up, Mapping):
        raise ProtocolError(f"Ask(up) is {describe(ask.up)}, expected a dict of entries and how each is reduced")
    for entry, how in ask.up.items():
        if not isinstance(entry, str) or not isinstance(how, Reduce):
            raise ProtocolError(
                f"Ask(up) has {entry!r}: {how!r}, expected a name and one of {', '.join(map(str, Reduce))}"
            )
    require_tree(ask.shared, "Ask(shared)")
    require_tree(ask.score_with, "Ask(score_with)")
    if not isinstance(ask.private, Mapping):
        raise ProtocolError(f"Ask(private) is {describe(ask.private)}, expected a dict of downloads by client")
    _require_clients(ask.private, "Ask(private)", clients)
    for client, tree in ask.private.items():
        require_tree(tree, f"Ask(private) of client {client}")
    if ask.to is not None:
        _require_clients(ask.to, "Ask(to)", clients)


def _require_clients(ids: Any, what: str, clients: int) -> None:
    if not isinstance(ids, Collection) or isinstance(ids, str | torch.Tensor):
        raise ProtocolError(f"{what} is {describe(ids)}, expected numbers of clients")
    for i in ids:
        if not isinstance(i, Integral) or not 0 <= int(i) < clients:
            raise ProtocolError(f"{what} names client {i!r}, there are 0 to {clients - 1}")


def require_form(upload: Any, up: Mapping[str, Reduce], parameters: Mapping[str, torch.Size]) -> None:
    """Checks what `upload` gave; `reduction.require_sound` then looks at the numbers.

    Args:
        upload: What it gave.
        up: Entries that the round asks for; others are not looked at.
        parameters: Shapes of the client's models, by the names under which their parameters are sent.

    Raises:
        ProtocolError: No `Upload`; or an entry that is missing, no dense tensor of real numbers, of floats where it is
            summed or mixed, of the model's shape and float32 where it is named as its parameters; or a weight that is
            negative or of another shape than its entry. Names the entry.
    """
    if not isinstance(upload, Upload):
        raise ProtocolError(f"gives {describe(upload)}, expected an Upload")
    for part in ("entries", "weight", "upload_bytes"):
        if not isinstance(getattr(upload, part), Mapping):
            raise ProtocolError(f"gives Upload({part}) as {describe(getattr(upload, part))}, expected a dict by entry")
    for entry, how in up.items():
        if entry not in upload.entries:
            raise ProtocolError(f"gives no {entry!r}, which the round asks for")
        tensor = upload.entries[entry]
        require_tensor(tensor, f"the entry {entry!r}")
        if how in NEEDS_FLOATS and not tensor.is_floating_point():
            raise ProtocolError(
                f"gives {entry!r} as {kind(tensor)}, {NEEDS_FLOATS[how]} needs floats, as .float() gives"
            )
        if tensor.is_complex() or tensor.is_quantized:
            raise ProtocolError(f"gives {entry!r} as {kind(tensor)}, expected real numbers")
        if entry in parameters:
            require_parameters(entry, tensor, parameters[entry])
        if how is Reduce.MEAN and entry in upload.weight:
            _require_weight(entry, upload.weight[entry], tensor.shape)
    for entry, size in upload.upload_bytes.items():
        if not isinstance(size, Integral) or size < 0:
            raise ProtocolError(f"gives {size!r} as the bytes of {entry!r}, expected a whole number, 0 or more")


def require_state(state: Any, parameters: Mapping[str, torch.Size]) -> None:
    """Raises a ProtocolError for a new state that is no dict of tensors, or has parameters that do not fit the model.

    `parameters` has the shapes of the client's models, by their names in the state.
    """
    require_tree(state, "client.state")
    for name, shape in parameters.items():
        if name in state:
            require_parameters(name, state[name], shape)


def require_parameters(name: str, w: Tensor, shape: torch.Size) -> None:
    """Raises a ProtocolError for parameters of another shape than the model's, or not float32."""
    if w.shape != shape or w.dtype != torch.float32:
        raise ProtocolError(
            f"gives {name!r} as {kind(w)} {list(w.shape)}, the model's parameters are float32 {list(shape)}"
        )


def _require_weight(entry: str, weight: Any, shape: torch.Size) -> None:
    if isinstance(weight, Tensor):
        if weight.is_complex() or not _broadcasts(weight.shape, shape):
            raise ProtocolError(
                f"weighs {entry!r} by {kind(weight)} {list(weight.shape)}, which does not broadcast to {list(shape)}"
            )
        if bool((weight < 0).any()):
            raise ProtocolError(f"weighs {entry!r} by a negative number")
    elif not isinstance(weight, Real):
        raise ProtocolError(f"weighs {entry!r} by {describe(weight)}, expected a number or a tensor")
    elif weight < 0:
        raise ProtocolError(f"weighs {entry!r} by a negative number, {weight}")


def _broadcasts(small: torch.Size, whole: torch.Size) -> bool:
    return len(small) <= len(whole) and all(a in (1, b) for a, b in zip(reversed(small), reversed(whole), strict=False))


def require_loss(loss: Any) -> None:
    """Raises a ProtocolError if what a method's `train` gave is no number."""
    if not isinstance(loss, Real) and not (isinstance(loss, Tensor) and loss.numel() == 1):
        raise ProtocolError(f"gives {type(loss).__name__}, expected the loss as a float, NaN where nothing was trained")


class MethodFault(ShoalError):
    """A method writes into what it may only read, or is not deterministic: no client can be blamed for its code."""


class ReadOnly:
    """A guard that notices when tensors are written to, by torch or behind its back."""

    def __init__(self, tree: Tree, what: str) -> None:
        """Remembers the tensors as they are; an error calls them `what`."""
        self._what = what
        self._seen = {name: (t, t._version, _sum(t)) for name, t in tree.items()}

    def require_unchanged(self, where: str) -> None:
        """Raises MethodFault if a tensor was written to; names it, and says `where`: the time and the client."""
        for name, (tensor, version, total) in self._seen.items():
            now = _sum(tensor)
            if tensor._version != version or not (now == total or (now != now and total != total)):
                raise MethodFault(
                    f"{where} writes into the {self._what} {name!r}, which is read-only: other clients read it, too; "
                    f"take a copy first, as in {name}.clone()"
                )


def require_unwritten(data: View, where: str) -> None:
    """Raises MethodFault if a client's data was written to since it was opened, by counts of writes; names what."""
    if (written := data.written()) is not None:
        raise MethodFault(
            f"{where} writes into client.data.{written}, which is read-only: later visits read it, too; "
            "take a copy first, as clone() makes one"
        )


def _sum(tensor: torch.Tensor) -> float:
    """Sums the numbers of tensors, where this costs no wait for a device."""
    return float(tensor.sum()) if tensor.device.type == "cpu" and tensor.dtype != torch.bool else 0.0
