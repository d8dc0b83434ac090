"""Folders that a process can write, for what is no result: caches, compiled code, sockets; others may be read-only."""

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from shoal.storage.errors import ShoalError

CACHE = "SHOAL_CACHE"
HOME = "~/.cache/shoal"
# Folders of the cache for runs at addresses: copies of those that are read, and those of drivers.
COPIES = ("copies", "runs")
# A folder of a short path may be made in these: variables, or paths.
SHORT = ("RAY_TMPDIR", "TMPDIR", "/tmp", "/dev/shm", CACHE)
_of_this_process: list[Path] = []


def cache_folder() -> Path:
    """Returns the first writable one of `$SHOAL_CACHE`, `~/.cache/shoal` and a temporary folder of this user.

    Raises ShoalError: there is none.
    """
    home = os.path.expanduser(HOME)
    for place in (os.environ.get(CACHE), None if home.startswith("~") else home):
        if place and _can_be_written(Path(place)):
            return Path(place).absolute()
    with suppress(OSError):
        shared = Path(tempfile.gettempdir()) / f"shoal-{os.geteuid()}"
        if _can_be_written(shared) and _is_own(shared):
            return shared
    raise ShoalError(CACHE, "no folder can be written for caches; set it, or NUMBA_CACHE_DIR, to one that can")


def _can_be_written(folder: Path) -> bool:
    with suppress(OSError, ValueError):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.access(folder, os.W_OK | os.X_OK)
    return False


def _is_own(folder: Path) -> bool:
    """Whether no other user can put anything into a folder: what lies in it is loaded and run."""
    info = folder.lstat()
    return stat.S_ISDIR(info.st_mode) and info.st_uid == os.geteuid() and not info.st_mode & 0o022


def give_places() -> None:
    """Gives numba and matplotlib a folder where they could not write into code or home; what the user set stays.

    Raises ShoalError: there is none.
    """
    code, home = Path(__file__).parent, Path(os.path.expanduser("~"))
    for variable, name, usual in (("NUMBA_CACHE_DIR", "numba", code), ("MPLCONFIGDIR", "matplotlib", home)):
        if not os.environ.get(variable) and not os.access(usual, os.W_OK):
            os.environ[variable] = str(cache_folder() / name)


def short_folder(name: str, most: int) -> Path:
    """Makes a new folder whose path has at most so many bytes; it goes with `remove_temporary`.

    Raises ShoalError: there is no place for one.
    """
    for place in SHORT:
        parent = Path(place if place.startswith("/") else os.environ.get(place) or "/").absolute()
        with suppress(OSError, ValueError):
            # mkdtemp adds eight characters.
            if parent != Path("/") and len(os.fsencode(parent / name)) + 8 <= most:
                _of_this_process.append(Path(tempfile.mkdtemp(prefix=name, dir=parent)))
                return _of_this_process[-1]
    raise ShoalError(
        "RAY_TMPDIR",
        f"no folder of a short path for Ray's sockets; set it to one that can be written, of {most - len(name) - 9} "
        "bytes at most",
    )


def remove_temporary() -> None:
    """Removes the folders that `short_folder` made for this process, also where a hook of Ray's made one again."""
    for folder in _of_this_process:
        shutil.rmtree(folder, ignore_errors=True)
