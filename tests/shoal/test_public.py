"""What is public has a text and types, and costs nothing before it is used."""

import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
from rooms import PACKAGES, ROOT

import shoal

HEAVY = {"ray", "torch", "numba", "networkit", "pyarrow", "numpy", "pydantic", "rich"}


def test_import_loads_nothing() -> None:
    words = [sys.executable, "-c", "import json, sys, shoal; print(json.dumps(sorted(sys.modules)))"]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    imported = set(json.loads(ended.stdout))
    assert "shoal" in imported
    assert not imported & HEAVY


def test_names() -> None:
    assert shoal.__all__ == sorted(shoal.__all__)
    assert set(shoal.PLACES) == set(shoal.__all__) == set(dir(shoal))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'; it has Algorithm, "):
        _ = shoal.nothing
    assert (Path(shoal.__file__).parent / "py.typed").exists()


@pytest.mark.parametrize("name", shoal.__all__)
def test_has_a_text_and_types(name: str) -> None:
    public = getattr(shoal, name)
    assert inspect.getdoc(public), name
    members = [public] if inspect.isfunction(public) else [m for m in vars(public).values() if _is_public(m)]
    for member in members:
        function = member.fget if isinstance(member, property) else inspect.unwrap(getattr(member, "__func__", member))
        where = f"{name}: {function.__qualname__}"
        assert inspect.getdoc(function), where
        missing = (
            {*inspect.signature(function).parameters, "return"} - {"self", "cls"} - function.__annotations__.keys()
        )
        assert not missing, f"{where}: without a type: {missing}"
        assert get_type_hints(function), where
    if dataclasses.is_dataclass(public):
        text = public.__doc__ or ""
        fields = [field.name for field in dataclasses.fields(public) if not field.name.startswith("_")]
        assert not [field for field in fields if f"{field}: " not in text], name


def test_all_of_it_is_in_the_pages_of_the_site() -> None:
    lines = (ROOT / "docs" / "api.md").read_text().splitlines()
    assert sorted(line for line in lines if line.startswith(":::")) == sorted(
        f"::: {place}.{name}" for name, place in shoal.PLACES.items()
    )
    pages = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f": {page.name}\n" not in pages] == []


def _is_public(member: object) -> bool:
    function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
    # What a library makes for a class is not ours.
    ours = inspect.isfunction(function) and function.__module__.split(".")[0] in PACKAGES
    return ours and not function.__name__.startswith("_")
