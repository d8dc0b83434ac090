"""What becomes of wrong input: it is accepted, or refused in one line that can be printed; anything else is a fault."""

from collections.abc import Callable

from shoal.storage.errors import ShoalError


def verdict_of(look: Callable[[], object]) -> str:
    """`accepted` or `refused`.

    Raises:
        Exception: Whatever else than a `ShoalError` came out.
        AssertionError: The error is no line for a user.
    """
    try:
        look()
    except ShoalError as error:
        line = str(error)
        assert line.strip(), "an empty line"
        assert line.isprintable(), f"not one line: {line!r}"
        assert len(line) <= 1100, f"{len(line)} characters"
        assert "Traceback" not in line
        return "refused"
    return "accepted"
