"""A schedule of the user's, `schedule: my_file.py:Mine`: its class is checked, and so is all that it gives.

The first draw is made twice, as the first visit of a user's method is, and must give the same clients.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from shoal.algorithms.base import Algorithm
from shoal.algorithms.method_errors import describe
from shoal.algorithms.protocol import Replies, Tree, Upload
from shoal.engine.config.config import Config
from shoal.engine.config.names import own_among, shown_name
from shoal.engine.config.round_sections import ParticipationOptions
from shoal.engine.messages.job import Job
from shoal.engine.messages.models import BuiltModel
from shoal.engine.rounds.protocol_checks import require_tree, same_bits
from shoal.engine.rounds.sampling import Drawn, Plan, Schedule
from shoal.engine.schedules.late_uploads import KEY, LateExchange, Visits, staleness_of
from shoal.engine.schedules.participation import is_whole
from shoal.engine.schedules.schedules import Chosen
from shoal.engine.sections.sections import SECTIONS
from shoal.storage.errors import ShoalError
from shoal.storage.store.store import Store
from shoal.storage.user_code.user_code import UserCode


class OwnSchedule(Schedule):
    """A schedule that asks one of the user's, and checks its answers."""

    def __init__(
        self, code: UserCode, plan: Plan, job: Job, store: Store, algorithm: Algorithm, models: Sequence[BuiltModel]
    ) -> None:
        """Makes the user's schedule. If it overrides `starts`, the visits of all rounds are asked for now.

        Raises ShoalError: its code fails, or two visits of a client overlap.
        """
        super().__init__(plan, store.clients, job.seed)
        self._code, self.name = code, shown_name(code.name)
        cls = load_schedule(code)
        with code.at_work(KEY):
            self._own: Schedule = cls(plan, store.clients, job.seed)
        self._visits: Visits | None = None
        # Without `starts` a draw may read what was kept, so that later rounds are not foreseen.
        self.foreseen = _begins_late(cls)
        if self.foreseen:
            self._visits = self._all_visits()
            self.exchange = partial(LateExchange, self, self._visits, type(algorithm).__name__, {})

    def draw(self, number: int, known: Tree) -> Drawn:
        drawn = self._draw_and_check(number, known)
        if number == 1 and self._draw_and_check(number, known).cohort != drawn.cohort:
            raise self._code.fault(KEY, "draw(1, {}) gives other clients when it is called again; draw by self.seed")
        return drawn

    def _draw_and_check(self, number: int, known: Tree) -> Drawn:
        """Returns what the user's `draw` gives, with ascending clients."""
        with self._code.at_work(KEY):
            drawn = self._own.draw(number, {name: t.clone() for name, t in known.items()})
            if isinstance(drawn, Drawn):
                require_tree(drawn.state, "the state that draw keeps")
        if not isinstance(drawn, Drawn):
            raise self._code.fault(KEY, f"draw gives {describe(drawn)}, expected shoal.Drawn(cohort)")
        for what, clients in (("cohort", drawn.cohort), *drawn.missing.items()):
            self._require_clients(f"draw({number}) gives as {what}", clients)
        self._require_plain("the numbers of draw", drawn.numbers)
        missing = {what: sorted(map(int, clients)) for what, clients in drawn.missing.items()}
        return Drawn(sorted(map(int, drawn.cohort)), drawn.numbers, drawn.state, missing)

    def _require_clients(self, what: str, clients: Iterable[Any]) -> None:
        given = list(clients)
        right = all(is_whole(i) and 0 <= i < self.clients for i in given)
        if not right or len(set(map(int, given))) < len(given):
            raise self._code.fault(KEY, f"{what} {given[:10]}, expected different clients from 0 to {self.clients - 1}")

    def _require_plain(self, what: str, values: Any) -> None:
        """Raises a ShoalError: values have no names, or a file of JSON cannot hold them."""
        try:
            if not isinstance(values, Mapping):
                raise TypeError(describe(values))
            json.dumps(values, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise self._code.fault(KEY, f"{what} are no finite numbers or texts by name: {error}") from None

    def _all_visits(self) -> Visits:
        """Asks for the starts of all rounds, and of as many behind the last as the longest visit takes."""
        rounds, end = list[Mapping[int, int]](), dict[int, int]()
        longest = 0
        while len(rounds) < self.rounds + longest:
            number = len(rounds) + 1
            starts = self.starts(number)
            for client, start in starts.items():
                if not end.get(client, 0) <= start < number:
                    raise self._code.fault(
                        KEY,
                        f"starts({number}) gives round {start} to client {client}, expected a round before {number}, "
                        f"and none before {end.get(client, 0)}, in which it uploaded last",
                    )
                end[client] = number
                longest = max(longest, number - start if number <= self.rounds else 0)
            rounds.append(starts)
        inside, behind = rounds[: self.rounds], rounds[self.rounds :]
        clients = [np.array(list(starts), dtype=np.int64) for starts in inside]
        begun = [np.array(list(starts.values()), dtype=np.int64) for starts in inside]
        return Visits(clients, begun, [s for starts in behind for s in starts.values() if s <= self.rounds])

    def starts(self, number: int) -> Mapping[int, int]:
        with self._code.at_work(KEY):
            starts = dict(self._own.starts(number))
        cohort = self.draw(number, {}).cohort
        self._require_clients(f"starts({number}) gives", starts)
        if sorted(starts) != cohort or not all(map(is_whole, starts.values())):
            raise self._code.fault(
                KEY, f"starts({number}) gives {starts}, expected a round for each client of {cohort}"
            )
        return {int(i): int(starts[i]) for i in sorted(starts)}

    def needed_after(self, number: int) -> Collection[int]:
        if self._visits is None:
            return ()
        with self._code.at_work(KEY):
            return sorted({*self._visits.needed_after(number), *self._own.needed_after(number)})

    def counted(self, upload: Upload, base: Tree, newest: Tree, staleness: int) -> Upload:
        # A copy is compared with what the user's code leaves, since a write would change the model of others.
        before = {name: t.clone() for name, t in newest.items()}, {name: t.clone() for name, t in base.items()}
        with self._code.at_work(KEY):
            result = self._own.counted(upload, base, newest, staleness)
            if isinstance(result, Upload):
                require_tree(result.entries, "the upload of counted")
        for now, then in zip((newest, base), before):
            if not all(same_bits(t, then[name]) for name, t in now.items()):
                raise self._code.fault(KEY, "counted writes into a model of the server; take a copy first")
        if not isinstance(result, Upload):
            raise self._code.fault(KEY, f"counted gives {describe(result)}, expected a shoal.Upload")
        shapes, wanted = ({name: (t.dtype, list(t.shape)) for name, t in u.entries.items()} for u in (result, upload))
        if shapes != wanted:
            raise self._code.fault(KEY, f"counted gives {shapes}, expected tensors as of the upload, {wanted}")
        return result

    def after(self, number: int, replies: Replies, newest: Tree, kept: Tree) -> Replies:
        with self._code.at_work(KEY):
            result = self._own.after(number, replies, newest, kept)
            require_tree(kept, "what after keeps")
        if not isinstance(result, Replies):
            raise self._code.fault(KEY, f"after gives {describe(result)}, expected shoal.Replies")
        return result

    def columns(self, number: int, cohort: Sequence[int]) -> dict[str, Any]:
        with self._code.at_work(KEY):
            columns = self._own.columns(number, cohort)
        self._require_plain("the columns", columns)
        stale = staleness_of(self.starts(number), number, cohort) if self._visits is not None and cohort else {}
        return {**({"schedule": dict(columns)} if columns else {}), **stale}


def load_schedule(code: UserCode) -> type[Schedule]:
    """Loads the user's class. Raises ShoalError: its file fails, or it derives from something else."""
    cls = code.load()
    if not isinstance(cls, type) or not issubclass(cls, Schedule):
        name = code.name.rpartition(":")[2]
        raise code.fault(KEY, f"{name} does not derive from shoal.Schedule; write class {name}(shoal.Schedule)")
    return cls


def _begins_late(cls: type[Schedule]) -> bool:
    """Returns whether clients may train from the model of an older round than the newest."""
    return cls.starts is not Schedule.starts


def make_own(config: Config, participation: ParticipationOptions) -> Chosen:
    """Reads the user's file, and returns what makes the schedule. Raises ShoalError: as `load_schedule`."""
    (code,) = own_among(KEY, [config.schedule.name]).values()
    if _begins_late(load_schedule(code)):
        acting = [section.name for section in SECTIONS if section.stages and section.is_on(config)]
        if acting:
            name = shown_name(code.name)
            raise ShoalError(acting[0], f"is for rounds whose uploads are of one model, not for starts of {name}")
    return Chosen(partial(OwnSchedule, code), participation)
