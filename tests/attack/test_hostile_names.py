"""Folders and addresses from somebody else that name files outside of them: no command touches one of these."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.exhaustive import some
from support.small_runs import small_run
from typer.testing import CliRunner

import shoal
from attack import line_of
from shoal.cli.cli import app
from shoal.engine.config.config import parse_config
from shoal.engine.preparing.prepare import prepare
from shoal.engine.runs.run import run
from shoal.storage.errors import ShoalError
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.digest import digest
from shoal.study.study import Study
from shoal.sweeps.sweep import Sweep

# More folders than any path here has.
UP = "../" * 24
STATE = "checkpoints/round-000002/state.json"
ADDED = ["data.split=per_client", "propagation.hops=2", "data.inductive=true"]


@dataclass(frozen=True)
class World:
    """Sound folders and addresses below `here`, files of the user in `outside`, and the run's name."""

    root: Path
    name: str
    sweep: str

    @property
    def here(self) -> Path:
        return self.root / "here"

    @property
    def outside(self) -> Path:
        return self.root / "outside"

    @property
    def run(self) -> Path:
        return self.here / "runs" / self.name

    @property
    def there(self) -> Path:
        """The folder of the run at an address."""
        return self.here / "there" / self.name

    @property
    def store(self) -> Path:
        return self.here / "store"

    @property
    def at_address(self) -> Path:
        """The folder of the store at an address."""
        return self.here / "remote"

    @property
    def study(self) -> Path:
        return self.here / "runs" / "sweeps" / self.sweep

    def up(self, name: str) -> str:
        """A relative name of a file outside."""
        return UP + str(self.outside / name)[1:]

    def renew(self) -> None:
        """Puts sound folders back, and empties the cache and the home."""
        for folder in ("here", "cache", "home"):
            shutil.rmtree(self.root / folder, ignore_errors=True)
        shutil.copytree(self.root / "sound", self.here, symlinks=True)
        for folder in ("cache", "home"):
            (self.root / folder).mkdir()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    root = tmp_path_factory.mktemp("names")
    here = root / "here"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_CACHE", str(root / "cache"))
        patch.setenv("HOME", str(root / "home"))
        here.mkdir()
        patch.chdir(root)
        keys = {"checkpoint_every": 1, "keep_best": True, "keep_records": True}
        plain = small_run(
            here, rounds=2, data={"store": str(here / "store")}, run=keys, partition={"clients": 2},
            callbacks=[{"name": "csv"}, {"name": "tensorboard"}],
        )  # fmt: skip
        (here / "config.yaml").write_text(yaml.safe_dump(plain))
        name = run(parse_config(plain, "test")).name
        remote = {**plain, "run": {**plain["run"], "root": f"file://{here}/there"}}
        run(parse_config(remote, "test"))
        prepare(parse_config({**plain, "data": {**plain["data"], "store": f"file://{here}/remote"}}, "test"))
        sweep = Sweep(Study(str(here / "config.yaml"), ("seed=1,2",)))
        assert sweep.go()
        made = World(root, name, sweep.folder.name)
        shutil.copytree(here, root / "sound", symlinks=True)
        outside = made.outside
        outside.mkdir()
        for file in ("bashrc", "notes.txt", "docs/letter.txt", f"docs/{'ab' * 16}", "docs/host-7-0a1b2c3d"):
            (outside / file).parent.mkdir(exist_ok=True)
            (outside / file).write_text("mine\n")
        # What a folder of ours would have: names alone do not make it ours.
        shutil.copytree(made.run, outside / "runs" / name)
        shutil.copytree(made.store, outside / "store")
        shutil.copytree(made.run / "checkpoints", outside / "checkpoints")
        yield made


def seen(folder: Path) -> dict[str, tuple[int, ...] | tuple[object, ...]]:
    """All that lies in a folder: inode, mode, links to it, times, and what it holds."""
    found: dict[str, Any] = {}
    for path in (folder, *sorted(folder.rglob("*"))):
        stat = path.lstat()
        content = os.readlink(path) if path.is_symlink() else digest(path) if path.is_file() else ""
        found[str(path)] = (stat.st_ino, stat.st_mode, stat.st_mtime_ns, content)
    return found


def resealed(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes sealed JSON, as whoever has Shoal can."""
    plain = unsealed(file.read_bytes())
    change(plain)
    file.write_text(sealed(plain))


def linked(link: Path, target: Path) -> None:
    """Puts a link where a file or a folder of ours was."""
    if link.is_dir() and not link.is_symlink():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


Craft = Callable[[World], object]


def objects_at(world: World, content: bytes) -> tuple[str, str]:
    """An address with an object of somebody else's, and its digest."""
    place = world.here / "evil"
    (place / "objects").mkdir(parents=True, exist_ok=True)
    file = place / "objects" / "new"
    file.write_bytes(content)
    xxh3 = digest(file)
    file.rename(place / "objects" / xxh3)
    return f"file://{place}", xxh3


def of_state(name: Callable[[World], str], address: bool = True) -> Craft:
    """The newest checkpoint names a file that its address has."""

    def craft(world: World) -> None:
        place, xxh3 = objects_at(world, b"theirs\n")
        if address:
            (world.run / ".address").write_text(place)
        linked(world.run / "checkpoints/round-000002/link", world.outside)
        resealed(world.run / STATE, lambda plain: plain["files"].update({name(world): xxh3}))

    return craft


def of_digest(text: str) -> Craft:
    def craft(world: World) -> None:
        place, _ = objects_at(world, b"theirs\n")
        (world.run / ".address").write_text(place)
        (world.run / "checkpoints/round-000002/state.safetensors").unlink()
        resealed(world.run / STATE, lambda plain: plain["files"].update({"state.safetensors": text}))

    return craft


def of_list(name: Callable[[World], str], xxh3: str | None = None) -> Craft:
    """The list of a run at an address names a file."""

    def craft(world: World) -> None:
        content = b"theirs\n"
        (world.there / "objects" / "new").write_bytes(content)
        own = digest(world.there / "objects" / "new")
        (world.there / "objects" / "new").rename(world.there / "objects" / own)
        resealed(
            world.there / "run.json",
            lambda plain: plain["files"].update({name(world): [len(content), own if xxh3 is None else xxh3]}),
        )

    return craft


def of_manifest(kind: str, name: Callable[[World], str], remote: bool = False) -> Craft:
    """A manifest names a split, hops or edges, with a table of the split or the hops that are there."""

    def craft(world: World) -> None:
        store = world.at_address if remote else world.store

        def change(plain: dict[str, Any]) -> None:
            plain.setdefault(kind, {})[name(world)] = next(iter(plain["splits"].values()))

        resealed(store / "manifest.json", change)

    return craft


def of_table(remote: bool) -> Craft:
    def craft(world: World) -> None:
        store = world.at_address if remote else world.store
        up = f"{UP}{str(world.outside / 'bashrc')[1:]}"
        resealed(store / "manifest.json", lambda plain: plain["clients"]["table"].update(xxh3=up))

    return craft


def link_in(folder: str, place: str, target: str) -> Craft:
    """A link in `run`, `store`, … to something outside."""
    return lambda world: linked(getattr(world, folder) / place, world.outside / target)


def hard_link_in(folder: str, place: str) -> Craft:
    """A second name of a file of this user, as an archive may have."""

    def craft(world: World) -> None:
        path = getattr(world, folder) / place
        path.parent.mkdir(parents=True, exist_ok=True)
        os.link(world.outside / "bashrc", path)

    return craft


def of_sweep(name: Callable[[World], str]) -> Craft:
    return lambda world: resealed(
        world.study / "sweep.json", lambda plain: plain["runs"][0].update(run=name(world), state="finished")
    )


def of_parent(name: Callable[[World], str]) -> Craft:
    return lambda world: (world.run / "fork.json").write_text(sealed({"run": name(world), "round": 1}))


def of_journal(world: World) -> None:
    lines = (world.store / "progress.jsonl").read_text().splitlines()
    entry = {"path": world.up("bashrc"), "bytes": 5, "xxh3": "0" * 32}
    (world.store / "progress.jsonl").write_text("\n".join([*lines, sealed(entry)]) + "\n")


def of_name(world: World) -> None:
    resealed(world.store / "manifest.json", lambda plain: plain.update(name=world.up("overlay")))
    (world.here / "config.yaml").write_text(
        (world.here / "config.yaml").read_text().replace("data:", f"data:\n  overlay: {world.here / 'overlays'}")
    )


def many(names: Mapping[str, Callable[[World], str]], craft: Callable[..., Craft], *more: Any) -> dict[str, Craft]:
    return {what: craft(name, *more) for what, name in names.items()}


NAMES: dict[str, Callable[[World], str]] = {
    "up, new": lambda world: world.up("new.txt"),
    "up, there": lambda world: world.up("bashrc"),
    "absolute": lambda world: str(world.outside / "new.txt"),
    "up inside": lambda world: "checkpoints/" + world.up("new.txt"),
    "NUL": lambda world: "a\0b",
    "surrogate": lambda world: "\ud800",
    "no text": lambda world: "",
    "itself": lambda world: ".",
    "behind a link": lambda world: "link/new.txt",
    "long": lambda world: "x" * 300,
}
NOTES: dict[str, dict[str, Craft]] = {
    "run": {
        **{f"state {what}": craft for what, craft in many(NAMES, of_state).items()},
        "state without an address": of_state(NAMES["up, there"], False),
        "digest up": of_digest("../../../outside/bashrc"),
        "digest short": of_digest("ab"),
        **{f"link {place}": link_in("run", place, target) for place, target in (
            ("export", "docs"), ("report", "docs"), ("report/figures", "docs"), ("clock", "docs"),
            ("checkpoints", "checkpoints"), ("best", "checkpoints"), ("records", "docs"), ("code", "docs"),
            ("tensorboard", "docs"), ("wandb", "docs"), ("run.log", "bashrc"), ("metrics.csv", "bashrc"),
            ("metrics.jsonl", "metrics.jsonl"), (".address", "bashrc"), (".lock", "bashrc"),
            ("report/index.html.unfinished", "bashrc"), ("export/models.safetensors.unfinished", "new.txt"),
            ("clock/rounds.csv.unfinished", "bashrc"), ("checkpoints/round-000002", "checkpoints/round-000002"),
            ("checkpoints/round-000003.unfinished", "docs"), ("checkpoints/round-000002.part", "docs"),
            ("config.yaml.unfinished", "bashrc"), ("summary.json", "bashrc"), ("failure.txt", "bashrc"),
        )},
        "hard link of a page": hard_link_in("run", "report/index.html.unfinished"),
        "hard link of an export": hard_link_in("run", "export/predictions.arrow.unfinished"),
        "fork of an address": of_parent(lambda world: f"file://{world.outside}/.."),
        "fork of a number": lambda world: (world.run / "fork.json").write_text(sealed({"run": 7, "round": 1})),
    },
    "there": {
        **{f"list {what}": craft for what, craft in many(NAMES, of_list).items()},
        "list of digests up": of_list(lambda world: "x.txt", f"{UP}etc/hostname"),
        "list of an address": of_list(lambda world: ".address"),
        "list of itself": of_list(lambda world: "run.json"),
        "list of a checkpoint": of_list(lambda world: "checkpoints/x/state.json"),
        "list of no files": lambda world: resealed(world.there / "run.json", lambda plain: plain.update(files=[1])),
        "list of no round": lambda world: resealed(world.there / "run.json", lambda plain: plain.update(round="x")),
        "link objects": link_in("there", "objects", "docs"),
        "link drivers": link_in("there", "drivers", "docs"),
        "link beside objects": link_in("there", "mine", "docs"),
        "driver of no process": lambda world: _touch(world.there / "drivers" / "x-y-z"),
    },
    "store": {
        **{f"split {what}": of_manifest("splits", name) for what, name in NAMES.items()},
        "hops up": of_manifest("hops", NAMES["up, there"]), "edges up": of_manifest("boundaries", NAMES["up, there"]),
        "table up": of_table(False), "journal": of_journal, "name of an overlay": of_name,
        **{f"link {place}": link_in("store", place, target) for place, target in (
            ("splits", "docs"), ("hops", "docs"), ("tables", "docs"), ("training", "docs"), ("clients", "docs"),
            ("progress.jsonl", "bashrc"), ("manifest.json.unfinished", "bashrc"), ("whole", "store"),
            ("splits/per_client-20-40-40-seed0", "docs"),
        )},
    },
    "at_address": {
        **{f"split {what}": of_manifest("splits", name, True) for what, name in NAMES.items()},
        "hops up": of_manifest("hops", NAMES["up, there"], True),
        "edges up": of_manifest("boundaries", NAMES["up, there"], True),
        "table up": of_table(True), "clients linked": link_in("at_address", "clients", "store/clients"),
        "whole linked": link_in("at_address", "whole", "store"),
        "whole is itself": lambda world: linked(world.at_address / "whole", world.at_address),
    },
    "study": {
        "run outside": of_sweep(lambda world: str(world.outside / "runs" / world.name)),
        "run up": of_sweep(lambda world: world.up(f"runs/{world.name}")),
        "run NUL": of_sweep(NAMES["NUL"]), "run surrogate": of_sweep(NAMES["surrogate"]),
        "run of no text": of_sweep(lambda world: 7),  # type: ignore[arg-type, return-value]
        "no runs": lambda world: resealed(world.study / "sweep.json", lambda plain: plain.update(runs=7)),
        **{f"link {place}": link_in("study", place, target) for place, target in (
            ("runs", "docs"), ("report", "docs"), ("clock", "docs"), ("said", "docs"),
            ("table.csv.unfinished", "bashrc"), ("report/index.html.unfinished", "bashrc"),
        )},
    },
}  # fmt: skip


def _touch(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.touch()


def invoked(*words: str) -> Callable[[], object]:
    """A command; raises what ends it."""

    def act() -> None:
        done = CliRunner().invoke(app, words)
        if isinstance(done.exception, OSError):
            # The process makes one line of it.
            raise ShoalError(str(done.exception))
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception

    return act


def of_run(place: str) -> dict[str, Callable[[], object]]:
    """All that reads a run, and its removal."""
    commands = {
        "verify": ["verify", place], "report": ["report", place], "export": ["export", place],
        "export best": ["export", place, "--best", "deployed"], "table": ["table", place],
        "inspect": ["inspect", place], "inspect json": ["inspect", place, "--json"],
        "list": ["list", place.rpartition("/")[0]], "clock": ["clock", place], "compare": ["compare", place, place],
        "privacy": ["privacy", place], "replay": ["replay", place, "--round", "2", "--client", "0"],
        "fork": ["fork", place, "--round", "1", "train.lr=0.3"], "resume": ["run", place, "--resume", "--no-report"],
        "more rounds": ["run", place, "--resume", "--no-report", "rounds=3"],
        "fresh": ["run", place, "--fresh", "--no-report"], "attack": ["attack", place],
    }  # fmt: skip
    return {
        **{name: invoked(*words) for name, words in commands.items()},
        "models": lambda: shoal.Run(place).models(),
        "predictions": lambda: shoal.Run(place).predictions(best="deployed"),
        "predict": lambda: shoal.Run(place).predict(None),
        "clients": lambda: shoal.Run(place).clients,
        "remove": invoked("remove", "--yes", place),
    }  # fmt: skip


def readers(world: World, kind: str) -> dict[str, Callable[[], object]]:
    """All that reads a folder or an address of a kind, and its removal."""
    config = str(world.here / "config.yaml")
    if kind == "run":
        return of_run(str(world.run))
    if kind == "there":
        return of_run(f"file://{world.there}")
    if kind == "study":
        place = str(world.study)
        commands = [["table"], ["report"], ["inspect"], ["clock"], ["remove", "--yes"]]
        found = {words[0]: invoked(*words, place) for words in commands}
        again = invoked("sweep", config, "seed=1,2", "--no-report", "--at-once", "1")
        return {"list": invoked("list", str(world.study.parent)), "sweep": again, **found}
    place = str(world.store) if kind == "store" else f"file://{world.at_address}"
    key = f"data.store={place}"
    return {
        "verify": invoked("verify", place),
        "inspect": invoked("inspect", place),
        "inspect json": invoked("inspect", place, "--json"),
        "list": invoked("list", str(world.here)),
        "prepare": invoked("prepare", config, key),
        "prepare more": invoked("prepare", config, key, *ADDED),
        "prepare whole": invoked("prepare", config, key, "algorithm=global"),
        "dry run": invoked("run", config, key, "--dry-run"),
        "export": invoked("export", str(world.run)),
        "remove": invoked("remove", "--yes", place),
    }


# What reads the crafted name first, or would write through the link; of a kind, and of a case.
FIRST = {"run": "verify", "there": "table", "store": "prepare more", "at_address": "inspect", "study": "table"}
OF_PLACE = {
    "export": "export", "report": "report", "hard link of a page": "report", "hard link of an export": "predictions",
    "clock": "clock", "fork": "report", "beside": "remove", "run outside": "remove", "run up": "remove",
    "link runs": "sweep", "link table.csv": "sweep", "link said": "remove", "driver": "remove", "drivers": "remove",
    "objects": "remove", "link whole": "prepare whole", "clients linked": "remove", "whole linked": "remove",
    "whole is": "remove", "name of an overlay": "prepare more", "link checkpoints": "fresh", "link best": "fresh",
    "link records": "fresh", "link code": "fresh", "link tensorboard": "fresh", "link wandb": "fresh",
    "link run.log": "fresh", "link metrics": "fresh", "link .lock": "fresh", "link config": "fresh",
    "link failure": "fresh", "journal": "verify", "link manifest": "prepare more", "link splits/per": "prepare more",
}  # fmt: skip
# Refused by none: it is replaced, left out, left where it is, or leads nowhere that is written.
HARMLESS = (
    ".unfinished", ".part", "hard link of a page", "hard link of an export", "link .address", "run outside", "run up",
    "link said", "driver of no process", "whole is itself", "whole linked", "clients linked", "link beside objects",
    "link objects", "list of an address", "list of itself", "list of a checkpoint", "list behind a link",
    "link failure.txt", "link table.csv.unfinished", "link checkpoints/round-000002",
)  # fmt: skip
CASES = [(kind, what) for kind, crafts in NOTES.items() for what in crafts]


@pytest.mark.exhaustive(5)
@pytest.mark.parametrize(("kind", "what"), CASES, ids=[f"{kind}: {what}" for kind, what in CASES])
def test_a_name_from_outside_touches_nothing_outside(
    kind: str, what: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOAL_CACHE", str(world.root / "cache"))
    monkeypatch.setenv("HOME", str(world.root / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(world.root)
    world.renew()
    before = seen(world.outside)
    first = next((name for place, name in OF_PLACE.items() if place in what), FIRST[kind])
    others = [name for name in readers(world, kind) if name != first]
    # Of all that read it another one for each case; all with --exhaustive.
    for name in (first, *some(others, f"{what} {kind}", len(others))):
        world.renew()
        NOTES[kind][what](world)
        line = line_of(readers(world, kind)[name])
        assert seen(world.outside) == before, name
        assert {path.name for path in world.root.iterdir()} == {"cache", "here", "home", "outside", "sound"}
        if name == first:
            assert (line is None) == what.endswith(HARMLESS), f"{name}: {line}"
