"""What a method's generator may yield: its requests are checked before any of them leaves the server."""

import math
from collections.abc import Collection, Generator, Mapping
from numbers import Integral, Real
from typing import Any

import torch

from algorithms.faults import Malformed
from algorithms.protocol import Ask, How, Mix


def require_generator(steps: Any) -> None:
    """Checks what `round` gave.

    Raises:
        Malformed: It is no generator.
    """
    if not isinstance(steps, Generator):
        raise Malformed(f"gives {named(steps)}, wanted a generator: it must `yield` an Ask or a Mix")


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
            raise Malformed(f"Mix(entry={named(step.entry)}), wanted the name of an entry")
        require_tensor(step.rows, "Mix(rows)")
        if not step.rows.dim() or step.rows.is_complex():
            raise Malformed("Mix(rows) is no matrix of real numbers")
        if step.dst is not None:
            _require_clients(step.dst, "Mix(dst)", clients)
    else:
        raise Malformed(f"yields {named(step)}, wanted an Ask or a Mix")


def require_tree(tree: Any, what: str) -> None:
    """Checks tensors by name.

    Args:
        tree: What should be a `Tree`.
        what: What an error calls it.

    Raises:
        Malformed: No dict, a name that is no text, or a value that is no plain tensor; names the entry.
    """
    if not isinstance(tree, Mapping):
        raise Malformed(f"{what} is {named(tree)}, wanted a dict of tensors by name")
    for name, value in tree.items():
        if not isinstance(name, str):
            raise Malformed(f"{what} has the name {name!r}, wanted a text")
        require_tensor(value, f"{what} {name!r}")


def require_tensor(value: Any, what: str) -> None:
    """Checks that something is a tensor that can be sent and stored.

    Raises:
        Malformed: It is none, or a sparse one.
    """
    if not isinstance(value, torch.Tensor):
        raise Malformed(f"{what} is {named(value)}, wanted a tensor")
    if value.layout != torch.strided:
        raise Malformed(f"{what} is a sparse tensor, wanted a dense one")


def noted(notes: Any) -> dict[str, float | None]:
    """A method's notes as metrics keep them: what is not finite is None.

    Raises:
        Malformed: A note is no number; names it.
    """
    for name, value in notes.items():
        if not isinstance(name, str) or not isinstance(value, Real):
            raise Malformed(f"ctx.notes[{name!r}] is {named(value)}, wanted a number, as float(...) gives")
    return {name: float(value) if math.isfinite(value) else None for name, value in notes.items()}


def named(value: Any) -> str:
    """A value in an error: None, or what type it has."""
    return "None" if value is None else f"a {type(value).__name__}"


def _require_ask(ask: Ask, clients: int) -> None:
    if not isinstance(ask.phase, str) or not ask.phase:
        raise Malformed(f"Ask(phase={ask.phase!r}), wanted the name of a phase")
    if not isinstance(ask.up, Mapping):
        raise Malformed(f"Ask(up) is {named(ask.up)}, wanted a dict of entries and how each is reduced")
    for entry, how in ask.up.items():
        if not isinstance(entry, str) or not isinstance(how, How):
            raise Malformed(f"Ask(up) has {entry!r}: {how!r}, wanted a name and one of {', '.join(map(str, How))}")
    require_tree(ask.shared, "Ask(shared)")
    require_tree(ask.score_with, "Ask(score_with)")
    if not isinstance(ask.private, Mapping):
        raise Malformed(f"Ask(private) is {named(ask.private)}, wanted a dict of downloads by client")
    _require_clients(ask.private, "Ask(private)", clients)
    for client, tree in ask.private.items():
        require_tree(tree, f"Ask(private) of client {client}")
    if ask.to is not None:
        _require_clients(ask.to, "Ask(to)", clients)


def _require_clients(ids: Any, what: str, clients: int) -> None:
    if not isinstance(ids, Collection) or isinstance(ids, str | torch.Tensor):
        raise Malformed(f"{what} is {named(ids)}, wanted numbers of clients")
    for i in ids:
        if not isinstance(i, Integral) or not 0 <= int(i) < clients:
            raise Malformed(f"{what} names client {i!r}, there are 0 to {clients - 1}")
