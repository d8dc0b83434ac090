"""Faults of a method's code, ours or a user's, in one line with the file and its line."""

import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import GeneratorType
from typing import Any, NoReturn

import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm
from shoal.algorithms.protocol import Ask
from shoal.storage.errors import ReaderGone, ShoalError
from shoal.storage.suggestions import did_you_mean
from shoal.storage.user_code.tracebacks import in_words, raised_by_itself

OURS = "shoal."
# By class: names that its objects lack, and what to write instead.
SCORES = 'client.model.logits_of("test")'
ELSEWHERE = {
    "Client": {
        "predict": SCORES, "parameters": "client.model.w", "w": "client.model.w", "id": "client.info.client",
        "x": "client.data.rows(0, rows)", "y": "client.data.label", "num_nodes": "client.info.nodes",
        "train": "trainer.fit(client, received), in train()",
    },
    "ClientModel": {
        "predict": SCORES, "parameters": "client.model.w", "state_dict": "client.model.w",
        "load_state_dict": "client.model.load(w)", "train": "trainer.fit(client, received), in train()",
        "eval": "client.model.logits(), which is in evaluation mode",
    },
    "View": {
        "y": "client.data.label", "labels": "client.data.label", "edge_index": "client.data.edges, starts and columns",
        "train_mask": "client.data.train", "val_mask": "client.data.val", "test_mask": "client.data.test",
        "num_nodes": "client.data.nodes", "num_classes": "client.data.classes",
    },
    "Context": {
        "num_clients": "len(ctx.clients)", "log": "ctx.notes[name] = number", "w": "ctx.initial",
        "num_classes": "ctx.classes", "num_features": "ctx.features", "num_rounds": "ctx.rounds", "epoch": "ctx.round",
        "model": "ctx.models[\"model\"][0], or ctx.build(\"model\", 0) for one with parameters", "lr": "ctx.train.lr",
        "epochs": "ctx.train.epochs", "hidden": "ctx.width", "cohort": "cohort, the third argument of round()",
        "parameters": "ctx.initial", "info": "ctx.clients[client]", "data": "client.data, in the hooks of a client",
    },
    "ClientInfo": {"num_samples": "info.train", "n": "info.train", "id": "info.client"},
}  # fmt: skip


class ProtocolError(Exception):
    """The result of a hook does not follow the protocol; `code_of` adds where the hook stands."""


@contextmanager
def code_of(method: Algorithm, hook: str, before: str = "") -> Iterator[None]:
    """Turns whatever a hook raises in the block into a `ShoalError`, with `before`, its file and its line at the front.

    Errors that are such a line already, a full GPU, a Ctrl-C and output that nothing reads pass as they are.
    """
    try:
        yield
    except BaseException as error:
        raise_named(method, hook, error, before)


def describe(value: Any) -> str:
    """Describes a value in an error: None, or what type it has."""
    return "None" if value is None else f"a {type(value).__name__}"


def kind(tensor: Tensor) -> str:
    """Returns the type of a tensor's numbers, as `float32`."""
    return str(tensor.dtype).removeprefix("torch.")


def raise_named(method: Algorithm, hook: str, error: BaseException, before: str = "") -> NoReturn:
    """Raises the error of a hook as one line; see `code_of`. Without a hook the error is raised as it is."""
    if not hook or isinstance(error, ShoalError | ReaderGone | torch.OutOfMemoryError):
        raise error
    if isinstance(error, ProtocolError):
        raise fault(method, hook, str(error), before) from None
    if isinstance(error, KeyboardInterrupt) and not raised_by_itself(error, _files(type(method))):
        raise error
    lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    where, detail = _innermost(lines, _files(type(method))), "".join(traceback.format_exception(error))
    if where is None and type(method).__module__.startswith(OURS):
        # The engine's own code, which a method of ours runs but did not write.
        raise ShoalError(f"{before}{in_words(error)}", detail=detail) from error
    where = where or _definition(method, hook)
    raise ShoalError(f"{before}{where}, in {hook}(): {in_words(error)}{_elsewhere(error)}", detail=detail) from error


def _elsewhere(error: BaseException) -> str:
    """Says what to write for a name that a client, its model, its data or the context does not have, or for `yield`."""
    if isinstance(error, TypeError) and f"'{Ask.__name__}' object" in str(error):
        return "; replies come by yield: got = yield shoal.Ask(...)"
    names = ELSEWHERE.get(type(getattr(error, "obj", None)).__name__)
    if not isinstance(error, AttributeError) or names is None:
        return ""
    there = [name for name in dir(error.obj) if not name.startswith("_")]
    meant = did_you_mean(str(error.name), there).rstrip()
    return f"; write {names[error.name]}" if error.name in names else f"; {meant}" if meant else ""


def fault(method: Algorithm, hook: str | Callable[..., Any], what: str, before: str = "") -> ShoalError:
    """Makes the error of a hook, or of a function in its place, that gave something wrong, with its place."""
    if isinstance(hook, str):
        return ShoalError(f"{before}{_definition(method, hook)}, in {hook}(): {what}")
    name = getattr(hook, "__name__", type(hook).__name__)
    return ShoalError(f"{before}{line_of(hook) or file_of(type(method))}, in {name}(): {what}")


def yield_place(method: Algorithm, steps: Any) -> str:
    """Finds the innermost `yield` at which `round` stands, in the method's files; a user's own file first."""
    lines = []
    while isinstance(steps, GeneratorType) and steps.gi_frame is not None:
        lines.append((steps.gi_code.co_filename, steps.gi_frame.f_lineno))
        steps = steps.gi_yieldfrom
    return _innermost(lines, _files(type(method))) or _definition(method, "round")


def _innermost(lines: Sequence[tuple[str, int]], files: frozenset[str]) -> str | None:
    """Finds the innermost of some lines that lies in some files, as `file.py, line 7`; a user's come first."""
    places = [(file, line) for file, line in lines if file in files]
    of_users = [(file, line) for file, line in places if short_path(file) == file]
    if not places:
        return None
    file, line = (of_users or places)[-1]
    return f"{short_path(file)}, line {line}"


def file_of(cls: type) -> str:
    """Returns the file of a method's class, as `short_path` writes it."""
    return short_path(getattr(sys.modules.get(cls.__module__), "__file__", None) or cls.__module__)


def short_path(file: str) -> str:
    """Shortens the path of a file of ours to that below the root of the packages; leaves any other as it is."""
    before, is_below, rest = file.rpartition("/algorithms/")
    ours = sys.modules[Algorithm.__module__].__file__ or ""
    return f"algorithms/{rest}" if is_below and ours.startswith(f"{before}/algorithms/") else file


def _files(cls: type) -> frozenset[str]:
    """Lists the files of a class and its bases, without `Algorithm`; for a user's class its helpers, too."""
    files = set()
    for base in cls.__mro__:
        if base in (Algorithm, object):
            continue
        name = base.__module__
        inside = [name] if name.startswith(OURS) else [n for n in sys.modules if n == name or n.startswith(f"{name}.")]
        files |= {getattr(sys.modules.get(n), "__file__", None) for n in inside}
    return frozenset(file for file in files if file)


def _definition(method: Algorithm, hook: str) -> str:
    """Finds the line at which a method defines a hook; only the file if the method has none of its own."""
    defined = getattr(type(method), hook, None)
    place = line_of(defined) if defined is not getattr(Algorithm, hook, None) else None
    return place or file_of(type(method))


def line_of(function: object) -> str | None:
    """Returns the place of a function's definition, as `file.py, line 7`; None for anything else."""
    inner = getattr(function, "__func__", function)
    code = getattr(inner, "__code__", None)
    return f"{short_path(code.co_filename)}, line {code.co_firstlineno}" if code else None
