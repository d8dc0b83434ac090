"""The stage of secure aggregation: who is asked for a sum, how clients hide theirs, and rounds of too few answers.

Asked are all clients that were drawn: those that drop out, are late, not needed or fail, too. A round in which too few
of them answer is skipped: it changes nothing, as one without clients, and the run goes on.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shoal.algorithms.protocol import Replies
from shoal.engine.config.config import Config
from shoal.engine.messages.job import Job
from shoal.engine.rounds.stage import Phase, Round, Stage, ToHosts, require_means
from shoal.engine.schedules.participation import count_drawn
from shoal.engine.stages.secure.answers import Answers
from shoal.engine.stages.secure.homomorphic import Homomorphic, KeyHolder, require_tenseal
from shoal.engine.stages.secure.masks import Masks
from shoal.engine.stages.secure.section import SECURE, SecureOptions
from shoal.engine.stages.secure.secure import Secure
from shoal.storage.errors import ShoalError

if TYPE_CHECKING:
    from shoal.engine.rounds.sampling import Plan


def require_possible(config: Config, cohort: int) -> None:
    """Raises a ShoalError, which names the key: no round can have enough answers."""
    options = SECURE.of(config)
    if options.kind == "homomorphic":
        require_tenseal()
    clients, participation = config.partition.clients, config.participation
    size = min(participation.size(clients), clients)
    drawn = min(count_drawn(config, size), clients)
    most = min(size, clients - len(participation.without))
    if most < 2:
        raise ShoalError("secure.kind", "a sum hides a client among others, found one alone; raise participation")
    needed = Answers.of(options, drawn, most).needed
    if most < needed:
        raise ShoalError(
            "secure.threshold",
            f"{options.threshold:g} of {drawn} clients drawn are {needed}, and a round takes {most} answers at "
            "most; lower it, or participation.over_selection",
        )


class SecureSums(Stage):
    """A stage for sums of which the server reads the total alone.

    Asked are clients that can answer, and those that were drawn and are lost or failed by now; where the method chooses
    among the cohort, of these only those of its choice.
    """

    hides = True

    def __init__(self, options: SecureOptions, seed: int, method: str, without: Iterable[int] = ()) -> None:
        """Prepares the sums of a run, in which clients `without` are never asked."""
        self._options, self._seed, self._method, self._without = options, seed, method, frozenset(without)
        self._holder: KeyHolder | None = None
        # So many clients are asked for the sum of the phase; 0: it has none.
        self._asked = 0

    def begin(self, round: Round) -> None:
        """Skips a round in which all clients that were drawn are lost before it begins."""
        lost = round.missing - self._without
        if lost and not round.cohort:
            Answers.of(self._options, len(lost), 0).require_enough()

    def before(self, phase: Phase) -> ToHosts | None:
        """Refuses what is no mean, and agrees on how clients hide theirs; skips a round with too few clients."""
        ask, kind = phase.ask, self._options.kind
        require_means(self._method, ask.up, "secure.kind", f"secure={kind}", "adds up", "none")
        self._asked = 0
        if not ask.up or not phase.ids:
            return None
        lost = set(phase.lost - self._without)
        if ask.to is not None and not {*ask.to} >= {*phase.cohort} - lost:
            lost &= {*ask.to}
        asked = tuple(sorted({*phase.ids, *lost}))
        Answers.of(self._options, len(asked), len(phase.ids)).require_enough()
        self._asked = len(asked)
        return ToHosts(adder=self._adder(asked, (self._seed, phase.round, ask.phase, phase.number)))

    def after(self, replies: Replies, phase: Phase) -> Replies:
        if self._asked:
            phase.columns |= Answers.of(self._options, self._asked, len(replies.ids)).columns
        return replies

    def _adder(self, clients: tuple[int, ...], stream: tuple[int | str, ...]) -> Secure:
        if self._options.kind == "masks":
            return Masks(self._options, clients, stream)
        self._holder = self._holder or KeyHolder()
        return Homomorphic(self._options, clients, self._holder.public, self._holder)


def make(job: Job, plan: "Plan | None") -> list[Stage]:
    """Returns the stage of a job."""
    without = () if plan is None else plan.participation.without
    return [SecureSums(job.stages["secure"], job.seed, job.method_name, without)]
