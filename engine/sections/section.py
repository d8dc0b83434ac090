"""A section of a config that belongs to a feature, and all that the feature declares of itself."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

from shoal.engine.sections.rules import Rule

OptionsT = TypeVar("OptionsT")


@dataclass(frozen=True)
class Section(Generic[OptionsT]):
    """A feature as the engine knows it; functions are named `module:function`, and imported where the feature is on.

    Attributes:
        name: Key of the section in a config.
        options: Class of its options, a pydantic dataclass whose defaults leave the feature off; None: the section is
            one of the engine's, of which the feature has one key.
        switch: The option that turns it on; empty: the section is one value.
        off: That option, or that value, without the feature.
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
        says: Lines of the head of a run and of a dry run by subject, `(config, parameters) -> mapping`, with the
            number of parameters of each model.
        warns: Keys of these lines that a run prints before it starts.
        metrics: Names of what its stages score clients by, beside the metrics of the run.
        scores: Whether they do with these options.
        of_all_rounds: Why numbers of a round depend on how many rounds there are; empty: they do not.
        skipped: Why the round of a line was skipped, `(line) -> str`; empty: it was not.
        epsilon: Epsilon of a run after some of its rounds, `(config, rounds) -> float`; empty: it bounds nothing.
        bound: A sentence that says what epsilon is of, `(config, rounds) -> str`.
        copies: Copies of the model that a client keeps between rounds, and that the server holds in a round, for the
            estimate of memory.
        called: Name of the feature among the stages of a job; empty: that of the section.
    """

    name: str
    options: type[OptionsT] | None
    switch: str
    off: Any
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
    metrics: tuple[str, ...] = ()
    scores: Callable[[OptionsT], bool] = lambda options: False
    of_all_rounds: Callable[[OptionsT], str] = lambda options: ""
    skipped: str = ""
    epsilon: str = ""
    bound: str = ""
    copies: Callable[[OptionsT], tuple[int, int]] = lambda options: (0, 0)
    called: str = ""

    def of(self, config: Any) -> OptionsT:
        """Returns the options of a config."""
        options: OptionsT = getattr(config, self.name)
        return options

    def is_on(self, config: Any) -> bool:
        """Returns whether a config turns the feature on."""
        value: Any = self.of(config)
        return bool((getattr(value, self.switch) if self.switch else value) != self.off)

    def says_of(self, config: Any, parameters: Any) -> Mapping[str, str]:
        """Returns the lines of a run in which the feature is on; texts may be empty."""
        lines: Mapping[str, str] = load(self.says)(config, parameters) if self.says and self.is_on(config) else {}
        return lines


def load(place: str) -> Callable[..., Any]:
    """Imports what `module:function` names."""
    module, _, function = place.partition(":")
    loaded: Callable[..., Any] = getattr(import_module(module), function)
    return loaded
