"""A run at an address: its folder on this machine is brought from there, and after every checkpoint sent there.

At the address, `objects/` has files by the XXH3-128 of their content, `run.json` their paths in the folder, and
`drivers/` an object for each driver at work, which shows itself every few seconds. Files are sent before `run.json`
names them, and removed when it no longer does, so that a kill at any moment leaves the run as it was.
"""

import fcntl
import logging
import os
import platform
import re
import secrets
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

import psutil
import xxhash

from shoal.engine.config.config_text import CONFIG
from shoal.engine.records import checkpoint
from shoal.engine.records.checkpoint import ADDRESS, PLAIN, SUFFIX
from shoal.engine.records.outputs import CLOCK, EXPORT, REPORT
from shoal.engine.records.remote_parts import OBJECTS, WAY_OUT, no_room, sizes_at
from shoal.engine.records.run_folder import CHECKPOINTS, SUMMARY, RunFolder
from shoal.engine.screen.progress import say
from shoal.storage.errors import BusyError, FetchError, ShoalError
from shoal.storage.files.addresses import AT_ONCE, TRIES, Folder
from shoal.storage.files.checksummed_json import require_format, sealed, unsealed
from shoal.storage.files.digest import CHUNK, text_digest
from shoal.storage.files.disk import LOCK
from shoal.storage.files.names import DIGEST, place_in, require_digest, require_name
from shoal.storage.files.places import COPIES, cache_folder

log = logging.getLogger(__name__)
LIST, FORMAT = "run.json", 1
# Drivers at work have a folder, in which a name has machine, process, and a random number.
DRIVERS, DRIVER = "drivers", r"[^/]+-\d{1,10}-[0-9a-f]{8}"
OF_CHECKPOINTS = (CHECKPOINTS, checkpoint.BEST)
# These files belong to this machine, or are made from the others, and are not sent.
NOT_SENT = re.compile(
    rf"\.lock|\.address|{LIST}|({REPORT}|{CLOCK}|{EXPORT})/.*|.*\.(unfinished|unusable\d*|part)(/.*)?"
)
# These paths are written here, below the address and below a run on this machine.
THERE = (rf"{OBJECTS}/{DIGEST}", rf"{DRIVERS}/{DRIVER}")
WRITTEN = (re.escape(LIST),)
# A driver shows itself every `BETWEEN_SIGNS` seconds, and counts as gone after `GONE_AFTER` without a sign.
BETWEEN_SIGNS, GONE_AFTER, BETWEEN_LOOKS = 10.0, 60.0, 1.0


class Seat:
    """The seat of the only process that may write a run at an address, from when it is made until it is closed."""

    def __init__(self, folder: Folder) -> None:
        """Takes the seat. Raises BusyError: an earlier driver shows itself; FetchError: the address is out of reach."""
        self._folder, self._machine = folder, _machine()
        self._name = f"{DRIVERS}/{self._machine}-{os.getpid()}-{secrets.token_hex(4)}"
        self._closed = threading.Event()
        before = self._drivers()
        # Signs are compared by the times of the object store, as clocks of machines differ.
        folder.put(self._name, b"")
        self._signs = threading.Thread(target=self._show, daemon=True)
        self._signs.start()
        try:
            self._await(before)
        except BaseException:
            self.close()
            raise

    def is_ours(self) -> bool:
        """Returns whether no other driver took the seat after too long a silence of this one. Raises FetchError."""
        return self._name in self._drivers()

    def close(self) -> None:
        """Leaves the seat to others."""
        self._closed.set()
        # A sign that is under way would be written after the removal, and stay behind.
        self._signs.join(BETWEEN_SIGNS)
        with suppress(FetchError):
            self._folder.delete(self._name)

    def _drivers(self) -> dict[str, float]:
        infos = self._folder.list_files(DRIVERS).items()
        files = {name: info for name, info in infos if info.size is not None}
        return {
            name: info.mtime.timestamp()
            for name, info in files.items()
            if re.fullmatch(DRIVER, name.removeprefix(f"{DRIVERS}/"))
        }

    def _await(self, before: Collection[str]) -> None:
        """Waits for drivers that came before, or in the same moment a little earlier, unless they are gone."""
        first, began = self._drivers(), time.monotonic()
        for other, shown in first.items():
            silent = first[self._name] - shown
            if other == self._name or (silent < 0 and other not in before):
                continue
            machine, process, _ = other.removeprefix(f"{DRIVERS}/").rsplit("-", 2)
            gone = machine == self._machine and (int(process) == os.getpid() or not psutil.pid_exists(int(process)))
            if not gone and silent < GONE_AFTER:
                ago = f"{abs(silent):.0f} s ago"
                say(f"{self._folder}: a driver on {machine} was there {ago}; waiting whether it is gone")
            while not gone and self._drivers().get(other) == shown:
                gone = silent + time.monotonic() - began > GONE_AFTER
                self._closed.wait(BETWEEN_LOOKS)
            if not gone and other in self._drivers():
                raise BusyError(
                    str(self._folder),
                    f"another driver writes this run, process {process} on {machine}; wait for it, or change name or "
                    "run.root",
                )
            self._folder.delete(other)

    def _show(self) -> None:
        while not self._closed.wait(BETWEEN_SIGNS):
            with suppress(FetchError):
                if not self.is_ours():
                    return
                self._folder.put(self._name, b"")


def _machine() -> str:
    """Returns a name of this machine, and of the namespace of its processes."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    seen = f"{boot.read_text() if boot.exists() else ''} {os.stat('/proc/self/ns/pid').st_ino}"
    return f"{platform.node()}-{text_digest(seen)[:8]}"


class RemoteRun:
    """The one writer of a run at an address, from its folder on this machine."""

    def __init__(self, address: str, folder: RunFolder, fresh: bool) -> None:
        """Takes the seat of the run, and brings newer files from there into the folder, unless it starts `fresh`.

        Raises ShoalError: another driver writes it, or the address is out of reach.
        """
        self._run, self._folder = folder, Folder(address, WAY_OUT)
        self._unsent: Exception | None = None
        self._listed: dict[str, Any] = {}
        (folder.path / ADDRESS).write_text(address)
        folder.place, folder.send = address, self.send
        self._seat = Seat(self._folder)
        try:
            self._begin(fresh)
        except BaseException:
            self._seat.close()
            raise

    def _begin(self, fresh: bool) -> None:
        path, there = self._run.path, None if fresh else read_list(self._folder)
        here = _list_here(path)
        self._generation = secrets.token_hex(4) if fresh else (there or here).get("generation", secrets.token_hex(4))
        if not there:
            return
        done = (self._run.finished, checkpoint.newest_round(self._run.checkpoints))
        same = here.get("generation") == self._generation
        if not same or done <= (SUMMARY in there["files"], there["round"]):
            if not same:
                self._run.clear()
            bring(self._folder, there, path)
            self._listed = there
            return
        say(f"{path}: is ahead of {self._folder}, and is sent there")
        self._send()

    def clear(self) -> None:
        """Removes the list of an earlier run; its files go with the next one. Raises FetchError."""
        self._folder.delete(LIST)
        (self._run.path / LIST).unlink(missing_ok=True)

    def send(self) -> None:
        """Sends files that are new. If that fails, a line says so, and the run goes on.

        Raises ShoalError: another driver took the run over.
        """
        try:
            self._send()
            self._unsent = None
        except (FetchError, OSError) as error:
            self._unsent = error
            line = f"{error}; the run goes on, and is in {self._run.path} alone until it can be sent"
            say(line)
            log.warning(line)

    def finish(self) -> None:
        """Sends the finished run. Raises ShoalError: it cannot be sent."""
        self.send()
        if self._unsent is not None:
            raise ShoalError(
                self._run.path,
                f"the run is finished, and could not be sent ({self._unsent}); the same command again sends it",
            )

    def close(self) -> None:
        """Sends the log, if the address takes it, and leaves the run to others."""
        if self._unsent is None and (self._run.path / CONFIG).exists():
            with suppress(ShoalError, OSError):
                self._send()
        self._seat.close()

    def _send(self) -> None:
        if not self._seat.is_ours():
            raise ShoalError(
                str(self._folder),
                "another driver took this run over while this one was silent; this one ends, and leaves its files in "
                f"{self._run.path}",
            )
        there = sizes_at(self._folder)
        files = self._files(there)
        if files == self._listed.get("files"):
            return
        missing = {xxh3: (name, size) for name, (size, xxh3) in files.items() if there.get(xxh3) != size}
        with ThreadPoolExecutor(AT_ONCE) as threads:
            sent = [
                threads.submit(self._folder.send, f"{OBJECTS}/{xxh3}", self._run.path / name, size)
                for xxh3, (name, size) in missing.items()
            ]
        for future in sent:
            future.result()
        newest = checkpoint.newest_round(self._run.checkpoints)
        listed = {"format": FORMAT, "generation": self._generation, "round": newest, "files": files}
        text = sealed(listed)
        self._folder.put(LIST, text.encode())
        (self._run.path / LIST).write_text(text)
        self._listed = listed
        with suppress(FetchError):
            for xxh3 in there.keys() - {xxh3 for _, xxh3 in files.values()}:
                self._folder.delete(f"{OBJECTS}/{xxh3}")

    def _files(self, there: Mapping[str, int | None]) -> dict[str, list[Any]]:
        """Returns size and digest of each file of the run, by its path; those that hosts sent are at the address alone.

        A checkpoint with a missing file is left out. A file that grows meanwhile counts with its size at first.
        """
        path = self._run.path
        names = {file.relative_to(path).as_posix(): file for file in path.rglob("*") if _is_sent(file, path)}
        # Checkpoints name the digests of their files, so that these need not be read again.
        digests: dict[str, str] = {}
        for name in [name for name in names if name.endswith(f"/{PLAIN}")]:
            with suppress(*checkpoint.UNUSABLE, ShoalError):
                of_state = checkpoint.files_of(names[name].parent)
                digests |= {f"{PurePosixPath(name).parent}/{part}": xxh3 for part, xxh3 in of_state.items()}
        records = {name: [there[xxh3], xxh3] for name, xxh3 in digests.items() if there.get(xxh3) is not None}
        for name in names.keys() - records.keys():
            size = names[name].stat().st_size
            records[name] = [size, _digest(names[name], size)]
        for name in digests.keys() - records.keys():
            log.warning("%s/%s is neither here nor in %s; this checkpoint is not sent", path, name, self._folder)
            folder = f"{PurePosixPath(name).parent}/"
            records = {other: record for other, record in records.items() if not other.startswith(folder)}
        return records


def _is_sent(file: Path, path: Path) -> bool:
    name = file.relative_to(path).as_posix()
    return file.is_file() and not file.is_symlink() and not NOT_SENT.fullmatch(name)


def _digest(file: Path, size: int) -> str:
    hasher = xxhash.xxh3_128()
    with file.open("rb") as content:
        while chunk := content.read(min(CHUNK, size)):
            hasher.update(chunk)
            size -= len(chunk)
    return hasher.hexdigest()


def read_list(folder: Folder) -> dict[str, Any]:
    """Reads `run.json` at an address; empty if there is none.

    Raises FetchError: the address is out of reach; ShoalError: the list is damaged, or of another format.
    """
    if LIST not in folder.sizes():
        return {}
    fault: Exception | None = None
    # A driver may write the list between the question for its size and the one for its content.
    for _ in range(TRIES):
        try:
            text = folder.content(LIST)
            require_format(f"{folder}/{LIST}", text, FORMAT)
            return _check_list(f"{folder}/{LIST}", unsealed(text))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            fault = error
    raise ShoalError(f"{folder}/{LIST}", f"damaged ({fault}); {WAY_OUT}")


def _check_list(where: str, listed: dict[str, Any]) -> dict[str, Any]:
    """Checks that a list names files of a run alone, and returns it without files that no run sends.

    Raises ShoalError: a name is no path below a run, or a digest is none. ValueError, KeyError, TypeError,
    AttributeError: it is of another form.
    """
    if "files" not in listed:
        raise ValueError("names no files")
    for name, (size, xxh3) in listed["files"].items():
        require_name(where, name)
        require_digest(where, xxh3)
        if not isinstance(size, int):
            raise ValueError(f"{name} has {size!r} bytes")
    if not (isinstance(listed["round"], int) and isinstance(listed["generation"], str)):
        raise ValueError("has no round and no generation")
    files = {name: record for name, record in listed["files"].items() if not NOT_SENT.fullmatch(name)}
    return {**listed, "files": files}


def _list_here(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        return unsealed((path / LIST).read_bytes())
    return {}


def bring(folder: Folder, there: Mapping[str, Any], path: Path) -> None:
    """Makes a folder of this machine equal to a list, but for tensors of checkpoints, which readers fetch themselves.

    Raises FetchError: the address is out of reach, or a file there is missing or another one, or there is no room.
    """
    files = there["files"]
    earlier = _list_here(path).get("files", {}).keys() - files.keys()
    try:
        for name in earlier:
            place_in(path, require_name(path / LIST, name)).unlink(missing_ok=True)
        for part in OF_CHECKPOINTS:
            states = [name for name in files if re.fullmatch(rf"{part}/round-\d{{6,18}}/{re.escape(PLAIN)}", name)]
            same = [name.split("/")[1] for name in states if _is_as(path / name, files[name])]
            checkpoint.keep_only(path / part, {int(name.rpartition("-")[2]) for name in same})
        small = [name for name in files if name.split("/")[0] not in OF_CHECKPOINTS or not name.endswith(SUFFIX)]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(partial(_bring_one, folder, path, files), small))
        (path / LIST).write_text(sealed(there))
    except OSError as error:
        raise no_room(path, error) from error


def _bring_one(folder: Folder, path: Path, files: Mapping[str, list[Any]], name: str) -> None:
    file, (size, xxh3) = place_in(path, name), files[name]
    if _is_as(file, files[name]):
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.part")
    folder.fetch(f"{OBJECTS}/{xxh3}", size, xxh3, part)
    os.replace(part, file)


def _is_as(file: Path, record: list[Any]) -> bool:
    size, xxh3 = record
    return file.exists() and file.stat().st_size == size and _digest(file, size) == xxh3


def bring_here(address: str, path: Path) -> None:
    """Brings new files of a run at an address into the folder of its driver on this machine, as that driver does.

    Raises ShoalError: another driver writes it; FetchError: the address is out of reach.
    """
    there = read_list(Folder(address, WAY_OUT))
    if there and there != _list_here(path):
        with closing(RunFolder(path)) as run, closing(RemoteRun(address, run, fresh=False)):
            # A `RemoteRun` brings new files when it begins.
            pass


def copies_of(address: str) -> list[Path]:
    """Returns the folders of this machine for a run at an address: for commands that read it, and for its driver.

    Raises ShoalError: the address ends in no name of a folder.
    """
    root, _, name = str(Folder(address)).rpartition("/")
    return [cache_folder() / kind / text_digest(root) / require_name(address, name) for kind in COPIES]


def copy_of(address: str, root: Path | None = None) -> Path:
    """Copies a run at an address, as it is there now, into a folder of this machine, in `root` or in the cache.

    Raises FetchError: the address is out of reach.
    """
    folder = Folder(address, WAY_OUT)
    path = copies_of(address)[0]
    path, root = (path, path.parent) if root is None else (root / path.name, root)
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / LOCK).touch()
        (path / ADDRESS).write_text(address)
        lock = (root / LOCK).open("a")
    except OSError as error:
        raise no_room(path, error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for tries in range(TRIES):
            there = read_list(folder)
            try:
                bring(folder, there, path)
                break
            except FetchError:
                # If the run went on meanwhile, its list has changed, and the new one is brought.
                if tries == TRIES - 1 or read_list(folder) == there:
                    raise
    return path
