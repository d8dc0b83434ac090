"""What is wrong at random; a package, so that `benchmarks/attack.py` does not hide it."""

from collections.abc import Callable

from shoal.storage.errors import ShoalError


def line_of(act: Callable[[], object]) -> str | None:
    """The line that refuses wrong input; None if none does. Whatever else than a `ShoalError` comes out is raised."""
    try:
        act()
    except ShoalError as error:
        line = error.line
    else:
        return None
    assert line.strip(), "an empty line"
    assert line.isprintable(), f"not one line: {line!r}"
    assert len(line) <= 1100, f"{len(line)} characters"
    assert "Traceback" not in line
    return line
