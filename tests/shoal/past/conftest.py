"""What tests of the past share."""

from typing import Any

import pytest

from shoal.engine.hosts.backend import LocalBackend


@pytest.fixture
def rounds_trained(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds that this process trains, in their order."""
    trained: list[int] = []
    before = LocalBackend.round

    def counted(self: LocalBackend, watch: Any) -> dict[str, Any]:
        line = before(self, watch)
        trained.append(line["round"])
        return line

    monkeypatch.setattr(LocalBackend, "round", counted)
    return trained
