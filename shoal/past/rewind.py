"""A run as it was after one of its rounds: from the nearest checkpoint, and the rounds behind it trained once more.

Nothing is written. What is trained again is compared with what the run logged of it.
"""

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from shoal.engine.config.config import Config, load_config
from shoal.engine.config.config_text import CONFIG
from shoal.engine.hosts.backend import LocalBackend, server_device
from shoal.engine.messages.environment import differences, environment
from shoal.engine.messages.job import Job, make_job
from shoal.engine.records import inputs
from shoal.engine.records.checkpoint import Checkpoint, address_of
from shoal.engine.records.metrics import read_log, read_metrics
from shoal.engine.records.run_folder import finished, parent_of, read_summary
from shoal.engine.rounds.costs import unwatched
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import usable
from shoal.engine.screen.progress import say
from shoal.engine.sections.sections import options_of, why_skipped
from shoal.past.origin import find_origin
from shoal.storage.errors import ShoalError
from shoal.storage.store.store import Store


class PastRun:
    """A run that is looked back at, finished or not. It opens what is asked of it.

    Attributes:
        path: Its folder.
        trained: Rounds that `after` trained once more.
    """

    def __init__(self, run: Path) -> None:
        """Opens nothing yet."""
        self.path, self.trained = run, 0
        self._reached: Checkpoint | None = None

    @cached_property
    def config(self) -> Config:
        """Its config. Raises ShoalError: the run is gone, or its config is damaged."""
        if not (self.path / CONFIG).exists():
            reason = "no run is here; a fork of it that has begun goes on by `shoal run FORK --resume`"
            raise ShoalError(self.path, reason)
        return load_config(self.path)

    @cached_property
    def lines(self) -> list[dict[str, Any]]:
        """The lines of metrics of the rounds that it logged. Raises ShoalError: as `config`, or they are damaged."""
        assert self.config
        return read_metrics(self.path)

    @property
    def place(self) -> str:
        """Its folder, or its address, as text."""
        return address_of(self.path) or str(self.path.resolve())

    @cached_property
    def plan(self) -> RunPlan:
        """Its config, checked, and what it reads. Raises ShoalError: as `config`, or a file of it is gone."""
        return RunPlan.of(self.config)

    @cached_property
    def store(self) -> Store:
        """Its store. Raises ShoalError: as `plan`, or the store is damaged or has changed."""
        return self.plan.prepare(repair=False)

    @cached_property
    def job(self) -> Job:
        """The run as hosts see it. Raises ShoalError: as `store`."""
        return make_job(self.config, self.store, self.path.name)

    def require_round(self, number: int) -> None:
        """Raises ShoalError: the run logged no such round. Says so where the run is not finished."""
        if not 1 <= number <= len(self.lines):
            raise ShoalError(self.path, "--round", f"the run has rounds 1 to {len(self.lines)}, and none is {number}")
        if not finished(self.path):
            say(f"{self.place}: not finished, {len(self.lines)} of {self.config.rounds} rounds are there")

    def of_round(self, number: int) -> "PastRun":
        """Returns the run that trained a round, with its own config: of a fork maybe its parent.

        Raises ShoalError: as `require_round`; that run is gone, or has other rounds by now.
        """
        self.require_round(number)
        origin = find_origin(self.path, number)
        if origin == self.path:
            return self
        trained_it = PastRun(origin)
        say(f"round {number} is one of {trained_it.place}, with the options of that")
        return trained_it

    def require_read(self, number: int) -> None:
        """Raises ShoalError: as `require_round`; or the round was skipped, with too few answers to a hidden sum."""
        self.require_round(number)
        if why := why_skipped(self.config, self.lines[number - 1]):
            raise ShoalError(self.path, "--round", f"round {number} was skipped: {why}; take another")

    def require_classes(self, what: str) -> None:
        """Raises ShoalError: `what` counts rightly predicted classes, and the run predicts no classes."""
        target = options_of(self.config, "targets")
        if target is not None:
            raise ShoalError(
                self.path,
                "target",
                f"{what} is of predicted classes, found target {target.kind}; take a run on classes",
            )

    def cohort(self, number: int) -> list[int]:
        """Returns the clients that were asked in a round, ascending; those that failed, too."""
        line = self.lines[number - 1]
        return sorted({*line["cohort"], *map(int, line.get("failures", ()))})

    def after(self, number: int) -> Checkpoint | None:
        """Returns the run after a round, with what it had logged until then; None: before its first round.

        Raises ShoalError: an input changed, or rounds that are trained again are not as the run logged them.
        """
        checkpoint = usable(self.path, number)
        reached = self._reached
        if reached and (checkpoint.state.round if checkpoint else 0) < reached.state.round <= number:
            checkpoint = reached
        parent = parent_of(self.path)
        shared = min(parent["round"], number) if parent else 0
        if parent and (checkpoint is None or checkpoint.state.round < shared):
            # The parent's config trained these rounds; the fork may read other files.
            checkpoint = PastRun(find_origin(self.path, shared)).after(shared)
            assert checkpoint is not None
            checkpoint = replace(checkpoint, inputs=checkpoint.inputs | self.plan.inputs)
        job, propagation = self.job, self.config.propagation
        read = self.plan.inputs | inputs.of_stores(job.content, job.graphs, job.training, propagation.keep)
        old = checkpoint.inputs if checkpoint else read_summary(self.path)["inputs"] if finished(self.path) else {}
        if changed := inputs.differences(old, read):
            raise ShoalError(self.path, f"{', '.join(changed)} changed since this run started; restore the content")
        if checkpoint and (others := differences(checkpoint.environment, self.plan.device)):
            say(f"the machine or its software changed, last bits may differ: {', '.join(others)}")
        first = checkpoint.state.round if checkpoint else 0
        self.trained = number - first
        kept = "" if checkpoint is reached else "the checkpoint of "
        where = f"from {kept}round {first}" if checkpoint else "from the start"
        say(where + (f"; rounds {first + 1} to {number} are trained once more" if self.trained else ""))
        if not self.trained:
            return checkpoint
        backend = LocalBackend(server_device(self.config))
        backend.open(job, self.plan.rounds, checkpoint.state if checkpoint else None)
        for logged in self.lines[first:number]:
            line = backend.round(unwatched)
            if changed := [key for key in ("cohort", "loss") if line[key] != logged[key]]:
                raise ShoalError(
                    self.path,
                    f"round {line['round']}, trained once more, has another {' and '.join(changed)} than was logged; "
                    "use the machine and the software of the run, or keep more checkpoints (run.keep)",
                )
        recorded = checkpoint.environment if checkpoint else environment(job.compute.device)
        self._reached = Checkpoint(backend.state(), recorded, {**old, **read}, read_log(self.path, number))
        return self._reached
