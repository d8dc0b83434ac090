"""The loop of a run: steps a server through its rounds, and records them in the run folder."""

import logging
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from shoal.engine.callbacks.callback import Running
from shoal.engine.callbacks.calls import Calls
from shoal.engine.config.run_identity import identity_keys
from shoal.engine.config.sections import ACCURACY, DOMAINS, RunConfig
from shoal.engine.hosts.backend import Backend, LocalBackend, ServerLost
from shoal.engine.hosts.device import PeakMemory, resident
from shoal.engine.messages.environment import environment
from shoal.engine.messages.job import Job
from shoal.engine.records import checkpoint
from shoal.engine.records.checkpoint import BestRounds, Checkpoint
from shoal.engine.records.client_scores import CLIENT_SCORES, UPLOADS, columns_of
from shoal.engine.records.logged_lines import Logged
from shoal.engine.records.metrics import DIGESTS, RECORDS, write_records
from shoal.engine.records.run_folder import RunFolder, parent_of
from shoal.engine.records.summary import (
    CONSTANT,
    DISTINCT,
    DONE,
    FIRST_SCOPE,
    ONE_MODEL,
    SOME,
    count_distinct,
    summarize_run,
)
from shoal.engine.records.untrained import UNTRAINED
from shoal.engine.rounds import server
from shoal.engine.rounds.costs import Live, Watch
from shoal.engine.rounds.state import FederationState
from shoal.engine.runs.plan import RunPlan
from shoal.engine.scores.counts import constant_shares
from shoal.engine.screen.head import show, show_folder
from shoal.engine.screen.interrupt import Interrupt, Interrupted, graceful
from shoal.engine.screen.live_view import LiveView, live_view
from shoal.engine.screen.progress import say
from shoal.engine.sections.sections import describe_done, load_crossing, why_skipped
from shoal.storage.errors import ShoalError
from shoal.storage.store.store import Store

log = logging.getLogger(__name__)
prints = logging.getLogger(f"{__name__}.prints")
prints.setLevel(logging.INFO)
SERVERS_LOST = 5


class Driver:
    """Steps a server through the rounds and records them in the run folder."""

    def __init__(
        self,
        plan: RunPlan,
        folder: RunFolder,
        backend: Backend,
        job: Job,
        store: Store,
        inputs: dict[str, str],
        trainers: Sequence[str],
        parameters: Sequence[int],
        go_on: str | None = None,
    ) -> None:
        """Takes a run; `inputs` are digests of all files that it reads, `trainers` say how hosts train its clients.

        `parameters` are the numbers of parameters of its models.

        `go_on` is the command that continues after an interruption; by default one of this run alone.
        """
        self.config = config = plan.config
        self.folder, self.backend, self.inputs, self.trainers = folder, backend, inputs, list(trainers)
        self.job, self.store, self.plan, self._parameters = job, store, plan.rounds, parameters
        self._untrained = plan.untrained(store.manifest)
        self.environment = environment(job.compute.device)
        plain = config.plain()
        running = Running(folder.path, plain, identity_keys(plain), config.rounds, _lines=lambda: folder.metrics.lines)
        self._calls = Calls(plan.callbacks, running, say)
        self._of_study, self._one_model = go_on is not None, plan.one_model
        self._go_on = go_on or f"shoal run {shlex.quote(str(folder.place))} --resume"
        # Whether server and hosts were ready once.
        self.opened = False
        self._servers_lost = 0
        self._saved = time.monotonic()
        # `drive` replaces it by one that listens for signals.
        self.interrupt = Interrupt()
        # Rounds whose lines are there.
        self._done = 0
        # Seconds that checkpoints took since the last line of a round.
        self._seconds_of_checkpoints = 0.0

    def drive(self, state: FederationState | None, until: int | None = None) -> None:
        """Runs all remaining rounds, from a state or from the start, and writes the summary.

        After round `until` it pauses: with a checkpoint, and no summary.

        Raises ShoalError: a round failed or a file cannot be written; KeyboardInterrupt: the user stopped it, or its
        time was over. If possible, a checkpoint is kept.
        """
        began = time.monotonic()
        self._scores = {} if state is None else state.scores
        memory = PeakMemory()
        every, over = self.config.run.checkpoint_every, False
        try:
            # Before the first round there is nothing to keep, and a signal ends the run immediately.
            done = self._serve(state)
            self.opened = True
            if not self._of_study:
                # A run that is refused leaves no folder, and names none.
                show_folder(self.folder.place)
            if hosts := self.backend.describe_hosts():
                log.info("hosts: %s", hosts)
                if not self._of_study:
                    show({"hosts": hosts})
            first = "global" if self._one_model == SOME else FIRST_SCOPE
            name, rounds = self.config.name, min(self.config.rounds, until or self.config.rounds)
            with graceful() as interrupt, live_view(name, rounds, done, self._of_study, first) as view:
                self.interrupt = interrupt
                while done < rounds and not self._ended_early():
                    try:
                        self.folder.at_work.note(f"round {done + 1}, server")
                        self._done, stop = done, min(rounds, self._next_stop(done))
                        new_lines = self.backend.rounds(self._watching(view, interrupt), stop)
                        while (line := self._next(new_lines)) is not None:
                            done, predicted = line["round"], line.pop("predicted", ())
                            self.folder.at_work.note(f"after round {done}")
                            self._record(line)
                            self._done = done
                            if self._best:
                                self._best.note(line, self._current)
                            view.advance(line)
                            with self._keeping(done):
                                self._calls.after(line)
                                if predicted:
                                    self._calls.after_predictions(line, predicted)
                        now, limit = time.monotonic(), self.config.run.max_seconds
                        # The limit is one of this run alone, and ends no other run of a study.
                        over = limit is not None and now - began > limit
                        last = done == rounds or self._ended_early() or interrupt.asked or over
                        if last or done % every == 0 or now - self._saved > self.config.run.checkpoint_seconds:
                            self._save()
                    except ServerLost as error:
                        done = self._serve_again(error)
                        view.back_to(done)
                    if (interrupt.asked or over) and done < self.config.rounds and not self._ended_early():
                        say(f"stopped after round {done}" + ("" if self._of_study else f"; {self._how_to_resume()}"))
                        raise Interrupted(interrupt.number)
            if done < self.config.rounds and not self._ended_early():
                return
            lines = self.folder.metrics.lines
            parent = parent_of(self.folder.path)
            shared = parent["round"] if parent else 0
            summary = summarize_run(lines, self.store.manifest, memory.stop(), self.job.compute.device, shared)
            summary["seconds"]["checkpoint"] += self._seconds_of_checkpoints
            kernel: Any = self.config.kernel()
            if kernel.boundaries:
                summary["bytes"]["exchange"] = load_crossing().exchange_bytes(self.store, kernel)
            summary |= {ONE_MODEL: self._one_model} if self._one_model else {}
            summary |= {CONSTANT: shares} if (shares := self._constant_shares()) else {}
            summary |= {UNTRAINED: counts} if (counts := self._untrained.as_counts()) else {}
            of_parts = count_distinct(self.store.manifest.splits[self.config.data.split_name])
            summary |= {DISTINCT: of_parts} if of_parts else {}
            summary |= {DONE: texts} if (texts := describe_done(self.config, self._parameters, done)) else {}
            summary |= {"paths": self.trainers, "inputs": self.inputs}
            if self._ended_early():
                summary["stopped"] = self._calls.running.stopped
                say(f"ended after round {done} of {self.config.rounds}: {self._calls.running.stopped}")
            self.folder.summarize(summary)
            if self.config.run.keep_finished is not None:
                checkpoint.keep_newest(self.folder.checkpoints, self.config.run.keep_finished)
            self._calls.end(summary)
        finally:
            memory.stop()
            self.backend.end()
            # After a finished run callbacks have ended already, and this does nothing.
            self._calls.end(None)

    def _next(self, lines: Iterator[dict[str, Any]]) -> dict[str, Any] | None:
        """Returns the line of the next round of a call, None after the last; a failure leaves a checkpoint."""
        with self._keeping(self._done):
            return next(lines, None)

    def _watching(self, view: LiveView, interrupt: Interrupt) -> Watch:
        """Shows a round under way; asked to stop, keeps earlier rounds at once (`ray job stop` waits 3 seconds)."""

        def watch(live: Live) -> None:
            view.watch(live)
            done = self._done
            if interrupt.asked and done and not checkpoint.folder_of(self.folder.checkpoints, done).exists():
                current = self._current()
                # At the end of a round the server may be ahead of the lines of metrics; the round is then kept whole.
                if current.state.round == done:
                    checkpoint.save(self.folder.checkpoints, current, self.config.run.keep)
                    self.folder.send()
                    say(f"kept a checkpoint of round {done}")

        return watch

    def _next_stop(self, done: int) -> int:
        """Returns the round after which a checkpoint is due, or a callback that may end the run or keep models."""
        every = self.config.run.checkpoint_every
        return done + 1 if self._best or self._calls.may_stop else done + every - done % every

    @contextmanager
    def _keeping(self, done: int) -> Iterator[None]:
        """Writes, after a failure in the block, a checkpoint of the rounds that are done; the failure is reported."""
        try:
            yield
        except ShoalError:
            if done:
                try:
                    self._save()
                    say(f"kept a checkpoint of round {done}; {self._how_to_resume()}")
                except (ShoalError, ServerLost) as error:
                    log.error("no checkpoint of round %d: %s", done, error)
            raise

    def _how_to_resume(self) -> str:
        return f"continue with: {self._go_on}"

    def _ended_early(self) -> bool:
        """Returns whether a callback ended the run; it ends with the next evaluation."""
        lines = self.folder.metrics.lines if self._calls.running.stopped else []
        return "scopes" in lines[-1] if lines else False

    def _record(self, line: dict[str, Any]) -> None:
        """Writes the line of a round, its records and scores; events, prints and tracebacks go to the log."""
        where = {"round": line["round"]}
        for host, client, text in line.pop("printed", []):
            who = "server" if host is None else f"host {host}"
            who += "" if client is None else f", {self.job.who(client)}"
            prints.info(f"round {line['round']}, {who}: {text}", extra={**where, "host": host, "client": client})
        for event in line.pop("events", []):
            log.warning(event, extra=where)
        if halved := line.get("halved_batches"):
            log.warning(
                f"round {line['round']}: {halved} times the clients of a batch did not fit into a device's memory; "
                "they were trained in smaller ones, which may change last bits"
            )
        if why := why_skipped(self.config, line):
            log.warning("round %d is skipped: %s", line["round"], why, extra=where)
        for client, (text, detail) in line.get("failures", {}).items():
            log.error("%s\n%s", text, detail, extra={**where, "client": int(client)})
            line["failures"][client] = text
        digests: dict[str, str | None] = {}
        if records := line.pop("records", None):
            digests[RECORDS] = write_records(self.folder.path, line["round"], records)
        if (scores := line.pop(server.CLIENT_SCORES, None)) is not None:
            digests[CLIENT_SCORES] = self.folder.client_scores.append(line["round"], scores)
        if uploads := line.pop("uploads", None):
            digests[UPLOADS] = self.folder.uploads.append(line["round"], columns_of(uploads))
        if digests:
            line[DIGESTS] = digests
        line.setdefault("memory", {})["driver"] = resident()
        line["seconds"]["checkpoint"], self._seconds_of_checkpoints = self._seconds_of_checkpoints, 0.0
        self.folder.metrics.append(line)
        self.backend.publish(line)

    def _save(self) -> None:
        began = time.monotonic()
        current = self._current()
        self._scores = current.state.scores
        checkpoint.save(self.folder.checkpoints, current, self.config.run.keep)
        self.folder.send()
        self._saved = time.monotonic()
        self._servers_lost = 0
        self._seconds_of_checkpoints += self._saved - began

    def _constant_shares(self) -> dict[str, Mapping[str, float]]:
        """Computes the share of the best constant class by scope; none where another metric chooses rounds."""
        if self.config.evaluation.metrics[0] != ACCURACY:
            return {}
        items_N = self.job.infos(self.store).items
        shares = {scope: constant_shares(table, items_N) for scope, table in self._scores.items() if scope != DOMAINS}
        return {scope: by_mean for scope, by_mean in shares.items() if by_mean}

    def _current(self) -> Checkpoint:
        state = self.backend.state(checkpoint.models_on_disk(self.folder.path))
        write_states = self.backend.write_states
        return Checkpoint(state, self.environment, self.inputs, self.folder.metrics.logged, write_states=write_states)

    def _serve(self, state: FederationState | None) -> int:
        """Opens a server from a state, a new one if it is lost; returns the number of finished rounds."""
        self.folder.at_work.note(f"after round {state.round}" if state else "before round 1")
        if isinstance(self.backend, LocalBackend):
            self.backend.note_places(self.folder.at_work.note)
        try:
            self.backend.open(self.job, self.plan, state)
        except ServerLost as error:
            return self._serve_again(error)
        self._best = BestRounds(self.folder.path, self.folder.metrics.lines) if self.config.run.keep_best else None
        self._calls.start()
        return state.round if state else 0

    def _serve_again(self, error: ServerLost) -> int:
        """Opens a new server from the newest checkpoint, on the same hosts."""
        self._servers_lost += 1
        log.warning("server lost: %s", error)
        if self._servers_lost > SERVERS_LOST:
            raise ShoalError(
                f"the server was lost {self._servers_lost} times in a row ({error}); the newest checkpoint is kept, "
                "use --resume"
            ) from error
        newest = checkpoint.load_newest(self.folder.checkpoints)
        done = newest.state.round if newest else 0
        say(f"the server was lost ({error}); going on after round {done}")
        go_on_from(self.folder, newest, self.config.run)
        return self._serve(newest.state if newest else None)


def go_on_from(folder: RunFolder, newest: Checkpoint | None, keeps: RunConfig) -> None:
    """Restores a run folder to the content of a checkpoint, or to its start; reports checkpoints that are unusable."""
    if newest is None and (parent := parent_of(folder.path)):
        raise ShoalError(
            folder.checkpoints, f"no checkpoint, and the run is a fork of {parent['run']}; remove it, and fork again"
        )
    for fault in newest.passed_over if newest else ():
        _warn(f"{fault}; set aside, the one before it is used")
    if newest and newest.passed_over:
        checkpoint.set_aside(folder.checkpoints, newest.state.round)
    if rebuilt := folder.metrics.restore(newest.metrics if newest else Logged()):
        _warn(rebuilt)
    noted, evaluated = dict[int, dict[str, Any]](), set[int]()
    for line in folder.metrics.lines:
        noted[line["round"]] = line.get(DIGESTS, {})
        if "scopes" in line:
            evaluated.add(line["round"])
    scores = {number: digests.get(CLIENT_SCORES) for number, digests in noted.items() if number in evaluated}
    if keeps.client_scores and (lost := folder.client_scores.restore(scores)):
        _warn(lost)
    uploads = {number: digests[UPLOADS] for number, digests in noted.items() if UPLOADS in digests}
    if lost := folder.uploads.restore(uploads):
        _warn(lost)


def _warn(text: str) -> None:
    say(text)
    log.warning(text)
