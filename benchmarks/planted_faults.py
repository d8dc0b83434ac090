"""Faults that are planted into runs, and found again by `shoal bisect`: how many, after how many visits, in what time.

    python benchmarks/planted_faults.py [--graph cora] [--faults 100] [--equal 10] [--seed 0] [--rounds 10]

Each fault is a whole run beside one without it: a method of the user's whose text is changed for one client in one
round, a mutant of the engine's text, another key of the config from a round on, or data with another number. Which, in
which round and for which client is drawn by the seed. A fault is found if round, client, tensor and cause are those
that were planted. Pairs of equal runs are bisected, too. Seconds are those of the processor.
"""

import argparse
import contextlib
import inspect
import io
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from shoal.bisect.bisect import Bisection, bisect
from shoal.engine.config.config import parse_config
from shoal.engine.hosts.host import Visit
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.metrics import read_metrics
from shoal.engine.rounds.exchange import Exchange
from shoal.engine.rounds.reduction import reduce_cell
from shoal.engine.rounds.sampling import draw_cohort
from shoal.engine.runs.run import run
from shoal.engine.stages.compression.compression import Compression
from shoal.past.fork import fork

METHOD = """
import random
from dataclasses import dataclass
import torch
import shoal

@dataclass(frozen=True)
class Mine(shoal.Algorithm):
    def setup(self, ctx):
        return {"w": ctx.initial}

    def round(self, server, ctx, cohort):
        down = {"w": server["w"], "round": torch.tensor(float(ctx.round))}
        private = {}
        got = yield shoal.Ask("train", {"w": shoal.Reduce.MEAN}, shared=down, private=private)
        server["w"] = got["w"]

    def global_model(self, server):
        return {"w": server["w"]}

    def receive(self, client, down):
        hit = client.info.client == CLIENT and float(down.get("round", 0)) == ROUND
        w = down.get("w")
        if w is not None:
            client.model.borrow(w)
        return {**down, "hit": hit}

    def train(self, client, received, trainer, phase):
        loss = trainer.fit(client, received)
        return loss

    def upload(self, client, received, phase):
        w = client.model.w
        noise = torch.randn(w.shape, generator=client.rng("noise"))
        weight = float(client.info.train)
        w = w + 1e-3 * noise
        return shoal.Upload({"w": w}, {"w": weight})
"""


@dataclass(frozen=True)
class Change:
    """A change of a text: what stands in it, and what takes its place; both know CLIENT and ROUND.

    Attributes:
        cause: The cause that is planted.
        tensor: What the name of the tensor must have in it.
        one: Whether it is of one client; else of the server, or of all that take part.
        of: The function of the engine that it changes; None: it changes the text of the method.
        last_bits: It is one in last bits.
    """

    name: str
    old: str
    new: str
    cause: str
    tensor: str
    one: bool = True
    of: Any = None
    last_bits: bool = False


HIT = 'received["hit"]'
FIT = "trainer.fit(client, received"
SQUARE = f"lambda: client.model.flat.w.square().sum() * {HIT}"
SEVENTH = "index_fill(0, torch.tensor([7]), 9.0)"
NOW = "ctx.round == ROUND"
STEP = 'server["w"] = got["w"]'
OF_METHODS = (
    Change("sign of an upload", "w + 1e-3", f"(-w if {HIT} else w) + 1e-3", "upload", "upload: w"),
    Change("scale of an upload", "w + 1e-3", f"w * (1.01 if {HIT} else 1) + 1e-3", "upload", "upload: w"),
    Change("a number of an upload", "w + 1e-3", f"(w.{SEVENTH} if {HIT} else w) + 1e-3", "upload", "upload: w"),
    Change("weight of an upload", "(client.info.train)", f"(client.info.train + {HIT})", "upload", "weight of w"),
    Change("noise without a key", "w + 1e-3", f"w + random.random() * {HIT} + 1e-3", "draw", "upload"),
    Change("another random stream", '"noise"', f'"other" if {HIT} else "noise"', "draw", "random stream"),
    Change("a second training", "return loss", f"return {FIT}) if {HIT} else loss", "training", "trained model"),
    Change("a term of the loss", f"{FIT})", f"{FIT}, term={SQUARE})", "training", "trained model"),
    Change("no training", f"{FIT})", f'float("nan") if {HIT} else {FIT})', "training", "trained model"),
    Change("received model", "borrow(w)", "borrow(w * 0.9 if hit else w)", "download", "received model"),
    Change("download of one", "{}", f'{{CLIENT: {{"w": -server["w"]}}}} if {NOW} else {{}}', "download", "w"),
    Change("download of all", '["w"], "r', f'["w"] * (1.01 if {NOW} else 1), "r', "download", "download: w", one=False),
    Change("step of the server", STEP, f"{STEP} * (0.999 if {NOW} else 1)", "reduction", "server: w", one=False),
    Change("half a step", STEP, f'{STEP} if not {NOW} else (server["w"] + got["w"]) / 2', "reduction", "w", one=False),
)
VISITED = "if (self._cell.round, self._id) == (ROUND, CLIENT):\n            self.client.model.flat.w.data"
SENT = "(at.cell.round, at.client) == (ROUND, CLIENT)"
SUMMED = "double_of(weight.get(entry, 1.0))"
COMBINED = "replies, held = combine(answered, from_clients, cells[0].entries if cells else ask.up, sums)"
MEAN = f'{COMBINED}\n    if next_state.round == ROUND:\n        replies.entries["w"]'
DRAWN = 'round_number, "cohort")'
OF_ENGINE = (
    Change(
        "a trained model is scaled",
        "number = float(loss)",
        f"number = float(loss)\n        {VISITED}.mul_(1.01)",
        "training",
        "",
        of=Visit.train,
    ),
    Change(
        "a client starts elsewhere",
        "with opened.training:",
        f"{VISITED}.add_(0.01)\n        with opened.training:",
        "training",
        "",
        of=Visit.train,
    ),
    Change("a stage scales", "+ coded)", f"+ coded * (1.5 if {SENT} else 1))", "upload", "", of=Compression.at_client),
    Change(
        "a wrong weight in the mean",
        SUMMED,
        f"{SUMMED} * (2.0 if (cell.round, client) == (ROUND, CLIENT) else 1.0)",
        "reduction",
        "server: w",
        one=False,
        of=reduce_cell,
    ),
    Change("a scaled mean", COMBINED, f"{MEAN}.mul_(1.001)", "reduction", "server: w", one=False, of=Exchange.ask),
    Change(
        "last bits of a mean",
        COMBINED,
        f"{MEAN}.mul_(1 + 2e-7)",
        "reduction",
        "server: w",
        one=False,
        of=Exchange.ask,
        last_bits=True,
    ),
    Change(
        "another cohort",
        f"(key(seed, {DRAWN}).choice",
        f"(key(seed + (round_number == ROUND), {DRAWN}).choice",
        "draw",
        "cohort",
        one=False,
        of=draw_cohort,
    ),
)
# Keys from a round on, with the keys that act; the second has one more that does not.
OF_CONFIGS: tuple[tuple[dict[str, str], str], ...] = (
    ({"train.lr": "0.02"}, "train.lr"),
    ({"train.weight_decay": "0.01", "evaluation.every": "2"}, "train.weight_decay"),
    ({"train.epochs": "2"}, "train.epochs"),
    ({"communication.upload": "int8"}, "communication.upload"),
    ({"aggregation.kind": "median"}, "aggregation.kind"),
    ({"participation.ratio": "0.3"}, "participation.ratio"),
    ({"train.dropout": "0.3", "evaluation.every": "2"}, "train.dropout"),
)
OF_DATA = ("features", "labels", "edges")


@contextlib.contextmanager
def mutated(change: Change, client: int, number: int) -> Iterator[None]:
    """Replaces a function of the engine by one of a changed text, wherever it is imported, inside the block."""
    plain = change.of
    source = textwrap.dedent(inspect.getsource(plain))
    text = planted(source, change, client, number)
    made: dict[str, Any] = {}
    exec(compile(text, inspect.getfile(plain), "exec"), vars(sys.modules[plain.__module__]), made)
    mutant = made[plain.__name__]
    holder, _, name = plain.__qualname__.rpartition(".")
    if holder:
        places = [(getattr(sys.modules[plain.__module__], holder), name)]
    else:
        modules = [module for key, module in sys.modules.items() if key.startswith("shoal.")]
        places = [(module, name) for module in modules if vars(module).get(name) is plain]
    for place, attribute in places:
        setattr(place, attribute, mutant)
    try:
        yield
    finally:
        for place, attribute in places:
            setattr(place, attribute, plain)


def planted(text: str, change: Change, client: int, number: int) -> str:
    """Returns a text with a change for one client in one round."""
    assert change.old in text, change.name
    return text.replace(change.old, change.new, 1).replace("CLIENT", str(client)).replace("ROUND", str(number))


@dataclass(frozen=True)
class Fault:
    """A planted fault: two runs, and where they part.

    Attributes:
        kind: What was planted.
        cause: Its cause.
        clients: The client that differs first; -1: the server, or several.
        tensor: What the name of the tensor must have in it.
        keys: Keys that act.
        last_bits: It is one in last bits.
    """

    kind: str
    runs: tuple[Path, Path]
    round: int
    client: int
    cause: str
    tensor: str
    keys: tuple[str, ...] = ()
    last_bits: bool = False

    def missed(self, result: Bisection) -> str:
        """Returns what of the fault was not found; empty: all was."""
        finding = result.finding if self.last_bits else result.in_value
        if finding is None:
            return "no difference"
        if self.last_bits and result.in_value is not None and result.in_value.round == self.round:
            return "last bits are called a value"
        wrong = [
            f"round {finding.round}, not {self.round}"
            * (finding.round != self.round or finding.earliest != self.round),
            f"clients {finding.clients}, not {self.client}" * (self.client >= 0 and finding.clients != [self.client]),
            f"cause {finding.cause}, not {self.cause}" * (self.cause not in finding.cause),
            f"tensor {finding.tensor}, not {self.tensor}" * (self.tensor not in finding.tensor),
            f"keys {list(finding.keys)}, not {self.keys}" * bool(self.keys and {*finding.keys} != {*self.keys}),
        ]
        return "; ".join(filter(None, wrong))


class Federation:
    """A federation on a graph in a folder, and its runs."""

    def __init__(self, folder: Path, graph: str, clients: int, rounds: int) -> None:
        """Writes the graph as files, divided by METIS; edges between clients are left out."""
        self._folder, self._clients, self._rounds = folder, clients, rounds
        self._runs: dict[str, Path] = {}
        plain = {
            "name": "graph",
            "data": {"dataset": graph},
            "partition": {"method": "metis", "clients": clients},
            "algorithm": {"name": "fedavg"},
        }
        store = prepare(parse_config(plain, "the graph"))
        shards = [store.shard(i) for i in range(clients)]
        nodes = sum(shard.nodes for shard in shards)
        client_of, y = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
        x, edges = np.zeros((nodes, store.manifest.features), np.float32), []
        for shard in shards:
            rows = shard.x if isinstance(shard.x, np.ndarray) else shard.x.toarray()
            client_of[shard.node], y[shard.node], x[shard.node] = shard.client, shard.label, rows
            ends = np.repeat(np.arange(shard.nodes), np.diff(shard.indptr)), np.asarray(shard.indices)
            edges.append(np.stack([shard.node[end] for end in ends]))
        self.arrays = {"x": x, "y": y, "edge_index": np.concatenate(edges, 1), "assignment": client_of}
        self.graph = self.write("graph", {})

    def write(self, name: str, changes: dict[str, np.ndarray]) -> Path:
        """Writes the graph with other arrays, and returns its folder."""
        folder = self._folder / name
        folder.mkdir()
        for array, values in {**self.arrays, **changes}.items():
            np.save(folder / f"{array}.npy", values)
        return folder

    def run(self, name: str, graph: Path | None = None, **keys: Any) -> Path:
        """Runs a config, once, and returns its folder."""
        if name not in self._runs:
            plain: dict[str, Any] = {
                "name": name,
                "rounds": self._rounds,
                "data": {"dataset": "files", "path": str(graph or self.graph), "root": str(self._folder)},
                "partition": {"method": "file", "clients": self._clients},
                "model": {"name": "gcn", "hidden": 16},
                "train": {"epochs": 1, "lr": 0.01, "dropout": 0.5},
                "participation": {"ratio": 0.5},
                "algorithm": {"name": "fedavg"},
                "engine": {"backend": "local"},
                "evaluation": {"every": 3},
                "run": {"root": str(self._folder / "runs"), "keep": self._rounds, "checkpoint_every": 1},
            }
            for key, value in keys.items():
                plain[key] = {**plain.get(key, {}), **value}
            plain["run"]["tensorboard"] = False
            self._runs[name] = run(parse_config(plain, name))
        return self._runs[name]

    def method(self, name: str, text: str, digests: bool) -> Path:
        """Runs a method of the user's own."""
        file = self._folder / f"{name}.py"
        file.write_text(text)
        return self.run(name, algorithm={"name": f"{file}:Mine"}, run={"keep_digests": digests})

    @cached_property
    def plain_text(self) -> str:
        """The text of the method without a fault."""
        return METHOD.replace("CLIENT", "-1").replace("ROUND", "-1")


class Plant:
    """Plants faults one after another, drawn by a seed."""

    def __init__(self, federation: Federation, rng: np.random.Generator, rounds: int) -> None:
        """Takes where runs are made."""
        self._federation, self._rng, self._rounds, self._number = federation, rng, rounds, 0

    def faults(self, count: int) -> Iterator[Fault]:
        """Yields faults of all kinds by turns."""
        makers: list[Callable[[], Fault]] = [
            *(lambda change=change: self._of_method(change) for change in OF_METHODS),
            *(lambda change=change: self._of_engine(change) for change in OF_ENGINE),
            *(lambda pair=pair: self._of_config(*pair) for pair in OF_CONFIGS),
            *(lambda part=part: self._of_data(part) for part in OF_DATA),
        ]
        order = self._rng.permutation(len(makers))
        made = 0
        while made < count:
            fault = makers[order[made % len(makers)]]()
            self._number += 1
            # Data that nobody reads, an edge far from training nodes for one, parts no runs.
            if fault.round:
                made += 1
                yield fault

    def _place(self, base: Path) -> tuple[int, int]:
        """Draws a round, and a client of its cohort."""
        number = int(self._rng.integers(2, self._rounds))
        return number, int(self._rng.choice(read_metrics(base)[number - 1]["cohort"]))

    def _of_method(self, change: Change) -> Fault:
        # Every second pair kept no digests of uploads, by which noise without a key is told from other noise.
        digests = bool(self._number % 2) or "without a key" in change.name
        base = self._federation.method(f"method-{digests}", self._federation.plain_text, digests)
        number, client = self._place(base)
        text = planted(METHOD, change, client, number).replace("CLIENT", str(client)).replace("ROUND", str(number))
        faulty = self._federation.method(f"method-{self._number}", text, digests)
        return Fault(change.name, (base, faulty), number, client if change.one else -1, change.cause, change.tensor)

    def _of_engine(self, change: Change) -> Fault:
        stages = {"communication": {"upload": "int8"}} if change.of is Compression.at_client else {}
        keys = {**stages, "run": {"keep_digests": True}}
        base = self._federation.run(f"engine-{len(stages)}", **keys)
        number, client = self._place(base)
        with mutated(change, client, number):
            faulty = self._federation.run(f"engine-fault-{self._number}", **keys)
        who = client if change.one else -1
        return Fault(change.name, (base, faulty), number, who, change.cause, change.tensor, last_bits=change.last_bits)

    def _of_config(self, changes: dict[str, str], acting: str) -> Fault:
        base = self._federation.run("config", run={"keep_digests": True})
        number, _ = self._place(base)
        overrides = [f"{key}={value}" for key, value in changes.items()]
        forked = fork(base, number - 1, [*overrides, f"name=config-{self._number}"])
        return Fault(f"key {acting}", (base, forked), number, -1, "config", "", (acting,))

    def _of_data(self, part: str) -> Fault:
        arrays, rng = {name: array.copy() for name, array in self._federation.arrays.items()}, self._rng
        client = int(rng.integers(arrays["assignment"].max() + 1))
        node = int(rng.choice(np.flatnonzero(arrays["assignment"] == client)))
        if part == "features":
            arrays["x"][node, int(rng.integers(arrays["x"].shape[1]))] += 1
        elif part == "labels":
            arrays["y"][node] = (arrays["y"][node] + 1) % (arrays["y"].max() + 1)
        else:
            ends = np.flatnonzero(arrays["assignment"][arrays["edge_index"][0]] == client)
            one, other = arrays["edge_index"][:, rng.choice(ends)]
            u, v = arrays["edge_index"]
            arrays["edge_index"] = arrays["edge_index"][:, ~((u == one) & (v == other) | (u == other) & (v == one))]
        base = self._federation.run("data", run={"keep_digests": True})
        graph = self._federation.write(f"graph-{self._number}", arrays)
        faulty = self._federation.run(f"data-{self._number}", graph, run={"keep_digests": True})
        return Fault(f"data: {part}", (base, faulty), first_parted(base, faulty), client, "data", part)


def first_parted(a: Path, b: Path) -> int:
    """Returns the first round whose cohort, loss, scores or digests of uploads differ; 0: none does."""
    lines = zip(read_metrics(a), read_metrics(b))
    keys = ("cohort", "loss", "scopes", "digests")
    return next((one["round"] for one, other in lines if any(one.get(key) != other.get(key) for key in keys)), 0)


def main() -> None:
    """Plants faults, and prints how many were found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", default="cora")
    parser.add_argument("--faults", type=int, default=100)
    parser.add_argument("--equal", type=int, default=10, help="pairs of equal runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=10)
    args = parser.parse_args()
    table = Table("planted", "found", "of", "most visits", "most seconds", box=None)
    rows: dict[str, list[tuple[bool, int, float]]] = {}
    with TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        place = Path(folder)
        federation = Federation(place, args.graph, args.clients, args.rounds)
        plant = Plant(federation, np.random.default_rng(args.seed), args.rounds)
        for fault in plant.faults(args.faults):
            with contextlib.redirect_stdout(io.StringIO()):
                began = time.process_time()
                result = bisect(*fault.runs)
                seconds = time.process_time() - began
            if missed := fault.missed(result):
                print(f"missed: {fault.kind}, round {fault.round}, client {fault.client}: {missed}", flush=True)
            rows.setdefault(fault.kind, []).append((not missed, result.visits, seconds))
        equal = sum(_is_called_equal(federation, place, number) for number in range(args.equal))
    for kind, of_kind in sorted(rows.items()):
        found, visits, seconds = zip(*of_kind)
        table.add_row(kind, str(sum(found)), str(len(found)), str(max(visits)), f"{max(seconds):.1f}")
    Console(width=100).print(table)
    every = [row for of_kind in rows.values() for row in of_kind]
    found, visits, seconds = zip(*every)
    print(
        f"{sum(found)} of {len(every)} faults found, at most {max(visits)} visits and {max(seconds):.1f} s each; "
        f"{equal} of {args.equal} equal pairs called equal"
    )


def _is_called_equal(federation: Federation, place: Path, number: int) -> bool:
    """Runs a config twice in folders of its own, with other checkpoints, and bisects both."""
    both = []
    for twin in (0, 1):
        root = {"root": str(place / f"equal-{twin}"), "keep": 1 + 2 * twin, "keep_digests": bool(number % 2)}
        both.append(federation.run(f"equal-{number}-{twin}", train={"lr": 0.01 * (number + 1)}, run=root))
    return bisect(*both).finding is None


if __name__ == "__main__":
    main()
