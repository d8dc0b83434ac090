"""Everything a run is between two rounds, as values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.algorithms.protocol import Tree
from shoal.engine.messages.cell import Kept
from shoal.engine.rounds.reduction import Inbox, Mixed

Scores = dict[str, dict[int, np.ndarray]]


@dataclass
class FederationState:
    """State after a committed round.

    Attributes:
        round: Number of the last committed round; 0 before the first.
        server: The method's server state.
        clients: What every client kept: model, optimizer moments, what the method adds.
        kept: The same of clients whose state is in a cluster's memory.
        inboxes: Results of mixing that wait for the client's next visit, here or `Mixed` in a cluster's memory.
        downloads: Models of the server that some client was given last, by the round they come from.
        newest: The round of the model that a client was given last.
        scores: Newest counts by scope and client.
        touched: Clients that were visited or sent something since the last evaluation; True if their newest counts as
            `trained` are from the end of that visit.
        evaluated: Digest of the server's model that the counts of scope `global` are of; empty: there are none.
        first_losses: Largest loss of a client in the first round of each phase that trained.
    """

    round: int = 0
    server: Tree = field(default_factory=dict)
    clients: dict[int, Tree] = field(default_factory=dict)
    kept: dict[int, Kept] = field(default_factory=dict)
    inboxes: dict[int, Inbox] = field(default_factory=dict)
    downloads: dict[int, Tree] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)
    scores: Scores = field(default_factory=dict)
    touched: dict[int, bool] = field(default_factory=dict)
    evaluated: str = ""
    first_losses: dict[str, float] = field(default_factory=dict)

    def next_state(self, round_number: int) -> "FederationState":
        """A copy that a round may change while this state stays as it is."""
        return replace(
            self,
            round=round_number,
            server={name: t.clone() for name, t in self.server.items()},
            clients=dict(self.clients),
            kept=dict(self.kept),
            inboxes={i: dict(tree) for i, tree in self.inboxes.items()},
            downloads=dict(self.downloads),
            newest=dict(self.newest),
            scores={scope: dict(by_client) for scope, by_client in self.scores.items()},
            touched=dict(self.touched),
            first_losses=dict(self.first_losses),
        )

    def keep(self, states: Mapping[int, Tree], kept: Mapping[int, Kept]) -> None:
        """New states of clients, here or elsewhere."""
        for client in states.keys() | kept.keys():
            self.clients.pop(client, None)
            self.kept.pop(client, None)
        self.clients.update(states)
        self.kept.update(kept)

    @property
    def elsewhere(self) -> bool:
        """Whether some of it is in a cluster's memory."""
        return bool(self.kept) or any(isinstance(t, Mixed) for box in self.inboxes.values() for t in box.values())

    def put_into_inbox(self, client: int, entry: str, value: Tensor | Mixed) -> None:
        """Leaves a result of mixing for a client's next visit."""
        self.inboxes.setdefault(client, {})[entry] = value
        self.touched[client] = False

    def deploy(self, model: Tree, clients: Sequence[int]) -> None:
        """Some clients are given the server's model of this round; does nothing if there is none."""
        if not model:
            return
        self.downloads[self.round] = {name: t.clone() for name, t in model.items()}
        self.newest.update(dict.fromkeys(clients, self.round))
        self.touched.update(dict.fromkeys(clients, False))
        used = set(self.newest.values())
        self.downloads = {r: tree for r, tree in self.downloads.items() if r in used}

    def restore(self, client: int, before: "FederationState") -> None:
        """A client is as it was before the round, whatever it did in it."""
        self.kept.pop(client, None)
        if client in before.kept:
            self.kept[client] = before.kept[client]
        for mine, earlier in ((self.clients, before.clients), (self.inboxes, before.inboxes)):
            mine.pop(client, None)
            if client in earlier:
                mine[client] = dict(earlier[client])
        self.touched.pop(client, None)
        if client in before.touched:
            self.touched[client] = before.touched[client]
        trained, earlier_trained = self.scores.get("trained", {}), before.scores.get("trained", {})
        trained.pop(client, None)
        if client in earlier_trained:
            trained[client] = earlier_trained[client]

    def to_tensors(self) -> tuple[Tree, dict[str, Any]]:
        """The state as flat named tensors and plain values, ready for a file; what is elsewhere is left out."""
        tensors: Tree = {f"server/{name}": t for name, t in self.server.items()}
        for kind, trees in (("client", self.clients), ("inbox", self.inboxes), ("download", self.downloads)):
            for number, tree in trees.items():
                here = {name: t for name, t in tree.items() if not isinstance(t, Mixed)}
                tensors.update({f"{kind}/{number}/{name}": t for name, t in here.items()})
        for scope, by_client in self.scores.items():
            if by_client:
                order = sorted(by_client)
                tensors[f"scores/{scope}"] = torch.from_numpy(np.stack([by_client[i] for i in order]))
                tensors[f"scored/{scope}"] = torch.tensor(order)
        plain = {
            "round": self.round,
            "newest": {str(i): r for i, r in self.newest.items()},
            "touched": {str(i): t for i, t in self.touched.items()},
            "evaluated": self.evaluated,
            "first_losses": self.first_losses,
        }
        return tensors, plain

    @classmethod
    def from_tensors(cls, tensors: Tree, plain: dict[str, Any]) -> "FederationState":
        """The inverse of `to_tensors`."""
        newest, touched = ({int(i): value for i, value in plain[name].items()} for name in ("newest", "touched"))
        state = cls(round=plain["round"], newest=newest, touched=touched)
        # A state that was kept before there was this digest is evaluated once more.
        state.evaluated, state.first_losses = plain.get("evaluated", ""), plain.get("first_losses", {})
        trees = {"client": state.clients, "inbox": state.inboxes, "download": state.downloads}
        for path, tensor in tensors.items():
            kind, _, rest = path.partition("/")
            if kind == "server":
                state.server[rest] = tensor
            elif kind in trees:
                number, _, name = rest.partition("/")
                trees[kind].setdefault(int(number), {})[name] = tensor
            elif kind == "scores":
                order = tensors[f"scored/{rest}"].tolist()
                state.scores[rest] = dict(zip(order, tensor.numpy()))
        return state
