"""The process of a command: signals first of all, and one line for what a user can cause."""

import signal
import sys

from engine.screen.interrupt import Interrupted, end_children, listen, listen_no_more


def main() -> None:
    """The whole process: from now on it answers signals."""
    listen()
    try:
        command()
    finally:
        listen_no_more()
        # Of a Ray whose own processes were killed, others may be left.
        end_children()


def command() -> None:
    """Runs the command; what a user can cause ends with status 2, SIGINT with 130, SIGTERM with 143."""
    # Loading all of it takes a moment, in which a signal may come.
    from engine.commands.cli import app
    from storage.errors import MORE, ShoalError

    debug = "--debug" in sys.argv
    try:
        app(args=[a for a in sys.argv[1:] if a != "--debug"], prog_name="shoal", standalone_mode=True)
    except ShoalError as error:
        if debug:
            import traceback

            traceback.print_exc()
            print(error.detail, file=sys.stderr)
        print(f"shoal: {error}" + (f"{MORE}{error.log}" if error.log else ""), file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
        from engine.commands.missing_package import way_out

        line = way_out(error)
        if debug or line is None:
            raise
        print(f"shoal: {line}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if debug:
            raise
        # A disk that is full or gone may say so anywhere.
        print(f"shoal: {error.filename or 'a file'}: {error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:
        # Typer makes 130 of every interruption.
        by = _interruption(end)
        sys.exit(end.code if by is None else 128 + by)


def _interruption(error: BaseException | None) -> int | None:
    """Number of the signal that an exception comes from; None if from none."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return error.number if isinstance(error, Interrupted) else signal.SIGINT
        error = error.__cause__ or error.__context__
    return None
