import locale
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.algorithms.methods.registry.load import describe, load
from shoal.engine.config.config import load_config
from shoal.engine.rounds.server import Server
from shoal.storage.errors import ShoalError

DERIVE = "derive a class from shoal.Algorithm"

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
class Stranger:
    pass


@dataclass(frozen=True)
class Roundless(Algorithm):
    pass


@dataclass(frozen=True)
class Curt(FedAvg):
    def upload(self, client):
        return None


number = 3
folder = Path(__file__).parent
'''


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    return str(tmp_path / "mine.py")


def error_of(name: str, options: dict[str, Any] | None = None) -> str:
    with pytest.raises(ShoalError) as caught:
        load(describe(name, options or {}))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_of_a_users_own(mine: str) -> None:
    method: Any = load(describe(f"{mine}:Mine", {"keep": 0.25, "count": 4, "weight": "train"}))
    assert (type(method).__name__, method.keep, method.kind, method.count, method.weight) == (
        "Mine",
        0.25,
        "a",
        4,
        "train",
    )


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
    assert "is unknown" in error_of(f"{folder}/mine.py:Mine:Mine")


def test_a_text_is_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    file = tmp_path / "accents.py"
    file.write_text(MINE.replace("FedAvg that", "FédAvg that"), encoding="utf-8")
    before = locale.setlocale(locale.LC_CTYPE)
    locale.setlocale(locale.LC_CTYPE, "C")
    try:
        assert "FédAvg" in str(describe(f"{file}:Mine", {}).source)
    finally:
        locale.setlocale(locale.LC_CTYPE, before)


def test_a_run_with_it(mine: str, run: Callable[..., Server]) -> None:
    still = run({"algorithm.name": f"{mine}:Mine", "algorithm.keep": 1.0}, rounds=2)
    assert torch.equal(still.state.server["w"], still._initial)
    plain = run({"algorithm.name": "fedavg"}, rounds=2)
    moving = run({"algorithm.name": f"{mine}:Mine"}, rounds=2)
    assert torch.equal(moving.state.server["w"], plain.state.server["w"])


@pytest.mark.parametrize("name", ["fedunheardof", "mine.py", "mine.txt:Mine", "mine.py:", ":Mine"])
def test_an_unknown_name_lists_what_there_is(name: str) -> None:
    expected = "is unknown; there are local, global, fedavg, fedgta"
    assert error_of(name).startswith(f"algorithm.name: {name!r} {expected}")
    assert error_of(name).endswith(", or my_file.py:MyMethod")


def test_a_missing_file(tmp_path: Path) -> None:
    file = tmp_path / "none.py"
    assert error_of(f"{file}:Mine") == f"algorithm.name: {file} cannot be read: No such file or directory"


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    file = tmp_path / "binary.py"
    assert error_of(f"{file}:Mine") == f"algorithm.name: {file} cannot be read: not a text in UTF-8"


@pytest.mark.parametrize(
    ("cls", "line", "reason"),
    [
        ("Absent", None, "has no class Absent; it has Mine, Typed, Bare, Thawed, Stranger, Roundless, Curt"),
        ("Bare", "class Bare", "Bare is not a frozen dataclass; write @dataclass(frozen=True) above it"),
        ("Thawed", "class Thawed", "Thawed is not a frozen dataclass; write @dataclass(frozen=True) above it"),
        ("Stranger", "class Stranger", f"class Stranger is not a method; {DERIVE}"),
        ("number", None, f"int is not a method; {DERIVE}"),
        (
            "Roundless",
            "class Roundless",
            "Roundless has no round(self, server, ctx, cohort), the server's part of a round",
        ),
        (
            "Curt",
            "    def upload(self, client):",
            "Curt.upload cannot be called as upload(self, client, received, phase): too many positional arguments",
        ),
    ],
)
def test_a_class_that_is_no_method(mine: str, cls: str, line: str | None, reason: str) -> None:
    where = f", line {1 + next(n for n, text in enumerate(MINE.splitlines()) if text.startswith(line))}" if line else ""
    assert error_of(f"{mine}:{cls}") == f"{mine}{where}: {reason}"


@pytest.mark.parametrize(
    ("text", "where", "reason"),
    [
        ("import numpy\nimport not_there", ", line 2", "ModuleNotFoundError: No module named 'not_there'"),
        ("raise ValueError('two\\nlines')", ", line 1", "ValueError: two lines"),
        ("x = 1\ndef f(:", ", line 2", "SyntaxError: invalid syntax"),
        ("import sys\n\nsys.exit(0)", ", line 3", "SystemExit: 0"),
        ("def f():\n    return f()\nf()", ", line 2", "RecursionError: maximum recursion depth exceeded"),
        ("class Odd(BaseException):\n    pass\nraise Odd", ", line 3", "Odd"),
        ("raise KeyboardInterrupt", ", line 1", "KeyboardInterrupt"),
        ("x = '\\0'", "", "SyntaxError: source code string cannot contain null bytes"),
        ("(" * 5000, "", ""),
    ],
)
def test_a_file_that_fails(tmp_path: Path, text: str, where: str, reason: str) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text.replace("\\0", "\0"))
    assert error_of(f"{file}:Mine").startswith(f"{file}{where}")
    assert f": fails while it is read: {reason}" in error_of(f"{file}:Mine")


def test_an_unknown_option_lists_those_there_are(mine: str) -> None:
    assert error_of("fedavg", {"mu": 0.1}) == "algorithm.mu: unknown; fedavg has weight"
    assert error_of("local", {"client_models": "global"}) == "algorithm.client_models: unknown; local has no option"
    assert error_of("local", {"mu": 0.1}) == "algorithm.mu: unknown; local has no option"
    assert error_of(f"{mine}:Mine", {"mu": 1}) == f"algorithm.mu: unknown; {mine}:Mine has weight, keep, kind, count"


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("keep", "much", "Input should be a valid number"),
        ("keep", "0.5", "Input should be a valid number"),
        ("keep", True, "Input should be a valid number"),
        ("keep", float("nan"), "must be a finite number"),
        ("keep", float("inf"), "must be a finite number"),
        ("count", True, "Input should be a valid integer"),
        ("count", "3", "Input should be a valid integer"),
        ("sizes", [64, float("nan")], "must be a finite number"),
        ("count", 2.5, "Input should be a valid integer"),
        ("kind", "c", "Input should be 'a' or 'b'"),
        ("weight", ["nodes"], "Input should be 'nodes', 'train' or 'uniform'"),
        ("flag", "perhaps", "Input should be a valid boolean"),
        ("text", 3, "Input should be a valid string"),
        ("perhaps", "x", "Input should be a valid number"),
        ("sizes", 64, "Input should be a valid tuple"),
        ("sizes", [64, "x"], "Input should be a valid integer"),
        ("pair", [1], "Field required"),
        ("names", "a", "Input should be a valid list"),
        ("weights", {"a": None}, "Input should be a valid number"),
    ],
)
def test_a_wrong_type_names_the_key(mine: str, option: str, value: object, reason: str) -> None:
    cls = "Mine" if option in ("keep", "count", "weight") or value == "c" else "Typed"
    line = error_of(f"{mine}:{cls}", {option: value})
    assert line.startswith(f"algorithm.{option}: {reason}")
    assert line.endswith(f"found {value!r}")


@pytest.mark.parametrize(("method", "option"), [("scaffold", "variate"), ("feddc", "sends"), ("fggp", "gkic")])
def test_the_word_off_is_no_truth_value(tmp_path: Path, method: str, option: str) -> None:
    """YAML reads it as false; where an option has no such word, false stays what it is."""
    file = tmp_path / "config.yaml"
    file.write_text(f"{{name: x, data: {{dataset: cora}}, rounds: 1, algorithm: {{name: {method}, {option}: off}}}}")
    from_file = load_config(file).algorithm
    from_line = load_config(file, [f"algorithm.{option}=off"]).algorithm
    for chosen in (from_file, from_line):
        assert getattr(load(describe(chosen.name, chosen.options)), option) == "off"
    assert load(describe("fedgkc", {"self_distillation": False})).self_distillation is False
    assert error_of("fedgta", {"rows": False}) == "algorithm.rows: Input should be 'stochastic' or 'raw', found False"


def test_out_of_range_says_so(mine: str) -> None:
    assert error_of(f"{mine}:Mine", {"keep": 2}) == f"algorithm: {mine}:Mine: keep must lie in [0, 1]"
    for wrong in ({"orders": 0}, {"orders": 10**12}, {"lp_steps": 10**12}):
        assert error_of("fedgta", wrong) == "algorithm: fedgta: lp_steps and orders must be 1 to 1000"
    assert error_of("fedgta", {"orders": 0}) == "algorithm: fedgta: lp_steps and orders must be 1 to 1000"


def test_a_missing_option_is_named(tmp_path: Path) -> None:
    file = tmp_path / "needs.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom shoal.algorithms.methods.local import Local\n"
        "@dataclass(frozen=True)\nclass Needs(Local):\n    mu: float\n"
    )
    assert "'mu'" in error_of(f"{file}:Needs")


@pytest.mark.parametrize(
    ("body", "line", "reason"),
    [
        ("mu: 'Unknown' = 1.0", 5, "the types of Odd cannot be found: NameError: name 'Unknown' is not defined"),
        (
            "mu: float = 'much'",
            5,
            "the default of Odd.mu: Input should be a valid number, unable to parse string as a number, found 'much'",
        ),
        ("mu: int = None", 5, "the default of Odd.mu: Input should be a valid integer, found None"),
        ("def __post_init__(self):\n        self.sizes", 7, "in __post_init__(): AttributeError: 'Odd' object has"),
        ("def __post_init__(self):\n        1 + 'x'", 7, "in __post_init__(): TypeError: unsupported operand"),
        ("def __post_init__(self):\n        raise SystemExit", 7, "in __post_init__(): SystemExit"),
    ],
)
def test_a_class_that_fails_names_its_line(tmp_path: Path, body: str, line: int, reason: str) -> None:
    file = tmp_path / "odd.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom shoal.algorithms.methods.fedavg import FedAvg\n\n"
        f"@dataclass(frozen=True)\nclass Odd(FedAvg):\n    {body}\n"
    )
    comma = ", " if reason.startswith("in ") else ": "
    assert error_of(f"{file}:Odd").startswith(f"{file}, line {line}{comma}{reason}")


def test_a_type_that_no_config_can_hold(tmp_path: Path) -> None:
    file = tmp_path / "odd.py"
    file.write_text(
        "from dataclasses import dataclass\nimport torch\nfrom shoal.algorithms.methods.fedavg import FedAvg\n\n"
        "@dataclass(frozen=True)\nclass Odd(FedAvg):\n    start: torch.Tensor | None = None\n"
    )
    load(describe(f"{file}:Odd", {}))
    assert error_of(f"{file}:Odd", {"start": 1}) == (
        f"algorithm.start: {file}:Odd gives it a type that no config can hold"
    )


OLD_HOOKS = {
    "def begin(self, client, down): ...": "receive(self, client, down)",
    "def regularizer(self, client, given): ...": "a train() that calls trainer.fit(client, received, term=...)",
    "def uploads(self, clients, w, given, phase): ...": "upload() and engine.trainer: autograd",
    "keeps_model: ClassVar[bool] = True": 'client_models = "personal"',
    "mixed_models = True": 'client_models = "heterogeneous"',
    "weighs_edges = False": 'supports, with or without "weighted"',
}


@pytest.mark.parametrize("old", OLD_HOOKS)
def test_load_with_an_old_hook_or_flag_names_the_new_one(tmp_path: Path, old: str) -> None:
    file = tmp_path / "old.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom typing import ClassVar\nfrom shoal import Algorithm\n\n"
        f"@dataclass(frozen=True)\nclass Old(Algorithm):\n    def round(self, server, ctx, cohort): ...\n    {old}\n"
    )
    name = old.removeprefix("def ").partition("(")[0].partition(" ")[0].partition(":")[0]
    line = 8 if old.startswith("def") else 6
    reason = "is of an earlier version and not read any more"
    assert error_of(f"{file}:Old") == f"{file}, line {line}: Old.{name} {reason}; use {OLD_HOOKS[old]}"


@pytest.mark.parametrize(("flag", "value"), [("client_models", '"mine"'), ("supports", 'frozenset({"nodes"})')])
def test_load_with_an_unknown_flag_value_names_the_known_ones(tmp_path: Path, flag: str, value: str) -> None:
    file = tmp_path / "odd.py"
    file.write_text(
        "from dataclasses import dataclass\nfrom shoal import Algorithm\n\n@dataclass(frozen=True)\n"
        f"class Odd(Algorithm):\n    def round(self, server, ctx, cohort): ...\n    {flag} = {value}\n"
    )
    assert error_of(f"{file}:Odd").startswith(f"{file}, line 5: Odd.{flag}: expected ")
