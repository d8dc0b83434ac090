"""Removals from finished runs: the exact models, approximations, and the scores of both."""

import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cache, partial
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from shoal.algorithms.protocol import MODEL, Tree
from shoal.engine.rounds.sampling import evaluation_cell
from shoal.engine.screen.progress import Step, progress, say
from shoal.past.reader import Reading
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.unlearning.approximations import CLIMBING, KEY, METHODS, NONE, Chosen, choose
from shoal.unlearning.kept import Kept
from shoal.unlearning.removal import Removal
from shoal.unlearning.rest import History, Rest
from shoal.unlearning.retraining import MODEL_ENTRY, Retraining
from shoal.unlearning.scoring import Answers, Figures, Scorer
from shoal.unlearning.table import EXACT, ORIGINAL, Scored, Unlearned
from shoal.unlearning.targets import ALL, Asked, list_removals


@dataclass(frozen=True)
class UnlearnReader:
    """The reader of removals from a run; options are those of `Asked` and of `unlearn`."""

    client: str | int | None = None
    nodes: str | int | None = None
    label: str | int | None = None
    edges: str | None = None
    methods: str = ",".join(METHODS)
    rounds: Annotated[int, Field(ge=1)] | None = None
    repeat: Annotated[int, Field(ge=1)] = 1

    def read(self, past: PastRun) -> Reading:
        """Returns the table of the removals, and a CSV of each. Raises as `unlearn`."""
        # YAML reads a single number as one.
        client, nodes, label = (None if it is None else str(it) for it in (self.client, self.nodes, self.label))
        result = unlearn([past], Asked(client, nodes, label, self.edges, self.repeat), self.methods, self.rounds)
        return Reading((result.table(),), result.csv())


def unlearn(
    runs: Sequence[PastRun], asked: Asked, methods: str = ",".join(METHODS), rounds: int | None = None
) -> Unlearned:
    """Removes data from finished runs exactly and by approximations; what is kept is not made again.

    Args:
        methods: Names of approximations with commas between them, of ours or `my_file.py:Mine`, or `none`.
        rounds: Rounds of approximations on the rest; None: a tenth of those of the run.

    Raises:
        ShoalError: A run, what is to be removed, or a method is none that can be; or as a method of a user.
    """
    chosen = choose([] if methods == NONE else [name.strip() for name in methods.split(",")], rounds)
    parts, names = [], {past.path.name for past in runs}
    try:
        for past in runs:
            parts.append(_of_run(past, past.path.name if len(names) == len(runs) else past.place, asked, chosen))
    except KeyboardInterrupt:
        words = f" {KEY} {methods}" if methods != ",".join(METHODS) else ""
        words += f" --rounds {rounds}" if rounds else ""
        places = " ".join(shlex.quote(past.place) for past in runs)
        say(f"continue with: shoal unlearn {places}{asked.words}{words}")
        raise
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    return Unlearned([row for part in parts for row in part.scored], sum(part.trainings for part in parts), notes)


def _of_run(past: PastRun, name: str, asked: Asked, chosen: Sequence[Chosen]) -> Unlearned:
    run = Retraining(past)
    with closing(run):
        removals = sorted(list_removals(past, asked, run.first), key=run.seen)
        for removal in removals:
            if not run.seen(removal):
                clients = ", ".join(map(str, removal.touched))
                say(f"{removal.name}: its clients ({clients}) never trained, so that the run stays as it is")
        removing = Removing(run, name, Kept(past), chosen)
        with progress("unlearn", len(removals) * (1 + len(chosen)), "models") as step:
            scored = [row for removal in removals for row in removing.remove(removal, step)]
    order = {removal.name: place for place, removal in enumerate(removals)}
    scored.sort(key=lambda row: order[row.removed])
    if asked.client == ALL and (never := past.store.clients - len(run.first)):
        removing.notes[f"never asked, so that nothing of them is in {name}: {never} clients"] = None
    trained = sum(row.rounds for row in scored if row.model == EXACT)
    return Unlearned(scored, trained / run.rounds, tuple(removing.notes))


class Removing:
    """Removes data from one run.

    Attributes:
        notes: What is said of it below the table.
    """

    def __init__(self, run: Retraining, name: str, kept: Kept, chosen: Sequence[Chosen]) -> None:
        """Opens the data of the run, which tables call by `name`, and its last model."""
        self._run, self._name, self._kept, self._chosen = run, name, kept, chosen
        self._model = run.model(run.final)
        if MODEL_ENTRY not in self._model:
            name = run.past.config.algorithm.name
            raise ShoalError(run.past.path, "algorithm.name", f"{name} has no whole model at the server; take another")
        self._scorer = Scorer(run.past, self._model)
        self._history: History | None = None
        self.notes: dict[str, None] = {}

    def remove(self, removal: Removal, step: Step) -> list[Scored]:
        """Removes it exactly and by all approximations; returns the scores of all models."""
        exact = self._kept.read_model(removal)
        if exact is None or self._kept.get(removal, EXACT) is None:
            trained = self._run.train_exactly(removal)
            exact = self._run.model(trained.state)[MODEL_ENTRY]
            self._kept.write_model(removal, exact, self._named(exact))
            answers = self._ask(exact, removal)
            self._keep(removal, EXACT, exact, (trained.rounds, trained.visits), exact, answers)
        exactly = cache(partial(self._ask, exact, removal))
        scored = [self._scored(removal, EXACT, EXACT)]
        step.advance()
        if self._kept.get(removal, ORIGINAL) is None:
            lines = self._run.past.lines
            work = len(lines), sum(len(line["cohort"]) for line in lines)
            self._keep(removal, ORIGINAL, self._model[MODEL_ENTRY], work, exact, exactly())
        scored.append(self._scored(removal, ORIGINAL, ORIGINAL))
        items = sum(map(len, self._scorer.forgotten(removal).values()))
        for chosen in self._chosen:
            step.advance()
            if chosen.name in CLIMBING and chosen.code is None and not items:
                self.notes[f"{chosen.name} climbs on forgotten training items, and {removal.name} has none"] = None
                continue
            if self._kept.get(removal, chosen.described) is None:
                rest = self._rest(removal)
                w = chosen.unlearn(rest)
                self._keep(removal, chosen.described, w, (rest.rounds, rest.visits), exact, exactly())
            scored.append(self._scored(removal, chosen.name, chosen.described))
        return scored

    def _keep(
        self, removal: Removal, method: str, w: Tensor, work: tuple[int, int], exact: Tensor, exactly: Answers
    ) -> None:
        """Scores parameters `[P]` and keeps that, with rounds and visits."""
        figures = self._scorer.score(removal, w, self._ask(w, removal), exact, exactly)
        self._kept.append(removal, method, {"rounds": work[0], "visits": work[1], **asdict(figures)})

    def _rest(self, removal: Removal) -> Rest:
        return Rest(self._run, removal, self._scorer.forgotten(removal), self._scorer.host, self._read_history)

    def _read_history(self) -> History:
        if self._history is None:
            self._history = History(self._run)
        return self._history

    def _ask(self, w: Tensor, removal: Removal) -> Answers:
        touched = tuple(client for client, items in self._scorer.forgotten(removal).items() if len(items))
        return self._scorer.ask({**self._model, MODEL_ENTRY: w}, touched)

    def _scored(self, removal: Removal, model: str, method: str) -> Scored:
        kept = dict(self._kept.get(removal, method) or {})
        work = kept.pop("rounds"), kept.pop("visits")
        return Scored(self._name, removal.name, self._run.seen(removal), model, *work, Figures(**kept))

    def _named(self, w: Tensor) -> Tree:
        """Returns parameters of the server's model by name."""
        model: Tree = {**self._model, MODEL_ENTRY: w}
        visit = self._scorer.host.visit(0, evaluation_cell(1, [0], {}, {}), model)
        module = visit.client.models[MODEL].module
        return {
            f"global/{name}": p.detach().clone(memory_format=torch.contiguous_format)
            for name, p in module.named_parameters()
        }
