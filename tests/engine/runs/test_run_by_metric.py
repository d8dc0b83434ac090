"""A run by another metric than accuracy: its best round, its tables, stopped and resumed; and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.errors import refused
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from shoal.engine.config.config import Config, parse_config
from shoal.engine.preparing.checks import require_known
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.dry_run import show_plan
from shoal.engine.runs.run import run
from shoal.engine.screen.tables import console, show_rounds, show_run
from shoal.engine.studies.means import figures_of

Make = Callable[..., Config]


@pytest.fixture
def config_of(configure: Make, two_classes: Any, tmp_path: Path) -> Make:
    def config_of(name: str, **keys: Any) -> Config:
        own = {"run.root": str(tmp_path / name), "run.checkpoint_every": 1, "data.store": str(tmp_path / "store")}
        given = {key.replace("__", "."): value for key, value in keys.items()}
        return configure({**two_classes.keys, **own, "rounds": 5, "evaluation.metric": "roc_auc", **given})

    return config_of


def printed(show: Callable[..., None], *arguments: Any) -> list[str]:
    with console.capture() as captured:
        show(*arguments)
    return [line.rstrip() for line in captured.get().splitlines()]


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def test_metric_chooses_the_best_round(config_of: Make) -> None:
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


def test_metric_undefined_is_a_dash(config_of: Make, capsys: pytest.CaptureFixture[str]) -> None:
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


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        ("digits", "dataset 'digits' has 10"),
        ("ogbn-arxiv", "dataset 'ogbn-arxiv' has 40"),
        ("products-like", "dataset 'products-like' has 47"),
        ("SBM", "dataset 'SBM' has 10"),
        (["twitch-de", "digits"], "dataset 'digits' has 10"),
    ],
)
def test_more_classes_are_refused_before_a_graph_is_made(dataset: str | list[str], says: str) -> None:
    clients = 10 if isinstance(dataset, str) else [1, 1]
    plain = {"name": "a", "data": {"dataset": dataset}, "partition": {"clients": clients}, "algorithm": "fedavg"}
    with refused("evaluation.metric", says=says):
        require_known(parse_config({**plain, "evaluation": {"metric": "roc_auc"}}, "test"))


@pytest.mark.parametrize("look", [prepare, show_plan])
def test_metric_is_refused_of_a_graph_and_its_store(configure: Make, tmp_path: Path, look: Callable[..., Any]) -> None:
    store = {"data.store": str(tmp_path / "store")}
    for _ in range(2):
        with refused("evaluation.metric", says="dataset 'files' has 4"):
            look(configure({**store, "evaluation.metric": "roc_auc"}))
        prepare(configure(store))
