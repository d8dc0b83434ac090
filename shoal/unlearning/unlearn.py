"""Removals from finished runs: the exact models, approximations, and the scores of both."""

import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from shoal.algorithms.protocol import MODEL, Tree
from shoal.engine.rounds.sampling import evaluation_cell
from shoal.engine.screen.progress import Step, progress, say
from shoal.past.reader import Reading
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.unlearning.approximations import KEY, METHODS, NONE, Chosen, choose
from shoal.unlearning.kept import Kept
from shoal.unlearning.removal import Removal
from shoal.unlearning.rest import History, Rest
from shoal.unlearning.retraining import MODEL_ENTRY, Retraining
from shoal.unlearning.scoring import Answers, Figures, Scorer
from shoal.unlearning.table import EXACT, ORIGINAL, Scored, Unlearned
from shoal.unlearning.targets import Asked, list_removals

CLIMBS = "gradient_ascent"


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
        client, nodes, label = (None if each is None else str(each) for each in (self.client, self.nodes, self.label))
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
    return Unlearned([each for part in parts for each in part.scored], sum(part.trainings for part in parts), notes)


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
            scored = [each for removal in removals for each in removing.remove(removal, step)]
    order = {removal.name: place for place, removal in enumerate(removals)}
    scored.sort(key=lambda each: order[each.removed])
    trained = sum(each.rounds for each in scored if each.model == EXACT)
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
        self._asked: dict[tuple[int, ...], Answers] = {}
        self.notes: dict[str, None] = {}

    def remove(self, removal: Removal, step: Step) -> list[Scored]:
        """Removes it exactly and by all approximations; returns the scores of all models."""
        scored = list[Scored]()
        exact, lazily = None, list[Answers]()

        def exactly() -> tuple[Tensor, Answers]:
            assert exact is not None
            if not lazily:
                lazily.append(self._ask(exact, removal))
            return exact, lazily[0]

        w, kept = self._kept.read_model(removal), self._kept.get(removal, EXACT)
        if w is None or kept is None:
            trained = self._run.train_exactly(removal)
            exact = w = self._run.model(trained.state)[MODEL_ENTRY]
            self._kept.write_model(removal, w, self._named(w))
            kept = {"rounds": trained.rounds, "visits": trained.visits, **self._figures(removal, w, *exactly())}
            self._kept.append(removal, EXACT, kept)
        exact = w
        scored.append(self._scored(removal, EXACT, kept))
        step.advance()
        original = self._kept.get(removal, ORIGINAL)
        if original is None:
            lines = self._run.past.lines
            work = {"rounds": len(lines), "visits": sum(len(line["cohort"]) for line in lines)}
            original = {**work, **self._figures(removal, self._model[MODEL_ENTRY], *exactly())}
            self._kept.append(removal, ORIGINAL, original)
        scored.append(self._scored(removal, ORIGINAL, original))
        for each in self._chosen:
            items = sum(map(len, self._scorer.forgotten(removal).values()))
            if each.name == CLIMBS and each.code is None and not items:
                self.notes[f"{CLIMBS} climbs on forgotten training items, and {removal.name} has none"] = None
                step.advance()
                continue
            approximated = self._kept.get(removal, each.described)
            if approximated is None:
                rest = self._rest(removal)
                found = each.unlearn(rest)
                work = {"rounds": rest.rounds, "visits": rest.visits}
                approximated = {**work, **self._figures(removal, found, *exactly())}
                self._kept.append(removal, each.described, approximated)
            scored.append(self._scored(removal, each.name, approximated))
            step.advance()
        return scored

    def _rest(self, removal: Removal) -> Rest:
        return Rest(self._run, removal, self._scorer.forgotten(removal), self._scorer.host, self._read_history)

    def _read_history(self) -> History:
        if self._history is None:
            self._history = History(self._run)
        return self._history

    def _ask(self, w: Tensor, removal: Removal) -> Answers:
        touched = tuple(client for client, items in self._scorer.forgotten(removal).items() if len(items))
        return self._scorer.ask({**self._model, MODEL_ENTRY: w}, touched)

    def _figures(self, removal: Removal, w: Tensor, exact: Tensor, exactly: Answers) -> dict[str, Any]:
        answers = exactly if w is exact else self._ask(w, removal)
        return asdict(self._scorer.score(removal, w, answers, exact, exactly))

    def _scored(self, removal: Removal, model: str, kept: dict[str, Any]) -> Scored:
        figures = {name: value for name, value in kept.items() if name not in ("rounds", "visits")}
        first = self._run.seen(removal)
        place = self._name, removal.name, first, model
        return Scored(*place, kept["rounds"], kept["visits"], Figures(**figures))

    def _named(self, w: Tensor) -> Tree:
        """Returns parameters of the server's model by name."""
        model: Tree = {**self._model, MODEL_ENTRY: w}
        visit = self._scorer.host.visit(0, evaluation_cell(1, [0], {}, {}), model)
        module = visit.client.models[MODEL].module
        return {
            f"global/{name}": p.detach().clone(memory_format=torch.contiguous_format)
            for name, p in module.named_parameters()
        }
