"""Imports point one way: engine -> algorithms -> storage, engine -> partition -> storage; Ray only in the engine."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "engine": {"engine", "algorithms", "partition", "storage"},
    "algorithms": {"algorithms", "storage"},
    "partition": {"partition", "storage"},
    "storage": {"storage"},
}
OF_ENGINE_ONLY = {"ray", "typer", "rich", "omegaconf"}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield (node.module or "").split(".")[0]


@pytest.mark.parametrize("package", sorted(MAY_IMPORT))
def test_arrows(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        names = set(imported(path))
        assert names & MAY_IMPORT.keys() <= MAY_IMPORT[package], path
        if package != "engine":
            assert not names & OF_ENGINE_ONLY, path


def test_the_engine_knows_no_method_by_name() -> None:
    from algorithms.loading import METHODS

    for path in sorted((ROOT / "engine").rglob("*.py")):
        words = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        # `local` and `global` are also names of a backend and of an evaluation scope.
        assert not words & (METHODS.keys() - {"local", "global"}), path
