"""A record that was cut at the end of a line is read by nothing: each reader names the file and the way out."""

import ast
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from rooms import ROOT
from support.errors import refused
from support.needs import has
from support.small_runs import small_run

import shoal
from shoal.bisect.bisect import bisect
from shoal.cli.readers import READERS as OF_PAST
from shoal.cli.readers import read_run
from shoal.engine.config.config import parse_config
from shoal.engine.records.client_scores import mean_scores, read_upload_digests
from shoal.engine.records.metrics import METRICS, read_log, read_metrics, read_records
from shoal.engine.records.run_folder import SUMMARY, read_summary
from shoal.engine.runs.export import export
from shoal.engine.runs.predict import open_graph
from shoal.engine.runs.run import run
from shoal.engine.runs.verify import verify_run
from shoal.engine.screen.tables import show_rounds, show_run
from shoal.kept.listing import Kept, compare, entries, plain_content
from shoal.kept.removal import remove
from shoal.pages.report import report
from shoal.past.fork import fork
from shoal.past.ledger import ledger
from shoal.scaling.scaling import scaling_groups
from shoal.study.groups import Row
from shoal.study.sweep_folder import rows_of

ROUNDS = 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    kept = {"keep_digests": has("digests"), "keep_records": True, "checkpoint_every": 2, "keep": 9}
    private = {"privacy": {"unit": "client", "noise": 30.0, "delta": 1e-3}} if has("privacy") else {}
    return run(parse_config(small_run(folder, rounds=ROUNDS, run=kept, **private), "a small run"))


def cut(folder: Path, lines: int) -> None:
    """Leaves the first lines, as a copy of a growing folder may."""
    path = folder / METRICS
    os.truncate(path, len(b"".join(path.read_bytes().splitlines(keepends=True)[:lines])))


@pytest.fixture
def short(whole: Path) -> Path:
    folder = whole.parent / f"copy-{len(os.listdir(whole.parent))}" / whole.name
    shutil.copytree(whole, folder)
    cut(folder, 2)
    return folder


# Options that a reader must be given.
OPTIONS = {"inversion": {"client": 0}, "replay": {"round": 1, "client": 0}, "unlearn": {"client": 0}}
READERS: dict[str, Callable[[Path], object]] = {
    **{name: partial(read_run, name, OPTIONS.get(name, {})) for name in OF_PAST if name != "bisect"},
    "bisect": lambda run: bisect(run, run),
    "lines": read_metrics,
    "text": lambda run: read_log(run, 2),
    "summary": read_summary,
    "scores of clients": mean_scores,
    "digests": lambda run: read_upload_digests(run, 1),
    "records": lambda run: read_records(run, 1),
    "fork": lambda run: fork(run, 2, ["train.lr=0.2"]),
    "export": export,
    "predict": lambda run: open_graph(run, None, None),
    "report": lambda run: report([run], None, kinds=("svg",)),
    "rows of tables": lambda run: rows_of([run]),
    "table": lambda run: shoal.table(str(run)),
    "scaling": lambda run: scaling_groups([Row({}, {"rounds": 4.0}, str(run), "finished")]),
    "compare": lambda run: compare(run, run),
    "inspect --json": plain_content,
    "inspect": show_rounds,
    "end of a run": show_run,
    "Run.summary": lambda run: shoal.Run(run).summary,
    "Run.metrics": lambda run: shoal.Run(run).metrics,
    "Run.evaluations": lambda run: shoal.Run(run).evaluations,
    "Run.clients": lambda run: shoal.Run(run).clients,
    "Run.plot": lambda run: shoal.Run(run).plot(),
    "Run.predictions": lambda run: shoal.Run(run).predictions(),
    "Run.models": lambda run: shoal.Run(run).models(),
}


@pytest.mark.parametrize("name", READERS)
def test_a_record_cut_at_the_end_of_a_line_is_refused(short: Path, name: str) -> None:
    with refused(short / METRICS, says=f"2 of {ROUNDS} rounds are there; delete {SUMMARY}"):
        READERS[name](short)


def test_a_list_says_so_and_the_rest_goes_on(short: Path, whole: Path) -> None:
    (short / ".lock").touch()
    damaged, sound = entries([Kept("run", short), Kept("run", whole)])
    if damaged.kept.path != short:
        damaged, sound = sound, damaged
    assert (damaged.state, damaged.score, sound.state) == ("damaged", None, "finished")
    assert f"2 of {ROUNDS} rounds are there" in damaged.what
    assert verify_run(short) == [damaged.what]


def test_a_run_at_work_is_read_and_said_to_be_so(short: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (short / SUMMARY).unlink()
    # Of its newest checkpoint, of round 4, lines are missing.
    with refused(short / METRICS, says=f"2 of {ROUNDS} rounds are there"):
        read_metrics(short)
    for number in (3, ROUNDS):
        shutil.rmtree(short / f"checkpoints/round-{number:06d}", ignore_errors=True)
    assert len(read_metrics(short)) == 2
    show_rounds(short)
    ledger(short)
    said = capsys.readouterr()
    assert "2 rounds logged, not finished" in " ".join(said.out.split())
    assert f"not finished, 2 of {ROUNDS} rounds are there" in said.err


def test_a_cut_record_is_rebuilt_as_the_line_says_and_can_be_removed(short: Path, whole: Path) -> None:
    (short / SUMMARY).unlink()
    root = [f"run.root={short.parent}"]
    assert run(shoal.load_config(whole, **{"run.root": str(short.parent)}), resume=True) == short, root
    assert read_metrics(short)[2:] == read_metrics(whole)[2:]
    cut(short, 1)
    assert remove([short], lambda question: True)
    assert not short.exists()


def test_no_other_code_reads_the_file(tmp_path: Path) -> None:
    doors = {ROOT / "engine/records" / name for name in ("metrics.py", "summary.py", "checkpoint.py")}
    reads = {"read_bytes", "read_text", "open", "open_plain", "loads", "unsealed"}
    for path in [*(ROOT / "engine").rglob("*.py"), *(ROOT / "shoal").glob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())) if path not in doors else ():
            if isinstance(node, ast.Call):
                called = getattr(node.func, "id", getattr(node.func, "attr", ""))
                names = {name.id for name in ast.walk(node) if isinstance(name, ast.Name)}
                texts = {text.value for text in ast.walk(node) if isinstance(text, ast.Constant)}
                assert called not in reads or not ("METRICS" in names or METRICS in texts), (path, node.lineno)
