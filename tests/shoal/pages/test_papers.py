"""Tables of papers: the registry has every one, and what runs stands beside the paper's figure."""

import csv
import html
import os
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
import yaml
from support.errors import refused
from support.small_runs import small_run
from typer.testing import CliRunner

from shoal.algorithms.client import FlatModel
from shoal.cli.cli import app
from shoal.engine.config import config_text
from shoal.engine.config.config import Config
from shoal.engine.messages import models
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.plan import RunPlan
from shoal.pages.reproduce import named_in, reproduce, show_reproduction
from shoal.pages.table_runs import Asked, TableRuns, cells_of
from shoal.tables.papers import PaperCell, paper_names, read_paper, some_of, study_of

Plain = dict[str, Any]


def shown(*arguments: str) -> str:
    """What the command prints, which succeeds."""
    done = CliRunner().invoke(app, ["reproduce", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    """A paper of a user: two columns, three rows in two forms, one of them without runs."""
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small_run(tmp_path, rounds=1)))
    return written(tmp_path, {})


def written(folder: Path, changes: Plain) -> Path:
    """The file of the paper, keys of its table changed."""
    table: Plain = {
        "title": "Accuracy",
        "runs": 5,
        "seeds": 2,
        "choose": {"key": "algorithm.eps", "seeds": 1},
        "columns": {"Near": {"set": {"data.options.homophily": 0.9}}, "Far": {"set": {"data.options.homophily": 0.4}}},
        "rows": {
            "FedAvg": {"set": {"algorithm": "fedavg"}},
            "Again": {"set": {"algorithm": {"name": "fedavg"}}},
            "FedGTA": {
                "set": {"algorithm": "fedgta", "algorithm.eps": [-1.0, 0.999]},
                "forms": ["paper", "recommended"],
            },
            "FedX": {"cannot": "Shoal has no FedX"},
        },
        "paper": {"FedAvg": "80.0±1.5 -", "FedGTA": "90 70", "FedX": "- 50"},
    }
    path = folder / "mine.yaml"
    drawn = {"title": "A drawing", "cannot": "nothing is measured"}
    path.write_text(
        yaml.safe_dump(
            {"title": "Mine", "config": "small.yaml", "tables": {"table1": {**table, **changes}, "figure1": drawn}},
            sort_keys=False,
        )
    )
    return path


def test_a_table_has_the_mean_gap_and_choice_of_its_runs(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against the summaries of the runs, read here."""
    read = read_paper(str(paper))
    page, complete = reproduce(read, [], Asked(), 1)
    assert complete
    assert page is not None
    folder = page.parent
    read_back = list(csv.DictReader((folder / "table1.csv").open()))
    rows = {(row["column"], row["row"].partition(" (")[0]): row for row in read_back}
    assert len(rows) == 2 * 6
    runs = list(paper.parent.glob("runs/mine-*"))
    # Two columns; local and fedavg by two seeds, each form of fedgta by two values for one seed and one for the other.
    assert len(runs) == 2 * (2 + 2 + 2 * (2 + 1))
    tests: dict[tuple[float, str], list[float]] = {}
    for run in runs:
        config = yaml.safe_load((run / "config.yaml").read_text())
        key = config["data"]["options"]["homophily"], config["algorithm"]["name"]
        tests.setdefault(key, []).append(100 * read_summary(run)["scopes"]["deployed"]["best"]["test"]["nodes"])
    near, local = rows["Near", "FedAvg"], tests[0.9, "local"]
    mean = fmean(tests[0.9, "fedavg"])
    assert near["ours"] == f"{mean:.2f} ± {stdev(tests[0.9, 'fedavg']):.2f}"
    assert near["gap"] == f"{mean - 80.0:+.2f}"
    assert near["over Local"] == f"{mean - fmean(local):+.2f}"
    assert near["paper"] == "80.0 ± 1.5"
    assert rows["Near", "Local"]["ours"].startswith(f"{fmean(local):.2f}")
    # The same runs under another name.
    assert rows["Near", "Again"]["ours"] == near["ours"]
    assert rows["Far", "FedX"]["ours"] == "-"
    gta = [row for row in read_back if row["row"].startswith("FedGTA")]
    assert all(row["row"].endswith(("(-1.0)", "(0.999)")) for row in gta)
    assert [row["paper"] for row in gta] == ["90", "90", "70", "70"]
    printed = capsys.readouterr().out
    for text in (printed, (folder / "tables.md").read_text(), page.read_text()):
        assert "Shoal has no FedX" in text
        assert "nothing is measured" in text
    # The columns are values of one numeric key; gaps are a figure of their own.
    assert (folder / "figures" / "table1.svg").exists()
    assert (folder / "figures" / "gaps-table1.svg").exists()
    # Five gaps, as both forms of FedGTA stand beside its two figures; titles stand once.
    gaps = [float(row["gap"]) for row in read_back if row["gap"] != "-"]
    assert len(gaps) == 5
    near = sum(abs(gap) <= 1 for gap in gaps)
    text = page.read_text()
    assert f"<strong>{near} of 5</strong> figures within 1 point of the paper&#39;s; " in text
    assert "1 figure has no runs" in text
    assert text.count(">Mine<") == 2
    assert text.count("table1: Accuracy<") == 1
    assert f'<pre class="command">shoal reproduce {paper}</pre>' in text
    assert f"{near} of 5 figures within 1 point of the paper's" in printed
    # Finished runs are read, not run again.
    before = {run: (run / "summary.json").stat().st_mtime_ns for run in runs}
    reproduce(read_paper(str(paper)), ["table1"], Asked(only=["Near", "FedAvg", "Local"]), 1)
    assert {run: (run / "summary.json").stat().st_mtime_ns for run in runs} == before


def test_the_value_that_validation_chooses_is_the_best_of_the_first_seeds(paper: Path) -> None:
    runs = TableRuns(read_paper(str(paper)), "table1", Asked(only=["Far", "FedGTA"]))
    runs.go(1)
    # Local stays beside what is compared with it.
    assert [cell.row for cell in runs.cells] == ["Local", "FedGTA, as written", "FedGTA, recommended"]
    for place, cell in enumerate(runs.cells[1:], 1):
        values, chosen = runs.values(place)
        first = {
            row.columns["algorithm.eps"]: row.figures["deployed.best.val"]
            for row, of in zip(runs.rows, runs.places)
            if of == place and row.columns["seed"] == "0"
        }
        assert first[chosen] == max(first.values())
        assert len(first) == 2
        assert len(values) == 2, cell.label


def test_a_run_that_fails_is_a_note_and_data_that_is_missing_a_reason(
    paper: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = {"partition.method": "file", "partition.file": str(paper.parent / "lost.npy")}
    written(paper.parent, {
        "columns": {"Near": {}, "Lost": {"set": lost}},
        "rows": {
            "FedAvg": {"set": {"algorithm": "fedavg"}},
            "Wild": {"set": {"algorithm": "fedavg", "train.lr": 1e30, "train.optimizer": "sgd"}},
        },
        "paper": {}, "choose": None,
    })  # fmt: skip
    _, complete = reproduce(read_paper(str(paper)), ["table1"], Asked(seeds=1), 1)
    out = capsys.readouterr().out
    assert not complete
    assert "lost.npy" in out
    assert "no runs: block" not in out
    assert "lost.npy" in shown(str(paper), "table1", "--dry-run")


def test_the_smallest_look_is_three_rounds_of_the_first_column(paper: Path) -> None:
    out = shown(str(paper), "table1", "--smallest", "--only", "FedAvg,Local")
    runs = list(paper.parent.glob("runs/mine-*"))
    assert len(runs) == 2
    assert all(read_summary(run)["rounds"] == 3 for run in runs)
    assert "measure nothing" in out
    page = (paper.parent / "runs" / "papers" / "mine-smallest" / "index.html").read_text()
    said = html.unescape(re.sub(r"<[^>]*>", " ", page.partition("<main>")[2]))
    # The verdict of the look, once, and a figure of what there is; no gap.
    assert said.count("three rounds of one seed: they show that it runs, and measure nothing") == 1
    assert " ".join(said.split()).partition("2 of 2 figures have runs; three rounds of one seed")[1]
    assert "table1: ours, and the paper&#39;s, which are of other runs" in page
    assert [name for name in ("beside", "gaps") if f"figures/{name}-table1" in page] == ["beside"]


@pytest.mark.parametrize(
    ("override", "by"),
    [
        ("data.options.homophily=0.7", "column Near sets data.options.homophily"),
        ("data.options={homophily: 0.7}", "column Near"),
        ("data={dataset: sbm}", "column Near"),
        ("algorithm=fedprox", "row Local sets algorithm"),
        ("algorithm.name=fedprox", "row Local sets algorithm"),
        ("algorithm.eps=0.5", "row FedGTA, as written"),
        ("algorithm.form=code", "row FedGTA, as written"),
        ("algorithm={eps: 0.5}", "row Local"),
        ("seed=7", "every repetition sets seed"),
    ],
)
@pytest.mark.parametrize("dry", [False, True])
def test_key_that_makes_a_cell_is_refused(paper: Path, override: str, by: str, dry: bool) -> None:
    asked = Asked(overrides=["rounds=2", override])
    with refused(paper, "tables.table1", override.partition("=")[0], says=by):
        if dry:
            show_reproduction(read_paper(str(paper)), [], asked)
        else:
            reproduce(read_paper(str(paper)), [], asked, 1)
    assert not (paper.parent / "runs").exists()


def test_key_that_the_smallest_look_sets_is_refused(paper: Path) -> None:
    with refused(paper, "tables.table1", "rounds", says="--smallest sets rounds"):
        cells_of(read_paper(str(paper)), "table1", Asked(smallest=True, overrides=["rounds=2"]))
    with refused("--seeds", says="one seed"):
        Asked(smallest=True, seeds=2)


def test_override_that_is_no_yaml_is_refused_by_the_config(paper: Path) -> None:
    with refused(says="train"):
        show_reproduction(read_paper(str(paper)), [], Asked(overrides=["train={lr: "]))


def test_options_of_a_method_that_no_row_sets_are_free(paper: Path) -> None:
    asked = Asked(only=["FedAvg"], overrides=["algorithm.weight=uniform", "model.layers=1"])
    assert len(cells_of(read_paper(str(paper)), "table1", asked)) == 4


def only_file(folder: Path, pattern: str) -> Path:
    (file,) = folder.glob(pattern)
    return file


# Two rows of two repetitions, which take a second.
PLAIN = {
    "seeds": 2, "choose": None, "columns": {"Near": {}}, "rows": {"FedAvg": {"set": {"algorithm": "fedavg"}}},
    "paper": {"FedAvg": "80.0±1.5"},
}  # fmt: skip


def test_runs_with_other_keys_stand_apart_without_a_gap(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(paper.parent, PLAIN)
    folder = paper.parent / "runs" / "papers"
    read = read_paper(str(paper))
    whole, _ = reproduce(read, ["table1"], Asked(), 1)
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    capsys.readouterr()
    asked = Asked(seeds=2, overrides=["rounds=2", "engine.backend=local", "run.tensorboard=false"])
    page, _ = reproduce(read, ["table1"], asked, 1)
    assert page is not None
    assert page != whole
    assert "rounds-2" in page.parent.name
    assert "backend" not in page.parent.name
    rows = list(csv.DictReader(only_file(page.parent, "table1*rounds-2*.csv").open()))
    assert [row["row"] for row in rows] == ["Local", "FedAvg"]
    assert all(row["ours"] != "-" and (row["gap"], row["noise"]) == ("-", "-") for row in rows)
    printed = " ".join(capsys.readouterr().out.split())
    for text in (printed, (page.parent / "tables.md").read_text(), page.read_text()):
        assert ("Mine" if text.startswith("<!doctype") else "Accuracy") + ", with rounds=2" in text
        assert "within 1 point" not in text
        assert "other runs than the paper" in text
        assert "noise: whether" not in text
    assert "other runs than the paper" in shown(str(paper), "table1", "--only", "FedAvg", "rounds=2", "--dry-run")
    assert {file: file.read_bytes() for file in before} == before


def test_part_of_a_table_does_not_replace_the_page_of_the_whole(paper: Path) -> None:
    written(paper.parent, PLAIN)
    text = yaml.safe_load(paper.read_text())
    text["tables"]["table2"] = {**text["tables"]["table1"], "title": "Again"}
    paper.write_text(yaml.safe_dump(text, sort_keys=False))
    read = read_paper(str(paper))
    whole, _ = reproduce(read, ["table1"], Asked(), 1)
    assert whole is not None
    before = {file: file.read_bytes() for file in whole.parent.rglob("*") if file.is_file()}
    parts = [Asked(only=["FedAvg"]), Asked(seeds=1), Asked(only=["FedAvg"], seeds=1)]
    pages = {reproduce(read, ["table1"], asked, 1)[0] for asked in parts}
    assert len(pages | {whole}) == 4
    assert {page.parent.name for page in pages if page} == {
        "mine-only-FedAvg",
        "mine-seeds-1",
        "mine-only-FedAvg-seeds-1",
    }
    assert {file: file.read_bytes() for file in before} == before
    # Another table joins the page, and that of before stays.
    page, _ = reproduce(read, ["table2"], Asked(), 1)
    assert page == whole
    tables = (page.parent / "tables.md").read_text()
    first, second = tables.index("## table1: Accuracy"), tables.index("## table2: Again")
    assert "FedAvg" in tables[first:second]
    assert "nothing is measured" in tables


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"paper": {"FedAvg": "80.5"}}, "tables.table1.paper.FedAvg"),
        ({"paper": {"FedAvg": "80.5 high"}}, "tables.table1.paper.FedAvg"),
        ({"paper": {"FedZ": "80.5 1"}}, "tables.table1.paper.FedZ"),
        ({"paper": {"GCN": {"FedAvg": "80.5 1"}}}, "tables.table1.paper.GCN.FedAvg"),
        ({"rows": {"FedAvg": {"columns": ["Here"]}}}, "tables.table1.rows.FedAvg.columns"),
        ({"columns": {"Near": {"blocks": ["GCN"]}}, "paper": {}}, "tables.table1.columns.Near.blocks"),
        ({"rows": {}, "paper": {}}, "tables.table1"),
        ({"clients": 3}, "tables.table1.clients"),
        ({"rows": {"FedAvg": {"algorithm": "fedavg"}}}, "tables.table1.rows.FedAvg.algorithm"),
    ],
)
def test_a_wrong_file_is_one_line(paper: Path, changes: Plain, place: str) -> None:
    written(paper.parent, changes)
    with refused(paper, place):
        read_paper(str(paper))


def test_a_look_at_what_has_no_runs_says_why(paper: Path) -> None:
    assert "Shoal has no FedX" in shown(str(paper), "table1", "--smallest", "--only", "FedX")
    # A name of another table leaves nothing of this one.
    assert not some_of(read_paper(str(paper)).cells("table1"), ["Cora"])


def test_a_row_may_need_a_folder(paper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in it may have the name of another key of the cell."""
    file = "${PRETRAINED}/${data.dataset}.safetensors"
    rows = {"FedAvg": {"set": {"algorithm": "fedavg"}}}
    rows["Tuned"] = {"needs": "PRETRAINED", "set": {"algorithm": "fedavg", "model.pretrained": file}}
    written(paper.parent, {"rows": rows, "paper": {}, "choose": None, "note": "files of GNNs"})
    monkeypatch.delenv("PRETRAINED", raising=False)
    out = shown(str(paper), "table1", "--dry-run")
    assert "Tuned: the variable PRETRAINED is not set; set it to the folder: files of GNNs" in out
    monkeypatch.setenv("PRETRAINED", str(paper.parent))
    read = read_paper(str(paper))
    tuned = [cell for cell in read.cells("table1") if cell.row == "Tuned"]
    assert [cell.cannot for cell in tuned] == [None, None]
    (name,) = {config.data.dataset for config in study_of(read, "table1", tuned).configs if config.data.dataset}
    assert "Tuned" in (out := shown(str(paper), "table1", "--only", "Tuned"))
    assert f"model.pretrained: {paper.parent / name}.safetensors: cannot be read" in out


def test_names_may_have_commas(paper: Path) -> None:
    read = read_paper(str(paper))
    texts = ["Near, Far", "FedGTA, as written", "FedGTA"]
    assert named_in(read, ["table1"], texts) == ["Near", "Far", "FedGTA, as written", "FedGTA"]


def test_wrong_names_are_one_line(paper: Path) -> None:
    with refused("fedzzz"):
        read_paper("fedzzz")
    with refused("table9"):
        reproduce(read_paper(str(paper)), ["table9"], Asked(), 1)
    with refused("--only"):
        named_in(read_paper(str(paper)), [], ["Near,Cora"])
    with refused("Near, FedAvg", says="train.rl"):
        reproduce(read_paper(str(paper)), ["table1"], Asked(only=["FedAvg"], overrides=["train.rl=1"]), 1)


def test_dry_run_plans_a_run_once_and_builds_each_model_once(paper: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Repetitions, and tables with the same runs, need no plan of their own."""
    file = yaml.safe_load(paper.read_text())
    file["tables"]["table2"] = file["tables"]["table1"]
    paper.write_text(yaml.safe_dump(file, sort_keys=False))
    planned, built = list[Config](), list[object]()
    plan, build = RunPlan.of, models.build_models

    def count(config: Config, *rest: Any, **named: Any) -> RunPlan:
        planned.append(config)
        return plan(config, *rest, **named)

    def count_models(*rest: Any, **named: Any) -> list[FlatModel]:
        built.append(rest)
        return build(*rest, **named)

    monkeypatch.setattr(RunPlan, "of", count)
    monkeypatch.setattr(models, "build_models", count_models)
    show_reproduction(read_paper(str(paper)), [], Asked(seeds=5))
    # Two columns; Local, FedAvg in two spellings, and each of two forms of FedGTA by two values.
    assert len(planned) == 2 * (1 + 2 + 2 * 2)
    # Two kinds of classifier, of sketches of three shapes and models of one; and a time is measured for each column.
    assert len(built) <= 2 * 5 + 2 * 2 * len(read_paper(str(paper)).tables)


def test_what_tables_replace_is_not_named(paper: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What an override of the user replaces is."""
    small = paper.parent / "small.yaml"
    config = yaml.safe_load(small.read_text())
    config["algorithm"] = {"name": "fedprox", "mu": 0.25}
    config["model"] = {"name": "sgc", "hidden": 24, "layers": 2}
    small.write_text(yaml.safe_dump(config))
    announced = config_text._announced.copy()
    config_text._announced.clear()
    try:
        show_reproduction(read_paper(str(paper)), [], Asked(only=["FedAvg"]))
        assert "given anew" not in capfd.readouterr().err
        show_reproduction(read_paper(str(paper)), [], Asked(only=["FedAvg"], overrides=["model={name: mlp}"]))
        assert "model.hidden belongs to model sgc, and model is given anew" in capfd.readouterr().err
    finally:
        config_text._announced.update(announced)


# Every table and figure that a paper numbers.
NUMBERED = {
    "fedgta": (6, 6),
    "fedpg": (10, 7),
    "fedgkc": (5, 4),
    "fggp": (3, 4),
    "fedgpl": (11, 6),
}


def of_every_name(cells: Sequence[PaperCell], all_of_them: bool) -> list[PaperCell]:
    """Cells in which every block, column and row is at least once, or all."""
    seen: set[tuple[str, str]] = set()
    kept = []
    for cell in cells:
        names = set(cell.place.items())
        if all_of_them or names - seen:
            kept.append(cell)
            seen |= names
    return kept


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("name", NUMBERED)
def test_the_registry_has_every_table_and_figure(name: str, request: pytest.FixtureRequest) -> None:
    """Each has runs, whose configs are right, or says why it has none."""
    tables, figures = NUMBERED[name]
    read = read_paper(name)
    wanted = {*(f"table{n}" for n in range(1, tables + 1)), *(f"figure{n}" for n in range(1, figures + 1))}
    assert wanted <= read.tables.keys()
    for table in read.tables:
        possible = [cell for cell in read.cells(table) if cell.cannot is None]
        if not possible:
            # Each without runs has a reason, of the table or of every cell.
            assert read.tables[table].cannot or read.cells(table)
            continue
        cells = of_every_name(possible, request.config.getoption("exhaustive"))
        assert len(study_of(read, table, cells, seeds=1).configs) >= 1
        if read.tables[table].control:
            assert any(cell.set["algorithm"] == "local" for cell in possible)


# A table of each paper, on graphs that are at hand; of slow ones some rows.
LOOKS = [
    pytest.param("fedgta", "table3", ("Local", "FedAvg"), id="fedgta"),
    pytest.param("fedgta", "table3", (), id="all of fedgta", marks=pytest.mark.slow),
    pytest.param("fedpg", "table10", (), id="fedpg", marks=pytest.mark.slow),
    pytest.param("fedgkc", "table5", ("Local", "Neither", "FedGKC"), id="fedgkc", marks=pytest.mark.slow),
    pytest.param("fggp", "table3", ("Local", "FINCH"), id="fggp", marks=pytest.mark.slow),
    pytest.param("fedgpl", "figure2", ("Local", "FedGPL"), id="fedgpl", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "table", "only"), LOOKS)
def test_the_smallest_look_at_a_paper(name: str, table: str, only: Sequence[str], tmp_path: Path) -> None:
    """On the real graphs, by the command."""
    if "SHOAL_DATA" not in os.environ:
        pytest.skip("SHOAL_DATA is not set: the folder of published files")
    keys = ["engine.backend=local", "run.tensorboard=false", f"run.root={tmp_path}", f"data.store={tmp_path / 'store'}"]
    shown(name, table, "--smallest", *keys, *(part for row in only for part in ("--only", row)))
    rows = list(csv.DictReader((tmp_path / "papers" / f"{name}-smallest" / f"{table}.csv").open()))
    assert len(rows) >= 2
    assert all(0 < float(row["ours"]) < 100 for row in rows)


def test_the_papers_are_listed() -> None:
    assert set(NUMBERED) <= set(paper_names())
    out = shown()
    assert all(f"{name}: " in out for name in NUMBERED)
