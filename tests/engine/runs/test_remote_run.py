"""A run at an address: it is there after every checkpoint, and goes on, is read and removed from any machine."""

import html
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs
from support.errors import refused
from support.object_server import BUCKET, ObjectServer, object_server
from support.small_runs import small_run
from typer.testing import CliRunner

import shoal
from shoal.cli.cli import app
from shoal.engine.config.config import Config, parse_config
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.remote_parts import OBJECTS
from shoal.engine.records.run_folder import CHECKPOINTS, parent_of, read_summary
from shoal.engine.runs import remote_run
from shoal.engine.runs.driver import Driver
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.remote_run import DRIVERS, LIST, RemoteRun, Seat, copy_of
from shoal.engine.runs.run import run
from shoal.kept.at_address import remove_at, verify_at
from shoal.kept.listing import Kept, make_tables
from shoal.pages.report import report
from shoal.past.fork import fork
from shoal.storage.errors import FetchError, ShoalError
from shoal.storage.files.addresses import Folder, below

Make = Callable[..., Config]
KilledAfter = Callable[[Config, int], str]
ROOT, ROUNDS = "some/runs", 3


class Killed(BaseException):
    """Ends a run as a kill does: nothing is written any more."""


@pytest.fixture(scope="module")
def objects() -> Iterator[ObjectServer]:
    with object_server() as server:
        yield server


@pytest.fixture
def server(objects: ObjectServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ObjectServer]:
    """The server without objects, and serving; caches of this machine are empty."""
    objects.refusal = None
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "cache"))
    fs.FileSystem.from_uri(objects.address("any"))[0].delete_dir_contents(BUCKET)
    yield objects
    objects.refusal = None


@pytest.fixture
def config_of(server: ObjectServer, tmp_path: Path) -> Make:
    def config_of(root: str | None = None, **changes: Any) -> Config:
        here = {"root": root or server.address(ROOT), "checkpoint_every": 1, **changes.pop("run", {})}
        return parse_config(small_run(tmp_path, run=here, **changes), "config")

    return config_of


@pytest.fixture
def another_machine(tmp_path: Path) -> Callable[[], None]:
    """From now on this machine has never seen the run."""
    return lambda: shutil.rmtree(tmp_path / "cache" / "runs")


@pytest.fixture
def killed_after(monkeypatch: pytest.MonkeyPatch) -> KilledAfter:
    """Runs a config until a round, and kills it there; gives the name of the run."""

    def killed_after(config: Config, rounds: int) -> str:
        record = Driver._record

        def until(driver: Driver, line: dict[str, Any]) -> None:
            if line["round"] > rounds:
                raise Killed
            record(driver, line)

        with monkeypatch.context() as patch:
            patch.setattr(Driver, "_record", until)
            # The sign of its driver stays there.
            patch.setattr(RemoteRun, "close", lambda _: None)
            with pytest.raises(Killed):
                run(config)
        (folder,) = Path(os.environ["SHOAL_CACHE"]).glob("runs/*/small-*")
        return folder.name

    return killed_after


def numbers(path: Path) -> list[Any]:
    return [(line["loss"], line["scopes"]) for line in read_metrics(path)]


@pytest.mark.slow
def test_forks_and_sweeps_of_an_address_have_the_numbers_of_folders(
    config_of: Make, another_machine: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent, here = run(config_of()), run(config_of(str(tmp_path / "folder")))
    address = below(config_of().run.root, parent.name)
    changes = ["--round", "2", "train.lr=0.2"]
    expected = fork(here, 2, ["train.lr=0.2"])
    another_machine()
    assert CliRunner().invoke(app, ["fork", address, *changes]).exit_code == 0
    # The fork is at the address of its parent, and is found there.
    another_machine()
    again = fork(copy_of(address), 2, ["train.lr=0.2"])
    assert numbers(again) == numbers(expected)
    assert parent_of(again) == {"run": address, "round": 2}
    assert "fork of small-" in make_tables([Kept("run", again)])[0].text()
    page = report([again], None, kinds=("svg",)).read_text()
    words = shlex.split(html.unescape(re.findall(r'<pre class="command">(.*?)</pre>', page)[0]))
    assert words[:5] == ["shoal", "fork", address, "--round", "2"]
    assert "train.lr=0.2" in words
    local = fork(copy_of(address), 2, ["train.lr=0.2", f"run.root={tmp_path / 'folder'}", "name=other"])
    assert numbers(local) == numbers(expected)
    with refused(below(config_of().run.root, again.name), says="holds another run"):
        fork(copy_of(address), 1, ["train.lr=0.2", f"name={again.name.rpartition('-')[0]}"])
    # A sweep of forks of that run: nothing of its first rounds is trained, and another machine finds all finished.
    rounds: list[int] = []
    before = LocalBackend.round
    monkeypatch.setattr(LocalBackend, "round", lambda self, watch: rounds.append(1) or before(self, watch))
    command = ["sweep", address, "train.lr=0.2,0.02", "--fork-at", "2", "--no-report"]
    another_machine()
    assert CliRunner().invoke(app, command).exit_code == 0
    assert len(rounds) == ROUNDS - 2
    another_machine()
    assert CliRunner().invoke(app, command).exit_code == 0
    assert len(rounds) == ROUNDS - 2


def test_a_killed_run_goes_on_elsewhere_and_is_read_from_anywhere(
    config_of: Make, killed_after: KilledAfter, another_machine: Callable[[], None], tmp_path: Path
) -> None:
    expected, config = run(config_of(str(tmp_path / "folder"))), config_of()
    address = below(config.run.root, killed_after(config, 2))
    with refused(address, says="unfinished run"):
        run(config)
    another_machine()
    assert numbers(run(config, resume=True)) == numbers(expected)
    another_machine()
    # It is finished there; tensors are fetched by who reads them.
    got = run(config)
    assert read_summary(got)["scopes"] == read_summary(expected)["scopes"]
    assert not list(got.rglob("*.safetensors"))
    assert shoal.Run(address).models().keys() == shoal.Run(expected).models().keys()
    places = {"ROOT": config.run.root, "RUN": address}
    for command, says in COMMANDS:
        done = CliRunner().invoke(app, [places.get(word, word) for word in command])
        assert done.exception is None, done.exception
        assert says in done.output
    folder = Folder(config.run.root)
    assert folder.list_files(address.partition("?")[0].rpartition("/")[2], everything=True) == {}
    # Nothing here is left of it, that would be sent again.
    assert not list((tmp_path / "cache").glob("*/*/small-*"))


COMMANDS = [
    (["list", "ROOT"], "% deployed"),
    (["inspect", "RUN"], "3 rounds logged"),
    (["compare", "RUN", "RUN"], "results: equal"),
    (["table", "RUN"], "deployed models at best validation"),
    (["verify", "RUN"], "all files as the run wrote them"),
    (["remove", "--yes", "RUN"], "% deployed"),
]


def test_what_hosts_sent_of_a_checkpoint_is_fetched_by_the_driver(
    config_of: Make, killed_after: KilledAfter, tmp_path: Path
) -> None:
    expected = run(config_of(str(tmp_path / "folder")))
    config = config_of(f"file://{tmp_path}/there")
    name = killed_after(config, 2)
    (folder,) = (tmp_path / "cache").glob(f"runs/*/{name}")
    for tensors in folder.rglob("*.safetensors"):
        tensors.unlink()
    assert numbers(run(config, resume=True)) == numbers(expected)


def test_what_is_sent_in_part_is_the_run_as_it_was(
    config_of: Make, another_machine: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before the list of files that names the third checkpoint is sent."""
    config, put = config_of(f"file://{tmp_path}/there"), Folder.put

    def until(folder: Folder, name: str, content: bytes) -> None:
        if name == LIST and json.loads(content)["round"] == 3:
            raise Killed
        put(folder, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "put", until)
        patch.setattr(RemoteRun, "close", lambda _: None)
        with pytest.raises(Killed):
            run(config)
    (there,) = (tmp_path / "there").glob("small-*")
    assert json.loads((there / LIST).read_text())["round"] == 2
    verify_at(f"file://{there}")
    another_machine()
    assert len(read_metrics(run(config, resume=True))) == 3


def test_an_address_that_vanishes_leaves_the_run_here(
    config_of: Make,
    server: ObjectServer,
    another_machine: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    config, save = config_of(), Driver._save

    def saved(driver: Driver) -> None:
        save(driver)
        server.refusal = (403, "AccessDenied", "")

    with monkeypatch.context() as patch:
        patch.setattr(Driver, "_save", saved)
        with refused(RunPlan.of(config).folder, says="could not be sent"):
            run(config)
    assert capfd.readouterr().err.count("the run goes on") == 3
    with pytest.raises(FetchError, match="no right"):
        run(config)
    server.refusal = None
    finished = run(config)
    assert "is ahead of" in capfd.readouterr().err
    summary = (finished / "summary.json").read_text()
    another_machine()
    assert (run(config) / "summary.json").read_text() == summary


@pytest.mark.parametrize(
    ("bucket", "refusal", "says"), [("none", None, "bucket"), (BUCKET, (301, "PermanentRedirect", ""), "region")]
)
def test_an_address_that_takes_nothing_is_refused_at_the_start(
    config_of: Make, server: ObjectServer, bucket: str, refusal: tuple[int, str, str] | None, says: str
) -> None:
    server.refusal = refusal
    with pytest.raises(FetchError, match=says):
        run(config_of(server.address(ROOT, bucket=bucket)))


def test_one_driver_writes_a_run(config_of: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(f"file://{tmp_path}/there")
    address = RunPlan.of(config).place
    assert isinstance(address, str)
    folder = Folder(address)
    monkeypatch.setattr(remote_run, "BETWEEN_SIGNS", 0.01)
    monkeypatch.setattr(remote_run, "BETWEEN_LOOKS", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(remote_run, "_machine", lambda: "another-0123abcd")
        other = Seat(folder)
    with refused(address, says="on another-0123abcd"):
        run(config)
    other.close()
    # Killed: its sign stays, and is not made again.
    folder.put(f"{DRIVERS}/another-0123abcd-7-0a1b2c3d", b"")
    monkeypatch.setattr(remote_run, "GONE_AFTER", 0.1)
    # It is silent from here on: a sign that is under way while another driver removes it would stay there.
    monkeypatch.setattr(remote_run, "BETWEEN_SIGNS", 60.0)
    save = Driver._save

    def taken_over(driver: Driver) -> None:
        for name in folder.list_files(DRIVERS):
            folder.delete(name)
        save(driver)

    monkeypatch.setattr(Driver, "_save", taken_over)
    with refused(address, says="took this run over"):
        run(config)
    assert LIST not in folder.sizes()


def test_a_driver_that_shows_itself_as_another_comes_is_no_latecomer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, put = Folder(f"file://{tmp_path}/there"), Folder.put
    monkeypatch.setattr(remote_run, "BETWEEN_SIGNS", 0.01)
    monkeypatch.setattr(remote_run, "BETWEEN_LOOKS", 0.01)
    with monkeypatch.context() as patch:
        patch.setattr(remote_run, "_machine", lambda: "another-0123abcd")
        other = Seat(folder)
    (there,) = folder.list_files(DRIVERS)

    def and_the_other(self: Folder, name: str, content: bytes) -> None:
        put(self, name, content)
        put(self, there, b"")

    monkeypatch.setattr(Folder, "put", and_the_other)
    with refused(str(folder), says="on another-0123abcd"):
        Seat(folder)
    monkeypatch.setattr(Folder, "put", put)
    assert other.is_ours()
    other.close()


def test_what_changed_there_is_refused(
    config_of: Make, killed_after: KilledAfter, another_machine: Callable[[], None], tmp_path: Path
) -> None:
    config = config_of(f"file://{tmp_path}/there")
    there = tmp_path / "there" / killed_after(config, 2)
    files = json.loads((there / LIST).read_text())["files"]
    address = f"file://{there}"
    newest = there / OBJECTS / files[f"{CHECKPOINTS}/round-000002/state.safetensors"][1]
    newest.write_bytes(newest.read_bytes()[:-1] + b"!")
    with pytest.raises(ShoalError, match="round-000002: damaged"):
        verify_at(address)
    another_machine()
    assert len(read_metrics(run(config, resume=True))) == 3
    run(config, fresh=True)
    files = json.loads((there / LIST).read_text())["files"]
    (there / OBJECTS / files["config.yaml"][1]).unlink()
    with refused(f"{address}/objects/{files['config.yaml'][1]}", says="no such file"):
        copy_of(address)
    (there / LIST).write_text("{}")
    with refused(f"{address}/{LIST}", says="damaged (changed since it was written); "):
        copy_of(address)
    (there / LIST).write_text('{"format": 2, "packs": [], "seal": "made in another way"}')
    says = "format 2 of another version of Shoal, this one reads 1; upgrade Shoal"
    for read in (lambda: copy_of(address), lambda: run(config, resume=True)):
        with refused(f"{address}/{LIST}", says=says):
            read()


def test_a_cache_without_room_is_refused(config_of: Make, tmp_path: Path) -> None:
    address = f"file://{tmp_path}/there/{run(config_of(f'file://{tmp_path}/there')).name}"
    (tmp_path / "cache" / "copies").touch()
    with refused(says="SHOAL_CACHE"):
        copy_of(address)


def test_a_sweep_of_a_program_has_its_runs_at_the_address(config_of: Make, tmp_path: Path) -> None:
    found = shoal.sweep(config_of(f"file://{tmp_path}/there"), {"seed": [0, 1]})
    assert found.complete
    assert {path.name for path in (tmp_path / "there").iterdir()} == {run.path.name for run in found.runs}


def test_a_store_at_an_address_is_inspected_verified_and_removed(config_of: Make, tmp_path: Path) -> None:
    there = tmp_path / "store"
    prepare(config_of(str(tmp_path / "runs"), data={"store": f"file://{there}"}))
    (there / "mine.txt").touch()
    files = f"{len(list(there.rglob('*.arrow')))} files"
    for command, says in ((["inspect"], f"store file://{there}"), (["verify"], files), (["list"], "4 clients")):
        done = CliRunner().invoke(app, [*command, f"file://{there}"], env={"COLUMNS": "200"})
        assert done.exception is None, done.exception
        assert says in done.output
    shard = there / "clients" / "00000-00003.arrow"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    with pytest.raises(ShoalError, match=r"clients/00000-00003.arrow: is not what the manifest says"):
        verify_at(f"file://{there}")
    assert remove_at([f"file://{there}"], lambda _: True)
    assert [path.name for path in there.rglob("*") if path.is_file()] == ["mine.txt"]
