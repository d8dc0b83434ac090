"""The process of a command: signals first of all, its streams, and one line for what a user can cause."""

import atexit
import codecs
import faulthandler
import io
import locale
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

from shoal.engine.records.at_work import exits_named
from shoal.engine.screen.interrupt import Interrupted, end_children, end_with_parent, listen, listen_no_more
from shoal.storage.errors import ReaderGone, ShoalError
from shoal.storage.plain_text import plain_text


def main() -> None:
    """Runs the whole process, which answers signals from now on."""
    files_in_utf8()
    listen()
    # Registered first, `end` runs last: hooks of services such as Weights & Biases talk to their own processes.
    atexit.register(end)
    open_streams()
    # A crash of compiled code says the line of Python that it came from.
    faulthandler.enable(sys.stderr.fileno(), all_threads=False)
    end_with_parent()
    with exits_named():
        command()


def end() -> None:
    """Ends what the command started; a signal does not change its status any more."""
    listen_no_more()
    # If some processes of Ray were killed, others may be left.
    end_children()


def command() -> None:
    """Runs the command; what a user can cause ends with status 2, a signal with 128 and its number."""
    # Loading all of it takes a moment, in which a signal may come.
    from shoal.cli.cli import app
    from shoal.storage.errors import MORE
    from shoal.storage.files.places import give_places

    debug = "--debug" in sys.argv
    try:
        _require_working_folder()
        give_places()
        try:
            app(args=[a for a in sys.argv[1:] if a != "--debug"], prog_name="shoal", standalone_mode=True)
        finally:
            # After this point a full disk would no longer change the status.
            sys.stdout.flush()
    except ShoalError as error:
        if debug:
            import traceback

            traceback.print_exc()
            print(plain_text(error.detail), file=sys.stderr)
        print(f"shoal: {error}" + (f"{MORE}{error.log}" if error.log else ""), file=sys.stderr)
        sys.exit(2)
    except ModuleNotFoundError as error:
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
    except UnicodeEncodeError as error:
        if debug:
            raise
        print(f"shoal: {error.object!r}: has bytes that are no UTF-8; take another name", file=sys.stderr)
        sys.exit(2)
    except Exception as error:
        # Any call may raise when a cluster is lost; the user can do something about that.
        if debug or not type(error).__module__.startswith("ray."):
            raise
        reason = " ".join(str(error).split())[:300]
        print(f"shoal: ray: {reason}; look for lack of memory, and use --resume", file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:
        # Typer makes 130 of every interruption.
        by = _interruption(end)
        sys.exit(end.code if by is None else 128 + by)


def _require_working_folder() -> None:
    """Raises ShoalError: the working directory is gone, or its path is none that a config or a table can hold."""
    from shoal.storage.options.types import path_fault

    try:
        here = os.getcwd()
    except OSError as error:
        raise ShoalError("working directory", f"{error.strerror}; start in another folder") from error
    if fault := path_fault(here):
        raise ShoalError(Path(here), fault)


def _interruption(error: BaseException | None) -> int | None:
    """Returns the number of the signal that an exception comes from; None if it comes from none."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return error.number if isinstance(error, Interrupted) else signal.SIGINT
        error = error.__cause__ or error.__context__
    return None


# A name that is imported has a package that provides it, and a setting that does without.
SPARED: dict[str, tuple[str, str]] = {
    "ray": ("ray", "engine.backend=local"),
    "torch_geometric": ("torch-geometric", "data of your own files, or the synthetic ones"),
    "pymetis": ("pymetis", "another partition.method"),
    "kaminpar": ("kaminpar", "another partition.method"),
    "networkit": ("networkit", "another partition.method"),
    "faiss": ("faiss-cpu", "clients of fewer nodes"),
    "sklearn": ("scikit-learn", "another dataset or metric"),
    "tensorboard": ("tensorboard", "run.tensorboard=false"),
    "matplotlib": ("matplotlib", "no report"),
    "optuna": ("optuna", "a sweep of axes, without --search"),
    "cmaes": ("cmaes", "--sampler tpe"),
}


def way_out(error: ModuleNotFoundError) -> str | None:
    """Returns a line about a package that is missing; None: it is none of these."""
    name = (error.name or "").partition(".")[0]
    if name not in SPARED:
        return None
    package, without = SPARED[name]
    return f"the package {package} is not installed; pip install {package}, or do without it: {without}"


class _Stream(io.FileIO):
    """A stream that waits for its reader where that is slow, also if another process made it one that does not wait."""

    def write(self, data: Any) -> int:
        # Python gives None where a pipe is full.
        while (written := super().write(data)) is None:
            select.select([], [self], [])
        return written


class _Output(_Stream):
    """The stream of results. If `head` has read enough, the command ends as by SIGPIPE; on a full disk with a line."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            _to_nowhere(self)
            raise ReaderGone(128 + signal.SIGPIPE) from None
        except OSError as error:
            _to_nowhere(self)
            raise ShoalError("standard output", f"cannot be written: {error.strerror}; files are kept") from error


class _Messages(_Stream):
    """The stream of progress. If it cannot be written, as on a lost terminal, it is dropped; the command goes on."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError:
            _to_nowhere(self)
            return len(data)


def _to_nowhere(file: io.FileIO) -> None:
    """Sends all further output of a file to nowhere, also that at the end of the process."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, file.fileno())
    os.close(nowhere)


def open_streams() -> None:
    """Replaces both of Python's streams; a character that a terminal lacks is written as its number.

    Output to a closed stream is lost. Its descriptor is taken, since a file that got the number would get the output,
    too.
    """
    for number, closed in enumerate((sys.stdin is None, sys.stdout is None, sys.stderr is None)):
        if closed:
            _take_number(number)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    for name, kind in (("stdout", _Output), ("stderr", _Messages)):
        stream = getattr(sys, name)
        raw = kind(stream.fileno(), "wb", closefd=False)
        # Unbuffered (PYTHONUNBUFFERED), a stream has no lines of its own.
        lines = stream.line_buffering or stream.write_through
        options = {"line_buffering": lines, "write_through": stream.write_through}
        text = io.TextIOWrapper(io.BufferedWriter(raw), stream.encoding, "backslashreplace", **options)
        setattr(sys, name, text)


def _take_number(number: int) -> None:
    """Makes a descriptor that was closed one of nothing, for this process and those that it starts."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere == number:
        os.set_inheritable(nowhere, True)
    else:
        os.dup2(nowhere, number)
        os.close(nowhere)


def files_in_utf8() -> None:
    """Starts this process again where Python would read files in another encoding, that of an old locale."""
    if not sys.flags.utf8_mode and codecs.lookup(locale.getencoding()).name != "utf-8":
        os.environ["PYTHONUTF8"] = "1"
        os.environ.setdefault("PYTHONIOENCODING", getattr(sys.stdout, "encoding", "ascii"))
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    main()
