"""What benchmarks import of the product is there: most of them are too long to be run by a test."""

import ast
import importlib
from pathlib import Path

import pytest

BENCHMARKS = sorted((Path(__file__).resolve().parents[2] / "benchmarks").rglob("*.py"))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: path.name)
def test_benchmarks_import_what_there_is(path: Path) -> None:
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    for node in nodes:
        if not (node.module or "").startswith("shoal"):
            continue
        module = importlib.import_module(str(node.module))
        missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
        for name in missing:
            importlib.import_module(f"{node.module}.{name}")
