"""The command `shoal unlearn`: tables with intervals, kept results, methods of a user, refusals."""

import csv
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.needs import needs
from support.small_runs import run_small
from support.user_graph import user_graph

from shoal.engine.rounds.server import Server
from shoal.past.fork import fork
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.unlearning.approximations import METHODS
from shoal.unlearning.command import DEFAULT
from shoal.unlearning.scoring import Figures, _area, _margin
from shoal.unlearning.table import Scored, Unlearned, interval
from shoal.unlearning.targets import Asked
from shoal.unlearning.unlearn import unlearn

Printed = Callable[..., str]
MINE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Mine:
    rounds: int = 2

    def unlearn(self, rest):
        return rest.train(rest.model, self.rounds){behind}
"""


def remove(run: Path, methods: str = "none", rounds: int | None = None, **asked: Any) -> Unlearned:
    return unlearn([PastRun(run)], Asked(**asked), methods, rounds)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_small(tmp_path_factory.mktemp("unlearn"), train={"lr": 0.3}, participation={"count": 2})


def test_the_command_shows_every_model_beside_the_exact_one(whole: Path, tmp_path: Path, printed: Printed) -> None:
    assert DEFAULT.split(",") == [*METHODS]
    out = tmp_path / "unlearn.csv"
    said = printed("unlearn", whole, "--client", "all", "--rounds", 1, "--out", out)
    rows = list(csv.DictReader(out.open()))
    trained = {client for line in PastRun(whole).lines for client in line["cohort"]}
    models = ["exact", "original", *METHODS]
    assert [(row["removed"], row["model"]) for row in rows if row["model"] == "exact"] == [
        (name, "exact") for name in dict.fromkeys(row["removed"] for row in rows)
    ]
    assert {row["removed"] for row in rows} == {f"client {client}" for client in trained}
    assert len(rows) == len(trained) * len(models)
    assert f"{len(trained)} removals of 1 runs" in said
    never = 4 - len(trained)
    assert (f"never asked, so that nothing of them is in {whole.name}: {never} clients" in said) == bool(never)
    accuracy = [float(row["rest"]) for row in rows if row["model"] == "fine_tune"]
    exactly = [float(row["rest"]) for row in rows if row["model"] == "exact"]
    mean, half = np.mean(np.subtract(accuracy, exactly)), interval(np.subtract(accuracy, exactly).tolist())
    assert f"{mean:+.1f} ± {half:.1f}" in said
    made = json.loads(printed("unlearn", whole, "--client", "all", "--rounds", 1, "--json"))
    assert [next(map(str, row.values())) for row in made["rows"]] == [row["run"] for row in rows]
    assert len(list((whole / "unlearned").iterdir())) == len(trained)


def test_an_interval_is_that_of_students_t() -> None:
    # Of 1, 2, 3 the deviation is 1, and t of two degrees 4.303.
    assert interval([1.0, 2.0, 3.0]) == pytest.approx(4.3026527 / 3**0.5)


def test_signals_and_the_area_are_those_of_pairs() -> None:
    probability_NC = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]], dtype=torch.float64)
    label_N = torch.tensor([0, 1])
    own_N = probability_NC[[0, 1], label_N]
    torch.testing.assert_close(_margin(probability_NC.log(), label_N), (own_N / (1 - own_N)).log())
    assert _area(np.array([1.0, 2.0]), np.array([1.0, 0.0, 3.0])) == pytest.approx((0.5 + 1 + 2) / 6)


def test_interrupted_it_makes_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, trained, before = run_small(tmp_path, train={"lr": 0.3}), list[int](), Server.round

    def counted(self: Server, *watch: Any) -> dict[str, Any]:
        if len(trained) == stop:
            raise ShoalError("killed")
        line = before(self, *watch)
        trained.append(line["round"])
        return line

    monkeypatch.setattr(Server, "round", counted)
    # Client 0 takes three rounds and one more, client 1 is killed in its second.
    stop = 5
    with pytest.raises(ShoalError, match="killed"):
        remove(whole, "fine_tune", client="0,1")
    stop = 1000
    found = remove(whole, "fine_tune", client="0,1")
    assert len(trained) == 1 + 2 * (3 + 1)
    file, scored = whole / "unlearned.jsonl", found.scored
    kept = file.read_bytes()
    trained.clear()
    assert remove(whole, "fine_tune", client="0,1").scored == scored
    assert trained == []
    # What is torn, or of another machine, is made again; an exact model that is gone, too.
    file.write_bytes(kept[:-20])
    assert remove(whole, "fine_tune", client="0,1").scored == scored
    assert trained == [4]
    next(iter(sorted((whole / "unlearned").iterdir()))).unlink()
    assert remove(whole, "fine_tune", client="0,1").scored == scored
    assert trained[1:] == [1, 2, 3]
    environment = json.loads(kept.splitlines()[0])["environment"]
    file.write_bytes(kept.replace(environment["torch"].encode(), b"0.0.0"))
    trained.clear()
    assert remove(whole, "fine_tune", client="0").scored == scored[:3]
    assert trained == [1, 2, 3, 4]


def test_a_method_of_the_user_is_scored_like_ours(whole: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(MINE.replace("{behind}", ""))
    mine, ours = (remove(whole, methods, 2, client="0").scored[-1] for methods in (f"{file}:Mine", "fine_tune"))
    assert (mine.model, ours.model) == ("Mine", "fine_tune")
    assert mine.figures == ours.figures
    file.write_text(MINE.replace("{behind}", "[:3]"))
    with pytest.raises(ShoalError, match=r"unlearn\(\) gives \[3\], expected parameters"):
        remove(whole, f"{file}:Mine", client="0")
    file.write_text("class Mine: pass")
    with pytest.raises(ShoalError, match="expected a frozen dataclass"):
        remove(whole, f"{file}:Mine", client="0")


def test_nodes_are_named_drawn_or_in_a_file_and_runs_are_joined(tmp_path: Path) -> None:
    runs = [run_small(tmp_path, name=f"seed-{seed}", seed=seed) for seed in (0, 1)]
    found = unlearn([PastRun(run) for run in runs], Asked(nodes="5%", repeat=2), "none")
    assert len({(each.run, each.removed) for each in found.scored}) == 4
    assert found.trainings == 4
    assert "4 removals of 2 runs" in found.table().text()
    past = PastRun(runs[0])
    node = past.store.shard(0).node[past.store.split(past.config.data.split_name, 0).train][:2].tolist()
    (tmp_path / "nodes.txt").write_text("\n".join(map(str, node)))
    named, of_file = (remove(runs[0], nodes=text) for text in (",".join(map(str, node)), str(tmp_path / "nodes.txt")))
    assert named.scored == of_file.scored
    assert named.scored[0].figures.forgotten is not None
    # Ascent has nothing to climb on where edges go.
    first, second = past.store.shard(0).node[[0, past.store.shard(0).indices[0]]].tolist()
    without = remove(runs[0], "gradient_ascent", edges=f"{first}-{second}")
    assert [each.model for each in without.scored] == ["exact", "original"]
    assert "edge" in without.notes[0]


def test_ids_of_the_user_name_nodes(tmp_path: Path) -> None:
    path = user_graph(tmp_path, 48, "graph", assignment=np.arange(48) % 3, ids=np.array([f"n{i}" for i in range(48)]))
    data = {"dataset": "files", "path": path, "options": {}}
    whole = run_small(tmp_path, data=data, partition={"method": "file", "clients": 3})
    assert remove(whole, nodes="n4,n7").scored[0].removed == "2 nodes from n4"
    with refused("--nodes", says="no node is called 4"):
        remove(whole, nodes="4")


def test_a_missing_number_is_left_out() -> None:
    figures = dict.fromkeys((each.name for each in fields(Figures)), 1.0)
    one, none = Figures(**figures), Figures(**{**figures, "membership": None})  # type: ignore[arg-type]
    scored = [Scored("run", "client 0", 1, name, 3, 9, each) for name, each in (("exact", one), ("original", none))]
    assert Unlearned(scored, 1.0).table().rows[1][6] == "-"


def test_what_cannot_be_removed_is_refused(whole: Path, tmp_path: Path) -> None:
    few = run_small(tmp_path, rounds=1, participation={"count": 2})
    (absent, *_), (asked, *_) = ([i for i in range(4) if (i in PastRun(few).lines[0]["cohort"]) == b] for b in (0, 1))
    lost: list[tuple[str, dict[str, Any]]] = [
        ("--client", {"client": "9"}),
        ("--class", {"label": "9"}),
        ("--nodes", {"nodes": "4000"}),
        ("--edges", {"edges": "0-4000"}),
    ]
    for option, words in lost:
        with refused(few, option):
            remove(few, **words)
    with refused(few, "--client", says="was never asked"):
        remove(few, client=str(absent))
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("--client", {"client": "x"}),
        ("--nodes", {"nodes": "0%"}),
        ("--edges", {"edges": "4"}),
        ("--repeat", {"client": str(asked), "repeat": 2}),
    ]
    for option, words in wrong:
        with refused(option):
            remove(few, **words)
    for words in ({}, {"client": "0", "label": "1"}):
        with refused("shoal unlearn"):
            remove(few, **words)
    with refused("--methods", says="fine_tune"):
        remove(few, "fine_tun", client=str(asked))
    for keys, places in (
        ({"algorithm": {"name": "local"}}, ("algorithm.name",)),
        ({"algorithm": {"name": "global"}}, ("algorithm.name",)),
        ({"participation": {"count": 1}}, ("--client",)),
    ):
        other = run_small(tmp_path, rounds=1, name="other", **keys)
        client = str(PastRun(other).lines[0]["cohort"][0])
        with refused(other, *places):
            remove(other, client=client)
    inductive = run_small(tmp_path, rounds=1, name="inductive", data={"inductive": True})
    assert remove(inductive, "gradient_ascent", client="0").scored
    with refused(inductive, "data.inductive"):
        remove(inductive, label="0")
    forked = fork(run_small(tmp_path, name="parent"), 2, [])
    with refused(forked, says="is a fork"):
        remove(forked, client="0")
    (few / "summary.json").unlink()
    with refused(few, says="not finished"):
        remove(few, client=str(asked))


@needs("privacy")
def test_privacy_of_clients_is_refused(tmp_path: Path) -> None:
    private = run_small(tmp_path, privacy={"unit": "client", "clip": 1.0, "noise": 0.1})
    with refused(private, "privacy.unit"):
        remove(private, client="0")


@needs("asynchronous")
def test_who_is_asked_by_time_is_refused(tmp_path: Path) -> None:
    timed = run_small(tmp_path, schedule={"name": "fedbuff", "buffer": 2, "concurrency": 3})
    with refused(timed, "schedule"):
        remove(timed, client="0")
