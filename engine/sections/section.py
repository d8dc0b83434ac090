"""A section of a config that belongs to a feature, and all that the feature declares of itself."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Generic, NamedTuple, TypeVar

from shoal.engine.sections.rules import Rule

OptionsT = TypeVar("OptionsT")


class Metric(NamedTuple):
    """A metric that a feature adds.

    Attributes:
        name, title: In a config, and in tables.
        in_units: It is in units of the data, and less is better, so that it chooses no rounds; others are shares.
        of_parts: It is 1 minus a part of a whole, which are what is kept of scores; its means over clients are those of
            weighted sums of parts and of wholes, since one client with a small whole would outweigh all others.
        signed: It is one number, which may be negative, kept as a user's metric is (`kept_of_own`), and none a column.
    """

    name: str
    title: str
    in_units: bool = False
    of_parts: bool = False
    signed: bool = False


@dataclass(frozen=True)
class StoreChange:
    """A change of what a store holds of its clients.

    Attributes:
        identify: What of the options changes shards, in the identity of a store, `(config) -> mapping`.
        make: Makes what changes shards and splits, named `module:function`, `(config, clients, classes, graph,
            client_of) -> Alteration`; see `shoal.engine.preparing.alteration`.
        describe: Rows of `shoal inspect STORE`, `(identity) -> mapping` by subject.
        fills: Whether no feature stays zero, so that `data.layout: auto` is dense.
    """

    identify: Callable[[Any], Mapping[str, Any]]
    make: str
    describe: Callable[[Mapping[str, Any]], Mapping[str, str]]
    fills: Callable[[Any], bool] = lambda config: False


@dataclass(frozen=True)
class Section(Generic[OptionsT]):
    """A feature as the engine knows it; functions are named `module:function`, and imported where the feature is on.

    Attributes:
        name: Key of the section in a config.
        options: Class of its options, a pydantic dataclass whose defaults leave the feature off; None: there is none.
        switch: The option that turns it on; empty: the section is one value.
        off: That option, or that value, without the feature.
        on: Whether a config turns it on, where no single option does.
        rules: When keys of the section have an effect.
        stages: What makes its stages of uploads, `(job, plan) -> list[Stage]`, each with its rank among all: lower
            ones act first on hosts. Ranks are part of the numbers.
        own: The option that may name a function of the user's; empty: none may.
        on_hosts: Options as hosts need them, `(config) -> options`, None where nothing happens to uploads; empty: the
            options of the config.
        checks: Refuses a run of several clients before data is read, `(config, cohort) -> None`, with the size of a
            cohort.
        checks_method: The same, of a method, `(config, algorithm) -> None`.
        checks_data: The same, of a dataset by its name and number of classes, `(config, name, classes) -> None`.
        checks_sizes: The same, of the numbers of nodes of all clients, `(config, nodes) -> None`.
        clipped_rows: Clip and noise of training rows, `(config, store) -> (clip, noise) | None`.
        says: What is done to a run, in its head, its last lines and a dry run: texts by subject, `(config, parameters,
            rounds) -> mapping`, with the number of parameters of each model, and after so many rounds.
        warns: Subjects of these that a run of a study prints, too, before it starts.
        more: The command that shows more of a finished run, with `{run}` for its folder; empty: `shoal explain` of the
            keys.
        metrics: Names of what its stages score clients by, beside the metrics of the run.
        scores: Whether they do with these options.
        of_all_rounds: Why numbers of a round depend on how many rounds there are; empty: they do not.
        skipped: Why the round of a line was skipped, `(line) -> str`; empty: it was not.
        epsilon: Epsilon of a run after some of its rounds, `(config, rounds) -> float`; empty: it bounds nothing.
        bound: A sentence that says what epsilon is of, `(config, rounds) -> str`.
        copies: Copies of the model that a client keeps between rounds, and that the server holds in a round, for the
            estimate of memory.
        absent: Clients that never take part in a round, `(config) -> tuple[int, ...]`, ascending.
        evaluates: Makes what every evaluation does beside that of its clients, `(options, absent) ->
            FurtherEvaluation`, from options as hosts have them; see `shoal.engine.rounds.server`.
        scopes: Scopes of these scores; they hold all their clients, in evaluations of a sample, too.
        adds: Options that the feature adds to sections of the engine, by their name.
        value: Type, with a description, of a section that is one value; without it and `options` the section is one of
            the engine's.
        called: Name of the feature; empty: that of the section.
        online: Who is online in which round, `(config, absent) -> bool [rounds, clients] | None`, None for all.
        selects: How clients of a round are chosen among so many, `(config, clients) -> MakeSelection`; see
            `shoal.engine.schedules.participation`.
        attends: Which of them take part to the end, `(config) -> MakeAttendance | None`; see there.
        schedules: Names of schedules, which `make_schedule` makes, `(config, participation) -> Chosen`; see
            `shoal.engine.schedules.schedules`.
        takes_part: Who takes part, in the head of a run, `(config) -> text`: with a schedule of its own all of it, or
            else words behind the number of clients.
        files: Files of the user's that keys name, `(config) -> mapping` by key.
        kernel: How hops are computed, `(config) -> PropagationOptions`, where it is not by `propagation` alone.
        crossing: Module of the steps of hops over edges between clients: `make_boundaries`, `make_hops`,
            `scratch_bytes`, `exchange_bytes` and `class_pairs`.
        facts: What the head of a page has of a summary, `(summary) -> mapping` by subject.
        measures: Metrics by which models may be evaluated instead of those of classes.
        make_measure: What keeps such a metric, `(name) -> Measure`: the bits of a float64 a column, NaN where there is
            none, or of a part and a whole (`join_parts`); the metric is the mean of columns. See
            `shoal.engine.scores.counts`.
        usual_metrics: Metrics of a config that names none, `(values) -> names | None`, None for those of classes.
        store_change: What it changes of a store; None: nothing.
    """

    name: str
    options: type[OptionsT] | None
    switch: str
    off: Any
    on: Callable[[Any], bool] | None = None
    rules: tuple[Rule, ...] = ()
    stages: tuple[tuple[int, str], ...] = ()
    own: str = ""
    on_hosts: str = ""
    checks: str = ""
    checks_method: str = ""
    checks_data: str = ""
    checks_sizes: str = ""
    clipped_rows: str = ""
    says: str = ""
    warns: tuple[str, ...] = ()
    more: str = ""
    metrics: tuple[str, ...] = ()
    scores: Callable[[OptionsT], bool] = lambda options: False
    of_all_rounds: Callable[[OptionsT], str] = lambda options: ""
    skipped: str = ""
    epsilon: str = ""
    bound: str = ""
    copies: Callable[[OptionsT], tuple[int, int]] = lambda options: (0, 0)
    absent: str = ""
    evaluates: str = ""
    scopes: tuple[str, ...] = ()
    adds: Mapping[str, type] = field(default_factory=dict)
    value: Any = None
    called: str = ""
    online: str = ""
    selects: str = ""
    attends: str = ""
    schedules: tuple[str, ...] = ()
    make_schedule: str = ""
    takes_part: Callable[[Any], str] = lambda config: ""
    files: Callable[[Any], Mapping[str, str]] = lambda config: {}
    kernel: Callable[[Any], Any] | None = None
    crossing: str = ""
    facts: str = ""
    measures: tuple[Metric, ...] = ()
    make_measure: str = ""
    usual_metrics: Callable[[Mapping[str, Any]], tuple[str, ...] | None] = lambda values: None
    store_change: StoreChange | None = None

    def as_field(self) -> dict[str, Any]:
        """Returns the field of a config by its name: type and default; none where the section is the engine's."""
        if self.options is not None:
            return {self.name: (self.options, self.options())}
        return {} if self.value is None else {self.name: (self.value, self.off)}

    @property
    def feature(self) -> str:
        """Returns the name of the feature."""
        return self.called or self.name

    def of(self, config: Any) -> OptionsT:
        """Returns the options of a config."""
        options: OptionsT = getattr(config, self.name)
        return options

    def is_on(self, config: Any) -> bool:
        """Returns whether a config turns the feature on."""
        if self.on is not None:
            return self.on(config)
        value: Any = self.of(config)
        return bool((getattr(value, self.switch) if self.switch else value) != self.off)

    def says_of(self, config: Any, parameters: Sequence[int], rounds: int) -> dict[str, str]:
        """Returns what the feature says of a run in which it is on, by subject; nothing of one in which it is off."""
        if not self.says or not self.is_on(config):
            return {}
        return {subject: text for subject, text in load(self.says)(config, parameters, rounds).items() if text}

    def command_for_more(self, run: str) -> str:
        """Returns the command that shows more of what the feature did to a run."""
        keys = f"{self.name}.{self.switch}" if self.options is None and self.switch else self.name
        return self.more.format(run=run) if self.more else f"shoal explain {keys}"


def load(place: str) -> Callable[..., Any]:
    """Imports what `module:function` names."""
    module, _, function = place.partition(":")
    loaded: Callable[..., Any] = getattr(import_module(module), function)
    return loaded
