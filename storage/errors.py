"""The one exception that a user's input can cause."""


class ShoalError(Exception):
    """Bad input, in one line: what is wrong, where (file, key, client), what to do.

    The command prints the line and exits with status 2; with `--debug` it shows the detail and the traceback as well.
    """

    def __init__(self, line: str, detail: str = "") -> None:
        """Keeps the line and, for a failure on another process, that process's traceback."""
        super().__init__(line, detail)
        self.line = line
        self.detail = detail

    def __str__(self) -> str:
        return self.line
