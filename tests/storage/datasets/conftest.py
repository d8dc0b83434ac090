"""Published files for the tests that need them, and a network that answers at once: it is not there."""

import os
from collections.abc import Callable

import pytest

from shoal.storage.datasets.sources.source import data_root


@pytest.fixture
def published_root() -> Callable[[str], str]:
    """Gives the data root if it holds a file, by its path below the root; else skips the test."""

    def root(file: str) -> str:
        path = data_root(None) / file
        if not path.is_file():
            pytest.skip(f"{path} is missing: set SHOAL_DATA to a folder of published files")
        return str(data_root(None))

    return root


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends every download to a port of this machine where nobody listens."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
