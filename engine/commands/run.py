"""One run from config to summary: prepare, rounds, checkpoints, evaluation; and again from where it was cut off."""

import logging
import time
from pathlib import Path
from typing import Any

from algorithms.methods.loading import describe, load
from algorithms.protocol import MODEL
from engine.hosts.federation import Federation, ServerLost, Session, open_session
from engine.hosts.memory import PeakMemory, resident
from engine.hosts.stacking import stacked_models
from engine.preparing.prepare import prepare
from engine.records import checkpoint
from engine.records.environment import differences, environment
from engine.records.run_folder import RunFolder, changed_keys, read_metrics, unfinished_relatives
from engine.records.summary import summarize_run
from engine.records.tensorboard import TensorBoard
from engine.rounds.sampling import read_trace
from engine.rounds.schedule import Plan
from engine.rounds.state import FederationState
from engine.screen.interrupt import graceful
from engine.screen.live_view import LiveView, live_view
from engine.screen.progress import say
from engine.settings.chosen_device import chosen_device
from engine.settings.config import Config
from engine.settings.sections import ParticipationOptions
from engine.wire.job import Job, make_job
from engine.wire.models import require_mixable
from storage.errors import ShoalError
from storage.store import Store

log = logging.getLogger(__name__)
SERVERS_LOST = 5


def plan_of(config: Config, whole: bool = False) -> Plan:
    """What the round loop needs of a config; one client that is the whole graph always takes part.

    Raises:
        ShoalError: The trace cannot be read or is of other clients.
    """
    how = ParticipationOptions() if whole else config.participation
    online = None if how.trace is None else read_trace(how.trace, config.partition.clients)
    return Plan(config.rounds, how, config.evaluation.every, config.engine.cell_size, online)


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
    algorithm = load(describe(config.algorithm.name, config.algorithm.options))
    require_mixable(config, algorithm)
    folder = RunFolder(config)
    try:
        if folder.finished and not fresh:
            say(f"{folder.path}: already finished; --fresh runs it again")
            return folder.path
        state = _starting_state(config, folder, resume, fresh)
        store = prepare(config, whole=algorithm.whole_graph, mend=False)
        job = make_job(config, store, folder.path.name)
        # A wrong option of the model is an error before any actor starts.
        models = [kind.flat for kind in job.build_models(store, algorithm)[MODEL]]
        stacked_models(job.path, job.device, algorithm, models, job.train)
        plan = plan_of(config, algorithm.whole_graph)
        if config.resources.gpus_per_host and job.device == "cpu":
            say("engine.device: cpu: shares of GPUs are reserved, but only a method of your own can use them")
        folder.begin(config)
        own = session or open_session(config)
        try:
            _Driver(config, folder, own, job, store, plan).drive(state)
        finally:
            if session is None:
                own.close()
        return folder.path
    except ShoalError as error:
        log.error("%s\n%s", error, error.detail)
        raise
    finally:
        folder.close()


def _starting_state(config: Config, folder: RunFolder, resume: bool, fresh: bool) -> FederationState | None:
    if fresh:
        folder.restart()
    if not folder.started:
        if resume:
            _refuse_changed(config)
        return None
    if not resume:
        raise ShoalError(f"{folder.path}: holds an unfinished run; --resume goes on with it, --fresh starts over")
    found = checkpoint.load_newest(folder.checkpoints)
    if found is None:
        say("no checkpoint yet: starting over")
        folder.restart()
        return None
    state, recorded, complaints = found
    for line in complaints:
        say(line)
    if changed := differences(recorded, chosen_device(config)):
        say(f"the machine or its software changed, last bits may differ: {', '.join(changed)}")
    say(f"resuming after round {state.round}")
    folder.cut_metrics(state.round)
    return state


def _refuse_changed(config: Config) -> None:
    for relative in unfinished_relatives(config):
        changed = ", ".join(changed_keys(config, relative))
        raise ShoalError(
            f"{relative}: the unfinished run differs from this config in {changed}; undo that to resume it, "
            "or leave out --resume for a run of its own"
        )


class _Driver:
    """Steps a server through the rounds and writes what it says into the run folder."""

    def __init__(self, config: Config, folder: RunFolder, session: Session, job: Job, store: Store, plan: Plan) -> None:
        self.plan = plan
        self.config, self.folder, self.session, self.job, self.store = config, folder, session, job, store
        self.environment = environment(job.device)

    def drive(self, state: FederationState | None) -> None:
        began = time.monotonic()
        memory = PeakMemory()
        every = self.config.run.checkpoint_every
        board = TensorBoard(self.folder.path) if self.config.run.tensorboard else None
        federation = self.session.federation(self.job, self.plan, state)
        try:
            with graceful() as interrupt:
                done, lost = state.round if state else 0, 0
                with live_view(self.config.name, self.config.rounds, done) as view:
                    while done < self.config.rounds:
                        try:
                            line = self._round(federation, done, view)
                            done = line["round"]
                            self._log_events(line)
                            line.setdefault("memory", {})["driver"] = resident()
                            self.folder.append(line)
                            if board:
                                board.write(line)
                            view.advance(line)
                            interrupt.asked |= self._out_of_time(began)
                            if done % every == 0 or done == self.config.rounds or interrupt.asked:
                                self._save(federation)
                        except ServerLost as error:
                            lost += 1
                            federation, done = self._recover(error, lost)
                            view.back_to(done)
                        if interrupt.asked and done < self.config.rounds:
                            say(f"stopped after round {done}; go on with: shoal run {self.folder.path} --resume")
                            raise KeyboardInterrupt
            lines = read_metrics(self.folder.path)
            self.folder.summarize(summarize_run(lines, self.store.manifest, memory.stop(), self.job.device))
        finally:
            memory.stop()
            if board:
                board.close()
            federation.close()

    def _round(self, federation: Federation, done: int, view: LiveView) -> dict[str, Any]:
        """One round; if it fails, the rounds before it are kept in a checkpoint."""
        try:
            return federation.round(view.watch)
        except ShoalError:
            if done:
                self._save(federation)
                say(f"kept a checkpoint of round {done}; go on with: shoal run {self.folder.path} --resume")
            raise

    def _out_of_time(self, began: float) -> bool:
        limit = self.config.run.max_seconds
        return limit is not None and time.monotonic() - began > limit

    def _log_events(self, line: dict[str, Any]) -> None:
        """Tracebacks and what happened to hosts go to the log, the clients left out stay in the metrics."""
        for event in line.pop("events", []):
            log.warning(event)
        for client, (text, detail) in line.get("failures", {}).items():
            log.error("%s\n%s", text, detail)
            line["failures"][client] = text

    def _save(self, federation: Federation) -> None:
        checkpoint.save(self.folder.checkpoints, federation.state(), self.environment, self.config.run.keep)

    def _recover(self, error: ServerLost, lost: int) -> tuple[Federation, int]:
        """A new server from the newest checkpoint, on the same hosts."""
        log.warning("server lost: %s", error)
        if lost > SERVERS_LOST:
            raise ShoalError(
                f"the server was lost {lost} times ({error}); the newest checkpoint is kept, use --resume"
            ) from error
        found = checkpoint.load_newest(self.folder.checkpoints)
        state = found[0] if found else None
        done = state.round if state else 0
        say(f"the server was lost ({error}); going on after round {done}")
        self.folder.cut_metrics(done)
        return self.session.federation(self.job, self.plan, state), done
