"""The raylet, Ray's own process on this machine: whether it has ended, and what it said of why."""

import re
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import psutil

from shoal.storage.errors import one_line

LOG = Path("session_latest", "logs", "raylet.out")
# A line of its log has date, severity, process and thread, name, place in its source; an error of severity C ends it.
LINE = re.compile(rb"^\[[^\]]* (?P<severity>[CE]) \d+ \d+\] (\(raylet\) )?\S+:\d+: *(?P<text>.*)$", re.MULTILINE)
# Ray writes these words in front of a condition that does not hold.
CHECK = re.compile(r".*Check failed: \S+ *")
LAST_BYTES, LONGEST = 1 << 18, 300
OF_PORTS = re.compile(r"Timed out waiting for file \S*_port_\w+")
BUSY = "its helpers did not start in 15 s, which is Ray's own limit: the machine is busy; run less at a time"
ENDED = "the process of Ray on this machine (raylet) has ended"


class RayletEnded(Exception):
    """An error that says that the raylet of a Ray that starts here has ended."""


def has_ended(earlier: Collection[int]) -> bool:
    """Returns whether a raylet that this process started has ended; `earlier` are children from before."""
    with suppress(psutil.Error):
        for child in psutil.Process().children():
            if child.pid not in earlier and child.name() == "raylet" and child.status() == psutil.STATUS_ZOMBIE:
                return True
    return False


def last_line(folder: Path) -> str | None:
    """Reads the last words of the raylet of a session in Ray's folder, in a line; None: it wrote none."""
    try:
        with (folder / LOG).open("rb") as file:
            file.seek(max(0, (folder / LOG).stat().st_size - LAST_BYTES))
            text = file.read()
    except OSError:
        return None
    lines = [(match["severity"], match["text"].decode(errors="replace")) for match in LINE.finditer(text)]
    fatal = [line for severity, line in lines if severity == b"C"] or [line for _, line in lines]
    if not fatal:
        return None
    words = CHECK.sub("", fatal[-1]).strip()
    return BUSY if OF_PORTS.match(words) else one_line(words)[:LONGEST]


def why_ended(folder: Path | None) -> str:
    """Returns a line for a raylet that has ended; if it wrote none, lack of memory is the usual reason."""
    line = None if folder is None else last_line(folder)
    return f"{ENDED}; look for lack of memory" if line is None else f"{ENDED}: {line}"
