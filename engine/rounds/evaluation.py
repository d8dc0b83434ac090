"""Which clients are evaluated at the end of a round, with which model; the others keep their counts.

A scope holds the newest counts of every client: `trained` those from the end of its last local training, `served`
those of what it would deploy now, `global` those of the server's model, `domains` those of that model on the whole
graphs that clients come from. A model that is the one of the last evaluation, to the bit, is not evaluated again.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
import xxhash

from shoal.algorithms.base import Algorithm
from shoal.algorithms.client import ClientInfo
from shoal.algorithms.protocol import Tree, is_moment
from shoal.engine.config.sections import ACCURACY, DOMAINS
from shoal.engine.rounds.domains import Domains
from shoal.engine.rounds.scoring import CORRECT, KINDS, PARTS, SUPPORT, macro_f1, ranked, summarize
from shoal.engine.rounds.state import FederationState


class Scorer(Protocol):
    """What an evaluation needs of a round; see `shoal.engine.rounds.server.Exchange`."""

    next_state: FederationState

    def score(self, ids: Sequence[int], download: Tree, fresh: bool = False) -> dict[int, Any]:
        """Counts of some clients after a download; `fresh` ones have neither state nor inbox."""
        ...


class Evaluator:
    """Brings the scores of a run up to date."""

    def __init__(
        self,
        algorithm: Algorithm,
        infos: Sequence[ClientInfo],
        domains: Domains | None = None,
        metric: str = ACCURACY,
    ) -> None:
        """Of a method, on clients of these sizes, which may come from several domains, by the metric of the run."""
        self._keeps_model = algorithm.client_models != "global"
        self._everyone = [info.client for info in infos]
        self._items = {info.client: info.items for info in infos}
        self._domains, self._metric = domains, metric

    def evaluate(self, exchange: Scorer, global_model: Tree) -> dict[str, Any]:
        """Evaluates every client whose model may have changed, and gives all weightings by scope.

        `exchange.next_state` gets the scores. `global_model` is what the server has or shares of one; empty if nothing.
        """
        next_state = exchange.next_state
        served = next_state.scores.setdefault("served", {})
        stale = {i for i in self._everyone if i in next_state.touched or i not in served}
        # One that fails now has no counts, rather than old ones.
        for i in stale:
            served.pop(i, None)
        if "w" in global_model:
            self._evaluate_the_global_model(exchange, global_model)
            known = self._deploy_the_global_model(stale, next_state)
            served.update({i: counts for i, counts in next_state.scores["global"].items() if i in known})
        else:
            known = self._deploy_what_they_trained(stale, next_state)
            served.update({i: next_state.scores["trained"][i] for i in known})
        stale -= known
        for round_number in sorted({next_state.newest.get(i, 0) for i in stale}):
            group = [i for i in sorted(stale) if next_state.newest.get(i, 0) == round_number]
            served.update(exchange.score(group, next_state.downloads.get(round_number, {})))
        next_state.touched.clear()
        return {scope: self._summarize(scope, counts) for scope, counts in newest(next_state).items()}

    def _summarize(self, scope: str, counts: Mapping[int, np.ndarray]) -> dict[str, Any]:
        if self._domains is None:
            return summarize(counts, self._items, metric=self._metric)
        if scope == DOMAINS:
            return self._domains.summarize_graphs(counts)
        found = summarize(counts, self._items, metric=self._metric)
        self._domains.add_to(found, counts)
        return found

    def _evaluate_the_global_model(self, exchange: Scorer, model: Tree) -> None:
        """Counts of the server's model, everybody's and of every domain; of one that was evaluated, those of then."""
        next_state, found = exchange.next_state, _digest(model)
        graphs = {DOMAINS: self._domains.graphs} if self._domains and self._domains.graphs else {}
        for scope, ids in {"global": self._everyone, **graphs}.items():
            known = next_state.scores.get(scope, {}) if found == next_state.evaluated else {}
            missing = [i for i in ids if i not in known]
            counted = exchange.score(missing, model, fresh=True) if missing else {}
            next_state.scores[scope] = known | counted
        next_state.evaluated = found

    def _deploy_the_global_model(self, stale: set[int], next_state: FederationState) -> set[int]:
        """Clients that hold the server's model as it is now and nothing else."""
        received = {next_state.newest[i] for i in stale if i in next_state.newest}
        same = {r for r in received if _digest(next_state.downloads[r]) == next_state.evaluated}
        return {i for i in stale if next_state.newest.get(i) in same and not _holds_own(i, next_state)}

    def _deploy_what_they_trained(self, stale: set[int], next_state: FederationState) -> set[int]:
        """Clients whose last visit was evaluated at its end and that got nothing since."""
        if not self._keeps_model:
            return set()
        return {i for i in stale if next_state.touched.get(i) and i not in next_state.inboxes}


def newest(state: FederationState) -> dict[str, Mapping[int, np.ndarray]]:
    """The newest counts by scope and client; one that never trained is `trained` with what it was given."""
    served = state.scores.get("served", {})
    return {**state.scores, "trained": {**served, **state.scores.get("trained", {})}}


def _holds_own(client: int, next_state: FederationState) -> bool:
    """Whether the client keeps anything that may make its model differ from a download."""
    elsewhere = next_state.kept.get(client)
    names = next_state.clients.get(client, {}) if elsewhere is None else elsewhere.names
    return client in next_state.inboxes or not all(map(is_moment, names))


def _digest(tree: Tree) -> str:
    """XXH3-128 of names, types, shapes and bytes of tensors, in hexadecimal."""
    hasher = xxhash.xxh3_128()
    for name in sorted(tree):
        t = tree[name].detach()
        hasher.update(f"{name} {t.dtype} {list(t.shape)} ".encode())
        hasher.update(t.contiguous().view(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


Columns = dict[str, np.ndarray]


def client_scores(scopes: Mapping[str, Mapping[int, np.ndarray]], metric: str = ACCURACY) -> Columns:
    """A row for every client with rows of a part, by scope, part and number; whole graphs are left out.

    Returns:
        `scope` and `part` (text), `client`, `rows` and `correct` int32, `f1` float64 (macro-F1), and another metric
        than accuracy under its name, float64, NaN where it is not defined.
    """
    found: list[Columns] = []
    for scope in sorted(scopes.keys() - {DOMAINS}):
        counts = scopes[scope]
        client_B = np.array(sorted(counts), dtype=np.int32)
        if len(client_B):
            every_BPKC = np.stack([counts[client] for client in client_B])
            found += [_of_part(scope, place, client_B, every_BPKC[:, place], metric) for place in range(len(PARTS))]
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]} if found else {}


def _of_part(scope: str, place: int, client_B: np.ndarray, counts_BKC: np.ndarray, metric: str) -> Columns:
    rows_B = counts_BKC[:, SUPPORT].sum(1)
    scored = rows_B > 0
    client_B, counts_BKC = client_B[scored], counts_BKC[scored]
    columns = {
        "scope": np.full(len(client_B), scope),
        "part": np.full(len(client_B), PARTS[place]),
        "client": client_B,
        "rows": rows_B[scored].astype(np.int32),
        "correct": counts_BKC[:, CORRECT].sum(1).astype(np.int32),
        "f1": macro_f1(counts_BKC[:, :KINDS]),
    }
    if metric != ACCURACY:
        columns[metric] = ranked(metric, counts_BKC[:, SUPPORT], counts_BKC[:, -1])
    return columns
