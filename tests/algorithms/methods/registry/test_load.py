"""Methods by name and from a user's file: options, texts that travel, and every way in which a file is refused."""

import locale
from pathlib import Path
from typing import Any

import pytest
import torch
from support.errors import refused
from support.fixtures import Start

from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.methods.registry.names import METHODS
from shoal.engine.config.config import load_config
from shoal.storage.errors import ShoalError

MINE = '''
from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from shoal.algorithms.base import Algorithm
from shoal.algorithms.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Mine(FedAvg):
    """FedAvg that leaves the server's model where it was, by a factor."""

    keep: float = 0.0
    kind: Literal["a", "b"] = "a"
    count: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.keep <= 1:
            raise ValueError("keep must lie in [0, 1]")

    def round(self, server, ctx, cohort):
        before = server["w"]
        yield from super().round(server, ctx, cohort)
        server["w"] = self.keep * before + (1 - self.keep) * server["w"]


@dataclass(frozen=True)
class Typed(FedAvg):
    flag: bool = False
    number: int = 0
    rate: float = 0.0
    text: str = ""
    kind: Literal["a", 2] = "a"
    perhaps: float | None = 1.0
    pair: tuple[int, float] = (0, 0.0)
    sizes: tuple[int, ...] = ()
    names: list[str] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)


class Bare(Algorithm):
    pass


@dataclass
class Thawed(Algorithm):
    pass


@dataclass(frozen=True)
class Roundless(Algorithm):
    pass


number = 3
folder = Path(__file__).parent
'''
HEAD = (
    "from dataclasses import dataclass\nfrom typing import ClassVar\nfrom shoal.algorithms.base import Algorithm\n"
    "from shoal.algorithms.methods.fedavg import FedAvg\n@dataclass(frozen=True)\n"
)


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return str(tmp_path / "mine.py")


@pytest.mark.parametrize(
    ("option", "written", "value"),
    [
        ("flag", True, True),
        ("number", 3, 3),
        ("number", 3.0, 3),
        ("rate", 2, 2.0),
        ("rate", 1, 1.0),
        ("text", "some", "some"),
        ("kind", 2, 2),
        ("perhaps", None, None),
        ("pair", [1, 2], (1, 2.0)),
        ("sizes", [64, 32], (64, 32)),
        ("names", ["a", "b"], ["a", "b"]),
        ("weights", {"a": 1}, {"a": 1.0}),
    ],
)
def test_an_option_has_the_type_of_its_field(mine: str, option: str, written: object, value: object) -> None:
    read = getattr(load(describe(f"{mine}:Typed", {option: written})), option)
    assert (type(read), read) == (type(value), value)


def test_a_folder_may_have_a_colon_in_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "run:2"
    folder.mkdir()
    (folder / "mine.py").write_text(MINE)
    assert type(load(describe(f"{folder}/mine.py:Mine", {}))).__name__ == "Mine"
    with refused("algorithm.name", says="is unknown"):
        describe(f"{folder}/mine.py:Mine:Mine", {})


def test_a_text_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    file = tmp_path / "accents.py"
    file.write_text(MINE.replace("FedAvg that", "FédAvg that"), encoding="utf-8")
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C")
    try:
        assert "FédAvg" in str(describe(f"{file}:Mine", {}).source)
    finally:
        locale.setlocale(locale.LC_CTYPE, before)


def test_a_run_with_it(mine: str, run: Start) -> None:
    still = run({"algorithm.name": f"{mine}:Mine", "algorithm.keep": 1.0}, rounds=2)
    assert torch.equal(still.state.server["w"], still._initial)
    plain = run({"algorithm.name": "fedavg"}, rounds=2)
    moving = run({"algorithm.name": f"{mine}:Mine"}, rounds=2)
    assert torch.equal(moving.state.server["w"], plain.state.server["w"])


@pytest.mark.parametrize("name", ["fedunheardof", "mine.py", "mine.txt:Mine", "mine.py:", ":Mine"])
def test_an_unknown_name_lists_what_there_is(name: str) -> None:
    with refused("algorithm.name", says=f"{name!r} is unknown; there are {', '.join(METHODS)}, or my_file.py:"):
        describe(name, {})


@pytest.mark.parametrize(("content", "says"), [(None, "No such file"), (b"\xff\xfe\x00", "not a text in UTF-8")])
def test_a_file_that_cannot_be_read(tmp_path: Path, content: bytes | None, says: str) -> None:
    if content:
        (tmp_path / "mine.py").write_bytes(content)
    with refused("algorithm.name", says=says):
        describe(f"{tmp_path / 'mine.py'}:Mine", {})


@pytest.mark.parametrize(
    ("cls", "line", "says"),
    [
        ("Bare", "class Bare", "not a frozen dataclass"),
        ("Thawed", "class Thawed", "not a frozen dataclass"),
        ("number", None, "int is not a method"),
        ("Roundless", "class Roundless", "has no round(self, server, ctx, cohort)"),
    ],
)
def test_a_class_that_is_no_method(mine: str, cls: str, line: str | None, says: str) -> None:
    where = f", line {1 + next(n for n, text in enumerate(MINE.splitlines()) if text.startswith(line))}" if line else ""
    with refused(f"{mine}{where}", says=says):
        load(describe(f"{mine}:{cls}", {}))


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("import numpy\nimport not_there", ", line 2", "ModuleNotFoundError: No module named 'not_there'"),
        ("raise ValueError('two\\nlines')", ", line 1", "ValueError: two lines"),
        ("x = 1\ndef f(:", ", line 2", "SyntaxError: invalid syntax"),
        ("def f():\n    return f()\nf()", ", line 2", "RecursionError: maximum recursion depth exceeded"),
        ("class Odd(BaseException):\n    pass\nraise Odd", ", line 3", "Odd"),
        ("raise KeyboardInterrupt", ", line 1", "KeyboardInterrupt"),
        ("x = '\\0'", "", "SyntaxError: source code string cannot contain null bytes"),
        ("(" * 5000, "", ""),
        # Of a class that is read.
        (f"{HEAD}class Odd(FedAvg):\n    mu: 'Unknown' = 1.0", ", line 6", "the types of Odd cannot be found"),
        (f"{HEAD}class Odd(FedAvg):\n    mu: float = 'much'", ", line 6", "the default of Odd.mu: expected a number"),
        (f"{HEAD}class Odd(FedAvg):\n    mu: int = None", ", line 6", "the default of Odd.mu: expected a whole number"),
        *(
            (f"{HEAD}class Odd(FedAvg):\n    def __post_init__(self):\n        {body}", ", line 8", says)
            for body, says in (
                ("self.sizes", "in __post_init__(): AttributeError: 'Odd' object has"),
                ("1 + 'x'", "in __post_init__(): TypeError: unsupported operand"),
                ("raise SystemExit", "in __post_init__(): SystemExit"),
            )
        ),
    ],
)
def test_a_file_that_fails_names_its_line(tmp_path: Path, text: str, where: str, says: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text.replace("\\0", "\0"))
    with pytest.raises(ShoalError) as caught:
        load(describe(f"{file}:Odd", {}))
    line = str(caught.value)
    assert line.startswith(f"{file}{where}")
    assert says in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("name", "option", "value", "says"),
    [
        ("fedavg", "mu", 0.1, "unknown; fedavg has weight"),
        ("local", "client_models", "global", "unknown; local has no option"),
        ("Mine", "mu", 1, ":Mine has weight, keep, kind, count"),
        ("Mine", "keep", "much", "a number"),
        ("Mine", "keep", "0.5", "a number"),
        ("Mine", "keep", True, "a number"),
        ("Mine", "keep", float("nan"), "must be a finite number"),
        ("Mine", "keep", float("inf"), "must be a finite number"),
        ("Mine", "count", True, "a whole number"),
        ("Mine", "count", "3", "a whole number"),
        ("Mine", "count", 2.5, "a whole number"),
        ("Mine", "kind", "c", "expected 'a' or 'b'"),
        ("Mine", "weight", ["nodes"], "expected 'nodes', 'train' or 'uniform'"),
        ("Typed", "sizes", [64, float("nan")], "must be a finite number"),
        ("Typed", "flag", "perhaps", "true or false"),
        ("Typed", "text", 3, "a text"),
        ("Typed", "perhaps", "x", "a number"),
        ("Typed", "sizes", 64, "a list"),
        ("Typed", "sizes", [64, "x"], "a whole number"),
        ("Typed", "pair", [1], "Field required"),
        ("Typed", "names", "a", "a list"),
        ("Typed", "weights", {"a": None}, "a number"),
        ("fedgta", "rows", False, "expected 'stochastic', 'raw' or 'softmax', found False"),
    ],
)
def test_a_wrong_option_names_the_key(mine: str, name: str, option: str, value: object, says: str) -> None:
    with refused(f"algorithm.{option}", says=says):
        load(describe(f"{mine}:{name}" if name[0].isupper() else name, {option: value}))


@pytest.mark.parametrize(("method", "option"), [("scaffold", "variate"), ("feddc", "sends"), ("fggp", "gkic")])
def test_the_word_off_is_no_truth_value(tmp_path: Path, method: str, option: str) -> None:
    """YAML reads it as false; where an option has no such word, false stays what it is."""
    file = tmp_path / "config.yaml"
    file.write_text(f"{{name: x, data: {{dataset: cora}}, rounds: 1, algorithm: {{name: {method}, {option}: off}}}}")
    from_file = load_config(file).algorithm
    from_line = load_config(file, [f"algorithm.{option}=off"]).algorithm
    for chosen in (from_file, from_line):
        assert getattr(load(describe(chosen.name, chosen.options)), option) == "off"
    of_copilots: Any = load(describe("fedgkc", {"self_distillation": False}))
    assert of_copilots.self_distillation is False


@pytest.mark.parametrize(
    ("name", "options", "place", "says"),
    [
        ("Mine", {"keep": 2}, "Mine", "keep must lie in [0, 1]"),
        ("fedgta", {"orders": 0}, "algorithm.orders", "at least 1, found 0"),
        ("fedgta", {"orders": 10**12}, "algorithm.orders", "at most 1000"),
        ("fedgta", {"lp_steps": 10**12}, "algorithm.lp_steps", "at most 1000"),
    ],
)
def test_out_of_range_says_so(mine: str, name: str, options: dict[str, Any], place: str, says: str) -> None:
    name, place = (f"{mine}:{name}", f"{mine}:{name}") if name == "Mine" else (name, place)
    with refused(place, says=says):
        load(describe(name, options))


def test_a_missing_option_is_named(tmp_path: Path) -> None:
    file = tmp_path / "needs.py"
    file.write_text(f"{HEAD}class Needs(Algorithm):\n    mu: float\n    def round(self, server, ctx, cohort): ...\n")
    with refused(says="'mu'"):
        load(describe(f"{file}:Needs", {}))


def test_a_type_that_no_config_can_hold(tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(f"import torch\n{HEAD}class Odd(FedAvg):\n    start: torch.Tensor | None = None\n")
    load(describe(f"{file}:Odd", {}))
    with refused("algorithm.start", says="a type that no config can hold"):
        load(describe(f"{file}:Odd", {"start": 1}))


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("def begin(self, client, down): ...", 8, "Odd.begin is of an earlier version"),
        ("def regularizer(self, client, given): ...", 8, "use a train() that calls trainer.fit(client, received"),
        ("def uploads(self, clients, w, given, phase): ...", 8, "use upload() and engine.trainer: autograd"),
        ("keeps_model: ClassVar[bool] = True", 6, 'use client_models = "personal"'),
        ("mixed_models = True", 6, 'use client_models = "heterogeneous"'),
        ("weighs_edges = False", 6, 'use supports, with or without "weighted"'),
        ('client_models = "mine"', 6, "Odd.client_models: expected "),
        ('supports = frozenset({"nodes"})', 6, "Odd.supports: expected "),
    ],
)
def test_hooks_and_flags_of_earlier_versions_or_unknown_ones(tmp_path: Path, text: str, line: int, says: str) -> None:
    file, head = (
        tmp_path / "odd.py",
        HEAD.replace("import dataclass\n", "import dataclass; from typing import ClassVar\n"),
    )
    file.write_text(f"{head}class Odd(Algorithm):\n    def round(self, server, ctx, cohort): ...\n    {text}\n")
    with pytest.raises(ShoalError) as caught:
        load(describe(f"{file}:Odd", {}))
    assert caught.value.places[0] == f"{file}, line {line}"
    assert says in caught.value.line
