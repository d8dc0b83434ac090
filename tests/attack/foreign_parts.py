"""Parts of another run in a run folder, and a user's own files among those that `shoal remove` takes."""

import random
import tempfile
from functools import cache
from pathlib import Path

from attack import line_of
from attack.damage import Snapshot, folder_in_memory
from attack.test_damaged_run import Case, made, put_back
from shoal.engine.config.config import parse_config
from shoal.engine.runs.run import run
from shoal.engine.runs.verify import verify_run
from shoal.kept.removal import remove
from shoal.storage.files.checksummed_json import unsealed

OTHERS = "silently other numbers"


@cache
def sibling() -> Snapshot:
    """A finished run of the same config with another seed, on the same store."""
    case = made()
    plain = case.config.model_dump(exclude_unset=True)
    return Snapshot(
        run(parse_config({**plain, "seed": 1, "run": {**plain["run"], "root": str(folder_in_memory())}}, "test"))
    )


def parts(seed: int) -> str | None:
    """Files of a sibling in the place of a run's own, finished or not: named, or without effect."""
    rng = random.Random(seed)
    case, other = made(), sibling()
    finished = rng.random() < 0.5
    put_back(case, case.finished if finished else case.cut_off)
    names = sorted({path.relative_to(case.folder) for path in case.folder.rglob("*") if path.is_file()})
    foreign = [name for name in names if other.folder / name in other.files and name.name != "run.log"]
    # With all files it would be that run, in a folder of another name.
    for name in rng.sample(foreign, rng.randint(1, len(foreign) - 1)):
        (case.folder / name).write_bytes(other.files[other.folder / name])
    if not finished:
        line = line_of(lambda: run(case.config, resume=True))
        if line is None and case.numbers() != case.expected:
            raise AssertionError(f"{OTHERS}: resumed with parts of another run")
        return line
    changed = [path for path in case.finished.changed() if not _same(path, case)]
    # Which of the two runs a mixture is of depends on what was taken; that it is one does not.
    if changed and not verify_run(case.folder):
        raise AssertionError(f"{OTHERS}: verify takes {len(changed)} files of another run for this one's")
    line = line_of(lambda: run(case.config)) or line_of(case.numbers)
    if line is None and case.numbers() != case.expected:
        raise AssertionError(f"{OTHERS}: read from parts of another run")
    return line


def _same(path: Path, case: Case) -> bool:
    """Whether a file says the same without its seal; nobody reads a log."""
    if path.name == "run.log" or not path.is_file():
        return path.name == "run.log"
    before, now = case.finished.files[path], path.read_bytes()
    if path.suffix == ".json":
        return unsealed(now) == unsealed(before)
    return now == before


def folders(seed: int) -> str | None:
    """A run, a store or neither, with a user's files in it: `shoal remove` leaves each of these as it was."""
    rng = random.Random(seed)
    case = made()
    store = Path(case.config.data.store or "")
    with tempfile.TemporaryDirectory(dir=case.folder.parent) as name:
        outside, folder = Path(name) / "outside", Path(name) / rng.choice(("results", "small-12345678", "thesis"))
        outside.mkdir()
        folder.mkdir()
        own = rng.choice(("run", "store", "neither", "neither"))
        if own != "neither":
            _copy(case.finished if own == "run" else _stored(store), folder)
        users = [outside / "data.csv"]
        if own == "neither":
            shape = rng.choice((("manifest.json",), ("config.yaml", ".lock"), ("summary.json",), ("sweep.json",), ()))
            users += [folder / each for each in shape]
        for _ in range(rng.randint(own == "neither", 3)):
            below = rng.choice((".", "checkpoints", "clients", "notes", "checkpoints/round-000001", "a/b"))
            users.append(folder / below / rng.choice(("notes.txt", "x.npy", "thesis.tex", ".hidden", "export.arrow")))
        for path in users:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rng.choice(("{}", "name: x\n", "mine")))
        if rng.random() < 0.3:
            (folder / "link").symlink_to(outside)
        before = {path: path.read_bytes() for path in users}
        line = line_of(lambda: remove([folder], lambda _: True))
        for path, content in before.items():
            if not path.is_file() or path.read_bytes() != content:
                raise AssertionError(f"{OTHERS}: {path.relative_to(name)} of the user is gone from a {own}")
        if own != "neither" and len(users) == 1 and not (folder / "link").is_symlink() and folder.exists():
            raise AssertionError(f"a whole {own} stays: {line}")
    return line


@cache
def _stored(store: Path) -> Snapshot:
    return Snapshot(store)


def _copy(snapshot: Snapshot, folder: Path) -> None:
    for path, content in snapshot.files.items():
        target = folder / path.relative_to(snapshot.folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
