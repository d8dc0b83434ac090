"""Numbers of a federation whose clients come from several graphs: by domain, and on the domains' whole graphs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from shoal.algorithms.base import Algorithm, Received
from shoal.algorithms.client import Client, ClientInfo
from shoal.engine.config.sections import ACCURACY, BOTH, DOMAINS
from shoal.engine.scores.counts import (
    CORRECT,
    KINDS,
    NO_MEASURES,
    PARTS,
    SUPPORT,
    Measure,
    count_rows,
    macro_f1,
    mean_auc,
    scores_of,
    summarize,
    twice_wins,
)
from shoal.engine.scores.table import ScoreTable
from shoal.storage.store.manifest import DomainRecord

PARTS_OF_GRAPHS = (*PARTS, BOTH)
WINS = KINDS


def score_graph(
    algorithm: Algorithm, client: Client, received: Received, measures: Mapping[str, Measure] = NO_MEASURES
) -> np.ndarray:
    """Counts a whole graph, int64 `[3, 4, C]`: as `score` does, and what `twice_wins` gives before measures."""
    classes = client.info.classes
    kept = [twice_wins, *measures.values()]
    counts = np.zeros((len(PARTS_OF_GRAPHS), WINS + len(kept), classes), dtype=np.int64)
    pairs = [(torch.empty(0, classes), torch.empty(0, dtype=torch.int64))]
    for part, name in enumerate(PARTS):
        rows = getattr(client.data, name)
        if len(rows):
            scores, label = scores_of(algorithm, client, received, name, len(rows)), client.data.label[rows]
            counts[part, :WINS] = count_rows(label, scores.argmax(1), classes)
            counts[part, WINS:] = [measure(scores, label) for measure in kept]
            pairs.append((scores.detach().double().cpu(), label.cpu()))
    counts[-1, :WINS] = counts[:-1, :WINS].sum(0)
    scores, label = (torch.cat(of_parts) for of_parts in zip(*pairs))
    if len(label):
        counts[-1, WINS:] = [measure(scores, label) for measure in kept]
    return counts


class Domains:
    """The domains of a federation; `graphs` are the numbers under which whole graphs are evaluated, if they are."""

    def __init__(
        self, records: Sequence[DomainRecord], graphs: Sequence[ClientInfo], metrics: Sequence[str] = (ACCURACY,)
    ) -> None:
        """Takes a store's domains, the sizes of their whole graphs where these are evaluated, and the run's metrics."""
        self._records, self._metrics = records, metrics
        self._items = {info.client: info.items for info in graphs}
        self.graphs = list(self._items)

    def summarize_graphs(self, scores: Mapping[int, np.ndarray]) -> dict[str, Any]:
        """Computes the numbers of scope `domains` from counts by graph, as `score_graph` gives them.

        Returns:
            For `val`, `test` and both together: what `summarize` gives, a graph being a client; the means over domains
            of balanced accuracy (`balanced`), AUC (`auc`) and of the share of a domain's largest class (`majority`);
            the accuracy of the best class for all domains (`constant`), a mean over domains, and that class
            (`constant_class`); and by domain the numbers of `rates`.
        """
        result = summarize(scores, [self._items[i] for i in sorted(scores)], PARTS_OF_GRAPHS, self._metrics)
        named = {self._records[place].name: scores[i] for place, i in enumerate(self.graphs) if i in scores}
        for part, table in result.items():
            of_part = {name: counts[PARTS_OF_GRAPHS.index(part)] for name, counts in named.items()}
            by_name = _rates_of(of_part)
            means = ("balanced", "auc", "majority")
            table |= {rate: _average([numbers[rate] for numbers in by_name.values()]) for rate in means}
            shares_DC = [of_part[name][SUPPORT] / of_part[name][SUPPORT].sum() for name in by_name]
            share_C = np.mean(shares_DC, axis=0)
            table |= {"constant": float(share_C.max()), "constant_class": int(share_C.argmax()), DOMAINS: by_name}
        return result

    def add_to(self, summary: dict[str, Any], scores: Mapping[int, np.ndarray]) -> None:
        """Adds to the numbers of a scope those by domain, over all rows of its clients.

        `summary` gets `domains` with the numbers of `rates` and the means over clients of accuracy (`clients`) and
        macro-F1 (`f1_clients`), and `balanced`, a mean over domains.
        """
        if not summary:
            return
        table = ScoreTable.of(scores)
        # Ranks are among the items of one client, and have no sum.
        every_BPKC = np.concatenate([counts_BPKC[:, :, :KINDS] for counts_BPKC in table.blocks()])
        members = {record.name: every_BPKC[np.isin(table.clients, record.numbers)] for record in self._records}
        by_part = {name: counts for name, counts in members.items() if len(counts)}
        for part, table in summary.items():
            of_part = {name: counts[:, PARTS.index(part)] for name, counts in by_part.items()}
            by_name = _rates_of({name: counts.sum(0) for name, counts in of_part.items()})
            means = {name: {**numbers, **_over_clients(of_part[name])} for name, numbers in by_name.items()}
            table |= {"balanced": _average([numbers["balanced"] for numbers in by_name.values()]), DOMAINS: means}


def _over_clients(counts_BKC: np.ndarray) -> dict[str, float]:
    """Averages accuracy and macro-F1 over the clients that have rows."""
    counts = counts_BKC[counts_BKC[:, SUPPORT].any(1)]
    return {
        "clients": float((counts[:, CORRECT].sum(1) / counts[:, SUPPORT].sum(1)).mean()),
        "f1_clients": float(macro_f1(counts).mean()),
    }


def rates(counts_KC: np.ndarray) -> dict[str, float | None]:
    """Computes the numbers of one domain, from its counts of a part, int64 `[3, C]`, or more with what `twice_wins`
    gave.

    Returns:
        `accuracy`; macro-F1 over the classes that occur or are predicted (`f1`); mean recall over the classes that
        occur (`balanced`); where rows were ranked the mean area under the ROC curve (`auc`), None if all rows are of
        one class; and the share of the largest class (`majority`).
    """
    support_C, correct_C = counts_KC[SUPPORT], counts_KC[CORRECT]
    occurs, rows = support_C > 0, support_C.sum()
    ranked = {"auc": mean_auc(support_C, counts_KC[WINS])} if len(counts_KC) > WINS else {}
    return {
        "accuracy": float(correct_C.sum() / rows),
        "f1": float(macro_f1(counts_KC[None])[0]),
        "balanced": float((correct_C[occurs] / support_C[occurs]).mean()),
        **ranked,
        "majority": float(support_C.max() / rows),
    }


def _rates_of(counts: Mapping[str, np.ndarray]) -> dict[str, dict[str, float | None]]:
    """Computes the numbers of every domain that has rows."""
    return {name: rates(counts_KC) for name, counts_KC in counts.items() if counts_KC[SUPPORT].any()}


def _average(values: Sequence[float | None]) -> float | None:
    """Averages the numbers that are defined; None if none is."""
    defined = [value for value in values if value is not None]
    return float(np.mean(defined)) if defined else None
