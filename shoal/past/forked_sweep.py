"""A sweep of any kind; one with first rounds that are trained once: its combinations are forks of one run a seed."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from shoal.engine.config.config import Config
from shoal.engine.config.run_identity import changes_numbers
from shoal.engine.records.run_folder import finished, started
from shoal.engine.screen.progress import say
from shoal.engine.sections.section import load
from shoal.past.fork import begin, may_change, require_changeable, require_same_state
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import one_of
from shoal.study.study import Selected, Selection, Study
from shoal.study.sweep_folder import root_of
from shoal.sweeps.searching import NOTHING_ASKED, Searching, SearchOptions, list_searches
from shoal.sweeps.sweep import Hosts, Sweep
from shoal.sweeps.sweep_view import FAILED, SweepView


def sweep_of(
    study: Study,
    at_once: int = 1,
    search: str | None = None,
    options: SearchOptions = NOTHING_ASKED,
) -> Sweep | Searching:
    """Makes the sweep that the options of `shoal sweep` ask for: a grid, forks of shared rounds, or a search.

    Raises ShoalError: an option has a wrong value, or does not go with another one; or as the sweep.
    """
    numbers = {"--at-once": at_once, "--fork-at": study.fork_at, "--trials": options.trials}
    numbers |= {"--rounds-budget": options.budget, "--choose-seeds": study.choose_seeds}
    for option, number in numbers.items():
        if number is not None and number < 1:
            raise ShoalError(option, f"must be 1 or more, found {number}")
    if search is None:
        if replace(options, space=tuple(options.space)) != NOTHING_ASKED:
            raise ShoalError("--search", "its options are given without it; add --search optuna")
        return Sweep(study, at_once) if study.fork_at is None else ForkedSweep(study, study.fork_at, at_once)
    if not (searches := list_searches()):
        raise ShoalError("--search", f"this Shoal has no search, found {search!r}; leave it out")
    one_of("--search", search, *searches)
    if study.fork_at is not None:
        raise ShoalError("--fork-at", "is for a sweep of axes alone, without --search and --forecast")
    if study.choose is not None:
        raise ShoalError("--choose", f"the search chooses; put {study.choose} into --space")
    made: Searching = load(searches[search])(study, options, at_once)
    return made


class ForkedSweep(Sweep):
    """A sweep of forks after round `at` of their bases.

    A base is the run of the config with those keys of a combination that no fork can change, its seed for one. It
    pauses after round `at`; one that went further serves as well.
    """

    def __init__(self, study: Study, at: int, at_once: int = 1) -> None:
        """Makes the bases and their forks; the other arguments are those of `Sweep`.

        Raises ShoalError: a run has no rounds after `at`, or differs in a key that a fork cannot change; or as `Sweep`.
        """
        self._at, config = at, study.configs[0]
        place, bases, base_of = study.folder(root_of(config), config.name), list[Selection](), list[int]()
        for choice, config in zip(study.choices, study.configs):
            base = _base(choice, config)
            bases += [base] * (base not in bases)
            base_of.append(bases.index(base))
        chosen = (study.choose, study.choose_seeds, study.choose_by)
        study_of = partial(Selected, study.config, study.axes, *chosen, fork_at=at, place=place)
        first, forks = Sweep(study_of(selections=tuple(bases)), at_once, until=at), []
        for choice, config, number in zip(study.choices, study.configs, base_of):
            base_plan = first.plans[number]
            if (fewest := min(config.rounds, base_plan.config.rounds)) <= at:
                raise ShoalError("--fork-at", f"{at}, and a run has {fewest} rounds; take fewer, or set rounds higher")
            require_changeable(base_plan.config, config)
            # `shoal fork` gives a fork the same name by default.
            forks.append(Selection(choice.columns, (*choice.overrides, f"name={base_plan.folder.name}-at-{at}")))
        super().__init__(study_of(selections=tuple(forks)), at_once)
        self._first, self._base_of = first, base_of
        self.shares = [1 - at / plan.config.rounds for plan in self.plans]
        needed, view = {base_of[place] for place in self._new()}, SweepView(first.rows, len(bases))
        self.before = [
            (", ".join(filter(None, (f"rounds 1 to {at}", view.label(number)))), plan, at / plan.config.rounds)
            for number, plan in enumerate(first.plans)
            if number in needed and not first._done(number)
        ]

    def _new(self) -> list[int]:
        """Returns the places of combinations that have not begun."""
        return [place for place, plan in enumerate(self.plans) if not (started(plan.folder) or finished(plan.folder))]

    def _require_set_up(self) -> None:
        """Prepares as a sweep does, and refuses a method that keeps another state than that of the shared rounds."""
        super()._require_set_up()
        for place in self._new():
            base, plan = self._first.plans[self._base_of[place]], self.plans[place]
            if plan.config.algorithm != base.config.algorithm:
                try:
                    require_same_state(plan, base, base.prepare())
                except ShoalError as error:
                    raise ShoalError(self.rows[place].label, error.line, detail=error.detail) from error

    def _all_of(self, places: Sequence[int], hosts: Hosts) -> None:
        """Trains the shared rounds of runs that have not begun, makes these forks, and goes on with all."""
        new = [place for place in self._new() if place in places]
        if bases := list(dict.fromkeys(self._base_of[place] for place in new)):
            say(f"shared rounds 1 to {self._at}: parents {len(bases)}, forks {len(new)}")
            self._first.train(hosts, bases)
        past = cache(PastRun)
        for place in new:
            base = self._first.rows[self._base_of[place]]
            if base.state == FAILED:
                self._note_failure(place, base.error)
            if base.state == FAILED or not self._try(place, partial(self._fork, past, base.path, place)):
                self._end(place)
        ready = [place for place in places if self.rows[place].state != FAILED and place not in self._busy]
        super()._all_of(ready, hosts)

    def _fork(self, past: Callable[[Path], PastRun], base: Path, place: int) -> None:
        begin(past(base), self.plans[place], self._at)


def _base(choice: Selection, config: Config) -> Selection:
    """Returns a combination without the keys that a fork can change; keys of places and hosts stay."""

    def belongs_to_base(key: str) -> bool:
        return key != "name" and not (changes_numbers(key) and may_change(key, config))

    columns = {key: value for key, value in choice.columns.items() if belongs_to_base(key)}
    return Selection(columns, tuple(text for text in choice.overrides if belongs_to_base(text.partition("=")[0])))
