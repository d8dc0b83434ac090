"""Runs, sweeps and stores listed, compared and removed."""

import fcntl
import os
import shutil
from pathlib import Path

import pytest
from support.errors import refused
from support.small_runs import small_config

from shoal.engine.records.run_folder import RunFolder
from shoal.engine.records.summary import NODES, POOLED
from shoal.kept.listing import compare, kept_in, make_tables, plain_list
from shoal.kept.removal import remove
from shoal.storage.files.disk import writing
from shoal.study.means import MEANS
from shoal.study.study import Study
from shoal.study.sweep_folder import rows_of
from shoal.sweeps.sweep import Sweep
from shoal.tables.study_table import Layout, table_of


def yes(_: str) -> bool:
    return True


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Sweep]]:
    """Two sweeps that share a run, in `here` beside their store and config, and a copy of all in `sound`."""
    folder = tmp_path_factory.mktemp("kept")
    here = folder / "here"
    config = small_config(here, name="tiny", rounds=2, data={"store": str(here / "store")})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        sweeps = [Sweep(Study(config, (axis,))) for axis in ("seed=0,1", "seed=1,2")]
        assert all(sweep.go() for sweep in sweeps)
    shutil.copytree(here, folder / "sound", symlinks=True)
    return here, sweeps


@pytest.fixture
def here(made: tuple[Path, list[Sweep]], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Their folder, as it was; the folder of runs is `runs` of the working directory."""
    here, _ = made
    shutil.rmtree(here)
    shutil.copytree(here.with_name("sound"), here, symlinks=True)
    monkeypatch.chdir(here)
    return here


@pytest.fixture
def sweeps(made: tuple[Path, list[Sweep]], here: Path) -> list[Sweep]:
    return made[1]


def test_listed_names_state_and_result(sweeps: list[Sweep], here: Path) -> None:
    runs = here / "runs"
    found = list(kept_in(runs))
    assert [each.kind for each in found] == ["run"] * 3 + ["sweep"] * 2

    def whats() -> dict[str, str]:
        return {row[0].removeprefix("└ "): row[-1] for table in make_tables(found) for row in table.rows}

    first, folder = sweeps[0].rows[0], sweeps[0].folder.name
    score = f"{100 * first.figures['deployed.best.test']:.2f} % deployed"
    assert whats()[first.path.name] == f"fedavg, seed 0: {score}"
    assert whats()[folder] == "sweep of seed 0,1"
    alone = [each for each in found if each.kind == "run"]
    (table,) = make_tables(alone)
    assert table.rows[0][-1].startswith("fedavg on sbm, 4 clients, seed ")
    assert make_tables(alone[:1])[0].rows[0][-1].startswith("fedavg on sbm, 4 clients: ")
    (first.path / "summary.json").unlink()
    assert whats()[first.path.name] == "fedavg, seed 0: unfinished"
    assert whats()[folder] == "sweep of seed 0,1: 1 of 2"
    (first.path / "failure.txt").write_text("round 1, client 2: RuntimeError: no luck\n")
    assert whats()[first.path.name] == "fedavg, seed 0: failed in round 1: client 2: RuntimeError: no luck"
    (first.path / "config.yaml").write_text("{")
    assert ": damaged" in whats()[first.path.name]
    (store,) = (each for each in kept_in(here) if each.kind == "store")
    assert make_tables([store])[0].rows[0][-1] == "sbm, 4 clients, 120 nodes (synthetic)"
    assert store.bytes == sum(file.stat().st_size for file in store.path.rglob("*") if file.is_file())
    assert make_tables(list(kept_in(here / "nowhere")))[0].notes == ("no runs, sweeps or stores",)


def test_listed_in_the_order_of_time_with_runs_below_their_sweep(sweeps: list[Sweep], here: Path) -> None:
    """A run of two sweeps is below the one that was written last; the newest run is last of all."""
    own, shared = (row.path for row in sweeps[0].rows)
    last = sweeps[1].rows[1].path
    for seconds, path in enumerate((last, sweeps[1].folder, sweeps[0].folder, shared, own)):
        for file in path.iterdir():
            os.utime(file, (seconds, seconds))
    names = [Path(each["path"]).name for each in plain_list([*kept_in(here / "runs"), *kept_in(here)])]
    assert names == ["store", sweeps[1].folder.name, last.name, sweeps[0].folder.name, shared.name, own.name]


def test_scores_of_a_sweep_are_those_of_its_table(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a sweep over one number of clients one over two, which has another mean."""
    monkeypatch.chdir(tiny.parent)
    axes = ("participation.ratio=0.5,1.0", "partition.clients=2,5")
    made = [Sweep(Study(str(tiny), (axis, "data.store=null"))) for axis in axes]
    assert all(sweep.go() for sweep in made)
    found = list(kept_in(tiny.parent / "runs"))
    scores = {Path(each["path"]).name: each["score"] for each in plain_list(found)}
    # With half of the clients a round the model of the server stands for FedAvg.
    for sweep, figures in zip(made, [("global.best.test", "deployed.best.test"), ("deployed.best.test",) * 2]):
        tables = [table_of(rows_of([sweep.folder]), Layout((figure,))) for figure in figures]
        assert [table.rows[place][-1].strip("*†") for place, table in enumerate(tables)] == [
            f"{100 * scores[row.path.name]:.2f}" for row in sweep.rows
        ]
    by_nodes = [row.figures["deployed.best.test"] for row in made[1].rows]
    assert by_nodes != [scores[row.path.name] for row in made[1].rows]
    (table,) = make_tables(found)
    assert set(table.notes) == {
        f"scores: test, {MEANS[NODES]}", f"scores in sweeps over numbers of clients: test, {MEANS[POOLED]}",
    }  # fmt: skip


def test_compare_shows_what_differs(sweeps: list[Sweep]) -> None:
    left, right = (row.path for row in sweeps[0].rows)
    config, inputs, environment, results = compare(left, right)
    assert config.rows == (("seed", "0", "1", "yes"),)
    assert (inputs.rows, inputs.notes) == ((), ("inputs: equal",))
    assert environment.notes == ("environment: equal",)
    by_name = {row[0]: row[1:] for row in results.rows}
    mine, other = (row.figures["trained.best.val"] for row in sweeps[0].rows)
    if mine != other:
        shown = (f"{100 * mine:.4g}", f"{100 * other:.4g}", f"{100 * (other - mine):+.4g}")
        assert by_name["trained.best.val"] == shown
    assert compare(left, left)[3].notes == ("results: equal",)
    (right / "summary.json").unlink()
    assert compare(left, right)[-1].notes == (f"not finished: {right.name}",)


def test_nothing_is_removed_unasked(sweeps: list[Sweep], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = here / "store"
    assert not remove([sweeps[0].folder, store], lambda _: False)
    text = capsys.readouterr()
    # The run that both have stays, and so does the other's; both need the store.
    kept = sorted(row.path.name for row in sweeps[1].rows)
    assert sweeps[0].rows[0].path.name in text.out
    assert not any(name in text.out for name in kept)
    assert "store: is the store of " in text.err
    assert all(name in text.err for name in kept)
    assert all(row.path.exists() for row in sweeps[0].rows)
    assert remove([sweeps[0].folder], yes)
    assert not sweeps[0].folder.exists()
    assert not sweeps[0].rows[0].path.exists()
    assert all(row.path.exists() for row in sweeps[1].rows)
    assert store.exists()
    assert remove([store, store], yes)
    assert not store.exists()


def test_remove_refuses_other_folders_and_running_runs(sweeps: list[Sweep], here: Path) -> None:
    run = sweeps[0].rows[0].path
    with (run / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with refused(run, says="is being written by a run"):
            remove([run], yes)
    assert run.exists()
    with refused(here, says="neither a store, a run nor a sweep"):
        remove([here], yes)
    assert (here / "config.yaml").exists()
    link = here / "link"
    link.symlink_to(run)
    with refused(link, says="is a link to "):
        remove([link], yes)
    assert remove([run], yes)
    assert not run.exists()


def test_remove_leaves_what_shoal_did_not_write(
    sweeps: list[Sweep], here: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files, folders, links and runs of others in and below what is removed."""
    elsewhere, store, sweep = tmp_path_factory.mktemp("elsewhere"), here / "store", sweeps[0]
    (elsewhere / "mine.txt").write_text("mine")
    run = sweep.rows[0].path
    theirs = [
        *(run / name for name in ("notes.txt", "checkpoints/notes.txt", "export/mine.csv", "records/round-1.png")),
        *(store / name for name in ("notes.txt", "clients/notes.txt", "splits/README", "runs/mine/metrics.jsonl")),
        *(sweep.folder / name for name in ("paper.tex", "runs/mine.csv", "report/mine.html")),
    ]
    for file in theirs:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    links = [run / "data", store / "hops" / "a" / "b", sweep.folder / "said"]
    for link in links:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(elsewhere)
    assert remove([sweep.folder, store], yes)
    assert all(file.read_text() == "mine" for file in theirs)
    assert all(link.is_symlink() for link in links)
    assert (elsewhere / "mine.txt").exists()
    found = {path for root in (run, store, sweep.folder) for path in root.rglob("*")}
    assert {path for path in found if path.is_symlink() or not path.is_dir()} == {*theirs, *links}
    said = capsys.readouterr().err
    assert all(f"{root}: stays with what Shoal did not write: " in said for root in (run, store, sweep.folder))


def test_remove_refuses_what_has_no_seal_or_is_locked(sweeps: list[Sweep], here: Path) -> None:
    run, store = sweeps[0].rows[0].path, here / "store"
    copied = (run / "config.yaml").read_text()
    strangers = (("manifest.json", '{"name": "my app"}'), ("sweep.json", "{}"), ("config.yaml", "lr: 1"))
    for number, (name, text) in enumerate((*strangers, ("config.yaml", copied))):
        folder = here / str(number)
        folder.mkdir()
        for file in (name, ".lock", "summary.json"):
            (folder / file).write_text(text)
        with refused(folder / name, says="is not as Shoal writes it"):
            remove([folder], yes)
        assert len(list(folder.iterdir())) == 3
    with writing(store), refused(store, says="is being written by a run or a prepare"):
        remove([store], yes)
    (store / "whole").mkdir()
    with writing(store / "whole"), refused(store / "whole", says="is being written"):
        remove([store], yes)
    with (run / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with refused(Path("runs") / run.name, says="is being written"):
            remove([store], yes)
    (run / ".lock").unlink()
    (run / ".lock").symlink_to(here / "config.yaml")
    with refused(run / ".lock", says="is a link"):
        RunFolder(run)
    assert (store / "manifest.json").exists()


def test_a_path_of_a_sweep_that_is_another_run_stays(sweeps: list[Sweep], capsys: pytest.CaptureFixture[str]) -> None:
    own, other = sweeps[0].rows[0].path, sweeps[1].rows[1].path
    shutil.rmtree(own)
    shutil.copytree(other, own)
    assert remove([sweeps[0].folder], yes)
    assert (own / "metrics.jsonl").exists()
    assert f"{own}: stays, it is no run of this sweep any more" in capsys.readouterr().err
