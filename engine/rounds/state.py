"""Everything a run is between two rounds, as values."""

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
import xxhash
from torch import Tensor

from shoal.algorithms.protocol import Tree
from shoal.engine.config.sections import current_scopes
from shoal.engine.messages.cell import Kept
from shoal.engine.rounds.reduction import Inbox, Mixed, tree_bytes
from shoal.engine.scores.table import COLUMNS, ScoreTable
from shoal.storage.errors import ShoalError

# So many bytes of models of earlier rounds stay in memory; when there are more, they go into a file.
DOWNLOADS_IN_MEMORY = 2**28
# Such a file has so many bytes, but for one larger model: it stays until the last of its models goes.
MODELS_A_FILE = 2**22
# This part of `FederationState.extras` the draw of clients reads; stages and schedules have parts of their names.
SELECTION = "selection"
# The names of their tensors begin so in a file, as in checkpoints of before there were other parts; else `EXTRA`.
KINDS, EXTRA = {SELECTION: "known", "privacy": "release", "tiers": "tier"}, "extra"
# Each tensor of such a file begins at a multiple of it, for any type.
ALIGNED = 64

Scores = dict[str, ScoreTable]


@dataclass
class FederationState:
    """The state after a committed round.

    Attributes:
        round: Number of the last committed round; 0 before the first.
        server: The method's server state.
        clients: What every client kept: model, optimizer moments, what the method adds.
        kept: The same of clients whose state is in a cluster's memory.
        inboxes: Results of mixing that wait for the client's next visit, here or `Mixed` in a cluster's memory.
        downloads: Models of the server that some client was given last, by the round they come from.
        contents: Digests of models of the server by the round they come from, see `tree_digest`: all of `downloads`,
            and those that `without_models` left out.
        newest: The round of the model that a client was given last.
        scores: Newest counts by scope and client.
        touched: Clients that were visited or sent something since the last evaluation; True if their newest counts as
            `trained` are from the end of that visit.
        evaluated: Digest of the server's model that the counts of scope `global` are of; empty: there are none.
        first_losses: Largest loss of a client in the first round of each phase that trained.
        extras: What parts of the engine keep from round to round, tensors by name, by the part; see `KINDS`.
        on_disk: Rounds whose models, among `downloads`, are in files that are mapped into memory.
    """

    round: int = 0
    server: Tree = field(default_factory=dict)
    clients: dict[int, Tree] = field(default_factory=dict)
    kept: dict[int, Kept] = field(default_factory=dict)
    inboxes: dict[int, Inbox] = field(default_factory=dict)
    downloads: dict[int, Tree] = field(default_factory=dict)
    contents: dict[int, str] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)
    scores: Scores = field(default_factory=dict)
    touched: dict[int, bool] = field(default_factory=dict)
    evaluated: str = ""
    first_losses: dict[str, float] = field(default_factory=dict)
    extras: dict[str, Tree] = field(default_factory=dict)
    on_disk: frozenset[int] = frozenset()

    def next_state(self, round_number: int) -> "FederationState":
        """Returns a copy that a round may change while this state stays as it is."""
        return replace(
            self,
            round=round_number,
            server={name: t.clone() for name, t in self.server.items()},
            clients=dict(self.clients),
            kept=dict(self.kept),
            inboxes={i: dict(tree) for i, tree in self.inboxes.items()},
            downloads=dict(self.downloads),
            contents=dict(self.contents),
            newest=dict(self.newest),
            scores={scope: table.copy() for scope, table in self.scores.items()},
            touched=dict(self.touched),
            first_losses=dict(self.first_losses),
            extras={part: dict(tree) for part, tree in self.extras.items()},
        )

    def keep(self, states: Mapping[int, Tree], kept: Mapping[int, Kept]) -> None:
        """Takes new states of clients, here or elsewhere."""
        clients = states.keys() | kept.keys()
        for client in clients:
            self.clients.pop(client, None)
        for client in clients if self.kept else ():
            self.kept.pop(client, None)
        self.clients.update(states)
        self.kept.update(kept)

    @property
    def elsewhere(self) -> bool:
        """Returns whether some of it is in a cluster's memory."""
        return bool(self.kept) or any(isinstance(t, Mixed) for box in self.inboxes.values() for t in box.values())

    def put_into_inbox(self, client: int, entry: str, value: Tensor | Mixed) -> None:
        """Leaves a result of mixing for a client's next visit."""
        self.inboxes.setdefault(client, {})[entry] = value
        self.touched[client] = False

    def deploy(self, model: Tree, clients: Sequence[int], needed: Collection[int] = ()) -> None:
        """Gives some clients the server's model of this round, if there is one; those of `needed` rounds stay."""
        if not model:
            return
        content = tree_digest(model)
        # The model of a round that changed nothing is there.
        same = next((r for r, tree in self.downloads.items() if self.content(r) == content), None)
        tree = {name: t.clone() for name, t in model.items()} if same is None else self.downloads[same]
        self.downloads[self.round], self.contents[self.round] = tree, content
        self.newest.update(dict.fromkeys(clients, self.round))
        self.touched.update(dict.fromkeys(clients, False))
        used = {*self.newest.values(), *needed}
        self.downloads = {r: tree for r, tree in self.downloads.items() if r in used}
        self.contents = {r: content for r, content in self.contents.items() if r in used}
        earlier = {r: tree for r, tree in self.downloads.items() if r not in self.on_disk and r != self.round}
        if sum(map(tree_bytes, earlier.values())) > DOWNLOADS_IN_MEMORY:
            self._to_disk(earlier)

    def content(self, number: int) -> str:
        """Returns the digest of the server's model of a round that is among `downloads`."""
        if number not in self.contents:
            self.contents[number] = tree_digest(self.downloads[number])
        return self.contents[number]

    def models(self) -> dict[str, Tree]:
        """Returns the models of `downloads` by their digest."""
        return {self.content(number): tree for number, tree in self.downloads.items()}

    def without_models(self, digests: Collection[str]) -> "FederationState":
        """Returns the same without the models of these digests, which a checkpoint has."""
        left = {number: tree for number, tree in self.downloads.items() if self.content(number) not in digests}
        return replace(self, downloads=left)

    def _to_disk(self, trees: Mapping[int, Tree]) -> None:
        """Moves models into files that are mapped into memory. Raises ShoalError: there is no room."""
        moved = on_disk({self.content(number): tree for number, tree in trees.items()})
        self.downloads |= {number: moved[self.content(number)] for number in trees}
        self.on_disk = (self.on_disk | trees.keys()) & self.downloads.keys()

    def restore(self, client: int, before: "FederationState") -> None:
        """Puts a client back to where it was before the round, whatever it did in it; its state is the same tree."""
        self.kept.pop(client, None)
        if client in before.kept:
            self.kept[client] = before.kept[client]
        for mine, earlier in ((self.clients, before.clients), (self.inboxes, before.inboxes)):
            mine.pop(client, None)
            if client in earlier:
                mine[client] = earlier[client] if mine is self.clients else dict(earlier[client])
        self.touched.pop(client, None)
        if client in before.touched:
            self.touched[client] = before.touched[client]
        if "trained" in self.scores:
            self.scores["trained"].change({client: before.scores.get("trained", ScoreTable()).get(client)})

    def to_tensors(self) -> tuple[Tree, dict[str, Any]]:
        """Returns flat named tensors and plain values, ready for a file; what is elsewhere is left out."""
        tensors: Tree = {f"server/{name}": t for name, t in self.server.items()}
        for part, tree in self.extras.items():
            tensors |= {f"{KINDS.get(part, f'{EXTRA}/{part}')}/{name}": t for name, t in tree.items()}
        of_kind = {"client": self.clients, "inbox": self.inboxes}
        for kind, trees in of_kind.items():
            for number, tree in trees.items():
                here = {name: t for name, t in tree.items() if not isinstance(t, Mixed)}
                tensors.update({f"{kind}/{number}/{name}": t for name, t in here.items()})
        for content, tree in self.models().items():
            tensors.update({f"model/{content}/{name}": t for name, t in tree.items()})
        for scope, table in self.scores.items():
            if table:
                tensors |= {f"scores/{scope}/{name}": t for name, t in table.to_tensors().items()}
        plain = {
            "round": self.round,
            "downloads": {str(r): content for r, content in self.contents.items()},
            "newest": {str(i): r for i, r in self.newest.items()},
            "touched": {str(i): t for i, t in self.touched.items()},
            "evaluated": self.evaluated,
            "first_losses": self.first_losses,
        }
        return tensors, plain

    @classmethod
    def from_tensors(cls, tensors: Tree, plain: dict[str, Any]) -> "FederationState":
        """Makes the state of what `to_tensors` gives.

        Models are `model/<digest>/<name>` or, as they were kept before there were digests, `download/<round>/<name>`;
        they are copied, into memory or a file.
        """
        newest, touched = ({int(i): value for i, value in plain[name].items()} for name in ("newest", "touched"))
        state = cls(round=plain["round"], newest=newest, touched=touched)
        # A state that was kept before there was this digest is evaluated once more.
        state.evaluated, state.first_losses = plain.get("evaluated", ""), plain.get("first_losses", {})
        models: dict[str, Tree] = {}
        trees: dict[str, dict[Any, Tree]] = {"client": state.clients, "inbox": state.inboxes}
        trees |= {"download": state.downloads}
        parts = {kind: part for part, kind in KINDS.items()}
        for path, tensor in tensors.items():
            kind, _, rest = path.partition("/")
            if kind == "server":
                state.server[rest] = tensor
                continue
            if kind in parts or kind == EXTRA:
                part, _, name = (parts[kind], "", rest) if kind in parts else rest.partition("/")
                state.extras.setdefault(part, {})[name] = tensor
                continue
            number, _, name = rest.partition("/")
            if kind == "model":
                models.setdefault(number, {})[name] = tensor
            elif kind in trees:
                trees[kind].setdefault(int(number), {})[name] = tensor
        state.contents = {int(number): content for number, content in plain.get("downloads", {}).items()}
        if not state.downloads:
            state.downloads = {number: models[content] for number, content in state.contents.items()}
        if sum(map(tree_bytes, state.models().values())) > DOWNLOADS_IN_MEMORY:
            state._to_disk(state.downloads)
        else:
            copies = {c: {name: t.clone() for name, t in tree.items()} for c, tree in state.models().items()}
            state.downloads = {number: copies[state.content(number)] for number in state.downloads}
        state.scores = read_scores(tensors)
        return state


def read_scores(tensors: Mapping[str, Any]) -> Scores:
    """Reads the newest counts by scope from the tensors of a state."""
    scopes = dict.fromkeys(name.split("/")[1] for name in tensors if name.startswith("scores/"))
    scores = {}
    for scope in scopes:
        if (counts := tensors.get(f"scores/{scope}")) is None:
            scores[scope] = ScoreTable.from_tensors({name: tensors[f"scores/{scope}/{name}"] for name in COLUMNS})
        else:
            # Checkpoints of before there were columns have counts so.
            scores[scope] = ScoreTable(zip(tensors[f"scored/{scope}"].tolist(), np.asarray(counts)))
    return current_scopes(scores)


def tree_digest(tree: Tree) -> str:
    """Returns XXH3-128 of names, types, shapes and bytes of tensors, in hexadecimal."""
    hasher = xxhash.xxh3_128()
    for name in sorted(tree):
        t = tree[name].detach()
        hasher.update(f"{name} {t.dtype} {list(t.shape)} ".encode())
        hasher.update(t.contiguous().view(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


Name = TypeVar("Name", int, str)


def on_disk(trees: Mapping[Name, Tree]) -> dict[Name, Tree]:
    """Writes models into files without names and maps these into memory; a file ends with the last of its models.

    Raises ShoalError: the folder for temporary files has no room for them.
    """
    mapped: dict[Name, Tree] = {}
    part: dict[Name, Tree] = {}
    for name, tree in trees.items():
        part[name] = tree
        if sum(map(tree_bytes, part.values())) >= MODELS_A_FILE:
            mapped |= _in_one_file(part)
            part = {}
    return mapped | (_in_one_file(part) if part else {})


def _in_one_file(trees: Mapping[Name, Tree]) -> dict[Name, Tree]:
    begins: dict[tuple[Name, str], int] = {}
    try:
        with tempfile.TemporaryFile() as file:
            for number, tree in trees.items():
                for name, t in tree.items():
                    file.write(bytes(-file.tell() % ALIGNED))
                    begins[number, name] = file.tell()
                    file.write(t.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
            file.flush()
            mapped = np.memmap(file, mode="c") if file.tell() else np.empty(0, np.uint8)
    except OSError as error:
        where = Path(tempfile.gettempdir())
        raise ShoalError(where, f"no room for models of earlier rounds ({error.strerror}); set TMPDIR") from error
    return {
        number: {name: _view(mapped, begins[number, name], t) for name, t in tree.items()}
        for number, tree in trees.items()
    }


def _view(mapped: np.ndarray, begin: int, t: Tensor) -> Tensor:
    """Returns a tensor like another one, with its bytes in a file from a place on."""
    return torch.from_numpy(mapped[begin : begin + t.nbytes]).view(t.dtype).reshape(t.shape)
