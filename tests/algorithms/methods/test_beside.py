"""Modules beside a user's method travel with it, and no two methods share them."""

import pickle
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.errors import refused

from shoal.algorithms.methods.registry.load import MethodSpec, describe, load

METHOD = """
from dataclasses import dataclass
import helper
from shoal.algorithms.methods.fedavg import FedAvg
from sums import total
import pack.inner as inner

@dataclass(frozen=True)
class Mine(FedAvg):
    def number(self):
        from late import LATE
        return [helper.NUMBER, total(2), inner.deep(), LATE]
"""
BESIDE = {
    "helper.py": "NUMBER = 1\n",
    "sums.py": "import math\nfrom helper import NUMBER\ndef total(x):\n    return math.floor(x) + NUMBER\n",
    "late.py": "LATE = 'late'\n",
    "pack/__init__.py": "from .inner import deep\nfrom . import other\n",
    "pack/inner.py": "from pack.other import VALUE\ndef deep():\n    return VALUE\n",
    "pack/other.py": "VALUE = 'deep'\n",
    "pack/unused.py": "raise RuntimeError\n",
    "unused.py": "raise RuntimeError\n",
    # Not what the helpers mean by these names.
    "math.py": "raise RuntimeError\n",
    "algorithms/__init__.py": "raise RuntimeError\n",
}


def write(folder: Path, **changed: str) -> str:
    for name, text in {"mine.py": METHOD, **BESIDE, **changed}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return f"{folder / 'mine.py'}:Mine"


def number_of(spec: MethodSpec) -> Any:
    method: Any = load(spec)
    return method.number()


def test_what_is_imported_travels_and_nothing_else(tmp_path: Path) -> None:
    spec = describe(write(tmp_path / "a"), {})
    assert list(spec.helpers) == ["helper", "late", "pack.__init__", "pack.inner", "pack.other", "sums"]
    assert spec.helpers["late"] == BESIDE["late.py"]
    shutil.rmtree(tmp_path / "a")
    assert number_of(pickle.loads(pickle.dumps(spec))) == [1, 3, "deep", "late"]
    assert not {"helper", "sums", "late", "pack"} & sys.modules.keys()


def test_two_methods_with_helpers_of_one_name_do_not_mix(tmp_path: Path) -> None:
    one = describe(write(tmp_path / "a"), {})
    other = describe(write(tmp_path / "b", **{"helper.py": "NUMBER = 10\n", "late.py": "LATE = 0\n"}), {})
    first: Any = load(one)
    second: Any = load(other)
    assert (second.number(), first.number()) == ([10, 12, "deep", 0], [1, 3, "deep", "late"])


def test_the_digest_is_of_the_texts_wherever_they_lie(tmp_path: Path) -> None:
    digests = [describe(write(tmp_path / name), {}).digest for name in ("a", "b")]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 32
    spec = describe(write(tmp_path / "a"), {})
    assert replace(spec, options={"weight": "train"}).digest == spec.digest
    for name in ("helper.py", "late.py", "pack/other.py", "mine.py"):
        text = {"mine.py": METHOD, **BESIDE}[name]
        assert describe(write(tmp_path / "b", **{name: text + "# more\n"}), {}).digest != spec.digest
    assert describe("fedavg", {}).digest == ""


def test_a_helper_is_read_from_its_text_not_from_its_folder(tmp_path: Path) -> None:
    spec = describe(write(tmp_path), {})
    without = replace(spec, helpers={name: text for name, text in spec.helpers.items() if name != "helper"})
    with refused(f"{tmp_path / 'mine.py'}, line 3", says="ModuleNotFoundError: No module named 'helper'"):
        load(without)


@pytest.mark.parametrize(
    ("changed", "file", "line", "reason"),
    [
        ({"sums.py": "x = 1\nx +* 2\n"}, "sums.py", 2, "SyntaxError: invalid syntax"),
        ({"sums.py": "\n1 / 0\n"}, "sums.py", 2, "ZeroDivisionError: division by zero"),
        ({"pack/other.py": "import sys\nsys.exit(0)\n"}, "pack/other.py", 2, "SystemExit: 0"),
        (
            {"mine.py": "\nfrom . import helper\n"},
            "mine.py",
            2,
            "ImportError: write `import helper`: your files are in no package",
        ),
        ({"mine.py": "import pack\nfrom pack import gone\n"}, "mine.py", 2, "ImportError: cannot import name 'gone'"),
        ({"helper.py": "from sums import total\n"}, "sums.py", 2, "ImportError: cannot import name 'NUMBER'"),
    ],
)
def test_a_failing_helpers_line(tmp_path: Path, changed: dict[str, str], file: str, line: int, reason: str) -> None:
    spec = describe(write(tmp_path, **changed), {})
    with refused(f"{tmp_path / file}, line {line}", says=f"fails while it is read: {reason}"):
        load(spec)


def test_a_helper_that_is_no_text(tmp_path: Path) -> None:
    name = write(tmp_path)
    (tmp_path / "helper.py").write_bytes(b"\xff\xfe")
    with refused("algorithm.name", says="helper.py cannot be read"):
        describe(name, {})
