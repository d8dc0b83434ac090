"""Runs a grid on the same store and warm hosts: all are checked before the first starts, and a failed one is a row."""

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

from shoal.engine.cluster.open_backend import open_backend
from shoal.engine.cluster.room import part_of_gpu, places, this_machine
from shoal.engine.config.config import Config, device_choice
from shoal.engine.config.sizes import machine_cores
from shoal.engine.hosts.backend import Backend
from shoal.engine.records.at_work import ended_at
from shoal.engine.records.outputs import printed_file
from shoal.engine.records.run_folder import finished, started
from shoal.engine.records.summary import count_rounds
from shoal.engine.runs.dry_run import expected
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import require_set_up, run
from shoal.engine.screen.head import show
from shoal.engine.screen.interrupt import PARENT, graceful
from shoal.engine.screen.output import put
from shoal.engine.screen.progress import say
from shoal.storage.errors import MORE, BusyError, ShoalError
from shoal.study.groups import Key, Row, group_runs, others_of
from shoal.study.main_score import MAIN, MainScore
from shoal.study.means import validation_by
from shoal.study.study import Study
from shoal.study.sweep_folder import lock_study, root_of, row_of, write_sweep
from shoal.sweeps.sweep_view import FAILED, FINISHED, NOT_CHOSEN, SweepView, span
from shoal.tables.text_table import TextTable

PACKAGE = Path(__file__).absolute().parents[1]
# A process is started so that it loads this package, wherever it lies. Unlike `-m`, it looks for no module in the
# working directory, where a user's `types.py` would come before Python's.
START = """import importlib.util, sys
path = {path!r}
spec = importlib.util.spec_from_file_location("shoal", path + "/__init__.py", submodule_search_locations=[path])
sys.modules["shoal"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from shoal.cli.main import main
main()"""
SHOAL = (sys.executable, "-P", "-c", START.format(path=str(PACKAGE)))
# The one line of a failure begins with it.
PREFIX = "shoal: "
SECONDS_BETWEEN_LOOKS = 0.1
BACKEND_KEYS = {"engine", "resources", "ray"}


class Sweep:
    """The runs of a study: every run checked, their state and figures, and the folder of their tables."""

    def __init__(
        self,
        study: Study,
        at_once: int = 1,
        command: str | None = None,
        until: int | None = None,
        others: Sequence[Row] = (),
    ) -> None:
        """Reads and checks the configs of all runs, no two of which may be the same; starts and writes nothing.

        With `at_once` of 1, they run in this process, on warm hosts, else in separate processes. `command` continues
        it after an interruption, by default `shoal sweep` of the study. After round `until` runs pause.
        `others` are rows of earlier runs that the folder lists, too.
        """
        self.study, self._parallel, self._until, self._others = study, at_once, until, others
        self.command = command or study.command + (f" --at-once {at_once}" if at_once > 1 else "")
        self._choices = choices = study.choices
        self.plans = [RunPlan.of(config) for config in study.configs]
        for plan in self.plans:
            plan.bring()
        paths = [plan.folder for plan in self.plans]
        self.rows = [row_of(choice.columns, path) for choice, path in zip(choices, paths)]
        for number, path in enumerate(paths):
            if (first := paths.index(path)) != number:
                same = (self.rows[place].label for place in (first, number))
                raise ShoalError(f"{' and '.join(same)} are one run; leave one of them out of the sweep")
        config = self.plans[0].config
        if at_once > 1 and config.ray.address and config.engine.hosts == "auto":
            raise ShoalError("engine.hosts", f"auto takes all free cores, and {at_once} runs share them; give a number")
        self.folder = study.folder(root_of(config), config.name)
        # Forks train a share of their rounds. The runs that they share the others with are trained before, in part.
        self.shares: Sequence[float] = [1.0] * len(self.rows)
        self.before: Sequence[tuple[str, RunPlan, float]] = ()
        # Runs that another process is at work on, by their place.
        self._busy: dict[int, BusyError] = {}

    def train(self, hosts: "Hosts", places: Sequence[int] | None = None) -> None:
        """Trains runs, by default all, that are not there yet up to round `until`, quietly; writes no tables.

        Raises BusyError: another process is at work on one, so that it cannot be known what becomes of it.
        """
        self._view = SweepView(self.rows, self.study.runs, self._parallel, quiet=True)
        asked = range(len(self.rows)) if places is None else places
        self._carry_out([place for place in asked if not self._done(place)], hosts)
        self._require_free()

    def _write(self) -> None:
        if self._until is None:
            write_sweep(self.folder, self.study, [*self.rows, *self._others])

    def _done(self, place: int) -> bool:
        folder = self.plans[place].folder
        return finished(folder) or (self._until is not None and count_rounds(folder) >= self._until)

    def go(self, locked: bool = False) -> bool:
        """Runs what is not finished, unfinished runs from their checkpoints; a run that fails is a row with its error.

        Gives whether all runs of the study are finished; one that another process is at work on waits. After an
        interruption, the same sweep continues. `locked` says that the caller holds the lock of the folder.

        Raises BusyError: another process is at work on the study, or on a run by which validation would choose.
        """
        if locked:
            return self._go()
        with lock_study(self.folder):
            return self._go()

    def _go(self) -> bool:
        self._require_set_up()
        self._write()
        self._view = SweepView(self.rows, self.study.runs, self._parallel)
        try:
            with closing(Hosts()) as hosts, self._view.show():
                first = self._for_the_choice()
                self._carry_out(first, hosts)
                if self.study.choose is not None:
                    self._require_free()
                self._carry_out(self._after_the_choice(first), hosts)
        finally:
            self._write()
        return all(row.state in (FINISHED, NOT_CHOSEN) for row in self.rows)

    def _require_set_up(self) -> None:
        """Prepares all stores; one that cannot be made is the error of its run. Refuses what a method refuses.

        Says what is done to all runs alike, and where most clients cannot train.
        """
        checked, heads = set(), dict[str, dict[str, str]]()
        for row, plan in zip(self.rows, self.plans):
            key = repr(plan.config.model_dump(exclude={"name", "seed", "run"}))
            if key in checked or finished(plan.folder):
                continue
            checked.add(key)
            try:
                store = plan.prepare()
            except BusyError:
                raise
            except ShoalError:
                continue
            try:
                heads[row.label] = require_set_up(plan, store)
            except ShoalError as error:
                raise ShoalError(row.label, error.line, detail=error.detail) from error
        _show_heads(heads)

    def _carry_out(self, places: Sequence[int], hosts: "Hosts") -> None:
        """Runs some places, and at the end tries once more those that another process was at work on."""
        self._all_of(places, hosts)
        again = [place for place in places if self._busy.pop(place, None)]
        if again:
            self._all_of(again, hosts)

    def _require_free(self) -> None:
        """Raises BusyError: another process is at work on a run."""
        for error in self._busy.values():
            raise error

    def _all_of(self, places: Sequence[int], hosts: "Hosts") -> None:
        if self._parallel > 1:
            self._in_processes(places, hosts)
            return
        for place in places:
            self._one(place, hosts)
            self._write()

    def _in_processes(self, places: Sequence[int], hosts: "Hosts") -> None:
        """Checks the finished runs here, and runs the others in separate processes, in their order.

        Interrupted, all running processes end with their round and a checkpoint, and no more are started.
        """
        waiting = [place for place in places if not self._done(place)]
        for place in places:
            if place not in waiting:
                self._one(place, hosts)
        signalled = False
        queue, running = iter(waiting), dict[int, "subprocess.Popen[bytes]"]()
        prepared: set[str] = set()
        with graceful() as interrupt:
            while True:
                while not interrupt.asked and len(running) < self._parallel and (place := next(queue, -1)) >= 0:
                    # Only one process at a time can write a store.
                    if self._try(place, partial(_prepare_once, self.plans[place], prepared)):
                        self._view.begin(place)
                        running[place] = self._start_process(place)
                    else:
                        self._end(place)
                if not running:
                    break
                if interrupt.asked and not signalled:
                    signalled = True
                    for process in running.values():
                        process.send_signal(interrupt.number)
                for place in [place for place, process in running.items() if process.poll() is not None]:
                    code = running.pop(place).returncode
                    if signalled and code:
                        continue
                    failed = code or not self._done(place)
                    line = _failure(self._output(place), code, ended_at(self.plans[place].folder)) if failed else ""
                    if BusyError.WAY_OUT in line:
                        self._put_off(place, BusyError(line))
                    elif failed:
                        self._note_failure(place, line)
                    else:
                        self._try(place, partial(self._take_over, place))
                    self._write()
                    self._end(place)
                time.sleep(SECONDS_BETWEEN_LOOKS)
        interrupt.require_none()

    def _start_process(self, place: int) -> "subprocess.Popen[bytes]":
        """Starts the process of a run, which writes its output to a file of the sweep."""
        resume = ["--resume"] if started(self.plans[place].folder) else []
        command = [*SHOAL, "run", self.study.config, *self.study.alone(self._choices[place]), *resume]
        command += self._share_of_machine(self.plans[place].config)
        command += [] if self._until is None else ["--until", str(self._until)]
        output = self._output(place)
        output.parent.mkdir(parents=True, exist_ok=True)
        with output.open("wb") as out:
            # The terminal sends Ctrl-C to its whole session. In another one the process gets it once, from here.
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                env={**os.environ, PARENT: str(os.getpid())},
            )

    def _share_of_machine(self, config: Config) -> list[str]:
        """Returns overrides that give each of several runs at a time its share of the machine's cores or GPUs."""
        if config.engine.backend == "local" or config.engine.hosts != "auto":
            return []
        if device_choice(config) == "cuda":
            machine, share = this_machine(config), config.resources
            if share.gpus_per_host:
                hosts = int(places(machine, share.cpus_per_host, share.gpus_per_host)) // self._parallel
                return [f"engine.hosts={max(1, hosts)}"]
            part = part_of_gpu(self._parallel)
            return [f"engine.hosts={max(1, int(machine['GPU']))}", f"resources.gpus_per_host={part:g}"]
        return [f"engine.hosts={max(1, min(machine_cores() // self._parallel, config.partition.clients))}"]

    def _output(self, place: int) -> Path:
        return printed_file(self.folder, self.plans[place].folder.name)

    def _one(self, place: int, hosts: "Hosts") -> None:
        plan = self.plans[place]

        def run_it() -> None:
            if finished(plan.folder):
                # A finished run needs no hosts, only the check that its data is the same.
                run(plan, go_on=self.command)
            else:
                backend = hosts.of(plan.config)
                self._view.begin(place)
                try:
                    run(plan, resume=started(plan.folder), backend=backend, go_on=self.command, until=self._until)
                except KeyboardInterrupt:
                    # The signal may have come in the last round, so that the run is finished.
                    self._take_over(place)
                    raise
            self._take_over(place)

        was = self.rows[place].state
        if not self._try(place, run_it):
            # Hosts of a run that failed may be in any state.
            hosts.close()
        if was != FINISHED:
            self._end(place)

    def _end(self, place: int) -> None:
        if place in self._busy:
            self._view.put_off(place)
        else:
            self._view.end(place)

    def _take_over(self, place: int) -> None:
        self.rows[place] = row_of(self.rows[place].columns, self.rows[place].path)

    def _try(self, place: int, work: Callable[[], None]) -> bool:
        """Does work for a run and returns whether it succeeded; if not, its row has the error, or it is put off."""
        try:
            work()
        except BusyError as error:
            self._put_off(place, error)
        except ShoalError as error:
            self._note_failure(place, str(error))
        except Exception as error:
            # The log of the run has no traceback of such an error.
            say(traceback.format_exc())
            self._note_failure(place, f"{type(error).__name__}: {error}")
        else:
            return True
        return False

    def _put_off(self, place: int, error: BusyError) -> None:
        self._busy[place] = error
        self.rows[place] = replace(self.rows[place], error=error.line)
        say(f"{self.rows[place].label}: {error.line}")

    def _note_failure(self, place: int, line: str) -> None:
        self.rows[place] = replace(self.rows[place], state=FAILED, error=line)

    def _for_the_choice(self) -> list[int]:
        """Returns the runs that come first: all, or those with the seeds that choose."""
        key, rivals = self.study.choose, self.study.rivals
        return [p for p, row in enumerate(self.rows) if key is None or (key in row.columns and p not in rivals)]

    def _after_the_choice(self, first: Sequence[int]) -> list[int]:
        """Returns the other runs, without values of the key that validation did not choose."""
        key = self.study.choose
        if key is None:
            return []
        chosen = self._chosen(key, first)
        rest = []
        for place, row in enumerate(self.rows):
            if key in row.columns and row.columns[key] != chosen.get(others_of(row, key)):
                if others_of(row, key) in chosen:
                    self.rows[place] = replace(row, state=NOT_CHOSEN)
            elif place not in first:
                rest.append(place)
        return rest

    def _chosen(self, key: str, first: Sequence[int]) -> dict[Key, str]:
        """Chooses the value with the highest mean validation, of equals the first, by all other keys but seeds."""
        rows = [self.rows[place] for place in first]
        main, by = MainScore(group_runs(rows)), self.study.choose_by
        models = ", ".join(sorted({main.scope(group) for group in main.groups})) if by == MAIN else by
        scores_of = validation_by(rows, key, by)
        for others, scores in scores_of.items():
            scored = ", ".join(f"{value}: {100 * score:.2f} %" for value, score in scores.items())
            shared = "".join(f"{name} {value}, " for name, value in others)
            say(f"{shared}{key} chosen by {models} validation: {scored}")
        return {others: max(scores, key=scores.__getitem__) for others, scores in scores_of.items()}


def _show_heads(heads: Mapping[str, Mapping[str, str]]) -> None:
    """Shows, of the heads of combinations by their labels, what those that say it say alike; the axes tell the rest.

    Where clients cannot train, each says so.
    """
    for subject in dict.fromkeys(subject for lines in heads.values() for subject in lines):
        texts = {label: lines[subject] for label, lines in heads.items() if subject in lines}
        if len(set(texts.values())) == 1:
            some = "" if len(texts) == len(heads) else f"{len(texts)} of {len(heads)} combinations: "
            show({subject: some + next(iter(texts.values()))})
        elif subject == "train":
            show(texts)


def _failure(output: Path, code: int, place: str | None) -> str:
    """Reads the error line of a process that failed; `place` says where it was in its run, if the process did not."""
    where = "" if place is None else f", {place}"
    if code < 0:
        return f"its process was killed by signal {-code}{where}"
    lines = [line for line in output.read_text(errors="replace").splitlines() if line.strip()]
    failures = [line for line in lines if line.startswith(PREFIX)]
    if not failures:
        return f"{output}: status {code}{where}: {lines[-1] if lines else 'no output'}"
    # The end of the line names the log, which the row names already by its run.
    return failures[-1].removeprefix(PREFIX).rsplit(MORE, 1)[0]


class Hosts:
    """A backend that runs share; it is opened again for a run with other keys of hosts."""

    _backend: Backend | None = None
    _keys: dict[str, object] | None = None

    def of(self, config: Config) -> Backend:
        """Opens the backend of a config, or returns the open one if it serves."""
        wanted = config.model_dump(include=BACKEND_KEYS)
        if self._backend is None or wanted != self._keys:
            self.close()
            self._backend, self._keys = open_backend(config), wanted
        return self._backend

    def close(self) -> None:
        """Ends the hosts, if there are any."""
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()


def store_keys(plan: RunPlan) -> str:
    """Returns the keys of a run that its store may depend on, as a text; runs with equal ones share it."""
    without = {"seed", "algorithm", "train", "run", "name"}
    return f"{plan.algorithm.centralized} {plan.config.model_dump(exclude=without)}"


def _prepare_once(plan: RunPlan, prepared: set[str]) -> None:
    """Prepares the store of a run, unless one of the same keys was prepared before."""
    keys = store_keys(plan)
    if keys not in prepared:
        plan.prepare()
        prepared.add(keys)


def show_sweep_plan(sweep: Sweep) -> None:
    """Prints every run, whether it is finished or begun, and the time to expect; writes nothing.

    The time is the mean of the finished runs of the sweep, or, if none is, an estimate measured on a mean client.
    """
    # A fork trained a share of its rounds; its seconds are scaled up to all of them.
    done = [(row, share) for row, share in zip(sweep.rows, sweep.shares) if row.state == FINISHED]
    took = [row.figures["seconds.rounds"] / share for row, share in done]
    measured: dict[str, float] = {}

    def seconds_of(plan: RunPlan) -> float:
        # Runs that differ in their seed alone are measured once.
        key = repr(plan.config.model_dump(exclude={"seed"}))
        if not took and key not in measured:
            measured[key] = expected(plan).time.rounds
        return fmean(took) if took else measured[key]

    rivals, view = sweep.study.rivals, SweepView(sweep.rows, sweep.study.runs)
    # One run will start of those that share all columns but the key to choose: the one chosen before, or any.
    counted = {rivals[place] for place, row in enumerate(sweep.rows) if place in rivals and started(row.path)}
    before, left = [(label, share * seconds_of(plan)) for label, plan, share in sweep.before], 0
    rows = [(label, "shared", span(seconds)) for label, seconds in before]
    total = sum(seconds for _, seconds in before)
    for place, (row, plan) in enumerate(zip(sweep.rows, sweep.plans)):
        if row.state == FINISHED:
            state, seconds = "finished", 0.0
        elif place in rivals and rivals[place] in counted and not started(row.path):
            state, seconds = ("not chosen" if row.state == NOT_CHOSEN else "if chosen"), 0.0
        else:
            state = "begun" if started(row.path) else "if chosen" if place in rivals else "to run"
            counted |= {rivals[place]} if place in rivals else set()
            left += 1
            seconds = sweep.shares[place] * seconds_of(plan)
        total += seconds
        rows.append((view.label(place), state, span(seconds) if seconds else "-"))
    note = f"{sweep.study.runs} runs, {left} to go, {span(total)} to expect without the methods' own work and preparing"
    put(TextTable(("run", "state", "time"), tuple(rows), 2, notes=(note,)).text(), end="")
