"""The knowledge of the server from which clients are selected, and what it becomes from round to round."""

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch

from shoal.algorithms.protocol import Tree
from shoal.algorithms.rng import key
from shoal.engine.config.config import Config
from shoal.engine.config.names import own_among, shown_name
from shoal.engine.messages.job import Job
from shoal.engine.schedules.participation import MakeSelection
from shoal.engine.schedules.selection.section import SELECTION, SelectionOptions
from shoal.engine.schedules.selection.selection import KEY, OURS, Known, own_selection, require_choice
from shoal.storage.store.store import Store
from shoal.storage.user_code.user_code import UserCode

# The server knows of every client, float64 `[B]`, its last training loss, and the round of that.
LOSS, ROUND = "last loss", "last round"


class Selection:
    """The choice of the clients of a round by their last losses, or by a function of the user's."""

    def __init__(
        self, options: SelectionOptions, own: UserCode | None, job: Job, store: Store, alone: np.ndarray
    ) -> None:
        """Prepares rounds of clients with seconds `alone`, float64 `[B]`. Raises ShoalError: `own` is no selection."""
        self._candidates, self._seed, self._alone = options.candidates, job.seed, alone
        self._items = np.array([info.train for info in job.infos(job.open_training(store))])
        self._select = OURS[options.selection] if own is None else own_selection(own)

    def begin(self, known: Tree) -> Tree:
        return known or initial_knowledge(len(self._alone))

    def choose(self, number: int, present: np.ndarray, count: int, known: Tree) -> tuple[np.ndarray, Tree]:
        state = {name: t.clone() for name, t in known.items()}
        loss, last = state.pop(LOSS).numpy(), state.pop(ROUND).numpy()
        what = Known(number, present, self._items, loss, last, self._alone, self._candidates, state)
        rng = np.random.default_rng(key(self._seed, number, KEY))
        selected = self._select(what, min(count, len(present)), rng)
        return np.sort(np.array(list(selected), dtype=np.int64)), known | state

    def note(self, number: int, known: Tree, losses: Mapping[int, float], cohort: Sequence[int]) -> Tree:
        """Returns what is known with the losses of the round's cohort; 0 where a client reports none."""
        noted = {name: t.clone() for name, t in known.items()}
        for client in cohort if noted else ():
            loss = losses.get(client, 0.0)
            noted[LOSS][client], noted[ROUND][client] = loss if math.isfinite(loss) else 0.0, number
        return noted


def initial_knowledge(clients: int) -> Tree:
    """Returns what the server knows before the first round."""
    return {LOSS: torch.full((clients,), math.inf, dtype=torch.float64), ROUND: torch.zeros(clients).double()}


def describe_run(config: Config, parameters: Sequence[int], rounds: int) -> dict[str, str]:
    """Returns how clients of a round are chosen."""
    options = SELECTION.of(config)
    among = "" if options.candidates is None else f", among {options.candidates} candidates"
    return {"selection": f"clients of a round by {shown_name(options.selection)}{among}"}


def make_selection(config: Config, clients: int) -> MakeSelection:
    """Reads the user's selection, if it is one, and returns what makes the choice among so many clients.

    Raises ShoalError: its file fails, or as `require_choice`.
    """
    options = SELECTION.of(config)
    require_choice(config, clients)
    return partial(Selection, options, own_among(KEY, [options.selection]).get(options.selection))
