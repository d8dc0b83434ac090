"""Imports inside storage point one way, adapters -> datasets -> the files beside them, and no modules form a circle."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEVEL = {"storage.adapters": 2, "storage.datasets": 1}


def imports() -> dict[str, set[str]]:
    """Modules of storage and partition that each of them imports, those inside functions included."""
    paths = [path for package in ("storage", "partition") for path in (ROOT / package).rglob("*.py")]
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    found: dict[str, set[str]] = {module: set() for module in modules}
    for module, path in modules.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                inner = [f"{node.module}.{alias.name}" for alias in node.names]
                names = [name if name in modules else str(node.module) for name in inner]
            else:
                continue
            found[module] |= modules.keys() & set(names)
    return found


def test_no_circle() -> None:
    assert "storage.errors" in TopologicalSorter(imports()).static_order()


def test_one_way_inside_storage() -> None:
    for module, names in imports().items():
        if module.startswith("storage"):
            level = LEVEL.get(".".join(module.split(".")[:2]), 0)
            higher = {name for name in names if LEVEL.get(".".join(name.split(".")[:2]), 0) > level}
            assert not higher, module
