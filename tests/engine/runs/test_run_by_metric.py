"""A run by another metric than accuracy: its best round, its tables, stopped and resumed; and what is refused."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score
from support.fixtures import Check, Configure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from shoal import Run
from shoal.engine.config.config import Config, load_config
from shoal.engine.records.client_scores import read_client_scores
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.run import run
from shoal.engine.screen.tables import console, show_rounds, show_run
from shoal.storage.errors import ShoalError
from shoal.study.means import figures_of
from shoal.study.plain_names import score_name


@pytest.fixture
def config_of(configure: Configure, two_classes: Any, tmp_path: Path) -> Configure:
    def config_of(name: str, **keys: Any) -> Config:
        own = {"run.root": str(tmp_path / name), "run.checkpoint_every": 1, "data.store": str(tmp_path / "store")}
        given = {key.replace("__", "."): value for key, value in keys.items()}
        return configure({**two_classes.keys, **own, "rounds": 5, "evaluation.metrics": "roc_auc", **given})

    return config_of


def printed(show: Check, *arguments: Any) -> list[str]:
    with console.capture() as captured:
        show(*arguments)
    return [line.rstrip() for line in captured.get().splitlines()]


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def test_metric_chooses_the_best_round(config_of: Configure) -> None:
    folder = run(config_of("runs"))
    lines, scopes = read_metrics(folder), read_summary(folder)["scopes"]
    for scope, weighting in (("deployed", "nodes"), ("global", "nodes"), ("domains", "clients")):
        values = [line["scopes"][scope]["val"]["roc_auc"][weighting] for line in lines]
        best = values.index(max(values))
        assert scopes[scope]["best"] == {"round": best + 1, **lines[best]["scopes"][scope]}
    title, head, *rows = [line.split() for line in printed(show_run, folder, True)[: 2 + len(scopes)]]
    assert " ".join(title).endswith("; test ROC-AUC (%)")
    assert " ".join(head) == "model final at best val test node client min median max ranked"
    for row, scope in zip(rows, scopes, strict=True):
        last, best = scopes[scope]["final"]["test"]["roc_auc"], scopes[scope]["best"]
        which = "clients" if scope == "domains" else "nodes"
        rest = [percent(last[key]) for key in ("rows", "clients", "min", "median", "max")]
        at_best = [percent(best["test"]["roc_auc"][which]), f"@{best['round']}"]
        assert row == [scope, percent(last[which]), *at_best, *rest, str(last["ranked"])]
    title, *rounds = printed(show_rounds, folder)
    assert title.endswith("5 rounds logged; validation ROC-AUC in %") or "ROC-AUC" in " ".join([title, *rounds])
    (newest,) = [line.split() for line in rounds if line.strip().startswith("5 ")]
    assert newest[3:5] == [
        percent(lines[-1]["scopes"][scope]["val"]["roc_auc"]["nodes"]) for scope in ("trained", "deployed")
    ]
    figures = figures_of(read_summary(folder))
    for scope in ("trained", "deployed", "global"):
        assert figures[f"{scope}.best.test"] == scopes[scope]["best"]["test"]["roc_auc"]["nodes"]
    assert figures["domains.best.test"] == scopes["domains"]["best"]["test"]["roc_auc"]["clients"]
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    for tag, accuracy in (("roc_auc_val/deployed", False), ("accuracy_val/deployed", True)):
        numbers = [line["scopes"]["deployed"]["val"] for line in lines]
        values = [of["nodes"] if accuracy else of["roc_auc"]["nodes"] for of in numbers]
        assert [event.value for event in events.Scalars(tag)] == pytest.approx(values)


def test_metric_undefined_is_a_dash(config_of: Configure, capsys: pytest.CaptureFixture[str]) -> None:
    """One item of each part at most: no client has two classes in any."""
    split = {"data__split": "per_client", "data__fractions": [0.9, 0.05, 0.05], "evaluation__domains": False}
    folder = run(config_of("runs", rounds=1, **split))
    scopes = read_summary(folder)["scopes"]
    assert scopes["deployed"]["best"] is None
    assert scopes["deployed"]["final"]["test"]["roc_auc"] == {
        **dict.fromkeys(("nodes", "rows", "clients", "min", "median", "max")), "ranked": 0,
    }  # fmt: skip
    assert "deployed val ROC-AUC -" in capsys.readouterr().err
    (row,) = [line.split() for line in printed(show_run, folder, True) if line.startswith("deployed ")]
    assert row == ["deployed", *["-"] * 7, "0"]
    assert [line.split()[3:5] for line in printed(show_rounds, folder) if line.strip().startswith("1 ")] == [["-", "-"]]
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    assert not [tag for tag in events.Tags()["scalars"] if "roc_auc" in tag]


OWN = """
def lack(logits, labels):
    lacking = (logits.argmax(1) != labels).float().mean()
    logits.zero_()
    return None if len(labels) < 6 else -lacking

def right(logits, labels):
    return (logits.argmax(1) == labels).double().mean()

def text(logits, labels):
    return "high"

def nan(logits, labels):
    return logits.sum() * float("nan")

def one(logits):
    return 1.0

def fails(logits, labels):
    return logits[labels.max() + 99]

NUMBER = 3
"""


def test_several_metrics_one_of_the_users_own(config_of: Configure, tmp_path: Path) -> None:
    file = tmp_path / "my.py"
    file.write_text(OWN)
    folder = run(config_of("runs", evaluation__metrics=["f1", f"{file}:lack", f"{file}:right"]))
    file.unlink()
    lines, scopes, clients = read_metrics(folder), read_summary(folder)["scopes"], read_client_scores(folder)
    rows = [row for row in clients.to_pylist() if row["scope"] == "global" and row["part"] == "test"]
    of_last = [row for row in rows if row["round"] == 5]
    expected = [row["correct"] / row["rows"] - 1 if row["rows"] >= 6 else None for row in rows]
    assert [row["lack"] for row in rows] == pytest.approx(expected)
    assert None in expected
    assert [row["right"] for row in rows] == pytest.approx([row["correct"] / row["rows"] for row in rows])
    assert -1.0 < min(value for value in expected if value is not None) < 0.0
    known = [row for row in of_last if row["lack"] is not None]
    last = scopes["global"]["final"]["test"]
    assert last["lack"]["clients"] == pytest.approx(sum(row["lack"] for row in known) / len(known))
    assert (last["lack"]["ranked"], last["macro_f1"]["ranked"]) == (len(known), len(of_last))
    assert last["macro_f1"]["clients"] == pytest.approx(last["f1_clients"])
    # The first of them chooses.
    values = [line["scopes"]["global"]["val"]["macro_f1"]["nodes"] for line in lines]
    assert scopes["global"]["best"]["round"] == values.index(max(values)) + 1
    figures = figures_of(read_summary(folder))
    assert figures["global.best.test"] == scopes["global"]["best"]["test"]["macro_f1"]["nodes"]
    assert score_name("global.best.test", figures) == "test macro-F1 (%) of the global model at best validation"
    titles = [line for line in printed(show_run, folder) if line.endswith("(%)")]
    assert titles[0].endswith("; test macro-F1 (%)")
    assert titles[1:3] == ["test lack (%)", "test right (%)"]
    # What the run keeps of the file is enough for more of it.
    assert run(load_config(folder)) == folder


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("text", "my.py, line 10: text gives a str, expected a finite number, or None where it is not defined"),
        ("nan", "my.py, line 13: nan gives nan, expected a finite number, or None where it is not defined"),
        ("one", "my.py, line 16: one cannot be called as one(logits, labels): too many positional arguments"),
        ("fails", "my.py, line 20: IndexError: "),
        ("NUMBER", "my.py: NUMBER is no function"),
        ("lost", "my.py: has no class or function lost; it has lack, right, text, nan, one, fails"),
    ],
)
def test_a_metric_that_is_none_is_refused(config_of: Configure, tmp_path: Path, name: str, says: str) -> None:
    (tmp_path / "my.py").write_text(OWN)
    with pytest.raises(ShoalError, match=re.escape(says)) as caught:
        run(config_of("runs", evaluation__metrics=["accuracy", f"{tmp_path}/my.py:{name}"]))
    assert ("round 1, client " in caught.value.line) == (name in ("text", "nan", "fails"))


@pytest.mark.parametrize("metric", ["roc_auc", "average_precision"])
def test_rankings_of_several_classes_are_means_over_them(configure: Configure, tmp_path: Path, metric: str) -> None:
    """Each class against the others, where some of a client's items are of it and some are not."""
    folder = run(
        configure({"evaluation.metrics": metric, "rounds": 2, "run.root": str(tmp_path), "run.checkpoint_every": 1})
    )
    table = Run(folder).predictions(probabilities=True)
    of_class = roc_auc_score if metric == "roc_auc" else average_precision_score
    values = []
    for client in sorted(set(table["client"].to_pylist())):
        rows = table.filter((pc.field("client") == client) & (pc.field("part") == "test"))
        label, p_NC = rows["label"].to_numpy(), np.array(rows["global_probability"].to_pylist()).reshape(len(rows), 4)
        of_classes = [
            of_class(label == c, p_NC[:, c]) for c in range(p_NC.shape[1]) if 0 < (label == c).sum() < len(label)
        ]
        values += [np.mean(of_classes)] if of_classes else []
    scores = read_summary(folder)["scopes"]["global"]["final"]["test"][metric]
    assert scores["clients"] == pytest.approx(np.mean(values), abs=1e-6)
    assert scores["ranked"] == len(values)
