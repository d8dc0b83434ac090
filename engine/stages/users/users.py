"""Stages in the user's files: each class is loaded with its options, and all that it gives is checked."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from shoal.algorithms.method_errors import describe
from shoal.algorithms.protocol import Replies, Tree, Upload, stage_key
from shoal.engine.config.config import Config
from shoal.engine.config.names import shown_name
from shoal.engine.messages.cell import Outcome
from shoal.engine.messages.job import Job
from shoal.engine.rounds.protocol_checks import require_tree
from shoal.engine.rounds.stage import AtClient, Phase, Round, Stage, ToHosts
from shoal.engine.stages.users.section import USERS
from shoal.storage.errors import ShoalError
from shoal.storage.user_code.option_fields import field_values, require_all
from shoal.storage.user_code.user_code import UserCode, read_user_code

if TYPE_CHECKING:
    from shoal.engine.rounds.sampling import Plan

KEY = "stages"
# These attributes need more of the engine than a file can ask for.
OURS_ALONE = ("on_data", "score")


@dataclass(frozen=True)
class Source:
    """A stage as it travels to hosts: the user's code, and the options of its class."""

    code: UserCode
    options: Mapping[str, Any]

    def load(self) -> Stage:
        """Makes the stage. Raises ShoalError: the file fails, its class is no stage, or an option is wrong."""
        code, name = self.code, self.code.name.rpartition(":")[2]
        cls = code.load()
        if not isinstance(cls, type) or not issubclass(cls, Stage):
            raise code.fault(KEY, f"{name} does not derive from shoal.Stage; write class {name}(shoal.Stage)")
        if changed := [hook for hook in OURS_ALONE if hook in vars(cls)]:
            raise code.fault(KEY, f"{changed[0]} is for stages of Shoal alone; leave it out")
        if self.options and not is_dataclass(cls):
            raise code.fault(KEY, f"{name} has no options; write @dataclass above its class, and a field for each")
        values: dict[str, Any] = {}
        if is_dataclass(cls):
            section = f"{KEY}: {shown_name(code.name)}."
            values = field_values(cls, self.options, section, "it", f"{KEY}: {code.place}")
            require_all(cls, values, section)
        with code.at_work(KEY):
            return cls(**values)


class UserStage(Stage):
    """A stage that asks one of the user's, and checks its answers.

    It sees no more of uploads at the server than the method does, but where it needs all of them (`whole`).
    """

    guarded = True

    def __init__(self, source: Source) -> None:
        """Makes the user's stage; raises as `Source.load`."""
        self._code, self._stage = source.code, source.load()
        self.name = self._stage.name = shown_name(source.code.name)
        self.whole, self.empty_rounds = self._stage.whole, self._stage.empty_rounds
        self.hides_sizes, self.adds = self._stage.hides_sizes, self._stage.adds

    def at_client(self, upload: Upload, at: AtClient) -> Upload:
        prefix = stage_key(self.name)
        kept = {name.removeprefix(prefix): t for name, t in at.kept.items() if name.startswith(prefix)}
        given = [*at.received.items(), *upload.entries.items()]
        versions = [t._version for _, t in given]
        with self._code.at_work(KEY):
            sent = self._stage.at_client(upload, replace(at, kept=kept, notes={}))
            require_tree(kept, "at.kept")
        if written := [name for (name, t), version in zip(given, versions) if t._version != version]:
            raise self._fault(f"at_client writes into {written[0]!r}, which others read; take a copy first, .clone()")
        if not isinstance(sent, Upload):
            raise self._fault(f"at_client gives {describe(sent)}, expected a shoal.Upload")
        with self._code.at_work(KEY):
            require_tree(sent.entries, "the upload of at_client")
        forms = [{name: (t.dtype, list(t.shape)) for name, t in message.entries.items()} for message in (sent, upload)]
        missing = [name for name, form in forms[1].items() if forms[0].get(name) != form]
        if missing or sent.entries.keys() - upload.entries.keys() - at.cell.entries.keys():
            raise self._fault(f"at_client gives {forms[0]}, expected tensors as of the upload, {forms[1]}")
        for name in [name for name in at.kept if name.startswith(prefix)]:
            del at.kept[name]
        at.kept.update({f"{prefix}{name}": t for name, t in kept.items()})
        return sent

    def begin(self, round: Round) -> None:
        with self._code.at_work(KEY):
            self._stage.begin(round)

    def before(self, phase: Phase) -> ToHosts | None:
        with self._code.at_work(KEY):
            wanted = self._stage.before(phase)
        if wanted is None:
            return None
        if not isinstance(wanted, ToHosts):
            raise self._fault(f"before gives {describe(wanted)}, expected shoal.ToHosts, or None")
        if wanted.added and not self.adds:
            raise self._fault("before adds entries to uploads; set adds = True in the class")
        if wanted.adder is not None:
            raise self._fault("before gives an adder, which is for stages of Shoal alone; leave it out")
        try:
            json.dumps(wanted.note, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise self._fault(f"before gives a note that is no plain value: {error}") from None
        return wanted

    def reduce(self, outcomes: Sequence[Outcome], phase: Phase) -> Replies:
        with self._code.at_work(KEY):
            replies = self._stage.reduce(outcomes, phase)
            require_tree(phase.kept, "phase.kept")
        return self._check(replies, "reduce", list(phase.ask.up))

    def after(self, replies: Replies, phase: Phase) -> Replies:
        # Outcomes have uploads as they came, which other stages may have to hide.
        with self._code.at_work(KEY):
            seen = self._stage.after(replies, replace(phase, outcomes=()))
            require_tree(phase.kept, "phase.kept")
        return self._check(seen, "after", [*replies.entries])

    def _check(self, replies: Any, hook: str, entries: Sequence[str]) -> Replies:
        if not isinstance(replies, Replies):
            raise self._fault(f"{hook} gives {describe(replies)}, expected shoal.Replies")
        if missing := [entry for entry in entries if entry not in replies.entries]:
            raise self._fault(f"{hook} gives replies without {missing[0]!r}; give all entries of the phase")
        tree: Tree = {**replies.entries, **{f"weight of {name}": t for name, t in replies.weights.items()}}
        with self._code.at_work(KEY):
            require_tree(tree, f"the replies of {hook}")
        return replies

    def _fault(self, what: str) -> ShoalError:
        return self._code.fault(KEY, what)


def read_stages(config: Config) -> tuple[Source, ...]:
    """Reads the files of a config's stages. Raises ShoalError: one cannot be read."""
    return tuple(Source(read_user_code(KEY, stage.name), stage.options) for stage in USERS.of(config))


def describe_run(config: Config, parameters: Sequence[int], rounds: int) -> dict[str, str]:
    """Returns the names of the user's stages, with their options."""
    stages: Any = USERS.of(config)
    options = (", ".join(f"{key} {value}" for key, value in stage.options.items()) for stage in stages)
    named = (shown_name(stage.name) + (f" ({text})" if text else "") for stage, text in zip(stages, options))
    return {"stages": f"{', '.join(named)}, on uploads"}


def require_stages(config: Config, cohort: int) -> None:
    """Raises a ShoalError if a stage of a config is none, or is there twice."""
    names = [shown_name(source.code.name) for source in read_stages(config)]
    for source in read_stages(config):
        source.load()
    if twice := [name for name in names if names.count(name) > 1]:
        raise ShoalError(KEY, f"{twice[0]} is there twice; name each stage once")


def make(job: Job, plan: "Plan | None") -> list[Stage]:
    """Returns the stages of a job, in their order; raises as `Source.load`."""
    return [UserStage(source) for source in job.stages[KEY]]
