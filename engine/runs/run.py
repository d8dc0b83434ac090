"""One run from config to summary: prepare, rounds, checkpoints, evaluation; and again from where it was cut off."""

import logging
from contextlib import closing, suppress
from pathlib import Path

from shoal.algorithms.base import Algorithm
from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.protocol import MODEL
from shoal.engine.callbacks.callback import Callback
from shoal.engine.callbacks.loading import load_callbacks
from shoal.engine.cluster.sessions import open_session
from shoal.engine.config.config import Config
from shoal.engine.config.device_choice import device_choice
from shoal.engine.config.sections import ParticipationOptions
from shoal.engine.hosts.federation import Session
from shoal.engine.hosts.job_context import trainers_of
from shoal.engine.messages.cell import IN_BATCHES, ONE_BY_ONE
from shoal.engine.messages.environment import differences
from shoal.engine.messages.job import make_job
from shoal.engine.messages.models import require_mixable, require_supported
from shoal.engine.preparing.identity import published_inputs
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records import checkpoint, inputs
from shoal.engine.records.checkpoint import Checkpoint
from shoal.engine.records.run_folder import RunFolder, changed_keys, read_summary, unfinished_relatives
from shoal.engine.rounds.sampling import Plan, read_trace
from shoal.engine.runs.driver import Driver, go_on_from
from shoal.engine.screen.progress import say
from shoal.storage.errors import ShoalError

log = logging.getLogger(__name__)


def plan_of(config: Config, centralized: bool = False) -> Plan:
    """What the round loop needs of a config; one client that is the whole graph always takes part.

    Raises:
        ShoalError: The trace cannot be read or is of other clients.
    """
    how = ParticipationOptions() if centralized else config.participation
    online = None if how.trace is None else read_trace(how.trace, config.partition.clients)
    size: int | str = config.engine.cell_size
    if size == "auto":
        batches = device_choice(config) == "cuda" and config.engine.trainer != "autograd"
        size = IN_BATCHES if batches else ONE_BY_ONE
    return Plan(config.rounds, how, config.evaluation.every, size, online, config.run.keep_records)


def run(config: Config, resume: bool = False, fresh: bool = False, session: Session | None = None) -> Path:
    """Runs a config to its end and returns the run folder.

    Args:
        config: The run.
        resume: Go on with an unfinished run from its newest checkpoint.
        fresh: Start over, whatever the folder holds.
        session: Hosts to use; by default the run starts its own and ends them.

    Raises:
        ShoalError: Bad input, or a failure that a resume can go on from.
        KeyboardInterrupt: The user stopped it; a checkpoint is written.
    """
    try:
        algorithm, callbacks = _loaded(config)
    except ShoalError as error:
        _note_in_folder(error, config)
        raise
    folder = RunFolder(config)
    try:
        read = inputs.contents(config) | published_inputs(config)
        if folder.finished and not fresh:
            _require_same(folder, read_summary(folder.path).get("inputs", {}), read)
            say(f"{folder.path}: already finished; --fresh runs it again")
            return folder.path
        found = None if fresh else _checkpoint(config, folder, resume)
        if found:
            _require_same(folder, found.inputs, read)
        store = prepare(config, centralized=algorithm.centralized, repair=False)
        job = make_job(config, store, folder.path.name)
        # Files that were first downloaded now count, too.
        read |= published_inputs(config) | {inputs.STORE: job.content}
        if job.domains:
            read[inputs.GRAPHS] = job.graphs
        if job.training:
            read[inputs.TRAINING] = job.training
        if found:
            _require_same(folder, found.inputs, read)
        # A wrong option of the model is an error before any actor starts.
        models = [kind.flat for kind in job.build_models(store, algorithm)[MODEL]]
        paths = trainers_of(job.trainer, job.device, algorithm, models, job.train)
        plan = plan_of(config, algorithm.centralized)
        if config.resources.gpus_per_host and job.device == "cpu":
            say("engine.device: cpu: shares of GPUs are reserved, but only a method of your own can use them")
        if fresh:
            folder.clear()
        go_on_from(folder, found, config.run.client_scores)
        folder.begin(config)
        own = session or open_session(config)
        try:
            Driver(config, folder, own, job, store, plan, read, paths, callbacks).drive(found.state if found else None)
        finally:
            if session is None:
                own.close()
        return folder.path
    except ShoalError as error:
        _note(error, folder)
        raise
    finally:
        folder.close()


def _loaded(config: Config) -> tuple[Algorithm, dict[str, Callback]]:
    """The method and the callbacks of a run that is possible as far as no data is needed to tell.

    Raises:
        ShoalError: It is not.
    """
    algorithm = load(describe(config.algorithm.name, config.algorithm.options))
    require_supported(config, algorithm)
    require_mixable(config, algorithm)
    callbacks = load_callbacks(config)
    config.train.require_rates(config.rounds)
    return algorithm, callbacks


def _note(error: ShoalError, folder: RunFolder) -> None:
    log.error("%s\n%s", error, error.detail)
    if error.detail:
        error.log = folder.log


def _note_in_folder(error: ShoalError, config: Config) -> None:
    """Keeps the traceback of code that failed before there was a run; where no folder can be, that is left out."""
    if not error.detail:
        return
    with suppress(ShoalError, OSError), closing(RunFolder(config)) as folder:
        _note(error, folder)


def _checkpoint(config: Config, folder: RunFolder, resume: bool) -> Checkpoint | None:
    """What an unfinished run goes on from; None: from its start.

    Raises:
        ShoalError: It is not to be resumed, or not this one, or none of its checkpoints can be used.
    """
    if not folder.started:
        if resume:
            _refuse_changed(config)
            say(f"{folder.path}: nothing to resume, starting")
        return None
    if not resume:
        raise ShoalError(f"{folder.path}: holds an unfinished run; --resume goes on with it, --fresh starts over")
    found = checkpoint.load_newest(folder.checkpoints)
    if found is None:
        _require_early(folder)
        say("no checkpoint yet: starting over")
        return None
    if changed := differences(found.environment, device_choice(config)):
        say(f"the machine or its software changed, last bits may differ: {', '.join(changed)}")
    say(f"resuming after round {found.state.round}")
    return found


def _require_early(folder: RunFolder) -> None:
    """Refuses to start over where so many rounds are logged that there was a checkpoint.

    Raises:
        ShoalError: There was one.
    """
    logged = folder.rounds_logged()
    every = folder.checkpoint_every()
    if every is not None and logged > every:
        raise ShoalError(
            f"{folder.checkpoints}: no checkpoint, though {logged} rounds are logged and one is written every {every}; "
            "bring them back, or --fresh starts over"
        )


def _require_same(folder: RunFolder, old: dict[str, str], new: dict[str, str]) -> None:
    """Refuses to go on with other data than a run began with.

    Raises:
        ShoalError: An input has another content; names it.
    """
    if changed := inputs.differences(old, new):
        raise ShoalError(
            f"{folder.path}: was run with another content of {', '.join(changed)}; bring that back, or --fresh runs it "
            "again with what is there now"
        )


def _refuse_changed(config: Config) -> None:
    for relative in unfinished_relatives(config):
        changed = ", ".join(changed_keys(config, relative)) or "the order of sums, by another version of Shoal"
        raise ShoalError(
            f"{relative}: the unfinished run differs from this config in {changed}; undo that to resume it, "
            "or leave out --resume for a run of its own"
        )
