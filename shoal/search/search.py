"""A search: Optuna draws options, trials train up to rungs and pause there, and validation chooses what is reported.

Trials are asked for in batches of `BATCH`. Those of a batch train up to a rung, all of them before the first is judged,
and the best is judged first. What goes on resumes from its checkpoint, so no round is trained twice. All of it is a
function of config, space and seeds: the same command asks for the same trials again, and finds their rounds in the
folders of their runs, whatever ended it and however many runs are at work at a time.
"""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean
from typing import Any, get_args

from shoal.engine.config.config import load_config, sections
from shoal.engine.config.run_identity import fingerprint_of
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.summary import FIRST_SCOPE, SOME
from shoal.engine.runs.plan import RunPlan
from shoal.engine.screen.progress import say
from shoal.search.search_space import distribution, ends_of, read_space, texts_of
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.storage.files.checksummed_json import sealed
from shoal.storage.options.types import one_of
from shoal.study.figure_data import score_in
from shoal.study.groups import Row, varied_in
from shoal.study.main_score import GLOBAL, MAIN
from shoal.study.study import Scope, Selected, Selection, Study, is_seed
from shoal.study.sweep_folder import SEARCH, SWEEPS, lock_study, root_of, row_of
from shoal.sweeps.searching import Pruner, Sampler, SearchOptions
from shoal.sweeps.sweep import Hosts, Sweep
from shoal.sweeps.sweep_view import FAILED, NOT_CHOSEN
from shoal.tables.text_table import TextTable

# So many trials are asked for before the first of them is judged.
BATCH = 8
# A pruner lets a third go on from a ninth and from a third of the rounds.
FACTOR, RUNGS = 3, 2
# Seeds that choose begin here, far from those that report.
FIRST_SEED = 1000
RUNNING, COMPLETE, PRUNED, STOPPED = "running", "complete", "pruned", "out of budget"


@dataclass(frozen=True)
class Asked:
    """The options of a search; each combination of the axes has at most so many trials, and rounds over all seeds."""

    space: tuple[str, ...]
    trials: int = SearchOptions.trials
    budget: int | None = None
    sampler: str = SearchOptions.sampler
    prune: str = SearchOptions.prune
    seeds: int = 2
    by: Scope = "main"

    @property
    def words(self) -> tuple[str, ...]:
        """The options of the command line."""
        words = ["--search=optuna", *(f"--space={text}" for text in self.space), f"--trials={self.trials}"]
        words += [] if self.budget is None else [f"--rounds-budget={self.budget}"]
        words += [f"--sampler={self.sampler}", f"--prune={self.prune}", f"--choose-seeds={self.seeds}"]
        return (*words, f"--choose-by={self.by}")


@dataclass
class Trial:
    """One draw: values by key; the mean validation over seeds at each rung, a share of 1, and how it ended."""

    number: int
    values: dict[str, str]
    scores: dict[int, float] = field(default_factory=dict)
    state: str = RUNNING
    error: str = ""

    @property
    def rank(self) -> tuple[int, float, int]:
        """A rank that is larger for more rounds, then for a higher score there, then for an earlier trial."""
        return max(self.scores, default=0), [-math.inf, *self.scores.values()][-1], -self.number


def steps_of(prune: str, rounds: int, every: int) -> list[int]:
    """Returns the rounds at which trials pause and are judged, all evaluated; the last is the config's."""
    rungs = [_least(rounds) * FACTOR**rung for rung in range(RUNGS)]
    tenths = [math.ceil(rounds * tenth / 10) for tenth in range(1, 10)]
    steps = {"none": [], "median": tenths}.get(prune, rungs)
    return sorted({min(rounds, -(-step // every) * every) for step in steps} | {rounds})


def _least(rounds: int) -> int:
    return math.ceil(rounds / FACTOR**RUNGS)


class Search:
    """The searches of a study, one for each combination of its axes, all with the same budget."""

    def __init__(self, study: Study, asked: Asked, at_once: int = 1) -> None:
        """Checks space and budget; starts and writes nothing."""
        self.study, self.asked, self.at_once = replace(study, search=asked.words), asked, at_once
        self.command = self.study.command + (f" --at-once {at_once}" if at_once > 1 else "")
        self.config = study.configs[0]
        # With more trials or rounds the same search goes on.
        named = {"axes": study.axes, **asdict(replace(asked, trials=0, budget=None))}
        self.folder = root_of(self.config) / SWEEPS / f"{self.config.name}-search-{fingerprint_of(named)}"
        seeds = [{key: value for key, value in chosen.columns.items() if is_seed(key)} for chosen in study.choices]
        self.seeds = list({repr(chosen): chosen for chosen in seeds}.values())
        fresh = [str(FIRST_SEED + number) for number in range(asked.seeds)]
        if taken := {seed for chosen in self.seeds for seed in chosen.values()} & set(fresh):
            raise ShoalError("seed", f"{min(taken)} is one of those that choose; report on others")
        self.own_seeds = [dict.fromkeys(self.seeds[0] or ("seed",), seed) for seed in fresh]
        bases = {}
        for choice in study.choices:
            texts = [text for text in choice.overrides if not is_seed(text.partition("=")[0])]
            columns = {key: value for key, value in choice.columns.items() if not is_seed(key)}
            bases[repr(columns)] = Selection(columns, tuple(texts))
        self.names = tuple(text.partition("=")[0] for text in asked.space)
        self.varied = varied_in(list(bases.values()))
        self.parts = [_Part(self, base) for base in bases.values()]
        self.rows: list[Row] = []

    def sweep_of(self, selections: Sequence[Selection], **options: Any) -> Sweep:
        """Makes the sweep of some runs."""
        study, place = self.study, self.folder
        selected = Selected(
            study.config, study.axes, search=study.search, selections=tuple(selections), place=place, space=self.names
        )
        return Sweep(selected, self.at_once, self.command, **options)

    def go(self) -> bool:
        """Searches, then runs the chosen options with the seeds that report; returns whether all runs finished.

        Raises BusyError: another process is at work on this search, or on a run of a trial, which then is not judged.
        """
        with lock_study(self.folder):
            return self._go()

    def _go(self) -> bool:
        with closing(Hosts()) as hosts:
            for part in self.parts:
                part.go(hosts)
        chosen = [(part.base, part.best.values) for part in self.parts if part.best]
        if not chosen:
            raise ShoalError(
                self.folder / SEARCH, f"every trial failed, the first one so: {self.parts[0].trials[0].error}"
            )
        trials = [row_of(row.columns, row.path, NOT_CHOSEN) for part in self.parts for row in part.runs.values()]
        reported = [_extend(base, {**values, **seeds}) for base, values in chosen for seeds in self.seeds]
        final = self.sweep_of(reported, others=trials)
        try:
            complete = final.go(locked=True)
        finally:
            self.rows = final.rows
        return complete and len(chosen) == len(self.parts)

    def plain(self) -> dict[str, Any]:
        """Returns all trials so far as plain values, which the page reads."""
        return {**asdict(self.asked), "batch": BATCH, "searches": [part.plain() for part in self.parts if part.trials]}

    def write(self) -> None:
        with replacing(self.folder / SEARCH) as unfinished:
            unfinished.write_text(sealed(self.plain(), indent=1))

    def chosen(self) -> TextTable:
        """Makes the table of what it chose so far."""
        from shoal.search.search_page import chosen_table

        return chosen_table(self.plain())

    def lines(self) -> list[str]:
        """Returns lines that say what the search would do."""
        seeds, budget = self.asked.seeds, self.asked.budget or math.inf
        return [
            f"{part.label}: {self.asked.trials} trials over {', '.join(part.space)}, {seeds} seeds, to round "
            f"{', '.join(map(str, part.steps))}; at most "
            f"{min(budget, self.asked.trials * seeds * part.config.rounds):,} rounds; then {len(self.seeds)} runs"
            for part in self.parts
        ]


def make_search(study: Study, options: SearchOptions, at_once: int) -> Search:
    """Makes a search. Raises ShoalError: the sampler or the pruner is unknown, or as `read_space`, or as `Search`."""
    sampler = one_of("--sampler", options.sampler, *get_args(Sampler))
    pruner = one_of("--prune", options.prune, *get_args(Pruner))
    space = read_space(options.space)
    asked = Asked(space, options.trials, options.budget, sampler, pruner, study.choose_seeds, study.choose_by)
    return Search(study, asked, at_once)


def _extend(base: Selection, values: dict[str, str]) -> Selection:
    return Selection({**base.columns, **values}, (*base.overrides, *(f"{key}={v}" for key, v in values.items())))


class _Part:
    """The search of one combination of the axes.

    Attributes:
        runs: Rows of the runs of trials, by folder.
        progress: Rounds so far, and the best score of all trials, at every rung.
    """

    def __init__(self, of: Search, base: Selection) -> None:
        self.of, self.base, self.asked = of, base, of.asked
        self.label = (
            ", ".join(base.columns[key] for key in of.varied if key in base.columns) or of.config.algorithm.name
        )
        self.space = self._space()
        self.config = config = load_config(of.study.config, base.overrides)
        of_server = RunPlan.of(config).one_model == SOME
        self.by = self.asked.by if self.asked.by != MAIN else GLOBAL if of_server else FIRST_SCOPE
        self.steps = steps_of(self.asked.prune, config.rounds, config.evaluation.every)
        self.trials: list[Trial] = []
        self.runs: dict[str, Row] = {}
        self.progress: list[tuple[int, float]] = []
        # Rounds that each seed trained, by the text of a trial's config.
        self._trained: dict[str, int] = {}
        whole, budget = config.rounds * self.asked.seeds, self.asked.budget
        if budget is not None and budget < whole:
            raise ShoalError(
                "--rounds-budget", f"{budget:,}, and one trial has {whole:,} rounds over its seeds; set more"
            )

    def _space(self) -> dict[str, Any]:
        """Returns keys that this combination takes. Raises ShoalError: the only one refuses a value, or all do."""
        space = {text.partition("=")[0]: distribution(text) for text in self.asked.space}
        for key, drawn in list(space.items()):
            try:
                for end in ends_of(drawn):
                    self._require_taken(key, end, space)
            except ShoalError as error:
                del space[key]
                if not space or not self.of.varied:
                    raise
                say(f"{self.label}: not searched over {key}: {error.line}")
        return space

    def _require_taken(self, key: str, value: str, space: Mapping[str, Any]) -> None:
        """Raises ShoalError: a value is refused, also beside values that the space has for its section's other keys."""
        section = key if key in sections() else key.rpartition(".")[0]
        others = [name for name in space if name != key and f"{name}.".startswith(f"{section}.")]
        beside = [(), *[(f"{name}={end}",) for name in others for end in ends_of(space[name])]]
        faults = []
        for more in beside:
            try:
                RunPlan.of(load_config(self.of.study.config, (*self.base.overrides, *more, f"{key}={value}")))
            except ShoalError as error:
                faults.append(error)
            else:
                return
        raise faults[0]

    def _study(self) -> Any:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        samplers, pruners, seed = optuna.samplers, optuna.pruners, self.config.seed
        if self.asked.sampler == "cma":
            # Optuna's own error would not say which package to install.
            import cmaes  # noqa: F401
        sampler = {"tpe": samplers.TPESampler, "cma": samplers.CmaEsSampler}.get(
            self.asked.sampler, samplers.RandomSampler
        )
        least = _least(self.config.rounds)
        pruner = {
            "halving": pruners.SuccessiveHalvingPruner(least, FACTOR),
            "hyperband": pruners.HyperbandPruner(least, max(self.config.rounds, least + 1), FACTOR),
            "median": pruners.MedianPruner(),
        }.get(self.asked.prune, pruners.NopPruner())
        made = optuna.create_study(
            study_name=self.label, sampler=sampler(seed=seed), pruner=pruner, direction="maximize"
        )
        for point in self._points() if self.asked.sampler == "grid" else ():
            made.enqueue_trial(point)
        return made

    def _points(self) -> list[dict[str, Any]]:
        """Returns all points of a grid, in an order that the seed draws. Raises ShoalError: a key has a range."""
        if ranged := next((key for key, drawn in self.space.items() if not hasattr(drawn, "choices")), None):
            raise ShoalError("--space", ranged, "a grid needs values, as key=a,b,c")
        lists = [drawn.choices for drawn in self.space.values()]
        points = [dict(zip(self.space, point)) for point in itertools.product(*lists)]
        random.Random(self.config.seed).shuffle(points)
        return points

    def go(self, hosts: Hosts) -> None:
        """Asks, trains and judges batch by batch, until trials, grid or budget end."""
        from optuna.trial import TrialState

        self.study, over = self._study(), False
        most = min(self.asked.trials, len(self.study.trials) or self.asked.trials)
        while len(self.trials) < most and not over:
            asked = [self.study.ask(self.space) for _ in range(min(BATCH, most - len(self.trials)))]
            batch = [Trial(drawn.number, texts_of(drawn.params)) for drawn in asked]
            self.trials += batch
            for step in self.steps:
                over |= self._train(batch, step, hosts)
                self._judge(asked, batch, step)
            for trial in batch:
                whole = trial.state == COMPLETE
                ended = TrialState.COMPLETE if whole else TrialState.PRUNED if trial.scores else TrialState.FAIL
                self.study.tell(trial.number, trial.rank[1] if whole else None, ended)

    def _train(self, batch: Sequence[Trial], step: int, hosts: Hosts) -> bool:
        """Trains running trials up to a round, the best first; returns whether the budget lacks rounds for one."""
        runs: dict[str, list[Selection]] = {}
        running = [member for member in batch if member.state == RUNNING]
        running.sort(key=lambda member: member.rank, reverse=True)
        for trial in running:
            key = self._run_of(trial)
            would = {**self._trained, key: max(step, self._trained.get(key, 0))}
            if self.asked.budget is not None and self.asked.seeds * sum(would.values()) > self.asked.budget:
                trial.state = STOPPED
                continue
            self._trained = would
            runs[key] = [_extend(self.base, {**trial.values, **seeds}) for seeds in self.of.own_seeds]
        if runs:
            sweep = self.of.sweep_of([member for several in runs.values() for member in several], until=step)
            sweep.train(hosts)
            self.runs |= {row.run: row for row in sweep.rows}
            rows = iter(sweep.rows)
            rows_by_config = {key: [next(rows) for _ in several] for key, several in runs.items()}
            for trial in running:
                if trial.state == RUNNING:
                    self._score(trial, rows_by_config[self._run_of(trial)], step)
        return any(trial.state == STOPPED for trial in running)

    def _run_of(self, trial: Trial) -> str:
        """Returns the config of a trial as a text, the same for trials that differ in an option without effect."""
        overrides, space = _extend(self.base, trial.values).overrides, frozenset(self.of.names)
        return repr(load_config(self.of.study.config, overrides, varied=space))

    def _score(self, trial: Trial, rows: Sequence[Row], step: int) -> None:
        """Notes the mean of the best validation of each seed so far, or the failure of one."""
        if errors := [row.error for row in rows if row.state == FAILED]:
            trial.state, trial.error = FAILED, errors[0]
            return
        read = score_in(self.by, "val")
        of_rows = [[s for line in read_metrics(row.path)[:step] if (s := read(line)) is not None] for row in rows]
        if not all(of_rows):
            raise ShoalError(rows[0].path, f"has no validation of {self.by}; set --choose-by to another scope")
        trial.scores[step] = fmean(map(max, of_rows))

    def _judge(self, asked: Sequence[Any], batch: Sequence[Trial], step: int) -> None:
        """Ends the trials that a pruner stops, which compares each with those before it."""
        drawn = {member.number: member for member in asked}
        running = [trial for trial in batch if trial.state == RUNNING]
        for trial in sorted(running, key=lambda member: member.rank, reverse=True):
            drawn[trial.number].report(trial.scores[step], step)
            if step == self.steps[-1]:
                trial.state = COMPLETE
            elif drawn[trial.number].should_prune():
                trial.state = PRUNED
        if running:
            best = max(trial.rank[1] for trial in self.trials)
            self.progress.append((self.rounds, best))
            self.of.write()
            further = sum(trial.state == RUNNING for trial in batch)
            say(
                f"{self.label}: trials {batch[0].number + 1} to {batch[-1].number + 1}, round {step}: best validation "
                f"{100 * best:.2f} %, {further} go on; {self.rounds:,} rounds so far"
            )

    @property
    def rounds(self) -> int:
        """Rounds of all trials and seeds, each counted once."""
        return self.asked.seeds * sum(self._trained.values())

    @property
    def best(self) -> Trial | None:
        """The trial with the highest validation among those of most rounds."""
        return max((trial for trial in self.trials if trial.scores), key=lambda trial: trial.rank, default=None)

    def importance(self) -> dict[str, float]:
        """Computes the share of each key in how trials differ at the first rung, by PED-ANOVA; none of a single batch.

        Watanabe et al., PED-ANOVA: Efficiently Quantifying Hyperparameter Importance …, IJCAI 2023.
        """
        import optuna

        study, first = optuna.create_study(direction="maximize"), self.steps[0]
        for made, trial in zip(self.study.trials, self.trials):
            if first in trial.scores:
                distributions, score = made.distributions, trial.scores[first]
                study.add_trial(optuna.create_trial(params=made.params, distributions=distributions, value=score))
        return dict(optuna.importance.get_param_importances(study)) if len(study.trials) > BATCH else {}

    def plain(self) -> dict[str, Any]:
        """Returns the search of this combination as plain values, for the page."""
        best = self.best
        return {
            "label": self.label, "keys": list(self.space), "steps": self.steps, "rounds": self.rounds,
            "without": len(self._trained) * self.config.rounds * self.asked.seeds, "progress": self.progress,
            "importance": self.importance(), "chosen": best.number if best else None,
            "trials": [asdict(trial) for trial in self.trials],
        }  # fmt: skip
