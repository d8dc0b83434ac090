"""The config that a run folder keeps: text with a last line that says whether it is as it was written."""

from pathlib import Path

from storage.digest import text_digest
from storage.errors import ShoalError

SEAL = "# seal: "


def with_seal(text: str) -> str:
    """A text that ends with a newline, with its seal as a last line, a comment in YAML."""
    return f"{text}{SEAL}{text_digest(text)[:16]}\n"


def require_as_kept(file: Path) -> None:
    """Checks the config of a run folder.

    Raises:
        ShoalError: It was changed, or cannot be read.
    """
    try:
        text = file.read_text()
    except FileNotFoundError:
        raise ShoalError(f"{file}: no such config") from None
    except (OSError, ValueError) as error:
        raise ShoalError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    kept, _, _ = text.rpartition(SEAL)
    if text != with_seal(kept):
        raise ShoalError(
            f"{file}: not as the run wrote it; copy it out of the run folder to run it as a config of its own"
        )
