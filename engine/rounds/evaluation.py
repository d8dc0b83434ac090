"""Evaluation at the end of a round: of which clients, with which model; the others keep their counts.

A scope holds the newest counts of every client: `trained` those from the end of its last local training, `deployed`
those of what it would deploy now, `global` those of the server's model, `domains` those of that model on the whole
graphs that clients come from. A model that is the one of the last evaluation, to the bit, is not evaluated again.
Clients that never take part have scopes of their features alone (`Section.scopes`).

Where an evaluation is of some clients, the counts of others wait as they are: those of `global` are of one model.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from shoal.algorithms.base import Algorithm, keeps_models
from shoal.algorithms.client import ClientInfo, ClientTable
from shoal.algorithms.protocol import Tree, only_trains
from shoal.engine.config.sections import ACCURACY, DOMAINS, MACRO_F1, SCOPES
from shoal.engine.rounds.state import FederationState, tree_digest
from shoal.engine.scores.counts import PARTS, are_targets, by_client, summarize
from shoal.engine.scores.domains import Domains
from shoal.engine.scores.table import ScoreTable

# An evaluation of a sample has these scopes whole.
WHOLE = SCOPES[SCOPES.index(DOMAINS) :]


class Scorer(Protocol):
    """The parts of a round that an evaluation needs; see `shoal.engine.rounds.exchange.Exchange`."""

    next_state: FederationState

    def score(self, ids: Sequence[int], download: Tree, fresh: bool = False) -> ScoreTable:
        """Counts how some clients predict after a download; `fresh` ones have neither state nor inbox."""
        ...


class Evaluator:
    """An evaluator, which brings the scores of a run up to date."""

    def __init__(
        self,
        algorithm: Algorithm,
        infos: Sequence[ClientInfo],
        domains: Domains | None = None,
        metrics: Sequence[str] = (ACCURACY,),
        absent: Sequence[int] = (),
    ) -> None:
        """Evaluates a method on clients of these sizes, which may come from several domains, by the metrics of the run.

        Clients that never take part (`absent`) are not evaluated here.
        """
        self._keeps_model = keeps_models(algorithm)
        self._items_N = ClientTable.of(infos).items
        self._everyone = np.delete(np.arange(len(infos)), absent)
        self._domains, self._metrics = domains, metrics

    def evaluate(self, exchange: Scorer, global_model: Tree, only: Sequence[int] | None = None) -> dict[str, Any]:
        """Evaluates every client, or `only` some, whose model may have changed; gives all weightings by scope of these.

        `exchange.next_state` gets the scores. `global_model` is what the server has or shares of one; empty if nothing.
        """
        next_state = exchange.next_state
        deployed = next_state.scores.setdefault("deployed", ScoreTable())
        asked = self._everyone if only is None else np.array(only, dtype=np.int64)
        touched = np.fromiter(next_state.touched, dtype=np.int64)
        stale = asked[np.isin(asked, touched) | ~np.isin(asked, deployed.clients)]
        newest_N = np.zeros(len(self._items_N), dtype=np.int64)
        newest_N[np.fromiter(next_state.newest, dtype=np.int64)] = np.fromiter(next_state.newest.values(), np.int64)
        if "w" in global_model:
            self._evaluate_the_global_model(exchange, global_model, asked)
            evaluated, scope = self._deploy_the_global_model(stale, newest_N[stale], next_state), "global"
        else:
            evaluated, scope = self._deploy_what_they_trained(stale, next_state), "trained"
        # A client that fails now has no counts, rather than old ones.
        deployed = deployed.only(stale, others=True)
        tables = [next_state.scores.get(scope, ScoreTable()).only(evaluated)]
        stale = stale[~np.isin(stale, evaluated)]
        order = np.argsort(newest_N[stale], kind="stable")
        rounds, starts = np.unique(newest_N[stale][order], return_index=True)
        groups = np.split(stale[order], starts[1:])
        for number, group in zip(rounds.tolist(), groups):
            tables.append(exchange.score(group.tolist(), next_state.downloads.get(number, {})))
        next_state.scores["deployed"] = deployed.with_counts(*tables)
        next_state.touched = {} if only is None else _without(next_state.touched, only)
        summaries: dict[str, dict[str, Any]] = {}
        by_content: dict[tuple[int, int], str] = {}
        for scope, counts in newest(next_state, only).items():
            # Where all deployed the server's model, its counts are summed up once.
            same = by_content.setdefault(counts.content, scope)
            summaries[scope] = deepcopy(summaries[same]) if same in summaries else self._summarize(scope, counts)
        return summaries

    def _summarize(self, scope: str, counts: ScoreTable) -> dict[str, Any]:
        if scope == DOMAINS and self._domains is not None:
            return self._domains.summarize_graphs(counts)
        numbers = summarize(counts, self._items_N[counts.clients], metrics=self._metrics)
        if self._domains is not None:
            self._domains.add_to(numbers, counts)
        return numbers

    def _evaluate_the_global_model(self, exchange: Scorer, model: Tree, asked: np.ndarray) -> None:
        """Counts for the server's model, of clients and every domain; an evaluated model keeps its counts."""
        next_state, digest = exchange.next_state, tree_digest(model)
        graphs = {DOMAINS: np.array(self._domains.graphs)} if self._domains and self._domains.graphs else {}
        for scope, ids in {"global": asked, **graphs}.items():
            table = next_state.scores.get(scope) if digest == next_state.evaluated else None
            table = table or ScoreTable()
            missing = ids[~np.isin(ids, table.clients)]
            counted = [exchange.score(missing.tolist(), model, fresh=True)] if len(missing) else []
            next_state.scores[scope] = table.with_counts(*counted)
        next_state.evaluated = digest

    def _deploy_the_global_model(
        self, stale: np.ndarray, received: np.ndarray, next_state: FederationState
    ) -> np.ndarray:
        """Returns the clients that received a model in the round and hold the server's present one alone."""
        rounds = [r for r in np.unique(received).tolist() if r in next_state.downloads]
        same = [r for r in rounds if next_state.content(r) == next_state.evaluated]
        holding = stale[np.isin(received, same)]
        keeps = [_holds_own(i, next_state) for i in holding.tolist()]
        return holding[~np.array(keeps, dtype=bool)]

    def _deploy_what_they_trained(self, stale: np.ndarray, next_state: FederationState) -> np.ndarray:
        """Returns the clients whose last visit was evaluated at its end and that got nothing since."""
        scored = [i for i, trained in next_state.touched.items() if trained and i not in next_state.inboxes]
        return stale[np.isin(stale, scored if self._keeps_model else [])]


def newest(state: FederationState, only: Sequence[int] | None = None) -> dict[str, ScoreTable]:
    """Returns the newest counts by scope in the order of `SCOPES`, of all clients or `only` some; one that never
    trained is `trained` with what it was given.
    """
    deployed, trained = (state.scores.get(scope, ScoreTable()) for scope in ("deployed", "trained"))
    counts = {**state.scores, "trained": deployed.with_counts(trained)}
    tables = {scope: counts[scope] for scope in SCOPES if scope in counts}
    if only is None:
        return tables
    return {scope: table if scope in WHOLE else table.only(np.array(only)) for scope, table in tables.items()}


def _without(touched: Mapping[int, bool], ids: Sequence[int]) -> dict[int, bool]:
    evaluated = set(ids)
    return {i: scored for i, scored in touched.items() if i not in evaluated}


def _holds_own(client: int, next_state: FederationState) -> bool:
    """Returns whether the client keeps anything that may make its model differ from a download."""
    elsewhere = next_state.kept.get(client)
    names = next_state.clients.get(client, {}) if elsewhere is None else elsewhere.names
    return client in next_state.inboxes or not all(map(only_trains, names))


Columns = dict[str, np.ndarray | pa.Array]


def client_scores(scopes: Mapping[str, Mapping[int, np.ndarray]], metrics: Sequence[str] = (ACCURACY,)) -> Columns:
    """Lists a row for every client with rows of a part, by scope, part and number; whole graphs are left out.

    Returns:
        `scope` and `part` (dictionaries of text), `client`, `rows` and `correct` int32, `f1` float64 (macro-F1), and
        other metrics than these under their names, float64, NaN where one is not defined. Of what are no classes
        there are no `correct` and `f1`.
    """
    blocks: list[dict[str, np.ndarray]] = []
    names = sorted(scopes.keys() - {DOMAINS})
    for number, scope in enumerate(names):
        table = ScoreTable.of(scopes[scope])
        if not table:
            continue
        numbers = by_client(table, metrics)
        for place in range(len(PARTS)):
            scored = numbers.rows_BP[:, place] > 0
            columns = {
                "scope": np.full(scored.sum(), number, dtype=np.int8),
                "part": np.full(scored.sum(), place, dtype=np.int8),
                "client": table.clients[scored].astype(np.int32),
                "rows": numbers.rows_BP[scored, place].astype(np.int32),
            }
            if not are_targets(metrics):
                columns["correct"] = numbers.correct_BP[scored, place].astype(np.int32)
                columns["f1"] = numbers.f1_BP[scored, place]
            others = {key: value_BP[scored, place] for key, value_BP in numbers.values_BP.items() if key != MACRO_F1}
            blocks.append(columns | others)
    if not blocks:
        return {}
    joined = {name: np.concatenate([rows[name] for rows in blocks]) for name in blocks[0]}
    texts = {"scope": names, "part": list(PARTS)}
    return joined | {name: pa.DictionaryArray.from_arrays(joined[name], text) for name, text in texts.items()}
