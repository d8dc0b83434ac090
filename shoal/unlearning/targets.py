"""Removals that a user asks for, in words: clients, nodes, classes, edges."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from shoal.algorithms.rng import key
from shoal.engine.sections.sections import options_of
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.unlearning.removal import Removal, remove_class, remove_clients, remove_edges, remove_nodes

ALL = "all"


@dataclass(frozen=True)
class Asked:
    """A wish to remove something, as options name it; one of these is given.

    Attributes:
        client: Numbers with commas between them, each removed alone, or `all`.
        nodes: Names with commas between them, or a file of them, removed together; or a share, as `5%`, of the nodes
            that train.
        label: Classes with commas between them, each removed alone.
        edges: Pairs, as `3-17,4-9`, removed together.
        repeat: Draws of a share.
    """

    client: str | None = None
    nodes: str | None = None
    label: str | None = None
    edges: str | None = None
    repeat: int = 1

    def __post_init__(self) -> None:
        """Raises ShoalError: not one of them is given, or `repeat` has no effect."""
        given = [name for name in ("client", "nodes", "label", "edges") if getattr(self, name)]
        if len(given) != 1:
            what = "none" if not given else " and ".join(_option(name) for name in given)
            raise ShoalError("shoal unlearn", f"needs one of --client, --nodes, --class and --edges, got {what}")
        if self.repeat > 1 and not (self.nodes or "").endswith("%"):
            raise ShoalError("--repeat", "is of drawn nodes, as --nodes 5%; leave it out")

    @property
    def words(self) -> str:
        """Says it again as options."""
        given = [f" {_option(name)} {getattr(self, name)}" for name in ("client", "nodes", "label", "edges")
                 if getattr(self, name)]  # fmt: skip
        return "".join(given) + (f" --repeat {self.repeat}" if self.repeat > 1 else "")


def _option(name: str) -> str:
    return "--class" if name == "label" else f"--{name}"


def list_removals(past: PastRun, asked: Asked, first: dict[int, int]) -> list[Removal]:
    """Makes the removals that are asked for; `first` has the first round of each client that was asked.

    Raises ShoalError: names what is none of the run, or what it cannot do without.
    """
    if asked.client:
        return _of_clients(past, asked.client, first)
    if asked.label:
        return [_of_class(past, number) for number in _numbers("--class", asked.label)]
    _require_shards(past, "--nodes" if asked.nodes else "--edges")
    return _of_nodes(past, asked.nodes, asked.repeat) if asked.nodes else [_of_edges(past, asked.edges or "")]


def _of_clients(past: PastRun, text: str, first: dict[int, int]) -> list[Removal]:
    clients = past.store.clients
    numbers = list(range(clients)) if text == ALL else _numbers("--client", text)
    if text == ALL:
        numbers = [client for client in numbers if client in first]
    for client in numbers:
        if client >= clients:
            raise ShoalError(past.path, "--client", f"{client} is none of its clients, 0 to {clients - 1}")
        if client not in first:
            raise ShoalError(past.path, "--client", f"client {client} was never asked, so nothing of it is in the run")
    if len(first) == 1:
        raise ShoalError(past.path, "--client", f"client {numbers[0]} alone trained, and nothing is left without it")
    return [remove_clients([client]) for client in numbers]


def _of_class(past: PastRun, label: int) -> Removal:
    _require_labels(past, "--class")
    if past.store.manifest.pairs is not None:
        raise ShoalError("--class", "items are pairs of nodes, which have no class; take --client")
    removal = remove_class(past.store, past.config.data.split_name, label)
    if not removal.items:
        classes = past.store.manifest.classes
        why = f"no client trains on class {label}" if label < classes else f"classes are 0 to {classes - 1}"
        raise ShoalError(past.path, "--class", f"{why}; take another")
    return removal


def _of_nodes(past: PastRun, text: str, repeat: int) -> list[Removal]:
    store, split = past.store, past.config.data.split_name
    if text.endswith("%"):
        share = _share(text)
        of_clients = [store.shard(i).node[store.split(split, i).train] for i in range(store.clients)]
        node = np.unique(np.concatenate(of_clients))
        count = max(1, int(share * len(node) + 1e-9))
        removals = []
        for draw in range(repeat):
            rng = np.random.default_rng(key(past.config.seed, "unlearn nodes", draw))
            chosen = rng.choice(node, count, replace=False)
            removals.append(remove_nodes(store, split, chosen, f"{count} nodes, draw {draw}")[0])
        return removals
    names = [name.strip() for name in text.split(",")]
    if len(names) == 1 and not names[0].lstrip("-").isdecimal() and Path(text).is_file():
        names = Path(text).read_text().split()
    place_of = _places(store.ids(), names, "--nodes")
    nodes = np.array([place_of[name] for name in names], dtype=np.int64)
    shown = f"node {names[0]}" if len(names) == 1 else f"{len(names)} nodes from {names[0]}"
    removal, missing = remove_nodes(store, split, nodes, shown)
    if len(missing):
        lost = names[nodes.tolist().index(int(missing[0]))]
        raise ShoalError(past.path, "--nodes", f"no client has node {lost}; leave it out")
    return [removal]


def _of_edges(past: PastRun, text: str) -> Removal:
    names = [re.split(r"(?<=.)-", pair.strip(), maxsplit=1) for pair in text.split(",")]
    if not all(len(pair) == 2 for pair in names):
        raise ShoalError("--edges", f"expected pairs of nodes, as 3-17,4-9, got {text}")
    place_of = _places(past.store.ids(), [name for pair in names for name in pair], "--edges")
    edges = [(place_of[first], place_of[second]) for first, second in names]
    shown = f"edge {text}" if len(edges) == 1 else f"{len(edges)} edges from {'-'.join(names[0])}"
    removal, missing = remove_edges(past.store, edges, shown)
    if missing:
        lost = "-".join(names[edges.index(missing[0])])
        raise ShoalError(past.path, "--edges", f"no client has edge {lost}; those between clients are in no shard")
    return removal


def _places(ids: pa.Array | None, names: Sequence[str], option: str) -> dict[str, int]:
    """Returns global numbers of nodes by what the user calls them. Raises ShoalError: a name is no number, or none."""
    if ids is not None:
        by_name = {str(name): place for place, name in enumerate(ids.to_pylist())}
        if lost := [name for name in names if name not in by_name]:
            raise ShoalError(option, f"no node is called {lost[0]}; take ids of the graph")
        return {name: by_name[name] for name in names}
    if lost := [name for name in names if not name.isdecimal()]:
        raise ShoalError(option, f"expected numbers of nodes, a file of them, or a share as 5%, got {lost[0]}")
    return {name: int(name) for name in names}


def _numbers(option: str, text: str) -> list[int]:
    numbers = text.split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        raise ShoalError(option, f"expected numbers with commas between them, got {text}")
    return list(dict.fromkeys(int(number) for number in numbers))


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / 100
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ShoalError("--nodes", f"expected a share between 0% and 100%, as 5%, got {text}")
    return share


def _require_labels(past: PastRun, option: str) -> None:
    if past.config.data.inductive:
        why = f"clients see training nodes alone, from which {option} takes none"
        raise ShoalError(past.path, "data.inductive", f"{why}; take --client, or a run with false")


def _require_shards(past: PastRun, option: str) -> None:
    """Raises ShoalError: nodes and edges cannot leave the shards of the run."""
    _require_labels(past, option)
    config: Any = past.config
    hostile = options_of(config, "attack")
    why = ""
    if config.task != "node":
        why = f"task is {config.task}, and its items are no nodes"
    elif config.propagation.rows != "all":
        why = "propagation.rows keeps labelled nodes alone"
    elif config.propagation.relations:
        why = "hops are of relations"
    elif config.propagation.first_layer:
        why = "propagation.first_layer has edges between clients"
    elif hostile is not None and hostile.kind == "backdoor":
        why = "a backdoor changes the same shards"
    if why:
        raise ShoalError(past.path, option, f"{why}; take --client or --class")
