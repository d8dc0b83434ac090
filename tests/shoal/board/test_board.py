"""A board and its verification: lies of 0.1 points, and of other kinds, that are resealed by whoever tells them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import yaml
from scipy.stats import t
from support.errors import refused
from support.small_runs import run_small

from shoal.board.board import BOARD, Board, read_board, write_board
from shoal.board.entries import read_entries
from shoal.board.joining import run_method
from shoal.board.verify_board import verify_board
from shoal.engine.config.config_text import SEAL
from shoal.engine.records.client_scores import UPLOADS, ClientScores, columns_of, read_digests_by_round
from shoal.engine.records.metrics import METRICS, read_metrics
from shoal.engine.records.run_folder import read_summary
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.digest import text_digest

METHODS = ("local", "fedavg")
DATA = {"nodes": 60, "features": 8, "classes": 3}
# A planted lie raises accuracies by 0.1 points.
LIE = 0.001
KEEPS = {"keep_digests": True, "checkpoint_every": 2, "keep": 2}


def small(folder: Path, method: str, seed: int, **changes: Any) -> Path:
    more = {"algorithm": {"name": method}, "seed": seed, "rounds": 4, **changes}
    return run_small(folder, run=KEEPS, **more)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a board of two methods, two graphs and two seeds."""
    folder = tmp_path_factory.mktemp("board")
    for method in METHODS:
        for homophily in (0.9, 0.5):
            for seed in (0, 1):
                small(
                    folder,
                    method,
                    seed,
                    data={"options": {"homophily": homophily, "nodes": 60, "features": 8, "classes": 3}},
                )
    entries = read_entries([folder / "runs"])
    write_board(Board("Small", tuple(entries)), folder / "runs" / "board")
    return folder


@pytest.fixture
def board(made: Path, tmp_path: Path) -> Path:
    """A copy of the board and its runs, in which a test may lie."""
    shutil.copytree(made / "runs", tmp_path / "runs")
    folder = tmp_path / "runs" / "board"
    plain = unsealed((folder / BOARD).read_text())
    for entry in plain["entries"]:
        for run in entry["runs"]:
            run["run"] = str(tmp_path / "runs" / Path(run["run"]).name)
    (folder / BOARD).write_text(sealed(plain, indent=1))
    again, _ = read_board(folder)
    write_board(again, folder)
    return folder


@pytest.fixture
def half(made: Path, tmp_path: Path) -> Path:
    """A board of both methods on the first graph, copies in which a test may lie."""
    entries = read_board(made / "runs" / "board")[0].entries
    for entry in entries:
        for run in entry.runs if entry.setting == entries[0].setting else ():
            shutil.copytree(run.run, tmp_path / "runs" / Path(run.run).name)
    folder = tmp_path / "runs" / "board"
    write_board(Board("Small", tuple(read_entries([tmp_path / "runs"]))), folder)
    return folder


@pytest.fixture
def few(made: Path, tmp_path: Path) -> Path:
    """A board of one entry with two runs, copies in which a test may lie: a verification trains just these."""
    entry = read_board(made / "runs" / "board")[0].entries[0]
    for run in entry.runs:
        shutil.copytree(run.run, tmp_path / "runs" / Path(run.run).name)
    folder = tmp_path / "runs" / "board"
    write_board(Board("Small", tuple(read_entries([tmp_path / "runs"]))), folder)
    return folder


def raise_scores(value: Any) -> Any:
    """Raises the accuracies of a part, and all that follows from them."""
    if isinstance(value, dict):
        return {
            key: v + LIE if key in ("nodes", "rows", "clients") and isinstance(v, float) else raise_scores(v)
            for key, v in value.items()
        }
    return value


def first_run(board: Path) -> Path:
    return Path(read_board(board)[0].entries[0].runs[0].run)


def write_lines(run: Path, lines: list[dict[str, Any]], name: str) -> None:
    (run / METRICS).write_text("".join(sealed({**line, "run": name}) + "\n" for line in lines))


def lie_in_board(board: Path) -> None:
    plain = unsealed((board / BOARD).read_text())
    plain["entries"][0]["score"] += LIE
    (board / BOARD).write_text(sealed(plain, indent=1))


def lie_in_runs_of_board(board: Path) -> None:
    """The sums follow, and so does the page."""
    plain = unsealed((board / BOARD).read_text())
    entry = plain["entries"][0]
    entry["score"] += LIE
    for run in entry["runs"]:
        run["score"] += LIE
    (board / BOARD).write_text(sealed(plain, indent=1))
    write_board(read_board(board)[0], board)


def lie_without_seal(board: Path) -> None:
    text = (board / BOARD).read_text()
    (board / BOARD).write_text(text.replace('"title": "Small"', '"title": "Large"'))


def lie_in_page(board: Path) -> None:
    page = board / "index.html"
    text = page.read_text()
    cell = f"{100 * read_board(board)[0].entries[0].score:.2f}"
    assert cell in text
    page.write_text(text.replace(cell, "99.99", 1))


def lie_in_summary(board: Path) -> None:
    run = first_run(board)
    summary = unsealed((run / "summary.json").read_text())
    summary["scopes"] = raise_scores(summary["scopes"])
    (run / "summary.json").write_text(sealed(summary, indent=1))


def remake_board(board: Path) -> None:
    """Makes the board again of the runs as they are, as a liar would."""
    entries = read_entries([board.parent])
    write_board(Board("Small", tuple(entries)), board)


def lie_in_all_records(board: Path) -> None:
    """Lines and summary say the same, the scores of clients are removed, and the board is made of them."""
    run = first_run(board)
    lines = read_metrics(run)
    for line in lines:
        line |= {"scopes": raise_scores(line["scopes"])} if "scopes" in line else {}
        line["digests"].pop("clients.arrows", None)
    write_lines(run, lines, run.name)
    (run / "clients.arrows").unlink()
    lie_in_summary(board)
    remake_board(board)


def lie_in_one_round(board: Path) -> None:
    """Validation of a round is the highest, so that another test score is taken."""
    entry = read_board(board)[0].entries[0]
    run = Path(entry.runs[0].run)
    lines = read_metrics(run)
    other = next(line for line in lines if "scopes" in line and line["round"] != entry.runs[0].round)
    for line in lines:
        line["digests"].pop("clients.arrows", None)
    (run / "clients.arrows").unlink()
    for scope in other["scopes"].values():
        scope["val"]["nodes"] = 0.999
    write_lines(run, lines, run.name)
    summary = unsealed((run / "summary.json").read_text())
    for scope, numbers in other["scopes"].items():
        summary["scopes"][scope]["best"] = {"round": other["round"], **numbers}
    (run / "summary.json").write_text(sealed(summary, indent=1))
    remake_board(board)


def lie_in_uploads(board: Path) -> None:
    """All digests of a round are of other uploads, with the digests in the lines."""
    run = first_run(board)
    lines, uploads = read_metrics(run), read_digests_by_round(run)
    (run / UPLOADS).unlink()
    writer = ClientScores(run, UPLOADS)
    for line in lines:
        of_round = [(phase, client, text_digest(digest)) for phase, client, digest in uploads[line["round"]]]
        line["digests"][UPLOADS] = writer.append(line["round"], columns_of(of_round))
    write_lines(run, lines, run.name)
    remake_board(board)


def lie_in_config(board: Path) -> None:
    """The run says that it trained at another rate."""
    run = first_run(board)
    text = (run / "config.yaml").read_text().rpartition(SEAL)[0]
    plain = yaml.safe_load(text)
    plain["train"]["lr"] *= 2
    body = yaml.safe_dump(plain, sort_keys=False) + f"# run: {run.name}\n"
    (run / "config.yaml").write_text(f"{body}{SEAL}{text_digest(body)[:16]}\n")
    remake_board(board)


def lie_in_setting(board: Path) -> None:
    plain = unsealed((board / BOARD).read_text())
    plain["entries"][0]["setting"]["data.options.homophily"] = "0.1"
    (board / BOARD).write_text(sealed(plain, indent=1))
    write_board(read_board(board)[0], board)


def lie_in_budget(board: Path) -> None:
    plain = unsealed((board / BOARD).read_text())
    plain["entries"][0]["budget"]["rounds"] = "2"
    (board / BOARD).write_text(sealed(plain, indent=1))
    write_board(read_board(board)[0], board)


def lie_by_a_run_twice(board: Path) -> None:
    plain = unsealed((board / BOARD).read_text())
    entry = plain["entries"][0]
    entry["runs"][1] = entry["runs"][0]
    entry["score"], entry["interval"] = entry["runs"][0]["score"], None
    (board / BOARD).write_text(sealed(plain, indent=1))
    write_board(read_board(board)[0], board)


LIES: dict[Callable[[Path], None], str] = {
    lie_in_board: "the score in board.json",
    lie_in_runs_of_board: "its score in board.json",
    lie_without_seal: "changed since it was written",
    lie_in_page: "the page is not that of",
    lie_in_summary: "summary.json",
    lie_in_all_records: "made again its score",
    lie_in_one_round: "made again its score",
    lie_in_uploads: "differs from its digest",
    lie_in_config: "recorded",
    lie_in_setting: "its setting in board.json",
    lie_in_budget: "its budget in board.json",
    lie_by_a_run_twice: "a run counts twice",
}


def test_a_board_has_means_intervals_and_ranks_and_holds(
    made: Path, few: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    board, fault = read_board(made / "runs" / "board")
    assert not fault
    assert len(board.entries) == 4
    for entry in board.entries:
        scores = [read_summary(Path(run.run))["scopes"]["deployed"]["best"]["test"]["nodes"] for run in entry.runs]
        assert [run.score for run in entry.runs] == scores
        assert entry.score == pytest.approx(fmean(scores))
        if scores[0] != scores[1]:
            assert entry.interval == pytest.approx(t.ppf(0.975, 1) * stdev(scores) / 2**0.5)
    table = board.table()
    assert sorted(row[0] for row in table.rows) == ["FedAvg", "Local"]
    assert len(table.heads) == 3
    page = (made / "runs" / "board" / "index.html").read_text()
    assert page.partition("<main>")[2].count(board.title) == 1
    assert "rounds 4, epochs 3, batches of all rows, evaluated every 1, options tried 1" in page
    verify_board(few)
    whole = capsys.readouterr().out
    verify_board(made / "runs" / "board", visits=5, seed=1)
    drawn = capsys.readouterr().out
    for out, entries, said in ((whole, 1, "1 entry holds"), (drawn, 4, "4 entries hold")):
        assert out.count("holds: 2 runs") == entries
        assert out.count(said) == 1
    # Two runs of four rounds and four clients each, all again; drawn visits need fewer.
    every = "8 rounds made again, from the start; 32 uploads compared"
    assert whole.count(every) == 1
    assert drawn.count(every) < 4


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_found_and_named(lie: Callable[[Path], None], few: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lie(few)
    with pytest.raises(ShoalError) as error:
        verify_board(few)
    assert LIES[lie] in " ".join([capsys.readouterr().out, error.value.line])


def test_lie_of_a_score_is_found_by_visits_whatever_is_drawn(few: Path) -> None:
    """The rounds of scores are made again beside the drawn ones."""
    lie_in_all_records(few)
    for seed in range(3):
        with pytest.raises(ShoalError, match=r"made again|recorded"):
            verify_board(few, visits=1, seed=seed)


def test_a_store_that_changed_is_named(half: Path, made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = PastRun(first_run(half)).store.path
    (shard, *_) = sorted((store / "clients").iterdir())
    kept = shard.read_bytes()
    shard.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    try:
        with pytest.raises(ShoalError):
            verify_board(half)
        assert "store changed" in capsys.readouterr().out
    finally:
        shard.write_bytes(kept)


OWN = """
from dataclasses import dataclass
import shoal

@dataclass(frozen=True)
class Mine(shoal.Algorithm):
    def setup(self, ctx):
        return {"w": ctx.initial}

    def round(self, server, ctx, cohort):
        got = yield shoal.Ask("train", {"w": shoal.Reduce.MEAN}, shared={"w": server["w"]})
        server["w"] = got["w"]

    def global_model(self, server):
        return {"w": server["w"]}

    def upload(self, client, received, phase):
        return shoal.Upload({"w": client.model.w}, weight={"w": float(client.info.nodes)})
"""


def test_own_method_is_one_more_row_under_the_same_budget(half: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    before, _ = read_board(half)
    runs = run_method(before, f"{tmp_path / 'mine.py'}:Mine")
    assert len(runs) == 2
    write_board(Board("Small", tuple(read_entries([half.parent]))), half)
    after, _ = read_board(half)
    own = [entry for entry in after.entries if entry.label == "Mine"]
    assert len(own) == 1
    assert not any(entry.unlike for entry in after.entries)
    # Equal to FedAvg in every number.
    of_fedavg = [entry for entry in after.entries if entry.method == "fedavg"]
    assert [entry.score for entry in own] == [entry.score for entry in of_fedavg]
    verify_board(half)


def test_another_budget_is_marked_and_not_ranked(board: Path, tmp_path: Path) -> None:
    more = small(tmp_path, "fedopt", 0, rounds=6, data={"options": {**DATA, "homophily": 0.9}})
    made = Board("More", tuple(read_entries([board.parent, more])))
    (entry,) = [entry for entry in made.entries if entry.method == "fedopt"]
    assert entry.unlike == "rounds 6, not 4"
    table = made.table()
    (row,) = [number for number, row in enumerate(table.rows) if row[0] == entry.label]
    assert "‡" in " ".join(table.rows[row])
    assert row not in {place[0] for place in table.best | table.second}
    assert any("rounds 6, not 4" in note for note in table.notes)


def test_runs_that_cannot_be_verified_are_left_out(tmp_path: Path) -> None:
    run_small(tmp_path)
    with refused(tmp_path / "runs", says="keep_digests"):
        read_entries([tmp_path / "runs"])
    with refused(tmp_path / "gone"):
        read_entries([tmp_path / "gone"])


def test_damaged_boards_are_one_line(board: Path) -> None:
    path = board / BOARD
    plain = json.loads(path.read_text())
    for wrong in ("[]", "{", '{"format": 9}', json.dumps({**plain, "entries": [{"runs": []}]})):
        path.write_text(wrong)
        with refused(path):
            read_board(board)
