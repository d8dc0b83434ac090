"""The one exception that a user's input can cause."""

from pathlib import Path

LONGEST, ITS_END = 1000, 300
# Where the command prints a line, it stands between that and the log.
MORE = "; more in "


class ShoalError(Exception):
    """Bad input, in one line: what is wrong, where (file, key, client), what to do.

    The command prints the line and exits with status 2; with `--debug` it shows the detail and the traceback as well.

    Attributes:
        line: The line.
        detail: For a failure of code that is not ours, or on another process, its traceback.
        log: The file that has the detail; None: it is kept nowhere.
    """

    log: Path | None = None

    def __init__(self, line: str, detail: str = "") -> None:
        """Keeps the line and, for a failure on another process, that process's traceback."""
        line = one_line(line)
        super().__init__(line, detail)
        self.line = line
        self.detail = detail

    def __str__(self) -> str:
        return self.line


def one_line(text: str) -> str:
    """A text that quotes what a user gave, as one line to print; of a long one, its two ends."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - ITS_END]} … {text[-ITS_END:]}"
