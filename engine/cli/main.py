"""The process of a command: signals first of all, and one line for what a user can cause."""

import signal
import sys

from shoal.engine.screen.interrupt import Interrupted, end_children, listen, listen_no_more


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
    from shoal.engine.cli.cli import app
    from shoal.storage.errors import MORE, ShoalError

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


# By the name that is imported: the package, and a way that does not need it.
SPARED: dict[str, tuple[str, str]] = {
    "ray": ("ray", "engine.backend=local"),
    "torch_geometric": ("torch-geometric", "models that read hops, on other data than cora, citeseer and pubmed"),
    "pymetis": ("pymetis", "another partition.method"),
    "kaminpar": ("kaminpar", "another partition.method"),
    "networkit": ("networkit", "another partition.method"),
    "faiss": ("faiss-cpu", "clients of fewer nodes"),
    "sklearn": ("scikit-learn", "another dataset or metric"),
    "tensorboard": ("tensorboard", "run.tensorboard=false"),
    "matplotlib": ("matplotlib", "no report"),
}


def way_out(error: ModuleNotFoundError) -> str | None:
    """One line about a package that is missing; None: it is none of these."""
    name = (error.name or "").partition(".")[0]
    if name not in SPARED:
        return None
    package, without = SPARED[name]
    return f"the package {package} is not installed; pip install {package}, or do without it: {without}"


if __name__ == "__main__":
    main()
