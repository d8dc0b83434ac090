"""A grid of runs on the same store and warm hosts, checked before the first starts; if one fails, the rest goes on."""

import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from shoal.algorithms.methods.registry.load import describe, load
from shoal.engine.callbacks.loading import load_callbacks
from shoal.engine.cluster.sessions import open_session
from shoal.engine.config.config import Config
from shoal.engine.config.device_choice import device_choice
from shoal.engine.hosts.federation import Session
from shoal.engine.messages.models import require_fitting, require_mixable, require_supported
from shoal.engine.preparing.checks import require_known
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.run_folder import finished, read_summary, run_path, started
from shoal.engine.runs.dry_run import expected
from shoal.engine.runs.run import run
from shoal.engine.screen.interrupt import Interrupted, graceful
from shoal.engine.screen.progress import say
from shoal.engine.studies.groups import Row, grouped
from shoal.engine.studies.study import Study, is_seed
from shoal.engine.studies.sweep_folder import figures_of, write_sweep
from shoal.engine.studies.text_table import TextTable
from shoal.storage.errors import MORE, ShoalError

SHOAL = (sys.executable, "-m", "shoal")
# What `shoal` begins its one line of a failure with.
SAID = "shoal: "
SECONDS_BETWEEN_LOOKS = 0.1


@dataclass
class _Process:
    place: int
    process: "subprocess.Popen[bytes]"
    said: Path


def run_parallel(
    commands: Iterator[tuple[int, Sequence[str]]], most: int, folder: Path, ended: Callable[[int, str | None], None]
) -> None:
    """Runs `shoal` with the arguments of every command, at most `most` at a time, in their order.

    Asked to stop, all at work end with their round and a checkpoint, and no more are started.

    Args:
        commands: A number and the arguments of each; asked for when there is room for it.
        most: Processes at a time.
        folder: Gets what every one says, as `<number>.txt`; made if it is not there.
        ended: Called with the number of one that has ended, and with what it failed with; None if it did not.

    Raises:
        KeyboardInterrupt: The user stopped it.
    """
    at_work: list[_Process] = []
    more = True
    with graceful() as interrupt:
        told = False
        while more or at_work:
            while more and not interrupt.asked and len(at_work) < most:
                command = next(commands, None)
                if command is None:
                    more = False
                else:
                    at_work.append(_start(*command, folder))
            if interrupt.asked and not told:
                told = True
                more = False
                for each in at_work:
                    each.process.send_signal(interrupt.number)
            for each in [each for each in at_work if each.process.poll() is not None]:
                at_work.remove(each)
                if not told or not each.process.returncode:
                    ended(each.place, _failure(each))
            time.sleep(SECONDS_BETWEEN_LOOKS)
        if interrupt.asked:
            raise Interrupted(interrupt.number)


def _start(place: int, arguments: Sequence[str], folder: Path) -> _Process:
    folder.mkdir(parents=True, exist_ok=True)
    said = folder / f"{place}.txt"
    with said.open("wb") as out:
        # In a session of its own: Ctrl-C reaches it once, from here.
        process = subprocess.Popen(
            [*SHOAL, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    return _Process(place, process, said)


def _failure(each: _Process) -> str | None:
    code = each.process.returncode
    if not code:
        return None
    if code < 0:
        return f"its process was killed by signal {-code}"
    lines = [line for line in each.said.read_text(errors="replace").splitlines() if line.strip()]
    said = [line for line in lines if line.startswith(SAID)]
    if not said:
        return f"{each.said}: status {code}: {lines[-1] if lines else 'no word'}"
    # A row names its run, and with that the log.
    return said[-1].removeprefix(SAID).rsplit(MORE, 1)[0]


SESSION_KEYS = {"engine", "resources", "ray"}
# Any graph's: names and options of a model are wrong for all or for none.
SOME_FEATURES, SOME_CLASSES = 8, 2
FINISHED, FAILED, WAITING, NOT_CHOSEN = "finished", "failed", "waiting", "not chosen"


class Sweep:
    """The runs of a study.

    Attributes:
        study: What was asked for.
        configs: Config of every run.
        folder: Where tables are written.
        rows: What is known of every run.
    """

    def __init__(self, study: Study, at_once: int = 1) -> None:
        """Reads and checks the configs of all runs; starts and writes nothing.

        Args:
            study: What is asked for.
            at_once: Runs at a time: one in this process, on warm hosts, more in processes and on hosts of their own.

        Raises:
            ShoalError: Names, options or values of any run are wrong, or two runs are the same.
        """
        self.study, self._parallel = study, at_once
        self._choices = choices = study.choices
        self.configs = study.configs
        checked: set[str] = set()
        for config in self.configs:
            options = repr(config.model_dump(exclude={"seed"}))
            if options not in checked:
                _require_possible(config)
                checked.add(options)
        paths = [run_path(config) for config in self.configs]
        self.rows = [_row(choice.columns, path) for choice, path in zip(choices, paths)]
        first = {path: number for number, path in reversed(list(enumerate(paths)))}
        for number, path in enumerate(paths):
            if first[path] != number:
                same = (label_of(self.rows[place]) for place in (first[path], number))
                raise ShoalError(f"{' and '.join(same)} are one run; leave one of them out of the sweep")
        config = self.configs[0]
        self.folder = study.folder(Path(config.run.root), config.name)

    def go(self) -> bool:
        """Runs what is not finished, unfinished runs from their checkpoints; a run that fails is a row with its error.

        Returns:
            Whether all runs of the study are finished.

        Raises:
            ShoalError: The tables cannot be written.
            KeyboardInterrupt: The user stopped it; the same sweep goes on.
        """
        write_sweep(self.folder, self.study, self.rows)
        try:
            with _Hosts() as hosts:
                first = self._for_the_choice()
                self._all_of(first, hosts)
                rest = self._after_the_choice(first)
                self._all_of(rest, hosts)
        finally:
            write_sweep(self.folder, self.study, self.rows)
        return all(row.state in (FINISHED, NOT_CHOSEN) for row in self.rows)

    def _all_of(self, places: Sequence[int], hosts: "_Hosts") -> None:
        if self._parallel > 1:
            self._in_processes(places)
            return
        took: list[float] = []
        for number, place in enumerate(places, 1):
            waiting = sum(self.rows[other].state == WAITING for other in places[number - 1 :])
            left = f", {span(waiting * fmean(took))} left" if took and waiting else ""
            say(f"[{number}/{len(places)}{left}] {label_of(self.rows[place])}")
            was, began = self.rows[place].state, time.monotonic()
            self._one(place, hosts)
            if was == WAITING:
                took.append(time.monotonic() - began)
            write_sweep(self.folder, self.study, self.rows)

    def _in_processes(self, places: Sequence[int]) -> None:
        """Those that are finished are looked at here, the others run in processes of their own."""
        waiting = [place for place in places if not finished(run_path(self.configs[place]))]
        with _Hosts() as none:
            for place in places:
                if place not in waiting:
                    self._one(place, none)
        began, left = time.monotonic(), len(waiting)

        def commands() -> Iterator[tuple[int, Sequence[str]]]:
            prepared: set[str] = set()
            for place in waiting:
                # Of one store one process alone can write.
                if self._tried(place, partial(_prepare_once, self.configs[place], prepared)):
                    say(f"begins: {label_of(self.rows[place])}")
                    yield place, self._command(place)

        def ended(place: int, failure: str | None) -> None:
            nonlocal left
            left -= 1
            if failure is None:
                self._tried(place, partial(self._take_over, place))
            else:
                self._failed(place, failure)
            write_sweep(self.folder, self.study, self.rows)
            done = len(waiting) - left
            to_go = f", {span(left * (time.monotonic() - began) / done)} left" if left else ""
            say(f"[{len(places) - left}/{len(places)}{to_go}] {self.rows[place].state}: {label_of(self.rows[place])}")

        run_parallel(commands(), self._parallel, self.folder / "said", ended)

    def _command(self, place: int) -> list[str]:
        resume = ["--resume"] if started(run_path(self.configs[place])) else []
        return ["run", self.study.config, *self._choices[place].overrides, *resume]

    def _one(self, place: int, hosts: "_Hosts") -> None:
        config = self.configs[place]
        path = run_path(config)

        def run_it() -> None:
            if finished(path):
                # Needs no hosts to say so, or that its data is another by now.
                run(config)
            else:
                run(config, resume=started(path), session=hosts.of(config))
            self._take_over(place)

        if not self._tried(place, run_it):
            # Hosts of a run that failed may be in any state.
            hosts.close()

    def _take_over(self, place: int) -> None:
        row = self.rows[place]
        self.rows[place] = replace(row, figures=figures_of(read_summary(row.path)), state=FINISHED, error="")

    def _tried(self, place: int, work: Callable[[], None]) -> bool:
        """Whether work for a run was done; if not, its row says why."""
        try:
            work()
        except ShoalError as error:
            self._failed(place, str(error))
        except Exception as error:
            # The log of a run has those of its own errors.
            say(traceback.format_exc())
            self._failed(place, f"{type(error).__name__}: {error}")
        else:
            return True
        return False

    def _failed(self, place: int, line: str) -> None:
        say(f"failed: {line}")
        self.rows[place] = replace(self.rows[place], state=FAILED, error=line)

    def _for_the_choice(self) -> list[int]:
        """Runs that come first: all, or those with the seeds that a choice is made with."""
        key = self.study.choose
        if key is None:
            return list(range(len(self.rows)))
        seeds = list(dict.fromkeys(_seeds(row) for row in self.rows))[: self.study.choose_seeds]
        return [place for place, row in enumerate(self.rows) if key in row.columns and _seeds(row) in seeds]

    def _after_the_choice(self, first: Sequence[int]) -> list[int]:
        """The other runs, without those whose value of the key validation did not choose."""
        key = self.study.choose
        if key is None:
            return []
        chosen = self._chosen(key, first)
        rest = []
        for place, row in enumerate(self.rows):
            if key in row.columns and row.columns[key] != chosen.get(_others(row, key)):
                if _others(row, key) in chosen:
                    self.rows[place] = replace(row, state=NOT_CHOSEN)
            elif place not in first:
                rest.append(place)
        return rest

    def _chosen(self, key: str, first: Sequence[int]) -> dict[tuple[tuple[str, str], ...], str]:
        """The value with the highest mean validation, of equals the first, by all other keys but seeds."""
        figure = f"{self.study.choose_by}.best.val"
        found: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
        for group in grouped([self.rows[place] for place in first]):
            if values := group.values(figure):
                found.setdefault(_others(group.rows[0], key), {})[group.columns[key]] = fmean(values)
        for others, scores in found.items():
            said = ", ".join(f"{value}: {100 * score:.2f} %" for value, score in scores.items())
            beside = "".join(f"{name} {value}, " for name, value in others)
            say(f"{beside}{key} chosen by {self.study.choose_by} validation: {said}")
        return {others: max(scores, key=scores.__getitem__) for others, scores in found.items()}


class _Hosts:
    """The session that runs share, opened again where their keys of hosts differ."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._keys: dict[str, object] = {}

    def of(self, config: Config) -> Session:
        """A session for a config."""
        wanted = config.model_dump(include=SESSION_KEYS)
        if self._session is None or wanted != self._keys:
            self.close()
            self._session, self._keys = open_session(config), wanted
        return self._session

    def close(self) -> None:
        """Ends the hosts, if there are any."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def __enter__(self) -> "_Hosts":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _prepare_once(config: Config, prepared: set[str]) -> None:
    """Prepares the store of a run, unless one of the same keys was prepared before."""
    centralized = load(describe(config.algorithm.name, config.algorithm.options)).centralized
    keys = f"{centralized} {config.model_dump(exclude={'seed', 'algorithm', 'train', 'run'})}"
    if keys not in prepared:
        prepare(config, centralized=centralized)
        prepared.add(keys)


def _require_possible(config: Config) -> None:
    """Refuses what a run would be refused for before it reads data: method, model, dataset, device, and their options.

    Raises:
        ShoalError: One line that names the key.
    """
    algorithm = load(describe(config.algorithm.name, config.algorithm.options))
    require_supported(config, algorithm)
    require_mixable(config, algorithm)
    load_callbacks(config)
    config.train.require_rates(config.rounds)
    device_choice(config)
    require_known(config)
    require_fitting(
        algorithm,
        config.models(),
        config.heterogeneity.embedding,
        config.memory_limit(),
        features=SOME_FEATURES,
        classes=SOME_CLASSES,
        hops=config.propagation.hops,
        dropout=config.train.dropout,
        bfloat16=False,
        sparse=False,
        task=config.task,
    )


def _row(columns: dict[str, str], path: Path) -> Row:
    if not finished(path):
        return Row(columns, {}, str(path), WAITING)
    return Row(columns, figures_of(read_summary(path)), str(path), FINISHED)


def label_of(row: Row) -> str:
    """The values of a run, in a line."""
    return ", ".join(f"{key} {value}" for key, value in row.columns.items())


def _of(row: Row, wanted: Callable[[str], bool]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in row.columns.items() if wanted(name))


def _seeds(row: Row) -> tuple[tuple[str, str], ...]:
    return _of(row, is_seed)


def _others(row: Row, key: str) -> tuple[tuple[str, str], ...]:
    return _of(row, lambda name: name != key and not is_seed(name))


def span(seconds: float) -> str:
    """A time as a person says it."""
    minutes = round(seconds / 60)
    return f"{round(seconds)} s" if seconds < 90 else f"{minutes} min" if minutes < 90 else f"{seconds / 3600:.1f} h"


def show_sweep_plan(sweep: Sweep) -> None:
    """Prints every run, whether it is finished or begun, and the time to expect; writes nothing.

    A run is expected to take what the finished ones of the sweep took in the mean, or, if none is, what its rounds take
    as measured on a mean client, of runs that differ in seeds alone once.

    Raises:
        ShoalError: As `expected`.
    """
    took = [row.figures["seconds.rounds"] for row in sweep.rows if row.state == FINISHED]
    measured: dict[str, float] = {}
    rows, total = [], 0.0
    for row, config in zip(sweep.rows, sweep.configs):
        if row.state == FINISHED:
            state, seconds = "finished", 0.0
        else:
            state = "begun" if started(row.path) else "to run"
            seconds = fmean(took) if took else _measured(config, measured)
        total += seconds
        rows.append((label_of(row), state, span(seconds) if seconds else "-"))
    left = sum(state != "finished" for _, state, _ in rows)
    note = f"{len(rows)} runs, {left} to go, {span(total)} to expect without the methods' own work and preparing"
    print(TextTable(("run", "state", "time"), tuple(rows), 2, notes=(note,)).text(), end="")


def _measured(config: Config, known: dict[str, float]) -> float:
    key = repr(config.model_dump(exclude={"seed"}))
    if key not in known:
        known[key] = expected(config).seconds
    return known[key]
