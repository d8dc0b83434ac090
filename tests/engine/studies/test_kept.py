"""Runs, sweeps and stores listed, compared and removed."""

import fcntl
from pathlib import Path

import pytest
from support.errors import refused

from shoal.engine.studies.listing import compare, kept_in, listed, remove
from shoal.engine.studies.study import Study
from shoal.engine.studies.sweep import Sweep


def yes(_: str) -> bool:
    return True


@pytest.fixture
def sweeps(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sweep]:
    """Two sweeps that share a run; the folder of runs is `runs` of the working directory."""
    monkeypatch.chdir(tiny.parent)
    made = [Sweep(Study(str(tiny), (axis,))) for axis in ("seed=0,1", "seed=1,2")]
    assert all(sweep.go() for sweep in made)
    return made


def test_listed_names_kind_state_and_result(sweeps: list[Sweep], tiny: Path) -> None:
    runs = tiny.parent / "runs"
    found = list(kept_in(runs))
    assert [each.kind for each in found] == ["run"] * 3 + ["sweep"] * 2
    rows = {row[1]: row for row in listed(found).rows}
    first = sweeps[0].rows[0]
    row = rows[first.path.name]
    assert (row[0], row[4]) == ("run", "finished")
    assert f"seed 0: {100 * first.figures['served.best.test']:.2f} % served" in row[5]
    assert rows[sweeps[0].folder.name][4:] == ("finished", "config: seed=0,1")
    (first.path / "summary.json").unlink()
    states = {row[1]: row[4] for row in listed(found).rows}
    assert (states[first.path.name], states[sweeps[0].folder.name]) == ("unfinished", "1 of 2")
    (first.path / "config.yaml").write_text("{")
    assert {row[1]: row[4] for row in listed(found).rows}[first.path.name] == "damaged"
    (store,) = (each for each in kept_in(tiny.parent) if each.kind == "store")
    assert "4 clients, 120 nodes" in listed([store]).rows[0][5]
    assert store.bytes == sum(file.stat().st_size for file in store.path.rglob("*") if file.is_file())
    assert listed(list(kept_in(tiny.parent / "nowhere"))).notes == ("no runs, sweeps or stores",)


def test_compare_shows_what_differs(sweeps: list[Sweep], tiny: Path) -> None:
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


def test_nothing_is_removed_unasked(sweeps: list[Sweep], tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tiny.parent / "store"
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


def test_remove_refuses_other_folders_and_running_runs(sweeps: list[Sweep], tiny: Path) -> None:
    run = sweeps[0].rows[0].path
    with (run / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with refused(run, says="is being written by a run"):
            remove([run], yes)
    assert run.exists()
    with refused(tiny.parent, says="neither a store, a run nor a sweep"):
        remove([tiny.parent], yes)
    assert tiny.exists()
    link = tiny.parent / "link"
    link.symlink_to(run)
    assert remove([link, run], yes)
    assert not run.exists()
