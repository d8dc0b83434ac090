"""The score that stands for runs: of deployed models, or of the server's where clients that miss rounds hold old ones.

With one model and a few clients a round, `deployed` has the models of the rounds in which clients took part last. The
fewer take part, the older these are, and a curve over participation may fall where that of the server's model rises. So
`global`, the server's model now, stands for methods with one model as soon as some clients miss rounds in any run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from shoal.engine.config.sections import SCOPES
from shoal.engine.records.summary import FIRST_SCOPE, SOME
from shoal.study.groups import Group, Spread, Statistic, spread_of

# Where a scope is asked for, `MAIN` asks for the one that stands for a combination.
MAIN, GLOBAL = "main", "global"
MOMENTS = ("best", "final")


@dataclass(frozen=True)
class MainScore:
    """The score that stands for each of several combinations; a test score at best validation, or of the final round.

    Attributes:
        chosen: A scope that the user asks for; empty: see above.
    """

    groups: Sequence[Group]
    chosen: str = ""

    @cached_property
    def of_server(self) -> bool:
        """Whether `global` stands for methods with one model, as some clients miss rounds."""
        return not self.chosen and any(group.one_model == SOME and _scores(group, GLOBAL) for group in self.groups)

    def scope(self, group: Group) -> str:
        """Returns the scope that stands for a combination."""
        first = self.chosen or (GLOBAL if self.of_server and group.one_model else FIRST_SCOPE)
        return next((scope for scope in (first, FIRST_SCOPE, *SCOPES) if _scores(group, scope)), first)

    def figure(self, group: Group, part: str = "test") -> str:
        """Returns the name of the score of a combination, as `global.best.test`."""
        return f"{self.scope(group)}.{self.moment}.{part}"

    @cached_property
    def moment(self) -> str:
        """`best` if any combination has validation, else `final`."""
        figures = {figure for group in self.groups for row in group.rows for figure in row.figures}
        return MOMENTS[0] if any(figure.endswith(".best.test") for figure in figures) else MOMENTS[1]

    def values(self, group: Group) -> list[float]:
        """Returns the score of every run that has it."""
        return group.values(self.figure(group))

    def spread(self, group: Group, statistic: Statistic = "mean") -> Spread | None:
        """Returns the score over repetitions."""
        return spread_of(self.values(group), statistic)

    @cached_property
    def figures(self) -> list[str]:
        """The names of the scores of all combinations, the most frequent first."""
        named = [self.figure(group) for group in self.groups]
        return sorted(dict.fromkeys(named), key=named.count, reverse=True)

    def best(self, groups: Sequence[Group], part: str = "val") -> Group:
        """Returns the combination with the highest mean validation, of equals the first; without any, the first."""

        def validation(group: Group) -> float:
            spread = spread_of(group.values(self.figure(group, part)), "mean")
            return -1.0 if spread is None else spread.middle

        return max(groups, key=validation)


def _scores(group: Group, scope: str) -> list[float]:
    return [value for moment in MOMENTS for value in group.values(f"{scope}.{moment}.test")]
