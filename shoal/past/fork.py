"""A run that goes on from a round of another one with other options: the rounds before are those of its parent."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from shoal.algorithms.protocol import Tree
from shoal.engine.config.config import Config, load_config
from shoal.engine.config.run_identity import changes_numbers, flatten
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.messages.job import make_job
from shoal.engine.records.run_folder import RunFolder, finished, note_parent, parent_of, started
from shoal.engine.rounds.server import Server
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import bring, run
from shoal.engine.screen.progress import say
from shoal.engine.sections.sections import options_of
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.storage.store.store import Store

# Keys and sections that may change after a round. The data, what server and clients keep between rounds, and the
# meaning of scores do not depend on them. Keys that change no number may change as well.
LOCAL = ("train.epochs", "train.batch_size")
UNCOUNTED = (
    *("train.lr", "train.weight_decay", "train.dropout", "train.schedule"),
    *("evaluation.every", "evaluation.clients", "evaluation.last", "evaluation.domains"),
    *("callbacks", "engine", "resources"),
)
CHANGEABLE = (
    *("rounds", "algorithm", "participation", "devices", "communication", "attack", "aggregation", "stages"),
    *LOCAL,
    *UNCOUNTED,
)


def fork(parent: Path, number: int, changes: Sequence[str]) -> Path:
    """Runs a fork to its end, or goes on with one that was interrupted, and gives its folder.

    Args:
        parent: Folder of a run, finished or not.
        number: The last round that both share. If it has no checkpoint, rounds behind the nearest are trained again.
        changes: Overrides, as `train.lr=0.01`. Without `name=` the fork is called `<parent>-at-<number>`.

    Raises:
        ShoalError: The parent has no such round, a key cannot change, the method keeps another state, or as `run`.
    """
    past = PastRun(parent)
    past.require_round(number)
    plan = plan_fork(past, changes, number)
    begin(past, plan, number)
    return run(plan, resume=True)


def begin(past: PastRun, plan: RunPlan, number: int) -> None:
    """Copies the first `number` rounds of its parent, maybe none, into a fork that has not begun. Raises as `fork`."""
    if plan.config.rounds <= number:
        raise ShoalError("rounds", f"{plan.config.rounds}, and the fork begins after round {number}; set rounds higher")
    plan.bring()
    if not number:
        return
    origin = {"run": past.place, "round": number}
    if not (started(plan.folder) or finished(plan.folder)):
        checkpoint = past.after(number)
        assert checkpoint is not None
        require_same_state(plan, past.plan, past.store, checkpoint.state.server)
        with closing(RunFolder(plan.folder, plan.config.run.log_format)) as folder:
            # The same fork may have begun in another process meanwhile.
            if not (folder.started or folder.finished):
                note_parent(folder.path, origin)
                # The fork may read files that its parent does not, such as its method's.
                bring(past.path, replace(checkpoint, inputs=checkpoint.inputs | plan.inputs), folder)
                say(f"its first {number} rounds are those of {past.place}")
    if parent_of(plan.folder) != origin:
        raise ShoalError(plan.place, "holds another run; give the fork another name, as name=mine")


def plan_fork(past: PastRun, changes: Sequence[str], number: int) -> RunPlan:
    """Plans a run with other options after a round. Raises ShoalError: a key is wrong, or cannot change."""
    named = any(change.startswith("name=") for change in changes)
    config = load_config(past.path, [*changes, *([] if named else [f"name={past.path.name}-at-{number}"])])
    require_changeable(past.config, config)
    return RunPlan.of(config)


def list_changeable(config: Config) -> tuple[str, ...]:
    """Returns the keys and sections that a fork of a run may change: with privacy those that epsilon does not count."""
    private = options_of(config, "privacy")
    if private is None:
        # Devices decide the steps of other schedules, from whose models clients still train.
        return tuple(key for key in CHANGEABLE if key != "devices" or config.schedule.synchronous)
    rounds = ("rounds",) if private.epsilon is None else ()
    # Each step of a client hides its nodes.
    return (*rounds, *(LOCAL if private.unit == "client" else ()), *UNCOUNTED)


def may_change(key: str, config: Config) -> bool:
    """Returns whether a fork of a run with a config may have another value of a key, or of a section."""
    return not changes_numbers(key) or any(f"{key}.".startswith(f"{right}.") for right in list_changeable(config))


def require_changeable(parent: Config, config: Config) -> None:
    """Raises ShoalError: a fork differs from its parent in a key that cannot change."""
    old, new = (flatten(side.plain()) for side in (parent, config))
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key) and not may_change(key, parent):
            raise ShoalError(
                key,
                f"cannot change after a round ({old.get(key)} -> {new.get(key)}); shoal run begins with it, and a fork "
                f"may change {', '.join(list_changeable(parent))}",
            )


def require_same_state(plan: RunPlan, parent: RunPlan, store: Store, kept: Tree | None = None) -> None:
    """Refuses a method, or options of it, that keeps other tensors than `kept`, by default its parent's first ones.

    Raises ShoalError: names the method.
    """
    if plan.config.algorithm == parent.config.algorithm:
        return
    new, old = plan.config.algorithm.name, parent.config.algorithm.name
    # After some rounds a method may keep more than it starts with.
    first = kept is None or new == old
    server, kept = _starts_with(plan, store), _starts_with(parent, store) if first else kept
    assert kept is not None
    shapes = [{name: list(t.shape) for name, t in tree.items()} for tree in (server, kept)]
    kinds = [(method.client_models, method.centralized) for method in (plan.algorithm, parent.algorithm)]
    if shapes[0] != shapes[1] or kinds[0] != kinds[1]:
        both = [f"{kind[0]} models and {list(names) or 'nothing'} on the server" for kind, names in zip(kinds, shapes)]
        raise ShoalError("algorithm.name", f"{new} keeps {both[0]}, {old} kept {both[1]}; take a method of that state")


def _starts_with(plan: RunPlan, store: Store) -> Tree:
    return Server(make_job(plan.config, store, plan.folder.name), plan.rounds, LocalBackend()).state.server
