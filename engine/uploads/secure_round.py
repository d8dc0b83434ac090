"""The hidden sums of one round: who is asked for them, and whether enough answer.

Those asked are all clients that were drawn: those that drop out, are late, not needed or fail, too. A round in which
too few of them answer is skipped: it changes nothing, as one without clients, and the run goes on.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from shoal.algorithms.protocol import Ask
from shoal.engine.config.config import Config
from shoal.engine.config.round_sections import SecureOptions
from shoal.engine.messages.cell import PartialSum
from shoal.storage.errors import ShoalError

# Key of `Answers` in the line of a round, and of clients that answered in vain among those that are missing.
SECURE, UNREAD = "secure", "unread"


class TooFewAnswers(Exception):
    """A sum of so few answers is not read, so that its round is skipped."""


class Answers(NamedTuple):
    """How many clients were asked for a sum, how many answered, and of how many it is read."""

    asked: int
    answered: int
    needed: int

    @classmethod
    def of(cls, options: SecureOptions, asked: int, answered: int) -> "Answers":
        """Counts a sum; it needs `threshold` of those asked, rounded up, and two."""
        return cls(asked, answered, max(2, math.ceil(options.threshold * asked - 1e-9)))

    @property
    def enough(self) -> bool:
        """Whether the sum is read."""
        return self.answered >= self.needed

    def require_enough(self) -> None:
        """Raises TooFewAnswers if the sum is not read."""
        if not self.enough:
            raise TooFewAnswers


def require_possible(config: Config) -> None:
    """Raises a ShoalError, which names the key: no round can have enough answers."""
    clients, participation = config.partition.clients, config.participation
    size = min(participation.size(clients), clients)
    drawn = min(math.ceil(size * participation.over_selection - 1e-9), clients)
    most = min(size, clients - len(participation.without))
    if most < 2:
        raise ShoalError("secure.kind", "a sum hides a client among others, found one alone; raise participation")
    needed = Answers.of(config.secure, drawn, most).needed
    if most < needed:
        raise ShoalError(
            "secure.threshold",
            f"{config.secure.threshold:g} of {drawn} clients drawn are {needed}, and a round takes {most} answers at "
            "most; lower it, or participation.over_selection",
        )


class SecureRound:
    """What one round asks of clients that hide what they send.

    Attributes:
        unread: Clients that answered in vain, of a round that is skipped.
    """

    def __init__(
        self,
        options: SecureOptions,
        number: int,
        cohort: Sequence[int],
        missing: Mapping[str, Sequence[int]],
        without: Sequence[int],
    ) -> None:
        """Of a round with a cohort, and with clients that were drawn and are missing; those `without` are not asked."""
        self._options, self._number, self._cohort = options, number, list(cohort)
        self._lost = {client for those in missing.values() for client in those} - {*without}
        self._hides: Any = None
        self._exchanges = 0
        self._answers: Answers | None = None
        self.unread: list[int] = []

    def hides(self, door: Any, ask: Ask, ids: Sequence[int], failed: Iterable[int]) -> Any:
        """How clients hide what they send in the next exchange, a `Secure` of a `robust.Door`; None: they send nothing.

        Asked are clients that can answer (`ids`) and those that are lost or failed by now, but where the method chooses
        among the cohort: there, those of its choice.

        Raises TooFewAnswers: too few can answer.
        """
        self._hides = None
        if not ask.up or not ids:
            return None
        lost = {*self._lost, *failed}
        if ask.to is not None and not {*ask.to} >= {*self._cohort} - lost:
            lost &= {*ask.to}
        everybody = tuple(sorted({*ids, *lost}))
        self._require_enough(len(everybody), len(ids))
        self._exchanges += 1
        self._hides = door.secured(everybody, self._number, ask.phase, self._exchanges)
        return self._hides

    def read(self, whole: PartialSum, answered: Sequence[int]) -> None:
        """Makes the sum of the newest exchange readable. Raises TooFewAnswers: too few clients answered."""
        self._require_enough(len(self._hides.clients), len(answered))
        self._hides.read(whole, answered)

    def require_any(self) -> None:
        """Raises TooFewAnswers if all that were drawn are lost before the first exchange."""
        if self._lost:
            self._require_enough(len(self._lost), 0)

    def _require_enough(self, asked: int, answered: int) -> None:
        self._answers = Answers.of(self._options, asked, answered)
        self._answers.require_enough()

    @property
    def columns(self) -> dict[str, Any]:
        """What the line of the round has of its newest sum; empty: it had none."""
        return {} if self._answers is None else {SECURE: {**self._answers._asdict(), "read": self._answers.enough}}


def in_words(answers: Mapping[str, int]) -> str:
    """Why a round is skipped, from the column of its line."""
    return (
        f"{answers['answered']} of {answers['asked']} clients asked answered, and a sum is read of "
        f"{answers['needed']} or more (secure.threshold)"
    )
