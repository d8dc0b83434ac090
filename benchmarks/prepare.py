"""Time, memory and disk of every step from OGB's raw files to hops, at several scales; and kills in each step.

    python benchmarks/prepare.py --like papers100m-like --scales 0.01 0.05 --limit 512MiB --clients 100
    python benchmarks/prepare.py --like papers100m-like --scales 0.01 --limit 192MiB --kills

The graph is a synthetic twin in OGB's own layout. The files that a step makes identify it. Memory is that of all
processes, file pages that they map included, sampled every 50 ms (a shared page counts once); it should follow the
limit, beside 0.35 GiB of interpreter and libraries, and not the scale. What a step adds to the disk in a second stands
beside what the disk and the memory of the machine can do; a step that writes nothing, or less than it reads, has no
such number that says much. With `--kills` a second prepare is killed with
SIGKILL at 10, 50 and 90 % of the time that each step took in the first, and must end with the same files.
"""

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import yaml
from rich.console import Console
from rich.table import Table

from shoal.engine.hosts.device import tree_memory
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.synthetic.ogb_layout import write_ogb_layout
from shoal.storage.datasets.synthetic.twin import ORIGINALS, Twin

SAMPLE_SECONDS = 0.05
PLACES = (0.1, 0.5, 0.9)
GIB = 2**30


@dataclass
class Taken:
    """What one step took."""

    seconds: float = 0.0
    processor: float = 0.0
    rss: int = 0
    disk: int = 0


@dataclass(frozen=True)
class Place:
    """One prepare: its raw files, what is derived from them, its store.

    Attributes:
        root: Folder of raw files.
        scratch: Folder of derived arrays.
        store: Folder of the store.
        config: File.
    """

    root: Path
    scratch: Path
    store: Path
    config: Path

    @property
    def steps(self) -> list[tuple[str, Callable[[], bool]]]:
        """Steps in their order, and whether each has begun."""
        derived = next((self.scratch / "ogb-derived").glob("*"), self.scratch / "none")
        unfinished = derived / "csr.unfinished"

        def there(folder: Path, pattern: str) -> Callable[[], bool]:
            return lambda: next(folder.glob(pattern), None) is not None

        return [
            ("start", lambda: True),
            ("read edges", there(unfinished, "buckets/*")),
            ("sort edges", there(unfinished, "indices.npy")),
            ("read features, labels, split", there(derived, "csr")),
            ("partition", there(self.store, "shoal-partition-*")),
            ("shards", there(self.store, "assignment.npy")),
            ("split", there(self.store, "splits/*/*")),
            ("hops", there(self.store, "hops/*/*")),
        ]


def place_at(folder: Path, root: Path, dataset: str, asked: argparse.Namespace) -> Place:
    """Writes the config of one prepare."""
    place = Place(root, folder / "scratch", folder / "store", folder / "config.yaml")
    folder.mkdir(parents=True)
    config = {
        "name": folder.name,
        "data": {
            "dataset": dataset, "root": str(root), "store": str(place.store), "split": "public", "dtype": "float16",
            "options": {"scratch": str(place.scratch)},
        },
        "partition": {"method": "semi-external", "clients": asked.clients},
        "propagation": {"hops": 3, "dtype": "float16"},
        "engine": {"memory_limit": asked.limit, "backend": asked.backend, "hosts": 1},
        "algorithm": {"name": "fedgta"},
    }  # fmt: skip
    place.config.write_text(yaml.safe_dump(config))
    return place


def started(place: Place) -> subprocess.Popen[bytes]:
    """A prepare in a process of its own."""
    log = (place.config.parent / "log").open("ab")
    return subprocess.Popen([sys.executable, "-m", "shoal", "prepare", str(place.config)], stdout=log, stderr=log)


def step_now(place: Place, at_least: str) -> str:
    """The last step that has begun, never one before `at_least`."""
    names = [name for name, _ in place.steps]
    begun = [name for name, begins in place.steps if begins()]
    return max(begun[-1], at_least, key=names.index)


def watched(place: Place) -> dict[str, Taken]:
    """Runs a prepare to its end."""
    process, taken, step = started(place), {}, "start"
    began = last = time.monotonic()
    busy = 0.0
    while process.poll() is None:
        step = step_now(place, step)
        now = time.monotonic()
        entry = taken.setdefault(step, Taken())
        entry.seconds += now - last
        used = max(busy, processor_seconds(process.pid))
        entry.processor, busy = entry.processor + used - busy, used
        entry.rss = max(entry.rss, tree_memory(process.pid))
        if now - began > 1:
            entry.disk, began = max(entry.disk, size(place.scratch) + size(place.store)), now
        last = now
        time.sleep(SAMPLE_SECONDS)
    check(process, place)
    taken[step].disk = max(taken[step].disk, size(place.scratch) + size(place.store))
    return taken


def processor_seconds(pid: int) -> float:
    """Processor time of a process, and of its children that ended, s; 0 once it is gone."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def bandwidth(folder: Path) -> str:
    """Says what disk and memory of this machine do: a file written and brought to disk, a copy, reads at random."""
    data, numbers = np.zeros(1 << 28, dtype=np.uint8), np.zeros(1 << 26, dtype=np.int32)
    places = np.random.default_rng(0).integers(len(numbers), size=1 << 23)
    other = data.copy()

    def written() -> None:
        with (folder / "written").open("wb") as file:
            file.write(data)
            os.fsync(file.fileno())

    disk, copy, reads = (seconds(work) for work in (written, lambda: np.copyto(other, data), lambda: numbers[places]))
    (folder / "written").unlink()
    return (
        f"disk: {len(data) / disk / 1e6:.0f} MB/s written; memory, one thread: {2 * len(data) / copy / 1e9:.1f} GB/s "
        f"copied, {len(places) / reads / 1e6:.0f}M numbers a second read at random"
    )


def seconds(work: Callable[[], object]) -> float:
    """Seconds of the second of two calls."""
    work()
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def check(process: subprocess.Popen[bytes], place: Place) -> None:
    if process.returncode:
        sys.exit((place.config.parent / "log").read_text()[-2000:])


def killed(place: Place, taken: dict[str, Taken]) -> list[tuple[str, float, bool]]:
    """Kills a prepare in every step, then lets it end; step, share of its time, and whether it was hit there."""
    hits = []
    for name in taken:
        for share in PLACES:
            process, step = started(place), "start"
            while process.poll() is None and step != name:
                step = step_now(place, step)
                time.sleep(SAMPLE_SECONDS / 5)
            time.sleep(share * taken[name].seconds)
            hit = process.poll() is None and step_now(place, step) == name
            process.send_signal(signal.SIGKILL)
            process.wait()
            hits.append((name, share, hit))
    process = started(place)
    process.wait()
    check(process, place)
    return hits


def size(folder: Path) -> int:
    """Bytes on disk below a folder."""
    return sum(path.stat().st_blocks * 512 for path in files(folder))


def files(folder: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        yield from (path for name in names if (path := Path(parent) / name).is_file())


def checksums(place: Place) -> dict[str, str]:
    """Every file of a store that does not tell the time or the order of its making."""
    return {
        str(path.relative_to(place.store)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files(place.store)
        if path.suffix in (".arrow", ".npy")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--like", default="papers100m-like", choices=list(ORIGINALS))
    parser.add_argument("--scales", type=float, nargs="+", default=[0.01, 0.05])
    parser.add_argument("--limit", default="512MiB")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--backend", default="local", choices=["local", "ray"], help="ray: on all processors")
    parser.add_argument("--kills", action="store_true")
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    asked = parser.parse_args()
    dataset = f"ogbn-{asked.like.removesuffix('-like')}"
    with tempfile.TemporaryDirectory(dir=asked.folder) as name:
        for scale in asked.scales:
            folder = Path(name) / f"{scale:g}"
            twin = Twin.of(asked.like, DataSource(asked.like, scale=scale))
            write_ogb_layout(folder / "raw", twin)
            place = place_at(folder / "calm", folder / "raw", dataset, asked)
            taken = watched(place)
            table = Table(
                title=f"{asked.like} (synthetic), scale {scale:g}: {twin.nodes / 1e6:.2f}M nodes, "
                f"{twin.edges / 1e6:.1f}M edges, {asked.clients} clients, limit {asked.limit}, "
                f"raw files {size(folder / 'raw') / GIB:.2f} GiB"
            )
            for column in ("step", "seconds", "processor, s", "peak RSS, GiB", "disk, GiB", "MB/s added"):
                table.add_column(column, justify="left" if column == "step" else "right")
            before = 0
            for step, entry in taken.items():
                added, before = max(0, entry.disk - before), max(before, entry.disk)
                table.add_row(
                    step, f"{entry.seconds:.1f}", f"{entry.processor:.1f}", f"{entry.rss / GIB:.2f}",
                    f"{entry.disk / GIB:.2f}", f"{added / max(entry.seconds, 1e-9) / 1e6:.0f}",
                )  # fmt: skip
            Console(width=110).print(table)
            print(bandwidth(Path(name)))
            if asked.kills:
                other = place_at(folder / "killed", folder / "raw", dataset, asked)
                hits = killed(other, taken)
                for step, share, hit in hits:
                    print(f"killed at {share:.0%} of {step}" + ("" if hit else " (too late: the step was over)"))
                same = checksums(other) == checksums(place)
                print(f"{sum(hit for *_, hit in hits)} kills; same {len(checksums(place))} files: {same}")
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
