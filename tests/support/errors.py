"""What tests compare of an error: where it is, not the sentence; the sentences stand in `tests/messages.txt`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.storage.errors import ShoalError


@contextmanager
def refused(*places: object, says: str = "", kind: type[ShoalError] = ShoalError) -> Iterator[None]:
    """Expects one `ShoalError` whose innermost places are these, as `"data.path"`, or `path, "rounds"`.

    A `Path` is compared as a path, a text with the place as text; `says` is a part of the line, where two errors of one
    place differ.
    """
    with pytest.raises(kind) as caught:
        yield
    error = caught.value
    found = error.places[len(error.places) - len(places) :]
    wanted = tuple(place if isinstance(place, Path) else str(place) for place in places)
    same = tuple(str(f) if isinstance(w, str) else f for f, w in zip(found, wanted, strict=False))
    assert same == wanted, f"expected an error at {wanted}, got {error.places}: {error}"
    assert says in error.line, f"expected {says!r} in {error.line!r}"
