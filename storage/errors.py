"""The one exception that a user's input can cause."""

import re

LONGEST, ITS_END = 1000, 300
# Controls, line ends of Unicode, and halves of characters that no encoding can write.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class ShoalError(Exception):
    """Bad input, in one line: what is wrong, where (file, key, client), what to do.

    The command prints the line and exits with status 2; with `--debug` it shows the detail and the traceback as well.
    """

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
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - ITS_END]} … {text[-ITS_END:]}"
    return UNPRINTABLE.sub(lambda found: repr(found[0])[1:-1], text)
