"""The page of runs and sweeps: complete in itself, all figures there, for who sees them and who does not."""

import html
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from support.browser import BROWSER, FAULTS, browser
from support.errors import refused as is_refused
from support.small_runs import small_config, small_run

import shoal
from shoal.engine.config.config import Config, load_config
from shoal.engine.records.metrics import RECORDS, read_metrics, read_records
from shoal.engine.records.run_folder import read_summary
from shoal.engine.records.summary import scopes_apart
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run
from shoal.engine.screen.tables import console, show_run
from shoal.pages.report import report
from shoal.storage.store.store import Store
from shoal.study.figure_data import client_numbers, confusion, curve_of, loss_in, recorded_prototypes, score_in
from shoal.study.study import Study
from shoal.sweeps.sweep import Sweep

AXES = ("algorithm=fedavg,fedgta", "participation.ratio=0.5,1.0", "seeds=2")
PNG = b"\x89PNG\r\n\x1a\n"
# PDFs take most of the time of a page.
quick = partial(report, kinds=("svg",))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Eight finished runs."""
    made = Sweep(Study(small_config(tmp_path_factory.mktemp("report"), name="reported"), AXES))
    assert made.go()
    return made


@pytest.fixture(scope="module")
def written(sweep: Sweep) -> Path:
    return report([sweep.folder], None, kinds=("svg", "png"))


class Read(HTMLParser):
    """The tags of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_asks_for_nothing_else(written: Path) -> None:
    text = written.read_text()
    tags = Read(text).tags
    assert not {tag for tag, _ in tags} & {"img", "iframe", "object", "audio", "video"}
    assert all(not own for tag, own in tags if tag == "script")
    shown = [str(own[name]) for tag, own in tags if tag != "a" for name in own.keys() & {"href", "xlink:href", "src"}]
    assert shown
    assert all(link.startswith(("#", "data:")) for link in shown)
    # Links are to figures and runs that are there.
    links = [str(own["href"]) for tag, own in tags if tag == "a"]
    assert len(links) == 2 * 15 + 8
    assert all((written.parent / link).exists() for link in links)
    assert re.findall(r"url\((?!#)", text) == []
    assert "@import" not in text
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text


def test_figures_are_pdf_where_that_is_asked_for(sweep: Sweep, shoal: Callable[..., None], tmp_path: Path) -> None:
    """Where it is not, they are none: `tests/shoal/cli/test_cli.py`."""
    shoal("report", sweep.rows[0].path, "--out", tmp_path / "page", "--pdf")
    assert {path.suffix for path in (tmp_path / "page" / "figures").iterdir()} == {".svg", ".png", ".pdf"}
    assert '.pdf">PDF</a>' in (tmp_path / "page" / "index.html").read_text()


def test_report_figures_have_descriptions(sweep: Sweep, written: Path, tmp_path: Path) -> None:
    figures = [attributes for tag, attributes in Read(written.read_text()).tags if tag == "svg"]
    names = {path.stem for path in (written.parent / "figures").glob("*.svg")}
    assert {path.stem for path in (written.parent / "figures").glob("*.png")} == names
    assert len(figures) == len(names) == 15
    for attributes in figures:
        assert attributes["role"] == "img"
        assert len(str(attributes["aria-label"])) > 40
    labels = " ".join(str(attributes["aria-label"]) for attributes in figures)
    for said in ("by participation rate", "Training loss", "Clients sorted", "Labels of", "F1 of each", "Peak memory"):
        assert said in labels
    ids = re.findall(r'\bid="([^"]+)"', written.read_text())
    assert len(ids) == len(set(ids))
    again = quick([sweep.folder], tmp_path).parent
    for name in names:
        text = (written.parent / "figures" / f"{name}.svg").read_text()
        ET.fromstring(text)
        assert (again / "figures" / f"{name}.svg").read_text() == text
        assert (written.parent / "figures" / f"{name}.png").read_bytes().startswith(PNG)


@pytest.fixture(scope="module")
def recorded(sweep: Sweep) -> Sweep:
    """FedGTA and FedPG on half of the clients, and what they record."""
    axes = ("algorithm=fedgta{eps:-1},fedpg", "participation.ratio=0.75", "run.keep_records=true", "rounds=5")
    made = Sweep(Study(sweep.study.config, axes))
    assert made.go()
    return made


def test_report_records_equal_the_mixing(sweep: Sweep, recorded: Sweep) -> None:
    assert not (sweep.rows[0].path / RECORDS).exists()
    of_gta, of_pg = (row.path for row in recorded.rows)
    for line in read_metrics(of_gta):
        mixing_BB = read_records(of_gta, line["round"])["mixing"].numpy()
        cohort, absent = line["cohort"], sorted(set(range(4)) - set(line["cohort"]))
        np.testing.assert_allclose(mixing_BB[cohort].sum(1), 1, rtol=1e-6)
        assert not mixing_BB[absent].any()
        assert not mixing_BB[:, absent].any()
        assert np.diagonal(mixing_BB)[cohort].mean() == pytest.approx(line["notes"]["own weight"])
    # In round 1 FedPG's server has nothing that it could mix.
    lines = read_metrics(of_pg)
    assert "mixing" not in read_records(of_pg, 1)
    for line in lines[1:]:
        found = read_records(of_pg, line["round"])
        rows_B = found["mixing"].sum(1).numpy()
        assert set(rows_B.nonzero()[0]) <= set(line["cohort"])
        np.testing.assert_allclose(rows_B[rows_B > 0], 1, rtol=1e-6)
        assert set(found["prototype_client"].tolist()) <= set(line["cohort"])
        assert found["prototypes"].shape[0] == len(found["prototype_class"])
    with safe_open(of_pg / "checkpoints" / "round-000005" / "state.safetensors", framework="np") as file:
        known = file.get_tensor("server/proto")[:, 0]
    columns = (found[name].numpy() for name in ("prototype_client", "prototype_class", "prototypes"))
    for client, c, proto in zip(*columns):
        np.testing.assert_array_equal(known[client, c], proto)


def test_records_are_the_same_in_pieces(sweep: Sweep, recorded: Sweep, tmp_path: Path) -> None:
    keys = ["algorithm=fedgta{eps:-1}", "participation.ratio=0.75", "run.keep_records=true", "rounds=5"]
    keys += ["run.max_seconds=1e-6", f"run.root={tmp_path}"]
    made = Sweep(Study(sweep.study.config, tuple(keys)))
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            made.go()
    assert made.go()
    for number in (1, 5):
        expected, found = (read_records(s.rows[0].path, number)["mixing"] for s in (recorded, made))
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_figures_of_records(recorded: Sweep, tmp_path: Path) -> None:
    page = quick([recorded.folder], tmp_path)
    names = {path.stem for path in (page.parent / "figures").glob("*.svg")}
    assert {name for name in names if name.startswith("mixing")} == {"mixing-FedGTA-eps--1", "mixing-FedPG"}
    text = page.read_text()
    assert "Aggregation weights, FedGTA" in text
    assert "round 1: a client" in text
    assert "Prototypes after round 5, FedPG" in text
    damaged = recorded.rows[0].path / RECORDS / "round-000003.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:50])
    with is_refused(damaged, says="cannot be read"):
        quick([recorded.folder], tmp_path)


def test_principal_components_of_recorded_prototypes(recorded: Sweep) -> None:
    """Squared distances of the points are those of the best plane: their sum is that of the two largest variances."""
    run = recorded.rows[1].path
    found = recorded_prototypes(run)
    assert found is not None
    number, point_P2, class_P = found
    proto_PH = read_records(run, number)["prototypes"].double().numpy()
    variances = np.sort(np.linalg.eigvalsh(np.cov(proto_PH.T)))[::-1]
    np.testing.assert_allclose(point_P2.var(0, ddof=1), variances[:2], rtol=1e-6)
    assert len(class_P) == len(proto_PH)


def test_curves_are_those_of_the_metrics(sweep: Sweep) -> None:
    runs = [row.path for row in sweep.rows[:2]]
    lines = [read_metrics(run) for run in runs]
    curve = curve_of(lines, score_in("deployed", "test"))
    assert curve is not None
    values = np.array([[line["scopes"]["deployed"]["test"]["nodes"] for line in of_run] for of_run in lines])
    np.testing.assert_allclose(curve.middle, values.mean(0))
    np.testing.assert_allclose(curve.deviation, abs(values[0] - values[1]) / 2**0.5)
    second = curve.first_reaching(curve.middle[1])
    assert second is not None
    assert second["round"] == 1 + (curve.middle >= curve.middle[1]).argmax()
    assert curve.first_reaching(1.1) is None
    losses = curve_of(lines, loss_in)
    assert losses is not None
    assert losses.middle[-1] == pytest.approx((lines[0][-1]["loss"] + lines[1][-1]["loss"]) / 2)
    assert curve.x["round"].tolist() == [1, 2, 3]
    sent = np.cumsum([[line["bytes_up"] + line["bytes_down"] for line in of_run] for of_run in lines], axis=1)
    np.testing.assert_allclose(curve.x["bytes"], sent.mean(0))
    seconds = np.cumsum([[line["seconds"]["round"] for line in of_run] for of_run in lines], axis=1)
    np.testing.assert_allclose(curve.x["seconds"], seconds.mean(0))
    assert curve_of(lines, score_in("domains", "test")) is None


def test_report_of_one_run_and_of_many(sweep: Sweep, tmp_path: Path) -> None:
    alone = quick([sweep.rows[0].path], None)
    assert alone == sweep.rows[0].path / "report" / "index.html"
    text = quick([row.path for row in sweep.rows[:4]], tmp_path / "x").read_text()
    assert "participation rate" in text
    assert f"shoal run {sweep.rows[0].path.name}.yaml" in text
    assert "not finished" not in text


@pytest.mark.parametrize("count", [1, 4])
def test_scopes_far_apart_are_explained(tmp_path: Path, count: int) -> None:
    """A single client of few classes leads the server astray; where all take part, the scopes are equal."""
    skewed = {"partition": {"method": "dirichlet"}, "train": {"lr": 3.0, "epochs": 20}}
    run = shoal.run(small_run(tmp_path, rounds=1, participation={"count": count}, **skewed))
    deployed, of_server = (
        100 * run.summary["scopes"][scope]["final"]["test"]["nodes"] for scope in ("deployed", "global")
    )
    with console.capture() as captured:
        show_run(run.path)
    for text in (captured.get(), html.unescape(quick([run.path], None).read_text())):
        assert (f"apart, {abs(deployed - of_server):.1f} points: deployed is" in text) == (count == 1)
        assert ("are apart" in text) == ("missed rounds" in text) == (abs(deployed - of_server) > 10)


@pytest.mark.parametrize(
    ("method", "apart", "reason"),
    [
        ("fggp", (0.5, 0.65), ("bank of prototypes of that round", "with the newest bank")),
        ("fedsage_plus", (0.65, 0.5), ("augmented graph", "graphs as they are")),
        ("adafgl", (0.65, 0.5), ("branches that it trained", "without branches")),
        ("mine.py:Mine", (0.5, 0.65), ("what it keeps of its own", "without what clients keep")),
        ("fedavg", (0.5, 0.65), ("downloaded in its own last round", "for all clients")),
        ("fggp", (0.5, 0.59), ()),
        ("fedgta", (0.5, None), ()),
    ],
)
def test_reason_of_a_difference_is_the_methods(method: str, apart: Any, reason: tuple[str, str]) -> None:
    scopes = {
        scope: {"final": {"round": 2}, "best": {"round": 1, "test": {"nodes": share}}}
        for scope, share in zip(("deployed", "global"), apart)
        if share is not None
    }
    config = Config.model_validate({"name": "a", "data": {"dataset": "cora"}, "algorithm": method})
    points, why = scopes_apart({"scopes": scopes, "clients": 10}, config)
    assert points == pytest.approx(100 * abs(apart[1] - apart[0]) if apart[1] else 0)
    # Nobody missed a round, and what is said of one scope is not said of the other.
    parts = why.split("; ") if why else []
    assert len(parts) == len(reason)
    assert all(said in part for said, part in zip(reason, parts))


def test_head_counts_the_nodes_that_clients_share(tmp_path: Path) -> None:
    path = shoal.run(small_run(tmp_path, rounds=1, partition={"method": "random", "overlap": 2})).path
    (store,) = (tmp_path / "stores").glob("*/manifest.json")
    shares = Store(store.parent)
    (split,) = shares.manifest.splits
    train = [node for i in range(4) for node in shares.shard(i).node[shares.split(split, i).train].tolist()]
    assert len(train) > len(set(train))
    text = html.unescape(quick([path], None).read_text())
    assert f"<dt>Shared</dt><dd>each node counts at every client that holds it: {len(train)} train nodes are " in text
    assert f" nodes are {len(set(train))}, " in text
    # One round is no curve, and a part of a page without anything in it is left out.
    assert "Accuracy and traffic" not in text
    assert "Shared" not in quick([shoal.run(small_run(tmp_path, rounds=1)).path], None).read_text()


def test_report_refuses_unfinished_and_unknown(tmp_path: Path, sweep: Sweep) -> None:
    with is_refused(tmp_path, says="neither a run nor a sweep"):
        quick([tmp_path], None)
    (tmp_path / "metrics.jsonl").write_text("")
    (tmp_path / "config.yaml").write_text((sweep.rows[0].path / "config.yaml").read_text())
    with is_refused(says="no run is finished"):
        quick([tmp_path], None)


def test_head_says_what_ran(sweep: Sweep, written: Path, tmp_path: Path) -> None:
    """The number is the difference of the two methods over both rates, and the command makes all runs again."""
    text = html.unescape(re.sub(r"<[^>]*>", " ", written.read_text().partition("<main>")[2]))
    words = " ".join(text.split())
    # Half of the clients miss rounds at one rate, so FedAvg stands by the server's model.
    of_figure = [("algorithm", "fedgta", "deployed"), ("algorithm", "fedavg", "global")]
    gta, avg = (
        np.array([100 * row.figures[f"{scope}.best.test"] for row in sweep.rows if row.columns[key] == name])
        for key, name, scope in of_figure
    )
    # Of each method two rates with two seeds.
    apart = (gta - avg).reshape(2, 2).mean(0)
    assert f"{apart.mean():+.1f} points FedGTA (deployed models) over FedAvg (the global model), test accuracy" in words
    for said in (
        "FedAvg, FedGTA on sbm, by participation rate synthetic data", "Method FedAvg, FedGTA", "Model SGC",
        "Clients 4, of ", "% of the edges cut", "Rounds 3 ", "Seeds 0, 1 ", "Participation rate 0.5, 1.0",
        "algorithm=fedavg,fedgta participation.ratio=0.5,1.0 seeds=2", "mean over 2 settings", "over 2 seeds",
    ):  # fmt: skip
        assert said in words, said
    alone = quick([sweep.rows[0].path], tmp_path).read_text()
    first = sweep.rows[0].path
    path = tmp_path / f"{first.name}.yaml"
    assert f"shoal run {path.name}" in alone
    kept = alone.partition(f"save it as {path.name}</summary>")[2].partition("<pre>")[2].partition("</pre>")[0]
    path.write_text(html.unescape(kept))
    assert load_config(path).plain() == load_config(first).plain()
    again = run(load_config(path, [f"run.root={tmp_path / 'again'}"]))
    assert again.name == first.name
    assert read_summary(again)["scopes"] == read_summary(first)["scopes"]


def test_confusion_of_exported_predictions(sweep: Sweep, tmp_path: Path) -> None:
    run = sweep.rows[0].path
    assert confusion(run, "deployed") is None
    export(run)
    found = confusion(run, "deployed")
    assert found is not None
    counts_CC, names = found
    assert names == ["0", "1", "2"]
    test = read_summary(run)["scopes"]["deployed"]["final"]["test"]
    assert np.trace(counts_CC) / counts_CC.sum() == pytest.approx(test["rows"])
    f1 = [2 * counts_CC[c, c] / (counts_CC[c].sum() + counts_CC[:, c].sum()) for c in range(3)]
    assert np.mean(f1) == pytest.approx(test["f1"])
    numbers = client_numbers(run, "deployed")
    assert numbers is not None
    np.testing.assert_allclose(numbers.f1, f1)
    assert numbers.accuracy.min() == pytest.approx(test["min"])
    assert "Confusion of classes" in quick([run], tmp_path).read_text()


@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_in_a_browser(written: Path, tmp_path: Path) -> None:
    """No request, no word on the console, nothing cut off, letters one can read, on a wide screen and on a phone."""
    with browser(tmp_path) as page:
        for width in (1280, 390):
            page.open(written, width)
            assert page.value(FAULTS) == []
        assert {url for url in page.requests if not url.startswith("data:")} == {written.as_uri()}
        assert page.said == []
