"""The one exception that a user's input can cause."""

from pathlib import Path

from shoal.storage.plain_text import plain_text

LONGEST, ITS_END = 1000, 300
# The command prints a line, then this, then the path of the log.
MORE = "; more in "


class ShoalError(Exception):
    """Bad input, in one line: where (file, key, client), what is wrong, what to do.

    `ShoalError(path, "data.clients", "expected an integer, got 'x'")` reads `PATH: data.clients: expected ...`. The
    command prints the line and exits with status 2; with `--debug` it shows the detail and the traceback as well.

    Attributes:
        line: The line.
        places: Where the error is, outermost first: files as paths, all others (keys, clients, arrays) as text.
        detail: For a failure of code that is not ours, or on another process, its traceback.
        log: The file that has the detail; None: it is kept nowhere.
    """

    log: Path | None = None

    def __init__(self, *parts: object, detail: str = "") -> None:
        """Keeps the places and what is wrong there, and, for a failure on another process, that process's traceback."""
        super().__init__(*parts)
        self.line = one_line(": ".join(map(str, parts)))
        self.places = tuple(part if isinstance(part, Path) else str(part) for part in parts[:-1])
        self.detail = detail

    @property
    def file(self) -> Path | None:
        """The file or folder that is at fault, if one is."""
        return next((place for place in self.places if isinstance(place, Path)), None)

    @property
    def key(self) -> str | None:
        """The innermost place that is no file: a key of the config, an option, an array, a client."""
        return next((place for place in reversed(self.places) if isinstance(place, str)), None)

    def __str__(self) -> str:
        return self.line


class ReaderGone(SystemExit):
    """Nothing reads the command's results any more, as after `| head -1`: no fault of the code that printed."""


class FetchError(ShoalError):
    """A file of a store at an address cannot be brought to this machine, or kept there: no fault of a client."""


class GraphGone(ShoalError):
    """No file of a user's graph is where the config says; a store that was made of it can be read."""


class BusyError(ShoalError):
    """Another process writes a folder, or a run at an address; what was to be done there has no fault."""

    # These words mark the line of this error among those that another process printed.
    WAY_OUT = "; wait for it"

    def __init__(self, *parts: object) -> None:
        """Keeps the places and what is at work there."""
        super().__init__(*parts)
        assert self.WAY_OUT in self.line


def one_line(text: str) -> str:
    """Quotes a text of a user's as one line to print; of a long one, its two ends."""
    text = plain_text(text).replace("\n", "\\n")
    return text if len(text) <= LONGEST else f"{text[: LONGEST - ITS_END]} … {text[-ITS_END:]}"


class Unread(UserWarning):
    """Names what a graph has that is not read, and that says nothing of edges, parts or clients."""
