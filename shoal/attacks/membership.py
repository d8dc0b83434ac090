"""Membership inference on the models of a finished run: how well a model's loss tells training items from test items.

An item's signal is log p - log(1 - p) of the probability p that the client's deployed model gives to its label, which
orders items as their loss does: the threshold of Yeom et al., Privacy risk in machine learning (CSF 2018). The
calibrated one is less its mean over the client's items of that class, as thresholds by class do (Song & Mittal,
Systematic evaluation of privacy risks, USENIX Security 2021). Neither needs shadow models.

Of each client and class, training and test items are drawn in equal numbers. A model that saw none of them then gives
an area of 50 %, also where training items are balanced and others are not, as in published splits: such a model may be
surer of one class than of another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.rng import key
from shoal.engine.config.config import load_config
from shoal.engine.hosts.host import Visit
from shoal.engine.runs.export import Reopened, reopen, visits_of
from shoal.engine.scores.counts import scores_of
from shoal.engine.screen.progress import progress
from shoal.engine.sections.section import load
from shoal.engine.sections.sections import find_bounding
from shoal.past.reader import Reading
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.tables.text_table import TextTable

ALL, FPR = "all", 0.01
# Signals are bounded, since a method may rule a class out, with a probability of 0.
LARGEST = 1e6
HEADS = ("client", "items of each", "AUC", "AUC calibrated", "TPR at 1 % FPR", "calibrated")


@dataclass(frozen=True)
class Membership:
    """The success of the attack on a client, or on all, in percent, over equal numbers of training and test items.

    `auc` and `tpr` are of losses and of calibrated ones; chance is 50 and 1. A rate of true positives at 1 % of false
    ones is NaN with fewer than 100 items.
    """

    client: str
    items: int
    auc: tuple[float, float]
    tpr: tuple[float, float]

    @property
    def row(self) -> tuple[str, ...]:
        """Returns the cells of a row of the table."""
        numbers = ("-" if value != value else f"{value:.1f}" for value in (*self.auc, *self.tpr))
        return self.client, f"{self.items:,}", *numbers


@dataclass(frozen=True)
class Memberships:
    """Success over all items together, and of every client that trained and has test items of a class it trained on."""

    overall: Membership
    clients: Sequence[Membership]
    bound: str

    def table(self) -> TextTable:
        """Makes a table: all clients together, then least, median and most over clients of each number."""
        numbers = np.array([(client.items, *client.auc, *client.tpr) for client in self.clients])
        rows = [self.overall.row]
        for name, reduce in (("least", np.min), ("median", np.median), ("most", np.max)):
            columns = [column[~np.isnan(column)] for column in numbers.T]
            items, *rest = (float(reduce(column)) if len(column) else np.nan for column in columns)
            rows.append(Membership(name, int(items), (rest[0], rest[1]), (rest[2], rest[3])).row)
        title = f"membership inference on deployed models (%), chance 50 and 1: {len(self.clients)} clients"
        return TextTable(HEADS, tuple(rows), 1, title=title, notes=(self.bound,) if self.bound else ())

    def csv(self) -> str:
        """Writes a line for all clients together, and one for every client, as CSV."""
        return TextTable(HEADS, (self.overall.row, *(client.row for client in self.clients)), 1).csv()


@dataclass(frozen=True)
class MembershipReader:
    """The reader that attacks the deployed models of a finished run by membership inference."""

    def read(self, past: PastRun) -> Reading:
        """Returns the table of `membership`, and a CSV of every client. Raises as `membership`."""
        result = membership(past.path)
        return Reading((result.table(),), result.csv())


def membership(run: Path) -> Memberships:
    """Attacks the deployed models of a finished run; any task.

    Raises ShoalError: the run is not finished or its last checkpoint is gone, or no client has both training and test
    items of one class.
    """
    opened, signals = reopen(run, None), dict[int, tuple[np.ndarray, ...]]()
    PastRun(run).require_classes("membership inference")
    with progress("attack", opened.store.clients, "clients") as step:
        for client in range(opened.store.clients):
            # A client that never took part has no model that saw its items.
            if client in opened.state.newest or client in opened.state.clients:
                _, visit = next(visits_of(opened.host, opened.state, client, opened.global_model))
                signals[client] = _signals(opened, visit, client)
            step.advance()
    signals = {client: pair for client, pair in signals.items() if pair[0].size}
    if not signals:
        raise ShoalError(
            run, "no client that trained has training and test items of one class, which the attack tells apart"
        )
    pooled = tuple(np.concatenate(parts, axis=-1) for parts in zip(*signals.values()))
    config = load_config(run)
    bounding = find_bounding(config)
    bound = "" if bounding is None else load(bounding.bound)(config, opened.state.round)
    return Memberships(_success(ALL, *pooled), [_success(str(i), *pair) for i, pair in signals.items()], bound)


def _signals(opened: Reopened, visit: Visit, client: int) -> tuple[np.ndarray, ...]:
    """Computes signals of n drawn training items and n drawn test items, each `[2, n]`: plain and calibrated."""
    data, parts = visit.scored.data, list[Tensor]()
    labels = {part: data.label[getattr(data, part)] for part in ("train", "test")}
    classes = opened.store.manifest.classes
    number_C = np.minimum(*(np.bincount(label.numpy(), minlength=classes) for label in labels.values()))
    number = int(number_C.sum())
    if not number:
        return np.empty((2, 0)), np.empty((2, 0))
    rng = np.random.default_rng(key(opened.job.seed, client, "membership"))
    for part, label in labels.items():
        scores_NC = scores_of(opened.algorithm, visit.scored, visit.received, part, len(label)).detach().double()
        drawn = torch.from_numpy(draw_by_class(label.numpy(), number_C, rng))
        parts += [margin(scores_NC[drawn], label[drawn]), label[drawn]]
    signal, label_N = torch.cat(parts[::2]).numpy(), torch.cat(parts[1::2]).numpy()
    totals, counts = np.bincount(label_N, signal), np.bincount(label_N)
    both = np.stack([signal, signal - (totals / np.maximum(counts, 1))[label_N]])
    return both[:, :number], both[:, number:]


def draw_by_class(label_N: np.ndarray, number_C: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws `number_C` items of every class; returns their places, ascending."""
    shuffled = rng.permutation(len(label_N))
    by_class = [shuffled[label_N[shuffled] == c][:number] for c, number in enumerate(number_C)]
    return np.sort(np.concatenate(by_class))


def margin(scores_NC: Tensor, label_N: Tensor) -> Tensor:
    """Returns log p - log(1 - p) of labels, float64 `[N]`, without the rounding of p near 1."""
    own_N = scores_NC.gather(1, label_N[:, None]).squeeze(1)
    margin_N = own_N - scores_NC.scatter(1, label_N[:, None], -torch.inf).logsumexp(1)
    return margin_N.clamp(-LARGEST, LARGEST)


def _success(client: str, member: np.ndarray, other: np.ndarray) -> Membership:
    """Measures the attack by signals `[2, n]` of training and test items."""
    pairs = list(zip(member, other))
    auc, tpr = ([100 * measure(*pair) for pair in pairs] for measure in (area, true_positives))
    return Membership(client, member.shape[1], (auc[0], auc[1]), (tpr[0], tpr[1]))


def area(member: np.ndarray, other: np.ndarray) -> float:
    """Returns the area under the ROC: the share of pairs in which the member has the larger signal, ties half."""
    below = np.sort(other)
    twice = np.searchsorted(below, member, "left").sum() + np.searchsorted(below, member, "right").sum()
    return float(twice / (2 * len(member) * len(other)))


def true_positives(member: np.ndarray, other: np.ndarray) -> float:
    """Returns the share of members above the signal that 1 % of the others, rounded down, exceed; NaN for too few."""
    allowed = int(FPR * len(other) + 1e-9)
    return float((member > np.sort(other)[::-1][allowed]).mean()) if allowed else float("nan")
