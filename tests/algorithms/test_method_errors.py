"""Where a method's code failed: the innermost line in its files, whatever it raised and however."""

import dataclasses
import re
import signal
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from support.fixtures import MakeClient, MakeView

from shoal.algorithms.base import Algorithm, Context, Requests, Tree
from shoal.algorithms.method_errors import ELSEWHERE, ProtocolError, code_of, fault, in_words, yield_place
from shoal.algorithms.methods import fedavg
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.models.build import build
from shoal.algorithms.protocol import Ask
from shoal.storage.errors import ShoalError

TEXT = """
from dataclasses import dataclass
import helper
from shoal.algorithms.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    def upload(self, client, received, phase):
        return helper.fails(client)
    def predict(self, client, received, part):
        return int("x")
    def train(self, client, received, trainer, phase):
        return super().upload(None, None, phase)
    def round(self, server, ctx, cohort):
        yield from super().round(server, ctx, cohort)
"""


@pytest.fixture
def mine(tmp_path: Path) -> tuple[Any, Path]:
    (tmp_path / "mine.py").write_text(TEXT)
    (tmp_path / "helper.py").write_text("def fails(client):\n    return client.gone\n")
    return load(describe(f"{tmp_path / 'mine.py'}:Mine", {})), tmp_path


def line_of(method: Algorithm, hook: str, *received: Any) -> str:
    with pytest.raises(ShoalError) as caught, code_of(method, hook, "round 1: "):
        getattr(method, hook)(*received)
    assert "Traceback" in caught.value.detail
    return str(caught.value)


def line_number(text: str) -> int:
    """Of a line of FedAvg."""
    source = Path(fedavg.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(source, 1) if line.strip().startswith(text))


def test_the_innermost_line_of_the_methods_files(mine: tuple[Any, Path]) -> None:
    method, folder = mine
    file = folder / "mine.py"
    assert line_of(method, "predict", None, None, "val").startswith(
        f"round 1: {file}, line 11, in predict(): ValueError: invalid literal"
    )
    # Deeper in a helper beside it; in a method of ours the user's own line is the one to look at.
    assert line_of(method, "upload", None, None, "").startswith(
        f"round 1: {folder / 'helper.py'}, line 2, in upload():"
    )
    assert line_of(method, "train", None, None, None, "").startswith(f"round 1: {file}, line 13, in train(): Attribute")


def test_of_a_method_of_ours_its_file_below_the_root() -> None:
    line = line_of(FedAvg(), "setup", None)
    number = line_number('return {"w": ctx.initial}')
    assert line.startswith(f"round 1: algorithms/methods/fedavg.py, line {number}, in setup(): AttributeError: 'NoneTy")


def test_what_fails_in_the_engine_is_no_fault_of_a_method_of_ours(mine: tuple[Any, Path]) -> None:
    for method, line in (
        (FedAvg(), "ValueError: odd"),
        (mine[0], f"{mine[1] / 'mine.py'}, in receive(): ValueError: odd"),
    ):
        with pytest.raises(ShoalError) as caught, code_of(method, "receive"):
            raise ValueError("odd")
        assert str(caught.value) == line


def test_a_hook_that_gave_something_wrong_is_named_by_its_definition(mine: tuple[Any, Path]) -> None:
    method, folder = mine
    assert str(fault(method, "predict", "gives 3")) == f"{folder / 'mine.py'}, line 10, in predict(): gives 3"
    # It has no such hook of its own.
    assert str(fault(method, "regularizer", "gives 3")) == f"{folder / 'mine.py'}, in regularizer(): gives 3"
    with pytest.raises(ShoalError, match=r"mine\.py, line 10, in predict\(\): gives 3$"), code_of(method, "predict"):
        raise ProtocolError("gives 3")

    def own(x: int) -> int:
        return x

    assert str(fault(method, own, "gives 3")) == f"{__file__}, line {own.__code__.co_firstlineno}, in own(): gives 3"


def test_the_yield_at_which_round_waits(mine: tuple[Any, Path]) -> None:
    method, folder = mine
    steps = method.round({"w": torch.ones(1)}, None, [0])
    next(steps)
    assert yield_place(method, steps) == f"{folder / 'mine.py'}, line 15"
    assert yield_place(method, None) == f"{folder / 'mine.py'}, line 14"
    steps = FedAvg().round({"w": torch.ones(1)}, None, [0])  # type: ignore[arg-type]
    next(steps)
    place = f"algorithms/methods/fedavg.py, line {line_number('got = yield Ask')}"
    assert yield_place(FedAvg(), steps) == place


@dataclass(frozen=True)
class Raises(FedAvg):
    """Raises what it is told to."""

    error: Any = None

    def setup(self, ctx: Context) -> Tree:
        raise self.error

    def round(self, server: Tree, ctx: Context, cohort: Any) -> Requests:
        signal.raise_signal(signal.SIGINT)
        yield Ask("train", {})


class Odd(BaseException):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SystemExit(0), "SystemExit: 0"),
        (SystemExit(), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (StopIteration(3), "StopIteration: 3"),
        (Odd(), "Odd: (its message cannot be read)"),
        (ValueError("two\n  lines"), "ValueError: two lines"),
        (ValueError("x" * 9999), f"ValueError: {'x' * 400}"),
    ],
)
def test_whatever_it_raises_becomes_a_line(error: BaseException, words: str) -> None:
    assert line_of(Raises(error=error), "setup", None).endswith(f", in setup(): {words}")
    assert in_words(error) == words


@pytest.mark.parametrize("error", [ShoalError("known", detail="detail"), torch.OutOfMemoryError("much")])
def test_what_passes_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, code_of(Raises(error=error), "setup"):
        Raises(error=error).setup(None)  # type: ignore[arg-type]
    assert caught.value is error


def test_an_interrupt_from_outside_interrupts() -> None:
    method = Raises()
    with pytest.raises(KeyboardInterrupt), code_of(method, "round"):
        next(method.round({}, None, []))  # type: ignore[arg-type]


def test_attribute_that_is_elsewhere_is_named(
    mine: tuple[Any, Path], make_view: MakeView, make_client: MakeClient
) -> None:
    """As `client.gone` of the helper; every place that is named for a client is there."""
    _, folder = mine
    client = make_client(make_view(3, [(0, 1)], [0, 1, 0], [0], 2), build("sgc", 3, 2, 0, 0.0, {}))
    for code, says in (
        ("client.predict", '; write client.model.logits_of("test")'),
        ("client.modell", "; did you mean 'model'?"),
        ("client.info.num_samples", "; write info.train"),
        ("client.info.trian", "; did you mean 'train'?"),
        ("shoal.Ask('train', {})['w']", "not subscriptable; replies come by yield: got = yield shoal.Ask(...)"),
    ):
        (folder / "helper.py").write_text(f"import shoal\n\ndef fails(client):\n    return {code}\n")
        again = load(describe(f"{folder / 'mine.py'}:Mine", {}))
        assert line_of(again, "upload", client, None, "train").endswith(says)
    for hints in ELSEWHERE.values():
        for hint in hints.values():
            if path := re.match(r"client((?:\.\w+)+)", hint):
                assert attrgetter(path[1][1:])(client) is not None, hint
    there = {field.name for field in dataclasses.fields(Context)} | set(dir(Context))
    assert {name for hint in ELSEWHERE["Context"].values() for name in re.findall(r"ctx\.(\w+)", hint)} <= there
    assert {hint.removeprefix("info.") for hint in ELSEWHERE["ClientInfo"].values()} <= vars(client.info).keys()
