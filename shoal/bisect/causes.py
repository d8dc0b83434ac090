"""The first cause of a difference of two runs: in config, data, draw, download, training, upload or reduction.

The round is made again from the states before it, by the code that is here. Where that is not the code of a run, its
records are compared with the round of the other one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from shoal.bisect.differences import (
    DOWNLOAD,
    DRAW,
    KINDS,
    REDUCTION,
    SERVER,
    TRAINING,
    UPLOAD,
    Difference,
    Point,
    list_differences,
    name_layer,
)
from shoal.bisect.parting import SCORES, Parting, same_program
from shoal.bisect.readable_data import changed_data
from shoal.bisect.sides import OF_DATA, Side, differing_keys, numbers_of_line
from shoal.bisect.tracing import Program, Sender, Step, Trace, draw_cohort, points_of_state, trace_round, watch_steps
from shoal.engine.config.config import config_from
from shoal.engine.messages.job import make_job
from shoal.engine.records import inputs
from shoal.engine.records.client_scores import read_client_scores
from shoal.engine.rounds.state import FederationState
from shoal.engine.runs.plan import RunPlan
from shoal.storage.errors import ShoalError

OF_VISIT = f"{KINDS[DOWNLOAD]} or {KINDS[TRAINING]}"
CONFIG, DATA, EVALUATION = "config", "data", "evaluation"
TRAINED = "trained"
# At most so many keys are tried one by one.
MOST_KEYS = 6


@dataclass
class Finding:
    """The first difference of two runs, and its cause.

    Attributes:
        round: Its round, or the last that it may be in.
        earliest: The first that it may be in.
        cause: In one word; several where records leave them open.
        why: What shows it, a sentence each.
        phase: Name of the phase; empty: it is in none, or not known.
        clients: Clients that differ there; none: the server, or not known.
        tensor: Name of the tensor, with the parameter in it; empty: not known.
        difference: How far it differs; None: not known.
        keys: Keys of the config that differ and act, with both values.
        reproduces: By side whether the code that is here made the round as that run recorded it; None: not known.
        steps: Steps of local training of the first client, by side.
        weights: Weights of clients in the means of the phase, by side, entry and client; or rows of mixing.
        visits: Visits of clients that it took.
    """

    round: int
    earliest: int
    cause: str = ""
    why: list[str] = field(default_factory=list)
    phase: str = ""
    clients: list[int] = field(default_factory=list)
    tensor: str = ""
    difference: Difference | None = None
    keys: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    reproduces: dict[str, bool | None] = field(default_factory=lambda: {"A": None, "B": None})
    steps: dict[str, list[Step]] = field(default_factory=dict)
    weights: dict[str, dict[str, Any]] = field(default_factory=dict)
    visits: int = 0


class Explanation:
    """The search for the cause in the round in which two runs part."""

    def __init__(self, a: Side, b: Side, parting: Parting, last_bits: float, tolerance: float = 0.0) -> None:
        """Takes two runs and where they part; relative differences up to the tolerance are none.

        Of several tensors of a client that differ, one that does by more than `last_bits` is named.
        """
        self.sides, self._parting, self._tolerance, self._last_bits = (a, b), parting, tolerance, last_bits
        self.number = parting.round
        self.finding = Finding(parting.round, parting.earliest, visits=parting.visits)
        self._traces: dict[str, Trace] = {}

    def explain(self) -> Finding:
        """Finds the cause."""
        finding = self.finding
        a, b = (side.numbers(self.number) for side in self.sides)
        programs = {side.label: self._program(side) for side in self.sides}
        same = same_program(*self.sides)
        only = None if self._drawn_apart() else self._sender()
        self._trace(programs, same, only)
        if not finding.cause and "A" in self._traces and "B" in self._traces and not same:
            differing = list_differences(self._traces["A"].points, self._traces["B"].points, self._tolerance)
            if differing:
                self._name(self._traces["A"], differing, only)
        if not finding.cause:
            self._compare_records(a, b)
        self._attribute(programs)
        if finding.clients and not finding.steps:
            self._watch(programs)
        self._weigh()
        return finding

    def _program(self, side: Side) -> Program | None:
        """Returns what makes the round of a side again, where the state before it is known."""
        return side.program(self.number) if side.label in self._parting.before else None

    def _sender(self) -> Sender | None:
        """Returns the first upload of which both kept digests that differ, of the first phase; None: there is none."""
        a, b = (side.digests.get(self.number) for side in self.sides)
        cohorts = [side.numbers(self.number)["cohort"] for side in self.sides]
        if a is None or b is None or cohorts[0] != cohorts[1] or a.keys() != b.keys() or self._tolerance:
            return None
        differing = [sender for sender in a if a[sender] != b[sender]]
        first = next(iter(a))[0]
        return differing[0] if differing and differing[0][0] == first else None

    def _trace(self, programs: Mapping[str, Program | None], same: bool, only: Sender | None) -> None:
        """Runs the round again and notes its tensors: of each side, or once for two equal programs.

        It stops at the upload of the client `only`, where kept digests name the first one that differs.
        """
        if self._drawn_apart():
            # No visit is needed.
            for side in self.sides:
                program = programs[side.label]
                if program is not None:
                    drawn = draw_cohort(program, self._parting.before[side.label], self.number)
                    self.finding.reproduces[side.label] = set(side.past.cohort(self.number)) <= set(drawn)
            return
        for side in self.sides:
            program = programs[side.label]
            if program is None or (same and self._traces):
                continue
            try:
                trace = trace_round(program, self._parting.before[side.label], only)
            except ShoalError as error:
                side.lost.append(f"round {self.number} cannot be made again: {error.line}")
                continue
            self.finding.visits += trace.visits
            self._traces[side.label] = trace
        for side in self.sides:
            trace_of = self._traces.get(side.label) or (next(iter(self._traces.values()), None) if same else None)
            if trace_of is not None:
                self.finding.reproduces[side.label] = self._as_recorded(side, trace_of)
            program = programs[side.label]
            if self.finding.reproduces[side.label] is False and trace_of is not None and only and program:
                self._repeat(side, program, trace_of, only)

    def _repeat(self, side: Side, program: Program, trace: Trace, only: Sender) -> None:
        """Makes a visit that is not as it was recorded twice: it may draw what is keyed by nothing."""
        second = trace_round(program, self._parting.before[side.label], only)
        self.finding.visits += second.visits
        if differing := list_differences(trace.points, second.points):
            self._name(trace, differing, only)
            self.finding.cause = KINDS[DRAW]
            self.finding.difference = Difference(differing[0][0].name, why="each replay draws another one")
            why = f"two replays of the visit differ in {side.label}: it draws from a generator without a key; "
            self.finding.why.append(f"{why}take client.rng(purpose)")

    def _drawn_apart(self) -> bool:
        a, b = (side.numbers(self.number) for side in self.sides)
        return bool(a["cohort"] != b["cohort"] or a.get("missing") != b.get("missing"))

    def _as_recorded(self, side: Side, trace: Trace) -> bool | None:
        """Returns whether a round made again is as a side recorded it; None: it recorded nothing of what was made."""
        checks = list[bool]()
        kept = side.digests.get(self.number, {})
        checks += [kept[sender] == digest for sender, digest in trace.digests.items() if sender in kept]
        if trace.whole:
            checks.append(not differing_keys(side.numbers(self.number), numbers_of_line(trace.line)))
            recorded = side.recorded(self.number)
            if recorded is not None and trace.state is not None:
                checks.append(not list_differences(points_of_state(recorded), points_of_state(trace.state)))
        return all(checks) if checks else None

    def _name(self, trace: Trace, differing: Sequence[tuple[Point, Difference]], only: Sender | None) -> None:
        """Takes the first of some differences of two rounds that were made again, or of `only` a client in them."""
        finding, first = self.finding, differing[0][0]
        # A loss that differs in its last bits may come with a model that differs in value.
        of_client = [pair for pair in differing if pair[0][:3] == first[:3]]
        point, difference = next((pair for pair in of_client if pair[1].relative > self._last_bits), of_client[0])
        finding.cause = KINDS[point.kind]
        equal_points = [other for other, _ in differing if other[:2] == point[:2] and other.step == point.step]
        finding.clients = sorted({other.client for other in equal_points if other.client != SERVER})
        finding.phase = _phase(trace, point)
        if only is not None and finding.clients:
            a, b = (side.digests[self.number] for side in self.sides)
            finding.clients = sorted(i for phase, i in a if phase == only[0] and a[phase, i] != b[phase, i])
        name = name_layer(point.name, trace.points.get(point), difference.first, trace.layers)
        finding.tensor, finding.difference = f"{point.place}: {name}", difference
        if point.kind == DRAW and point.name == "clients":
            finding.why.append("the cohorts differ")

    def _compare_records(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
        """Finds what the records of both sides, or of one and the round of the other, say of the cause."""
        finding = self.finding
        if self._drawn_apart():
            finding.cause = KINDS[DRAW]
            cohorts = [set(line["cohort"]) for line in (a, b)]
            finding.clients = sorted(cohorts[0] ^ cohorts[1])
            finding.tensor = "cohort"
            finding.difference = Difference(
                "cohort",
                why=f"A alone has clients {_listed(cohorts[0] - cohorts[1])}, B {_listed(cohorts[1] - cohorts[0])}",
            )
            return
        digests = [self._digests(side) for side in self.sides]
        senders = [s for s in digests[0] if s in digests[1] and digests[0][s] != digests[1][s]]
        states = [self._state(side) for side in self.sides]
        kept: list[tuple[Point, Difference]] = []
        if states[0] is not None and states[1] is not None:
            kept = list_differences(points_of_state(states[0]), points_of_state(states[1]), self._tolerance)
        of_training = [pair for pair in kept if pair[0].client != SERVER and pair[0].step == 1]
        of_stages = [pair for pair in kept if pair[0].client != SERVER and pair[0].step == 2]
        scored = self._scored_apart()
        lost = "loss" in differing_keys(a, b, self._tolerance)
        both = bool(digests[0]) and bool(digests[1]) and digests[0].keys() == digests[1].keys()
        if senders:
            finding.phase = senders[0][0]
            finding.clients = [i for phase, i in senders if phase == finding.phase]
            finding.why.append(f"digests of {len(finding.clients)} of {len(digests[0])} uploads differ")
        trained_apart = lost or bool(of_training) or bool(set(scored) & set(finding.clients))
        if of_training or (senders and trained_apart) or (not both and (lost or scored)):
            # Records have nothing of what clients received.
            finding.cause = KINDS[TRAINING] if of_training and not senders else OF_VISIT
            clients = sorted({point.client for point, _ in of_training} | set(scored))
            finding.clients = finding.clients or clients
            if lost:
                finding.why.append(f"the mean loss is {a.get('loss')} in A, {b.get('loss')} in B")
        elif senders and of_stages:
            finding.cause = KINDS[UPLOAD]
            finding.why.append("what stages keep at the client differs")
        elif senders and self._comparable(states, finding.clients[0]):
            finding.cause = KINDS[UPLOAD]
            finding.why.append("loss, and what the client keeps of its training, are equal")
        elif senders:
            finding.cause = f"{KINDS[TRAINING]} or {KINDS[UPLOAD]}"
            finding.why.append("losses are equal, and no record tells a trained model from what was sent of it")
        elif both and kept:
            finding.cause = KINDS[REDUCTION]
            finding.why.append("all uploads have equal digests, and what the server keeps differs")
        elif kept:
            finding.cause = f"{KINDS[UPLOAD]} or {KINDS[REDUCTION]}"
            finding.why.append("no digests of uploads were kept (run.keep_digests), which would tell")
        elif SCORES in differing_keys(a, b):
            finding.cause = EVALUATION
            finding.why.append("scores alone differ: models and uploads are equal as far as they were recorded")
        else:
            finding.cause = "unknown"
            finding.why.append("the states before the round are not known; keep more checkpoints (run.keep)")
        pairs = of_training or of_stages or kept
        if pairs:
            point, difference = pairs[0]
            layers = next(iter(self._traces.values())).layers if self._traces else ()
            value = points_of_state(states[0])[point] if states[0] and point in points_of_state(states[0]) else None
            finding.tensor = f"{point.place}: {name_layer(point.name, value, difference.first, layers)}"
            finding.difference = difference

    def _comparable(self, states: Sequence[FederationState | None], client: int) -> bool:
        """Returns whether both sides kept the trained model of a client."""
        return all(
            state is not None and any(name.endswith(".w") for name in state.clients.get(client, {})) for state in states
        )

    def _digests(self, side: Side) -> Mapping[Sender, str]:
        """Returns digests of uploads as a side kept them, else as its round was made again, where that is its round."""
        kept = side.digests.get(self.number)
        return kept if kept is not None else self._trusted(side).digests

    def _state(self, side: Side) -> FederationState | None:
        """Returns the state after the round as a side kept it, else as it was made again."""
        return side.recorded(self.number) or self._trusted(side).state

    def _trusted(self, side: Side) -> Trace:
        """Returns the round of a side that was made again as it was; else a trace of nothing."""
        same = same_program(*self.sides)
        trace = self._traces.get(side.label) or (next(iter(self._traces.values()), None) if same else None)
        return trace if trace is not None and self.finding.reproduces[side.label] else Trace()

    def _scored_apart(self) -> list[int]:
        """Lists clients whose scores after local training differ in the round, where both runs kept them."""
        rows = []
        for side in self.sides:
            try:
                table = read_client_scores(side.past.path)
            except ShoalError:
                return []
            of_round = table.filter(np.asarray(table["round"]) == self.number).to_pylist()
            trained = [row for row in of_round if row["scope"] == TRAINED]
            rows.append({(row["client"], row["part"]): row.get("correct", row) for row in trained})
        return sorted({i for i, part in rows[0] if (i, part) in rows[1] and rows[0][i, part] != rows[1][i, part]})

    def _attribute(self, programs: Mapping[str, Program | None]) -> None:
        """Names config or data as the cause where they explain the difference."""
        finding, (a, b) = self.finding, self.sides
        keys = [a.keys(self.number), b.keys(self.number)]
        names = [key for key in dict.fromkeys([*keys[0], *keys[1]]) if keys[0].get(key) != keys[1].get(key)]
        values = {name: (keys[0].get(name), keys[1].get(name)) for name in names}
        files = inputs.differences(a.read, b.read)
        code = [name for name in files if _is_code(name)]
        data = [name for name in files if name not in code]
        of_data = {name: pair for name, pair in values.items() if name.startswith(OF_DATA)}
        if data:
            finding.cause = CONFIG if of_data else DATA
            finding.keys = of_data
            finding.why.append(f"what clients read differs: {', '.join(data)}")
            if not of_data:
                self._name_data(programs)
            return
        if values:
            acting = self._acting(values, code, programs)
            if acting:
                finding.cause, finding.keys = CONFIG, acting
        if code:
            finding.why.append(f"code of the user differs: {', '.join(code)}")

    def _name_data(self, programs: Mapping[str, Program | None]) -> None:
        """Names the clients, and the first array of the first of them, whose data differ."""
        finding, jobs = self.finding, [program.job for program in programs.values() if program is not None]
        if len(jobs) < 2:
            return
        try:
            changed = changed_data(jobs[0], jobs[1])
        except ShoalError as error:
            finding.why.append(f"the data cannot be compared: {error.line}")
            return
        if changed:
            finding.clients = sorted(changed)
            finding.tensor, finding.difference = changed[finding.clients[0]]

    def _acting(
        self, values: Mapping[str, tuple[Any, Any]], code: Sequence[str], programs: Mapping[str, Program | None]
    ) -> dict[str, tuple[Any, Any]]:
        """Returns the keys whose value of B changes the round of A, each tried alone; of one key that alone differs,
        that one.
        """
        if len(values) == 1 and not code and all(self.finding.reproduces.values()):
            return dict(values)
        program, trace = programs["A"], self._traces.get("A")
        if program is None or len(values) == 1:
            self.finding.why.append(f"keys that differ: {', '.join(values)}; they could not be tried")
            return {}
        acting = dict[str, tuple[Any, Any]]()
        for group in _groups(values)[:MOST_KEYS]:
            try:
                if self._acts(program, self._changed(program, group), trace):
                    acting |= {key: values[key] for key in group}
            except ShoalError as error:
                self.finding.why.append(f"{', '.join(group)} cannot be tried alone: {error.line}")
        return acting

    def _changed(self, program: Program, keys: Sequence[str]) -> Program:
        """Returns the program of A with values of B of some keys. Raises ShoalError: they cannot be set alone."""
        side, theirs = self.sides[0], self.sides[1].trained_by(self.number).config.plain()
        section = keys[0].partition(".")[0]
        values = {section: theirs[section]} if len(keys) > 1 else {keys[0]: _value_of(theirs, keys[0])}
        config = config_from(program.config.plain(), values)
        plan = RunPlan.of(config)
        return Program(make_job(config, side.trained_by(self.number).store, program.job.id), plan.rounds, config)

    def _acts(self, program: Program, other: Program, trace: Trace | None) -> bool:
        """Returns whether a program makes another round than that of A, up to the client that differs."""
        before = self._parting.before["A"]
        if trace is None:
            # The cohorts differ, and no visit is needed.
            return draw_cohort(program, before, self.number) != draw_cohort(other, before, self.number)
        only = (self.finding.phase, self.finding.clients[0]) if self.finding.clients and self.finding.phase else None
        if only is not None and only[0] != trace.phases[0]:
            only = None
        tried = trace_round(other, before, only)
        self.finding.visits += tried.visits
        shared = tried.points.keys() if only is not None else trace.points.keys()
        points = {point: value for point, value in trace.points.items() if point in shared}
        return bool(list_differences(points, tried.points, self._tolerance))

    def _watch(self, programs: Mapping[str, Program | None]) -> None:
        """Trains the first client that differs by autograd on both sides, for its losses and gradients."""
        client = self.finding.clients[0]
        for side in self.sides:
            trace, program = self._traces.get(side.label), programs[side.label]
            if trace is None or program is None:
                continue
            phases = [n for n, i in trace.cells if i == client and self.finding.phase in ("", trace.phases[n - 1])]
            if phases:
                cell, shared = trace.cells[phases[0], client]
                if cell.train is None:
                    continue
                try:
                    self.finding.steps[side.label] = watch_steps(program, self.number, cell, shared, client)
                except ShoalError as error:
                    side.lost.append(f"client {client} cannot be trained by autograd: {error.line}")
                self.finding.visits += 1

    def _weigh(self) -> None:
        """Keeps the weights of the uploads in the means of the round, and rows by which uploads are mixed."""
        for label, trace in self._traces.items():
            rows: dict[str, Any] = {}
            for point, value in sorted(trace.points.items(), key=lambda pair: pair[0]):
                if not isinstance(value, torch.Tensor):
                    continue
                if point.kind == UPLOAD and point.step == 0 and point.name.startswith("weight of "):
                    number = value.double().sum()
                    rows[f"{_phase(trace, point)}, client {point.client}, {point.name}"] = float(number)
                elif point.kind == REDUCTION and point.place == "mixing weights":
                    flat = value.double().reshape(-1, value.shape[-1]) if value.dim() else value.reshape(1, 1)
                    for row, numbers in enumerate(flat.tolist()):
                        rows[f"{_phase(trace, point)}, {point.name}, row {row}"] = numbers
            self.finding.weights[label] = rows


def _phase(trace: Trace, point: Point) -> str:
    """Returns the name of the phase of a point; empty: it is before or behind all."""
    return trace.phases[point.phase - 1] if 1 <= point.phase <= len(trace.phases) else ""


def _groups(values: Mapping[str, Any]) -> list[list[str]]:
    """Lists keys that are tried together: options of a method, model or schedule with its name, others alone."""
    groups: dict[str, list[str]] = {}
    for key in values:
        section = key.partition(".")[0]
        together = f"{section}.name" in values or section in ("stages", "callbacks")
        groups.setdefault(section if together else key, []).append(key)
    return list(groups.values())


def _value_of(plain: Mapping[str, Any], key: str) -> Any:
    value: Any = plain
    for part in key.split("."):
        value = value[int(part)] if isinstance(value, list) else value.get(part)
    return value


def _is_code(name: str) -> bool:
    """Returns whether an input is code of the user's, by the key that names it."""
    return name.endswith((".name", ".readout", ".kind", ".selection", ".metrics")) and not name.startswith(OF_DATA)


def _listed(clients: set[int]) -> str:
    return ", ".join(map(str, sorted(clients))) or "none"
