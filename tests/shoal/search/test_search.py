"""A search: what it draws, trains, stops and reports, and that a killed one asks for the same trials."""

import json
import re
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import optuna
import pytest
from support.errors import refused
from support.forked import SHOAL, start
from support.needs import needs
from support.small_runs import small_config

from shoal.engine.config.config import load_config
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import finished, read_summary
from shoal.engine.runs.run import run
from shoal.pages.report import report
from shoal.search.search import BATCH, COMPLETE, FAILED, PRUNED, STOPPED, Asked, Search, Trial, steps_of
from shoal.search.search_page import search_sections
from shoal.search.search_space import distribution, read_space
from shoal.storage.files.checksummed_json import unsealed
from shoal.study.study import Study
from shoal.study.sweep_folder import read_rows

ROUNDS = 9
SPACE = ("algorithm.eps=0.1:0.9", "algorithm.lp_steps=1:4", "train.lr=0.001:0.1:log")


def config_in(folder: Path) -> str:
    return small_config(folder, name="searched", rounds=ROUNDS, algorithm={"name": "fedgta"})


@pytest.fixture
def config(tmp_path: Path) -> str:
    return config_in(tmp_path)


@pytest.fixture(scope="module")
def halved(tmp_path_factory: pytest.TempPathFactory) -> Search:
    """A search by successive halving, in two batches of trials."""
    return searched(config_in(tmp_path_factory.mktemp("halved")), trials=9, prune="halving")


def searched(config: str, *axes: str, at_once: int = 1, **options: Any) -> Search:
    search = Search(Study(config, axes), Asked(**{"space": SPACE, "seeds": 1, **options}), at_once)
    search.go()
    return search


def lines_of(search: Search) -> list[tuple[str, int]]:
    return sorted((run.name, len(read_metrics(run))) for run in (row.path for row in search.parts[0].runs.values()))


def best_validation(run: Path, until: int = ROUNDS) -> float:
    lines = read_metrics(run)[:until]
    return max(line["scopes"]["deployed"]["val"]["nodes"] for line in lines)


def test_halving_trials_are_those_of_optuna_and_no_round_is_trained_twice(config: str) -> None:
    search = searched(config, "seed=0,1", trials=10, prune="halving", seeds=2)
    (part,) = search.parts
    assert part.steps == [1, 3, 9]
    # Optuna alone, in the same order, of what the runs logged.
    of_runs = {tuple(row.columns.items()): row.path for row in part.runs.values()}
    study = optuna.create_study(
        study_name="fedgta", direction="maximize", sampler=optuna.samplers.TPESampler(seed=0),
        pruner=optuna.pruners.SuccessiveHalvingPruner(1, 3),
    )  # fmt: skip
    space = {text.partition("=")[0]: distribution(text) for text in SPACE}
    expected: list[tuple[dict[str, str], int]] = []
    for size in (BATCH, 10 - BATCH):
        batch = [study.ask(space) for _ in range(size)]
        texts = {
            t.number: {k: f"{v:.4g}" if isinstance(v, float) else str(v) for k, v in t.params.items()} for t in batch
        }
        reached, ended = dict.fromkeys(texts, 0), set()
        for step in part.steps:
            scores = {}
            for trial in (each for each in batch if each.number not in ended):
                runs = [of_runs[(*texts[trial.number].items(), ("seed", str(seed)))] for seed in (1000, 1001)]
                scores[trial.number] = fmean(best_validation(run, step) for run in runs)
            for number in sorted(scores, key=lambda number: (-scores[number], number)):
                trial = next(each for each in batch if each.number == number)
                trial.report(scores[number], step)
                reached[number] = step
                if step == ROUNDS:
                    study.tell(number, scores[number])
                    ended.add(number)
                elif trial.should_prune():
                    ended.add(number)
        for trial in batch:
            if reached[trial.number] < ROUNDS:
                study.tell(trial.number, state=optuna.trial.TrialState.PRUNED)
        expected += [(texts[number], reached[number]) for number in texts]
    assert [(trial.values, max(trial.scores)) for trial in part.trials] == expected
    assert {trial.state for trial in part.trials} == {COMPLETE, PRUNED}
    assert part.rounds == 2 * sum(rounds for _, rounds in expected) == sum(rounds for _, rounds in lines_of(search))
    # What is reported has the values of the longest, best trial, and other seeds.
    best = max((t for t in part.trials if t.state == COMPLETE), key=lambda t: t.scores[ROUNDS])
    assert [row.columns for row in search.rows] == [{**best.values, "seed": seed} for seed in ("0", "1")]
    assert {row.state for row in read_rows(search.folder)} == {"finished", "not chosen"}


def test_a_promoted_run_equals_one_that_never_paused(halved: Search, tmp_path: Path) -> None:
    row = next(row for row in halved.parts[0].runs.values() if finished(row.path))
    overrides = [f"{key}={value}" for key, value in row.columns.items()]
    whole = run(load_config(halved.study.config, [*overrides, f"run.root={tmp_path / 'others'}"]))
    assert read_summary(whole)["scopes"] == read_summary(row.path)["scopes"]
    state = Path("checkpoints", f"round-{ROUNDS:06}", "state.safetensors")
    assert (whole / state).read_bytes() == (row.path / state).read_bytes()


def test_a_killed_search_asks_for_the_same_trials(config: str, tmp_path: Path, halved: Search) -> None:
    words = ["sweep", config, "--no-report", *Asked(SPACE, 9, prune="halving", seeds=1).words]
    process = start(SHOAL, *words, printed=tmp_path / "printed")
    while process.is_alive() and len(list((tmp_path / "runs").glob("searched-*/metrics.jsonl"))) < 6:
        time.sleep(0.01)
    process.kill()
    process.join()
    killed = searched(config, trials=9, prune="halving")
    assert killed.parts[0].plain() == halved.parts[0].plain()
    assert lines_of(killed) == lines_of(halved)


@pytest.mark.slow
@pytest.mark.parametrize(("axes", "options"), [(["rounds=1"], {"trials": 2}), ([], {"trials": 4, "prune": "halving"})])
def test_several_at_once_are_the_same_trials(
    config: str, tmp_path: Path, axes: list[str], options: dict[str, Any]
) -> None:
    one = searched(config, *axes, **options)
    two = searched(config_in(tmp_path / "again"), *axes, at_once=2, **options)
    assert two.parts[0].plain() == one.parts[0].plain()


def test_a_budget_ends_the_search_and_more_of_it_goes_on(config: str) -> None:
    first = searched(config, "rounds=3", trials=10, budget=10)
    assert [trial.state for trial in first.parts[0].trials] == [COMPLETE] * 3 + [STOPPED] * 5
    assert first.parts[0].rounds == 9
    more = searched(config, "rounds=3", trials=10, budget=30)
    assert more.folder == first.folder
    assert [trial.state for trial in more.parts[0].trials] == [COMPLETE] * 10
    assert more.parts[0].trials[:3] == first.parts[0].trials[:3]


def test_methods_have_the_same_budget_and_keys_of_their_own(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    search = searched(config, "algorithm=fedavg,fedgta", "rounds=1", trials=3)
    assert [(part.label, list(part.space), len(part.trials)) for part in search.parts] == [
        ("fedavg", ["train.lr"], 3), ("fedgta", [text.partition("=")[0] for text in SPACE], 3),
    ]  # fmt: skip
    assert "fedavg: not searched over algorithm.eps" in capsys.readouterr().err
    assert [row.columns["algorithm"] for row in search.rows] == ["fedavg", "fedgta"]


def test_a_grid_visits_every_point_once(config: str) -> None:
    space = ("algorithm.lp_steps=1,2,3", "train.lr=0.1,0.01")
    search = searched(config, "rounds=1", space=space, sampler="grid", trials=64)
    points = sorted(tuple(trial.values.values()) for trial in search.parts[0].trials)
    assert points == sorted((str(steps), lr) for steps in (1, 2, 3) for lr in ("0.1", "0.01"))


@needs("hostile")
def test_kinds_and_their_options_are_one_space(config: str) -> None:
    """Where a drawn kind has no use for a drawn option, the trial does without it."""
    space = ("attack.share=0.3,0.6", "attack=none,sign_flip")
    search = searched(config, "rounds=1", "algorithm=fedavg", space=space, sampler="grid")
    (part,) = search.parts
    assert list(part.space) == ["attack.share", "attack"]
    assert [trial.state for trial in part.trials] == [COMPLETE] * 4
    kinds = {trial.values["attack"] for trial in part.trials}
    runs = [load_config(row.path).attack for row in part.runs.values()]
    assert kinds == {"none", "sign_flip"}
    assert {(attack.kind, attack.share) for attack in runs} == {("none", 0.2), ("sign_flip", 0.3), ("sign_flip", 0.6)}
    with refused("command line", "attack.share", says="is for attack.kind"):
        Search(Study(config, ()), Asked(("attack.share=0.3,0.6", "attack=none")))


def test_a_failed_trial_is_told_and_the_others_go_on(config: str) -> None:
    # A rate at which the weights overflow.
    search = searched(config, space=("train.lr=0.01,1e30",), sampler="grid")
    states = {trial.values["train.lr"]: trial.state for trial in search.parts[0].trials}
    assert states == {"0.01": COMPLETE, "1e30": FAILED}
    assert [row.columns["train.lr"] for row in search.rows] == ["0.01"]


@pytest.mark.parametrize(("sampler", "prune"), [("cma", "hyperband"), ("random", "none")])
def test_every_sampler_and_pruner_ends(config: str, sampler: str, prune: str) -> None:
    search = searched(config, "rounds=3", space=SPACE[:1], trials=3, sampler=sampler, prune=prune)
    assert len(search.parts[0].trials) == 3
    assert search.rows[0].state == "finished"


def test_the_page_has_importance_coordinates_and_the_best(config: str) -> None:
    search = searched(config, "rounds=3", trials=9)
    page = report([search.folder], None, kinds=("svg",)).read_text()
    assert all(title in page for title in ("Best validation so far", "Importance of keys", "Trials, FedGTA"))
    # What was searched comes before the scores of the winner.
    headings = re.findall(r"<h2>([^<]*)", page)
    assert headings[:2] == ["Search", "Results"]
    assert "--space=algorithm.eps=0.1:0.9" in page
    plain = unsealed((search.folder / "search.json").read_bytes())
    (found,) = plain["searches"]
    best = max(found["trials"], key=lambda trial: trial["scores"]["3"])
    assert found["chosen"] == best["number"]
    assert found["progress"][-1] == [27, best["scores"]["3"]]
    assert sum(found["importance"].values()) == pytest.approx(1)
    (search.folder / "search.json").write_text(json.dumps(plain))
    with refused(search.folder / "search.json"):
        search_sections(search.folder)


def test_steps_are_evaluated_rounds() -> None:
    assert steps_of("halving", 100, 2) == [12, 36, 100]
    assert steps_of("none", 100, 2) == [100]
    assert steps_of("median", 20, 5) == [5, 10, 15, 20]
    assert steps_of("hyperband", 1, 1) == [1]


def test_the_longest_trial_is_the_best() -> None:
    short, long = Trial(0, {}, {3: 0.9}), Trial(1, {}, {3: 0.5, 9: 0.6})
    assert max([short, long], key=lambda trial: trial.rank) == long


def test_a_space_of_files_and_words(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text("train.lr: 0.001:0.1:log\nalgorithm.rows: [raw, softmax]\n")
    texts = read_space([str(file), "algorithm.lp_steps=1:8"])
    found = [distribution(text) for text in texts]
    assert found == [
        optuna.distributions.FloatDistribution(0.001, 0.1, log=True),
        optuna.distributions.CategoricalDistribution(("raw", "softmax")),
        optuna.distributions.IntDistribution(1, 8),
    ]


@pytest.mark.parametrize("text", ["train.lr", "=1:2", "train.lr=", "train.lr=1:2:3", "train.lr=a:b", "train.lr=2:1"])
def test_wrong_spaces_are_refused(text: str) -> None:
    with refused("--space", text):
        distribution(text)


def test_wrong_requests_are_refused(config: str, tmp_path: Path) -> None:
    with refused("--space"):
        read_space([])
    with refused("--space", "train.lr"):
        read_space(["train.lr=1:2", "train.lr=3:4"])
    with refused(tmp_path / "none.yaml"):
        read_space([str(tmp_path / "none.yaml")])
    with refused("--rounds-budget"):
        Search(Study(config, ()), Asked(SPACE, budget=17))
    with refused("seed"):
        Search(Study(config, ("seed=0,1000",)), Asked(SPACE))
    with refused("--space", "train.lr"):
        searched(config, space=("train.lr=0.1:0.2",), sampler="grid")
    with refused("train.lrr"):
        Search(Study(config, ()), Asked(("train.lrr=0.1:0.2",)))
