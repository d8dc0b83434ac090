"""A run of more rounds goes on from one of fewer: its folder gets what that has kept, and is resumed."""

import inspect
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from shoal.engine.config.config import load_config
from shoal.engine.config.run_identity import steering
from shoal.engine.records import checkpoint
from shoal.engine.records.checkpoint import Checkpoint
from shoal.engine.records.client_scores import CLIENT_SCORES
from shoal.engine.records.metrics import read_records, recorded_rounds, write_records
from shoal.engine.records.run_folder import CHECKPOINTS, RunFolder, changed_keys, run_path
from shoal.engine.runs.plan import RunPlan
from shoal.engine.screen.progress import say
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.storage.options.types import is_own
from shoal.storage.user_code.user_code import read_user_code

# What reads the number of rounds in the text of a method or a callback.
READS_ROUNDS = re.compile(r"""\.rounds\b|["']rounds["']""")
OF_METHODS = "shoal.algorithms.methods."


def take_over(plan: RunPlan, folder: RunFolder) -> str | None:
    """Copies the state of the longest run that differs from a plan in fewer `rounds` alone; else gives why it did not.

    Its rounds are those that the plan would begin with, to the bit. Of a last round that is evaluated only because it
    is the last, the checkpoint before it is taken. A ShoalError says that the folder cannot be written.
    """
    reasons = []
    for other, rounds in sorted(_shorter(plan), key=lambda found: -found[1]):
        why, found = _depends_on_rounds(plan, other, rounds), None
        if why is None:
            found = _usable(other, rounds - rounds % plan.config.evaluation.every)
            why = "none of its checkpoints can be used"
        if found is not None:
            say(f"{other}: the run of {rounds} rounds goes on to {plan.config.rounds} in {folder.path}")
            _copy(other, found, folder)
            return None
        reasons.append(f"{other}: the run of {rounds} rounds cannot go on to {plan.config.rounds}: {why}")
    return reasons[0] if reasons else f"{folder.path}: nothing to resume"


def _shorter(plan: RunPlan) -> Iterator[tuple[Path, int]]:
    """Runs of the same name and keys with fewer rounds, and maybe with another schedule of rates."""
    config = plan.config
    for other in Path(config.run.root).glob(f"{config.name}-????????"):
        try:
            changed = {key.partition(" ")[0] for key in changed_keys(config, other)}
            rounds = load_config(other).rounds
        except ShoalError:
            continue
        others = {key for key in changed if not key.startswith("train.schedule")}
        if others == {"rounds"} and rounds < config.rounds:
            yield other, rounds


def _depends_on_rounds(plan: RunPlan, other: Path, rounds: int) -> str | None:
    """Why the first rounds of a plan are not those of a shorter run; None: they are."""
    config = plan.config
    if run_path(config.model_copy(update={"rounds": rounds}), plan.inputs) != other:
        return "train.schedule, a file that it reads, or the version of Shoal is another"
    modules = [sys.modules[cls.__module__] for cls in type(plan.algorithm).__mro__ if cls.__module__ in sys.modules]
    texts = [inspect.getsource(module) for module in modules if module.__name__.startswith(OF_METHODS)]
    code = plan.method.code
    if any(map(READS_ROUNDS.search, [*texts, *([code.source, *code.helpers.values()] if code else ())])):
        return f"{config.algorithm.name} reads the number of rounds"
    for callback in steering(config.plain()["callbacks"]):
        if is_own(callback["name"]):
            own = read_user_code("callbacks", callback["name"])
            if any(map(READS_ROUNDS.search, (own.source, *own.helpers.values()))):
                return f"the callback {callback['name']} reads the number of rounds"
    return None


def _usable(other: Path, last: int) -> Checkpoint | None:
    """The newest checkpoint of a run up to a round."""
    for number in checkpoint.rounds_kept(other / CHECKPOINTS):
        if number <= last:
            try:
                return checkpoint.load_round(other / CHECKPOINTS, number)
            except ShoalError as error:
                say(f"{error}; the one before it is used")
    return None


def _copy(other: Path, found: Checkpoint, folder: RunFolder) -> None:
    """Copies a checkpoint, and what was kept of the rounds before it; their log comes last, as it makes a run begun."""
    last = found.state.round
    for number in recorded_rounds(other):
        if number <= last:
            write_records(folder.path, number, read_records(other, number))
    for number in checkpoint.rounds_kept(other / checkpoint.BEST):
        if number <= last:
            checkpoint.write(folder.path / checkpoint.BEST, checkpoint.load_round(other / checkpoint.BEST, number))
    if (other / CLIENT_SCORES).exists():
        with replacing(folder.path / CLIENT_SCORES) as unfinished:
            shutil.copyfile(other / CLIENT_SCORES, unfinished)
    checkpoint.write(folder.checkpoints, found)
    with replacing(folder.metrics.path) as unfinished:
        unfinished.write_text(found.metrics)
