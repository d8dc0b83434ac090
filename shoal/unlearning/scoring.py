"""Models after a removal, scored against the exact one: weights, predictions, membership, accuracy.

The predictions are of the server's model at every client, on the data of the run as it was, for all models alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.protocol import Tree
from shoal.algorithms.rng import key
from shoal.engine.hosts.host import Host
from shoal.engine.rounds.sampling import evaluation_cell
from shoal.engine.scores.counts import scores_of
from shoal.past.rewind import PastRun
from shoal.unlearning.removal import Removal

# A method may rule a class out, with a score of minus infinity.
LEAST = -1e6


@dataclass(frozen=True)
class Answers:
    """The log-probabilities of a model, float64 `[n, C]`: of the test items of all clients, and of training items."""

    test: Mapping[int, Tensor]
    train: Mapping[int, Tensor]


@dataclass(frozen=True)
class Figures:
    """A model beside the exact one; shares are in percent, None where there are no items.

    Attributes:
        weights: Distance of its parameters to those of the exact model, as a part of the norm of these.
        equal: Share of the test items that both give the same class.
        variation: Mean distance in total variation of what both say of test items.
        divergence: Mean Kullback-Leibler divergence from what the exact model says, in nats.
        membership: Area under the curve of losses that tell forgotten training items from test items.
        rest: Accuracy on the test items of the rest.
        forgotten: Accuracy on the forgotten training items.
    """

    weights: float
    equal: float
    variation: float
    divergence: float
    membership: float | None
    rest: float | None
    forgotten: float | None


class Scorer:
    """Scores models of a run.

    Attributes:
        host: A host with the whole data of the run.
    """

    def __init__(self, past: PastRun, model: Tree) -> None:
        """Opens the data; `model` is any of the server's."""
        self._past, self._model, self.host = past, model, Host()
        self.host.open(past.job.on_processor())
        self._classes = past.store.manifest.classes
        self._label: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}

    def forgotten(self, removal: Removal) -> dict[int, Tensor]:
        """Returns the training items that are forgotten by client, int64, ascending."""
        whole = {client: self._data(client)[0] for client in removal.clients}
        return whole | {client: torch.from_numpy(items.astype(np.int64)) for client, items in removal.items.items()}

    def ask(self, model: Tree, clients: tuple[int, ...]) -> Answers:
        """Asks the server's model of the test items of all clients, and the training items of some."""
        test, train, method = dict[int, Tensor](), dict[int, Tensor](), self._past.plan.algorithm
        for client in range(self._past.store.clients):
            visit = self.host.visit(client, evaluation_cell(1, [client], {}, {}), model)
            for part, kept in (("test", test), ("train", train)):
                rows = len(getattr(visit.scored.data, part))
                if rows and (part == "test" or client in clients):
                    scores_NC = scores_of(method, visit.scored, visit.received, part, rows).detach().double()
                    kept[client] = scores_NC.log_softmax(1).clamp(min=LEAST)
        return Answers(test, train)

    def score(self, removal: Removal, w: Tensor, answers: Answers, exact: Tensor, exactly: Answers) -> Figures:
        """Scores parameters `[P]`, and what they answer, against those of the exact removal."""
        own_NC = torch.cat(list(answers.test.values()))
        its_NC = torch.cat([exactly.test[client] for client in answers.test])
        norm = float(exact.double().norm())
        return Figures(
            weights=float((w.double() - exact.double()).norm()) / norm if norm else 0.0,
            equal=100 * float((own_NC.argmax(1) == its_NC.argmax(1)).double().mean()),
            variation=50 * float((own_NC.exp() - its_NC.exp()).abs().sum(1).mean()),
            divergence=float((its_NC.exp() * (its_NC - own_NC)).sum(1).mean()),
            membership=self._membership(removal, answers),
            rest=self._of_rest(removal, answers),
            forgotten=self._of_forgotten(removal, answers),
        )

    def _data(self, client: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns training and test items of a client, and the labels of both."""
        if client not in self._label:
            data = self.host.visit(client, evaluation_cell(1, [client], {}, {}), self._model).scored.data
            self._label[client] = data.train, data.test, data.label[data.train], data.label[data.test]
        return self._label[client]

    def _of_rest(self, removal: Removal, answers: Answers) -> float | None:
        right = items = 0
        for client, own_NC in answers.test.items():
            if client in removal.clients:
                continue
            _, test, _, label = self._data(client)
            kept = torch.ones(len(label), dtype=torch.bool) if removal.label is None else label != removal.label
            if client in removal.cuts:
                kept &= ~torch.isin(test, torch.tensor(removal.cuts[client].rows, dtype=torch.int64))
            right += int((own_NC.argmax(1) == label)[kept].sum())
            items += int(kept.sum())
        return 100 * right / items if items else None

    def _of_forgotten(self, removal: Removal, answers: Answers) -> float | None:
        right = items = 0
        for client, gone in self.forgotten(removal).items():
            train, _, label, _ = self._data(client)
            place = torch.isin(train, gone)
            if len(gone):
                right += int((answers.train[client].argmax(1) == label)[place].sum())
                items += len(gone)
        return 100 * right / items if items else None

    def _membership(self, removal: Removal, answers: Answers) -> float | None:
        """Returns the area in percent, over equal numbers of forgotten and test items of each client and class."""
        signals: tuple[list[np.ndarray], list[np.ndarray]] = [], []
        for client, gone in self.forgotten(removal).items():
            if not len(gone) or client not in answers.test:
                continue
            train, _, label, of_test = self._data(client)
            place = torch.isin(train, gone)
            sides = (answers.train[client][place], label[place]), (answers.test[client], of_test)
            number_C = np.minimum(*(np.bincount(labels.numpy(), minlength=self._classes) for _, labels in sides))
            rng = np.random.default_rng(key(self._past.config.seed, client, "unlearn"))
            for (log_NC, of_items), signal in zip(sides, signals):
                drawn = torch.from_numpy(_draw(of_items.numpy(), number_C, rng))
                signal.append(_margin(log_NC[drawn], of_items[drawn]).numpy())
        member, other = (np.concatenate(signal) if signal else np.empty(0) for signal in signals)
        return 100 * _area(member, other) if len(member) else None


def _draw(label_N: np.ndarray, number_C: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Draws `number_C` items of every class; returns their places."""
    shuffled = rng.permutation(len(label_N))
    return np.concatenate([shuffled[label_N[shuffled] == c][:number] for c, number in enumerate(number_C)])


def _margin(log_NC: Tensor, label_N: Tensor) -> Tensor:
    """Returns log p - log(1 - p) of labels, `[N]`, which orders items as their loss does, without rounding near 1."""
    own_N = log_NC.gather(1, label_N[:, None]).squeeze(1)
    return own_N - log_NC.scatter(1, label_N[:, None], -torch.inf).logsumexp(1).clamp(min=LEAST)


def _area(member: np.ndarray, other: np.ndarray) -> float:
    """Returns the share of pairs in which the member has the larger signal, ties half."""
    below = np.sort(other)
    twice = np.searchsorted(below, member, "left").sum() + np.searchsorted(below, member, "right").sum()
    return float(twice / (2 * len(member) * len(other)))
