"""Memory of a machine, and of a container with less."""

from pathlib import Path

import psutil
import pytest

from shoal.engine.config import sizes
from shoal.engine.config.sizes import machine_memory


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {"memory.max": "4096\n"}, 4096),
        ("0::/pods/one\n", {"memory.max": "max\n", "pods/memory.max": "9000\n", "pods/one/memory.max": "8000\n"}, 8000),
        ("0::/gone\n", {"memory.max": "max\n"}, None),
        ("5:cpu,memory:/one\n1:name=x:/\n", {"memory/one/memory.limit_in_bytes": "7000\n"}, 7000),
        ("5:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
    ],
    ids=["container", "nested", "no limit", "version 1", "version 1 without"],
)
def test_the_memory_of_a_container_is_its_limit(
    groups: str, files: dict[str, str], expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.write_text(groups)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sizes, "OWN_CGROUPS", own)
    monkeypatch.setattr(sizes, "CGROUPS", tmp_path)
    assert machine_memory() == (expected or psutil.virtual_memory().total)
