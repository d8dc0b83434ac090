"""Runs a config from preparing to its summary, and goes on with a run that was interrupted."""

import inspect
import logging
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

from shoal.algorithms.models.names import describe_edge_features
from shoal.algorithms.protocol import MODEL
from shoal.engine.callbacks.calls import asks_for_predictions
from shoal.engine.cluster.open_backend import open_backend
from shoal.engine.config.config import Config, load_config
from shoal.engine.config.run_identity import steering
from shoal.engine.hosts.backend import Backend, LocalBackend
from shoal.engine.messages.environment import differences
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.identity import published_digests
from shoal.engine.records import checkpoint, inputs
from shoal.engine.records.checkpoint import Checkpoint
from shoal.engine.records.client_scores import CLIENT_SCORES, UPLOADS
from shoal.engine.records.metrics import read_records, recorded_rounds, write_records
from shoal.engine.records.run_folder import (
    CHECKPOINTS,
    RunFolder,
    changed_contents,
    changed_keys,
    parent_of,
    run_path,
    runs_here,
    unfinished_relatives,
)
from shoal.engine.rounds.server import Server
from shoal.engine.runs.driver import Driver, go_on_from
from shoal.engine.runs.plan import RunPlan
from shoal.engine.screen.head import show, show_folder
from shoal.engine.screen.progress import say
from shoal.engine.sections.sections import SECTIONS, by_subject, describe_done
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.storage.options.types import is_own
from shoal.storage.store.manifest import Manifest
from shoal.storage.store.store import Store
from shoal.storage.user_code.user_code import read_user_code

log = logging.getLogger(__name__)
# The text of a method or a callback that reads the number of rounds matches this.
READS_ROUNDS = re.compile(r"""\.rounds\b|["']rounds["']""")
OF_METHODS = "shoal.algorithms.methods."


def run(
    run: Config | RunPlan,
    resume: bool = False,
    fresh: bool = False,
    backend: Backend | None = None,
    go_on: str | None = None,
    until: int | None = None,
) -> Path:
    """Runs a config, or the plan that was made of it, to its end and returns the run folder.

    Args:
        resume: Continue an unfinished run from its newest checkpoint, or one of fewer rounds; see `take_over`.
        fresh: Start over, whatever the folder holds.
        backend: The backend that carries it out; by default the run starts one and closes it.
        go_on: The command of the study that the run belongs to, which continues it; the study prints head and end.
        until: A round after which the run pauses with a checkpoint, for a resume.

    Raises:
        ShoalError: Bad input, or a failure that a resume can continue from.
        KeyboardInterrupt: The user stopped it; a checkpoint is written.
    """
    if resume and fresh:
        raise ShoalError("--resume, --fresh", "one goes on with the run, the other clears it; give one of them")
    plan = run if isinstance(run, RunPlan) else _plan(run)
    config = plan.config
    folder, remote, begun = RunFolder(plan.folder, config.run.log_format), None, False
    driver: Driver | None = None
    try:
        if isinstance(plan.place, str):
            from shoal.engine.runs.remote_run import RemoteRun

            remote = RemoteRun(plan.place, folder, fresh)
        read = inputs.contents(config) | _published(config)
        # A sweep may have made the plan hours ago, and files may have changed since.
        _require_same(folder, plan.inputs, read)
        if fresh and parent_of(folder.path):
            raise ShoalError(
                folder.path, "--fresh", "a fork begins with rounds of its parent; remove it, and fork again"
            )
        if folder.at_work.before and not fresh:
            _say_where_it_ended(folder, folder.at_work.before)
        if not fresh:
            _require_same_keys(folder, config)
        if folder.finished and not fresh:
            _require_same(folder, folder.summary().get("inputs", {}), read)
            if go_on is None:
                show_folder(plan.place)
                say("already finished; --fresh runs it again")
            return folder.path
        newest = None if fresh else _checkpoint(plan, folder, resume, quiet=go_on is not None and until is not None)
        if newest:
            _require_same(folder, newest.inputs, read)
        store = plan.prepare(repair=False)
        untrained = plan.require_trainable(plan.untrained(store.manifest), store.manifest.item_name)
        job = make_job(config, store, folder.path.name)
        job = replace(job, predictions=asks_for_predictions(plan.callbacks))
        # Files that were downloaded just now count, too.
        read |= _published(config)
        read |= inputs.of_stores(job.content, job.graphs, job.training, config.propagation.keep)
        if newest:
            _require_same(folder, newest.inputs, read)
        # Models that do not fit the memory must be an error before any actor starts.
        models = [built.flat for built in job.sketch_models(store, plan.algorithm)[MODEL]]
        trainers = job.trainers(store, plan.algorithm, models)
        if config.resources.gpus_per_host and job.compute.device == "cpu":
            say("engine.device: cpu: shares of GPUs are reserved, but only a custom method can use them")
        if of_samples := _chosen_on_samples(config):
            say(of_samples)
        parameters = [len(model.w) for model in models]
        lines = by_subject(describe_done(config, parameters, config.rounds))
        if go_on is None:
            of_edges = describe_edge_features(
                store.manifest.edge_features, [spec.name for spec in config.models()], config.kernel().relations
            )
            rows = {"graph": _sizes(store.manifest), "edges": of_edges, "train": untrained}
            show({subject: text for subject, text in rows.items() if text} | lines)
        else:
            for subject in (subject for feature in SECTIONS for subject in feature.warns):
                if subject in lines:
                    say(lines[subject])
        if fresh:
            folder.clear()
            if remote is not None:
                remote.clear()
        folder.begin(config)
        begun = True
        go_on_from(folder, newest, config.run)
        driven = backend or open_backend(config)
        try:
            driver = Driver(plan, folder, driven, job, store, read, trainers, parameters, go_on)
            with folder.at_work.keep_places(folder.fail):
                driver.drive(newest.state if newest else None, until)
        finally:
            if backend is None:
                driven.close()
        if remote is not None:
            remote.finish()
        if go_on is not None:
            # A run that was asked to stop in its last round is finished, and its study has others.
            driver.interrupt.require_none()
        return folder.path
    except Exception as error:
        refused = isinstance(error, ShoalError) and not error.detail
        if begun and refused and folder.is_new and not (driver and driver.opened):
            # A cluster or a GPU is missing. The line on the screen says all that the folder would.
            folder.give_up()
            begun = False
        # A refusal in one line makes no folder for its log.
        if isinstance(error, ShoalError) and (begun or error.detail or not folder.is_new):
            _note(error, folder)
        if begun:
            folder.fail(error.line if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}")
        raise
    finally:
        if remote is not None:
            remote.close()
        folder.close()


def require_set_up(plan: RunPlan, store: Store) -> dict[str, str]:
    """Makes the server of a run on its store as the run will, and returns what the head of the run would say of it.

    Raises ShoalError: the method refuses it, or hardly any client can train.
    """
    config, manifest = plan.config, store.manifest
    untrained = plan.require_trainable(plan.untrained(manifest), manifest.item_name)
    job = make_job(config, store, plan.folder.name)
    models = job.sketch_models(store, plan.algorithm)[MODEL]
    Server(job, plan.rounds, LocalBackend(), None)
    lines = by_subject(describe_done(config, [len(model.flat.w) for model in models], config.rounds))
    return ({"train": untrained} if untrained else {}) | lines


def _sizes(graph: Manifest) -> str:
    """Returns the name of the graph of a store, and its sizes."""
    kind = " (synthetic)" if graph.synthetic else ""
    return f"{graph.name}{kind}: {graph.nodes:,} nodes, {graph.features} features, {graph.outputs}"


def _plan(config: Config) -> RunPlan:
    """Plans a config; the traceback of code that fails meanwhile goes to the log of the run, if there can be one."""
    try:
        return RunPlan.of(config)
    except ShoalError as error:
        if error.detail:
            with suppress(ShoalError, OSError), closing(RunFolder(run_path(config), config.run.log_format)) as folder:
                _note(error, folder)
        raise


def _published(config: Config) -> dict[str, str]:
    return {f"the file {path}": digest for path, digest in published_digests(config).items()}


def _chosen_on_samples(config: Config) -> str:
    """Returns a warning if the run keeps, or ends by, the best of samples of clients; else an empty text."""
    keys = ["run.keep_best"] * config.run.keep_best + ["callbacks"] * bool(steering(config.plain()["callbacks"]))
    if config.evaluation.clients == "all" or not keys:
        return ""
    return (
        f"evaluation.clients: {config.evaluation.clients}: for {' and '.join(keys)} the best round is the best of "
        "samples of clients; with all, it is the best of the federation"
    )


def _say_where_it_ended(folder: RunFolder, place: str) -> None:
    """Says where a process ended that could not say so: by a crash, a kill, or an exit of compiled code."""
    line = f"the process before ended without a line, {place}: it was killed, or compiled code crashed or left"
    say(f"{folder.path}: {line}")
    log.warning(line)


def _note(error: ShoalError, folder: RunFolder) -> None:
    log.error("%s\n%s", error, error.detail)
    if error.detail:
        error.log = folder.log


def _checkpoint(plan: RunPlan, folder: RunFolder, resume: bool, quiet: bool) -> Checkpoint | None:
    """Loads the checkpoint that an unfinished run, or one of more rounds, continues from; None: it starts over."""
    if not folder.started and resume and (why_not := take_over(plan, folder)) is not None:
        _refuse_changed(plan.config)
        say(f"{why_not}, starting")
    if not folder.started:
        return None
    if not resume:
        raise ShoalError(folder.place, "holds an unfinished run; --resume continues it, --fresh starts over")
    newest = checkpoint.load_newest(folder.checkpoints)
    if newest is None:
        logged, every = folder.rounds_logged(), folder.checkpoint_every()
        if every is not None and logged > every:
            raise ShoalError(
                folder.checkpoints,
                f"no checkpoint, though {logged} rounds are logged and one is written every {every}; "
                "bring them back, or --fresh starts over",
            )
        say("no checkpoint yet: starting over")
        return None
    if changed := differences(newest.environment, plan.device):
        say(f"the machine or its software changed, last bits may differ: {', '.join(changed)}")
    if not quiet:
        say(f"resuming after round {newest.state.round}")
    return newest


def _require_same_keys(folder: RunFolder, config: Config) -> None:
    """Refuses a config that differs from that of the folder: another version of Shoal may have had other defaults."""
    try:
        changed = changed_keys(config, folder.path) if folder.started or folder.finished else []
    except ShoalError:
        # A damaged config cannot be compared; it is written anew.
        return
    if changed:
        raise ShoalError(
            folder.path, f"was run with other values of {', '.join(changed)}; set those, or start over with --fresh"
        )


def _require_same(folder: RunFolder, old: dict[str, str], new: dict[str, str]) -> None:
    """Refuses to continue with other data than a run began with."""
    if changed := inputs.differences(old, new):
        raise ShoalError(
            folder.path,
            f"{', '.join(changed)} changed since this run started; restore the content, or start over with --fresh",
        )


def _refuse_changed(config: Config) -> None:
    """Refuses to resume a run of another config, or of another version of Shoal, under the same name."""
    for relative in unfinished_relatives(config):
        if changed := changed_keys(config, relative) + changed_contents(config, relative):
            raise ShoalError(
                relative,
                f"the unfinished run differs from this config in {', '.join(changed)}; undo that to resume "
                "it, or leave out --resume to start a run of this config",
            )
        raise ShoalError(
            relative,
            "the unfinished run was made by a version of Shoal with other numbers; finish it with that "
            "version, or leave out --resume to start over in a new folder",
        )


def take_over(plan: RunPlan, folder: RunFolder) -> str | None:
    """Copies the state of the longest run that differs from a plan in fewer `rounds` alone; else returns a reason.

    The rounds of that run are those that the plan would begin with, to the bit. If its last round is evaluated, or
    evaluated whole, only because it is the last, the checkpoint before it is taken. Raises ShoalError: the folder
    cannot be written.
    """
    reasons = []
    for other, rounds in sorted(_shorter(plan), key=lambda run: -run[1]):
        why, newest = _depends_on_rounds(plan, other, rounds), None
        if why is None:
            # The last round alone may be evaluated on all clients.
            evaluation = plan.config.evaluation
            last = rounds - 1 if evaluation.clients != "all" and evaluation.last == "all" else rounds
            newest = usable(other, last - last % evaluation.every)
            why = "none of its checkpoints can be used"
        if newest is not None:
            say(f"{other}: the run of {rounds} rounds goes on to {plan.config.rounds} in {folder.path}")
            bring(other, newest, folder)
            return None
        reasons.append(f"{other}: the run of {rounds} rounds cannot go on to {plan.config.rounds}: {why}")
    return reasons[0] if reasons else f"{folder.path}: nothing to resume"


def _shorter(plan: RunPlan) -> Iterator[tuple[Path, int]]:
    """Yields local runs of the same name and keys with fewer rounds, and maybe with another schedule of rates."""
    config = plan.config
    for other in runs_here(config).glob(f"{config.name}-????????"):
        try:
            changed = {key.partition(" ")[0] for key in changed_keys(config, other)}
            rounds = load_config(other).rounds
        except ShoalError:
            continue
        others = {key for key in changed if not key.startswith("train.schedule")}
        if others == {"rounds"} and rounds < config.rounds:
            yield other, rounds


def _depends_on_rounds(plan: RunPlan, other: Path, rounds: int) -> str | None:
    """Returns the reason why the first rounds of a plan are not those of a shorter run; None: they are."""
    config = plan.config
    if run_path(config.model_copy(update={"rounds": rounds}), plan.inputs) != other:
        return "train.schedule, a file that it reads, or the version of Shoal is another"
    reasons = (section.of_all_rounds(section.of(config)) for section in SECTIONS if section.is_on(config))
    if whole := next(filter(None, reasons), ""):
        return whole
    modules = [sys.modules[cls.__module__] for cls in type(plan.algorithm).__mro__ if cls.__module__ in sys.modules]
    texts = [inspect.getsource(module) for module in modules if module.__name__.startswith(OF_METHODS)]
    code = plan.method.code
    if any(map(READS_ROUNDS.search, [*texts, *([code.source, *code.helpers.values()] if code else ())])):
        return f"{config.algorithm.name} reads the number of rounds"
    for callback in steering(config.plain()["callbacks"]):
        if is_own(callback["name"]):
            user_code = read_user_code("callbacks", callback["name"])
            if any(map(READS_ROUNDS.search, (user_code.source, *user_code.helpers.values()))):
                return f"the callback {callback['name']} reads the number of rounds"
    return None


def usable(other: Path, last: int) -> Checkpoint | None:
    """Loads the newest checkpoint of a run up to a round, of all that are kept; None: there is none."""
    roots = (other / CHECKPOINTS, other / checkpoint.BEST)
    kept = {number: root for root in reversed(roots) for number in checkpoint.rounds_kept(root)}
    for number in sorted(kept, reverse=True):
        if number <= last:
            try:
                return checkpoint.load_round(kept[number], number)
            except ShoalError as error:
                say(f"{error}; the one before it is used")
    return None


def bring(other: Path, source: Checkpoint, folder: RunFolder) -> None:
    """Copies a checkpoint, and the files of the rounds before it; their log comes last, as it makes a run begun."""
    last = source.state.round
    for number in recorded_rounds(other):
        if number <= last:
            write_records(folder.path, number, read_records(other, number))
    for number in checkpoint.rounds_kept(other / checkpoint.BEST):
        if number <= last:
            checkpoint.write(folder.path / checkpoint.BEST, checkpoint.load_round(other / checkpoint.BEST, number))
    for name in (CLIENT_SCORES, UPLOADS):
        if (other / name).exists():
            with replacing(folder.path / name) as unfinished:
                shutil.copyfile(other / name, unfinished)
    checkpoint.write(folder.checkpoints, source)
    folder.metrics.restore(source.metrics)
