"""Dropout of the second device."""

from collections.abc import Iterator

import pytest

from shoal.algorithms.models.layers.dropout import KEYED


@pytest.fixture
def keyed() -> Iterator[None]:
    """The second device draws what dropout keeps as a GPU does."""
    KEYED.add("other")
    yield
    KEYED.remove("other")
