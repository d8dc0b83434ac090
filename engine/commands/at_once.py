"""Runs of a sweep at once: each is a process of its own, and takes nothing with it that is not its own."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.screen.interrupt import Interrupted, graceful
from storage.errors import MORE

SHOAL = (sys.executable, "-m", "engine")
# What `shoal` begins its one line of a failure with.
SAID = "shoal: "
SECONDS_BETWEEN_LOOKS = 0.1


@dataclass
class _Process:
    place: int
    process: "subprocess.Popen[bytes]"
    said: Path


def run_at_once(
    commands: Iterator[tuple[int, Sequence[str]]], most: int, folder: Path, ended: Callable[[int, str | None], None]
) -> None:
    """Runs `shoal` with the arguments of every command, at most `most` at a time, in their order.

    Asked to stop, all at work end with their round and a checkpoint, and no more are started.

    Args:
        commands: A number and the arguments of each; asked for when there is room for it.
        most: Processes at a time.
        folder: Gets what every one says, as `<number>.txt`; made if it is not there.
        ended: Called with the number of one that has ended, and with what it failed with; None if it did not.

    Raises:
        KeyboardInterrupt: The user stopped it.
    """
    at_work: list[_Process] = []
    more = True
    with graceful() as interrupt:
        told = False
        while more or at_work:
            while more and not interrupt.asked and len(at_work) < most:
                command = next(commands, None)
                if command is None:
                    more = False
                else:
                    at_work.append(_start(*command, folder))
            if interrupt.asked and not told:
                told = True
                more = False
                for each in at_work:
                    each.process.send_signal(interrupt.number)
            for each in [each for each in at_work if each.process.poll() is not None]:
                at_work.remove(each)
                if not told or not each.process.returncode:
                    ended(each.place, _failure(each))
            time.sleep(SECONDS_BETWEEN_LOOKS)
        if interrupt.asked:
            raise Interrupted(interrupt.number)


def _start(place: int, arguments: Sequence[str], folder: Path) -> _Process:
    folder.mkdir(parents=True, exist_ok=True)
    said = folder / f"{place}.txt"
    with said.open("wb") as out:
        # In a session of its own: Ctrl-C reaches it once, from here.
        process = subprocess.Popen(
            [*SHOAL, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    return _Process(place, process, said)


def _failure(each: _Process) -> str | None:
    code = each.process.returncode
    if not code:
        return None
    if code < 0:
        return f"its process was killed by signal {-code}"
    lines = [line for line in each.said.read_text(errors="replace").splitlines() if line.strip()]
    said = [line for line in lines if line.startswith(SAID)]
    if not said:
        return f"{each.said}: status {code}: {lines[-1] if lines else 'no word'}"
    # A row names its run, and with that the log.
    return said[-1].removeprefix(SAID).rsplit(MORE, 1)[0]
