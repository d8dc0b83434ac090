"""Property inference on what clients send: which classes a client trains on, and their shares.

Guesses come from counts by class, from rows by class that are not zero (prototypes), and from the change of a model's
classifier: its gradient is a sum of (p - y) x over items, so that a class's weights and bias grow with its items
(Wainakh et al., User-level label leakage from gradients in federated learning, PoPETs 2022). Axes: B clients, C
classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from shoal.algorithms.client import Client
from shoal.attacks.membership import area
from shoal.attacks.seen_uploads import RELEASED, UPLOAD, Sent, seen_round
from shoal.past.reader import Reading
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.tables.text_table import TextTable

HEADS = ("seen", "guessed from", "clients", "distance", "of chance", "AUC has class", "AUC has more")
# A guess has signals, which grow with the items of a class, and shares of classes, each float64 `[C]`.
Guess = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class PropertiesReader:
    """The reader that infers the classes of clients from what they sent in a round."""

    round: Annotated[int, Field(ge=1)] = 1

    def read(self, past: PastRun) -> Reading:
        """Returns the table of `properties`, and a CSV of every client. Raises as `properties`."""
        table, by_client = properties(past.path, self.round)
        return Reading((table,), by_client.csv())


def properties(run: Path, number: int) -> tuple[TextTable, TextTable]:
    """Guesses classes of the clients that trained in a round of a run, of any task.

    Gives a row for each guess, and one for each client of it. Distances are of total variation, in percent, chance the
    mean of the other clients' shares. AUCs are means over classes: of clients that have the class, and of those that
    have more of it than the median client. Raises ShoalError: as `seen_round`, or nothing tells classes.
    """
    past = PastRun(run).of_round(number)
    past.require_classes("inference of classes")
    cohort = past.cohort(number)
    seen = seen_round(past, number, cohort)
    true, guesses = dict[int, np.ndarray](), dict[tuple[str, str], dict[int, Guess]]()
    for i in cohort:
        client = seen.client(i)
        if not client.info.train:
            continue
        true[i] = shares(np.bincount(client.data.train_label.numpy(), minlength=client.info.classes))
        for message in (*(sent for sent in seen.sent if sent.client == i), seen.released):
            place = RELEASED if message.client is None else UPLOAD
            for source, guess in guesses_of(message, client):
                guesses.setdefault((place, source), {})[i] = guess
    if len(true) < 2 or not guesses:
        what = "no model comes and goes, and nothing by class" if len(true) > 1 else "less than two clients trained"
        raise ShoalError(run, "--round", f"in round {number} {what}; name another round, or attack another run")
    rows, lines = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for seen_from, guess_of in sorted(guesses.items(), key=lambda guess: guess[0][0] == RELEASED):
        true_BC = np.stack([true[i] for i in guess_of])
        signal_BC, guess_BC = (np.stack(estimate) for estimate in zip(*guess_of.values()))
        chance_BC = (sum(true.values()) - true_BC) / (len(true) - 1)
        far_B, chance_B = (50 * np.abs(estimate - true_BC).sum(1) for estimate in (guess_BC, chance_BC))
        auc = (_areas(signal_BC, has_BC) for has_BC in (true_BC > 0, true_BC > np.median(true_BC, axis=0)))
        rows.append((*seen_from, str(len(guess_of)), f"{far_B.mean():.1f}", f"{chance_B.mean():.1f}", *auc))
        for i, *numbers in zip(guess_of, far_B, chance_B, *true_BC.T, *guess_BC.T):
            lines.append((*seen_from, str(i), *(f"{value:.4g}" for value in numbers)))
    title = f"property inference in round {number} (%), chance of an AUC is 50, of all that is the same for all"
    heads = (
        f"{what} {c}" for what in ("share of class", "guess of class") for c in range(len(next(iter(true.values()))))
    )
    by_client = TextTable((*HEADS[:2], "client", *HEADS[3:5], *heads), tuple(lines), 2)
    return TextTable(HEADS, tuple(rows), 2, title=title, notes=seen.notes), by_client


def guesses_of(sent: Sent, client: Client) -> Iterator[tuple[str, Guess]]:
    """Yields guesses from one message, each with the name of its source; of the client only the model is read."""
    classes, flat = client.info.classes, client.model.pattern
    for entry, weight in sent.weights.items():
        if weight.shape[:1] == (classes,):
            yield f"counts of {entry}", _guess(weight.reshape(classes, -1)[:, 0])
    for entry, t in sent.entries.items():
        if t.shape == (classes,) and not t.is_floating_point():
            yield entry, _guess(t)
        elif t.dim() > 1 and t.shape[-2] == classes and t.is_floating_point() and sent.client is not None:
            yield f"rows of {entry}", _guess(t.reshape(-1, *t.shape[-2:])[0].ne(0).any(1))
    if (start_and_change := sent.change(len(flat.w))) is not None:
        last, parts = flat.module.head.linears[-1], list(flat.parts(start_and_change[1]))  # type: ignore
        place = {id(p): part for p, part in zip(flat.parameters, parts)}
        for name in ("weight", "bias"):
            change_C = place[id(getattr(last, name))].reshape(classes, -1).mean(1).numpy()
            # Clipped changes have an unknown scale; the class that lost most is taken to have no item.
            yield f"classifier's {name}", (change_C, shares(change_C - change_C.min()))


def _guess(count_C: Tensor) -> Guess:
    count = count_C.double().numpy()
    return count, shares(count)


def shares(count_C: np.ndarray) -> np.ndarray:
    """Divides counts by their sum, negative ones taken as 0; returns equal shares if all are 0."""
    count = count_C.clip(min=0.0)
    share_C: np.ndarray = count / count.sum() if count.sum() else np.full(len(count), 1 / len(count))
    return share_C


def _areas(signal_BC: np.ndarray, has_BC: np.ndarray) -> str:
    """Formats the mean area under the ROC of the classes that some clients have and others have not."""
    pairs = [(signal[has], signal[~has]) for signal, has in zip(signal_BC.T, has_BC.T)]
    areas = [100 * area(*pair) for pair in pairs if len(pair[0]) and len(pair[1])]
    return f"{np.mean(areas):.1f}" if areas else "-"
