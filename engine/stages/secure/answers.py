"""The numbers of clients that answer to a hidden sum, and whether they are enough.

Those asked are all clients that were drawn: those that drop out, are late, not needed or fail, too. A round in which
too few of them answer is skipped: it changes nothing, as one without clients, and the run goes on.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shoal.engine.config.config import Config
from shoal.engine.stages.secure.section import SECURE as HIDDEN_SUMS
from shoal.engine.stages.secure.section import SecureOptions

# The line of a round has `Answers` by this key.
SECURE = "secure"
WORDS = {"masks": "masks", "homomorphic": "homomorphic encryption"}


class Answers(NamedTuple):
    """The numbers of clients that were asked for a sum, that answered, and that it needs to be read."""

    asked: int
    answered: int
    needed: int

    @classmethod
    def of(cls, options: SecureOptions, asked: int, answered: int) -> "Answers":
        """Counts a sum; it needs `threshold` of those asked, rounded up, and two."""
        return cls(asked, answered, max(2, math.ceil(options.threshold * asked - 1e-9)))

    @property
    def enough(self) -> bool:
        """Returns whether the sum is read."""
        return self.answered >= self.needed

    @property
    def columns(self) -> dict[str, Any]:
        """Makes the columns of the sum in the line of the round."""
        return {SECURE: {**self._asdict(), "read": self.enough}}

    def require_enough(self) -> None:
        """Raises SkipRound if the sum is not read."""
        # Pages read this file, too, which need no torch.
        from shoal.engine.rounds.stage import SkipRound

        if not self.enough:
            raise SkipRound(self.columns)


def describe_run(config: Config, parameters: Sequence[int], rounds: int) -> dict[str, str]:
    """Returns what the server reads of uploads, and how many answers a round needs."""
    options = HIDDEN_SUMS.of(config)
    return {
        "secure": f"the server reads sums alone, hidden by {WORDS[options.kind]} (simulated); a round counts where "
        f"{100 * options.threshold:g} % of the clients drawn answer"
    }


def describe_skipped(summary: Mapping[str, Any]) -> dict[str, str]:
    """Returns what the head of a page has of skipped rounds, for a run with some."""
    sums = summary.get(SECURE, {})
    if not sums.get("skipped"):
        return {}
    return {"Skipped": f"{sums['skipped']:,} of {sums['rounds']:,} rounds, with too few answers to a hidden sum"}


def why_skipped(line: Mapping[str, Any]) -> str:
    """Returns why a round was skipped, from its line; empty: it was not."""
    answers = line.get(SECURE)
    if not answers or answers["read"]:
        return ""
    return (
        f"{answers['answered']} of {answers['asked']} clients asked answered, and a sum is read of "
        f"{answers['needed']} or more (secure.threshold)"
    )
