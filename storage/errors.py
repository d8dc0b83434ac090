"""The one exception that a user's input can cause."""


class ShoalError(Exception):
    """Bad input, in one line: what is wrong, where (file, key, client), what to do.

    The command prints the line and exits with status 2; with `--debug` it shows the traceback as well.
    """
