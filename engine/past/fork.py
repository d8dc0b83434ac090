"""A run that goes on from a round of another one with other options: the rounds before are those of its parent."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from shoal.engine.config.config import load_config
from shoal.engine.config.run_identity import changes_numbers, flatten
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.messages.job import make_job
from shoal.engine.past.rewind import PastRun
from shoal.engine.records.checkpoint import Checkpoint
from shoal.engine.records.run_folder import RunFolder, finished, note_parent, parent_of, started
from shoal.engine.rounds.server import Server
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import bring, run
from shoal.engine.screen.progress import say
from shoal.storage.errors import ShoalError

# Of a state, or of the data that it was made on: keys and sections.
FIXED = ("task", "seed", "data", "partition", "propagation", "model", "heterogeneity", "privacy")


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
    plan = forked(past, changes, number)
    begin(past, plan, number)
    return run(plan, resume=True)


def begin(past: PastRun, plan: RunPlan, number: int) -> None:
    """Gives a fork that has not begun the first rounds of its parent, maybe none. Raises as `fork`."""
    if plan.config.rounds <= number:
        raise ShoalError("rounds", f"{plan.config.rounds}, and the fork begins after round {number}; set rounds higher")
    if isinstance(plan.place, str):
        raise ShoalError("run.root", f"{plan.config.run.root} is an address; a fork is made in a folder, run.root=runs")
    of = {"run": str(past.path.resolve()), "round": number}
    if not number:
        return
    if not (started(plan.folder) or finished(plan.folder)):
        found = past.after(number)
        assert found is not None
        _require_compatible(past, plan, found)
        with closing(RunFolder(plan.folder, plan.config.run.log_format)) as folder:
            note_parent(folder.path, of)
            # Files of the fork may be others, of its method for one.
            bring(past.path, replace(found, inputs=found.inputs | plan.inputs), folder)
        say(f"its first {number} rounds are those of {past.path}")
    elif parent_of(plan.folder) != of:
        raise ShoalError(plan.folder, "holds another run; give the fork another name, as name=mine")


def forked(past: PastRun, changes: Sequence[str], number: int) -> RunPlan:
    """The plan of a run with other options after a round. Raises ShoalError: a key is wrong, or cannot change."""
    named = any(change.startswith("name=") for change in changes)
    config = load_config(past.path, [*changes, *([] if named else [f"name={past.path.name}-at-{number}"])])
    old, new = (flatten(each.plain()) for each in (past.config, config))
    hidden = config.privacy.unit != "none"
    # Of what epsilon counts.
    fixed = (*FIXED, *["participation"] * hidden, *["rounds"] * (config.privacy.epsilon is not None))
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key) and key.partition(".")[0] in fixed and changes_numbers(key):
            raise ShoalError(
                key, f"cannot change after a round ({old.get(key)} -> {new.get(key)}); shoal run begins with it"
            )
    return RunPlan.of(config)


def _require_compatible(past: PastRun, plan: RunPlan, found: Checkpoint) -> None:
    """Refuses a method that keeps other tensors than the one before it."""
    new, old = plan.config.algorithm.name, past.config.algorithm.name
    if new == old:
        return
    server = Server(make_job(plan.config, past.store, plan.folder.name), plan.rounds, LocalBackend()).state.server
    shapes = [{name: list(t.shape) for name, t in tree.items()} for tree in (server, found.state.server)]
    kinds = [(each.client_models, each.centralized) for each in (plan.algorithm, past.plan.algorithm)]
    if shapes[0] != shapes[1] or kinds[0] != kinds[1]:
        kept = [f"{kind[0]} models and {list(names) or 'nothing'} on the server" for kind, names in zip(kinds, shapes)]
        raise ShoalError("algorithm.name", f"{new} keeps {kept[0]}, {old} kept {kept[1]}; take a method of that state")
