"""What it costs to cut a model between clients and a server: FedGPL beside the same arithmetic in one process.

    python benchmarks/split.py [--quick] [--clients 100] [--graphs 80] [--rounds 3] [--backends local ray]

Clients of synthetic graphs of about 100 nodes and 100 features, VPG before a GraphTransformer of two layers and width
100, as FedGPL has them, batches of 16, one epoch a round; the GNN takes one step a round, clients are averaged by task.
The bare loop holds prompts, GNN and heads in one process, has the same batches in the same order, and differentiates
end to end, all clients' batches of one number behind one another as Shoal has them (`coalesced`), or one by one. An
exchange is a batch of one client: four messages. Evaluation is left out. Weights are compared after the first round;
medians of the rounds after it. Bytes stand beside those of FedAvg with the same model.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from figures import print_figures, target
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from shoal.algorithms.client import ClientModel, FlatModel
from shoal.algorithms.methods.fedgpl.own_part import own_entries
from shoal.algorithms.models.items.plain_graphs import PlainGraphs
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import key
from shoal.engine.config.config import Config, parse_config
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.metrics import read_metrics
from shoal.engine.rounds.server import Server
from shoal.engine.runs.plan import plan_of
from shoal.engine.runs.run import run
from shoal.storage.shards.view import Cache

BATCH, LR, SERVER_LR = 16, 0.1, 0.001


def config_of(args: argparse.Namespace, folder: Path, algorithm: dict[str, Any], backend: str) -> Config:
    """The config of a run."""
    graphs = args.clients * args.graphs
    return parse_config(
        {
            "name": f"split-{algorithm['name']}-{backend}",
            "task": "graph",
            "rounds": args.rounds + 1,
            "data": {
                "dataset": "sbm-graphs",
                "store": str(folder / "store"),
                "fractions": [0.8, 0.1, 0.1],
                "options": {"graphs": graphs, "nodes": 100 * graphs, "classes": 7, "features": 100, "degree": 4.0},
            },
            "partition": {"method": "random", "clients": args.clients},
            "propagation": {"hops": 0},
            "model": {
                "name": "transformer",
                "hidden": 100,
                "head_dropout": False,
                "prompt": {"name": "vpg", "nodes": 0.5, "edges": 0.9},
            },
            "train": {"epochs": 1, "batch_size": BATCH, "lr": LR, "weight_decay": 0.0, "dropout": 0.0},
            "algorithm": algorithm,
            "evaluation": {"every": args.rounds + 1},
            "engine": {"backend": backend, "threads": 1},
            "run": {"root": str(folder / "runs"), "checkpoint_every": args.rounds + 1, "tensorboard": False},
        },
        "benchmark",
    )


class Bare:
    """Everything in one process."""

    def __init__(self, config: Config) -> None:
        store = prepare(config)
        self.job = make_job(config, store, "bare")
        self.infos = self.job.infos(store)
        (kind,) = self.job.build_models(store, self.job.algorithm())[MODEL]
        self.flat: FlatModel = kind.flat
        w = self.job.initial(kind, MODEL, 0)
        self.flat.load(w)
        cache = Cache(1 << 32)
        self.models = [ClientModel(self.flat, self.job.view(store, info.client, cache), hash) for info in self.infos]
        self.own = own_entries(self.flat)
        self.theta = [nn.Parameter(w[self.own].clone()) for _ in self.infos]
        self.optimizers = [torch.optim.Adam([theta], lr=LR, fused=True) for theta in self.theta]
        self.gnn = nn.Parameter(w[~self.own].clone())
        self.optimizer = torch.optim.Adam([self.gnn], lr=SERVER_LR)

    def round(self, number: int, coalesced: bool) -> int:
        """One round; gives the number of exchanges."""
        orders = [self._order(number, client) for client in range(len(self.infos))]
        total, count = torch.zeros_like(self.gnn), 0
        for step in range(max(-(-len(order) // BATCH) for order in orders)):
            chosen = [order[step * BATCH : (step + 1) * BATCH] for order in orders]
            now = [client for client, graphs in enumerate(chosen) if len(graphs)]
            for group in [now] if coalesced else [[client] for client in now]:
                total += self._step(group, [chosen[client] for client in group])
            count += len(now)
        self.gnn.grad = total / count
        self.optimizer.step()
        mean = torch.stack([theta.detach() for theta in self.theta]).double().mean(0).float()
        for theta in self.theta:
            theta.data.copy_(mean)
        return count

    def _order(self, number: int, client: int) -> Tensor:
        rng = torch.Generator().manual_seed(key(0, number, client, "order 0"))
        return torch.randperm(self.infos[client].train, generator=rng)

    def _step(self, clients: Sequence[int], chosen: Sequence[Tensor]) -> Tensor:
        """A batch of some clients; gives the gradient of the GNN."""
        module = self.flat.module.train()
        parts = []
        for client, graphs in zip(clients, chosen):
            # One module stands for all: parameters of a client are put in when they are used.
            w = self._with(client)
            items = self.models[client].items
            assert items is not None
            batch = items.some(self.models[client].data.train[graphs])
            parts.append((w, _called(module, w, "prompt", batch)))
        rows = [0]
        for _, part in parts:
            rows.append(rows[-1] + len(part.x_NF))
        joined = PlainGraphs(
            torch.cat([part.x_NF for _, part in parts]),
            torch.cat([part.pairs_2E + start for (_, part), start in zip(parts, rows)], dim=1),
            torch.cat([parts[0][1].first[:1], *(part.first[1:] + start for (_, part), start in zip(parts, rows))]),
        )
        answers = _called(module, parts[0][0], "answer", joined)
        loss, start = torch.zeros(()), 0
        for client, graphs, (w, _) in zip(clients, chosen, parts):
            scores = _called(module, w, "classify", answers[start : start + len(graphs)])
            data = self.models[client].data
            loss = loss + F.cross_entropy(scores, data.label[data.train[graphs]])
            start += len(graphs)
            self.optimizers[client].zero_grad()
        self.gnn.grad = None
        loss.backward()
        for client in clients:
            self.optimizers[client].step()
        assert self.gnn.grad is not None
        return self.gnn.grad

    def _with(self, client: int) -> dict[str, Tensor]:
        """The parameters of a client's model by name, which gradients flow through."""
        w = torch.zeros_like(self.flat.w).masked_scatter(self.own, self.theta[client])
        w = w.masked_scatter(~self.own, self.gnn)
        names = [name for name, _ in self.flat.module.named_parameters()]
        return dict(zip(names, self.flat.parts(w)))


class _Part(nn.Module):
    """One of the three parts of a split model as a module's `forward`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model

    def forward(self, part: str, received: Any) -> Any:
        if part == "prompt":
            return self.model.prompt(received)
        if part == "answer":
            return self.model.answer(received)
        return self.model.backbone.classify_items(received).logits_NC


def _called(module: nn.Module, w: dict[str, Tensor], part: str, received: Any) -> Any:
    named = {f"model.{name}": p for name, p in w.items()}
    return torch.func.functional_call(_Part(module), named, (part, received))


def seconds_of(config: Config) -> tuple[list[float], dict[str, Any], Path]:
    """Seconds of the rounds after the first, the first round's line, and the run folder."""
    folder = run(config)
    lines = read_metrics(folder)
    evaluating = [line["seconds"].get("evaluate", 0.0) for line in lines]
    seconds = [line["seconds"]["round"] - spent for line, spent in zip(lines, evaluating)]
    return seconds[1:-1] or seconds[1:], lines[0], folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 clients of 40 graphs: within a minute")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--graphs", type=int, default=80, help="of a client")
    parser.add_argument("--rounds", type=int, default=3, help="that are timed")
    parser.add_argument("--backends", nargs="*", default=["local", "ray"])
    args = parser.parse_args()
    if args.quick:
        args.clients, args.graphs, args.backends = 10, 40, ["local"]
    torch.set_num_threads(1)
    fedgpl = {"name": "fedgpl", "mixing": "task_mean", "server_lr": SERVER_LR}
    table = Table(title=f"{args.clients} clients of {args.graphs} graphs, seconds a round")
    for column in ("contender", "seconds", "exchanges/s", "times the bare loop", "MB a round"):
        table.add_column(column, no_wrap=True)
    figures: dict[str, Any] = {}
    with TemporaryDirectory() as folder:
        bare = Bare(config_of(args, Path(folder), fedgpl, "local"))
        count = bare.round(1, coalesced=True)
        first = (bare.gnn.detach().clone(), bare.theta[0].detach().clone())
        for coalesced in (True, False):
            spent = []
            for number in range(2, args.rounds + 2):
                began = time.perf_counter()
                bare.round(number, coalesced)
                spent.append(time.perf_counter() - began)
            figures["bare, coalesced" if coalesced else "bare, one by one"] = {"seconds": spent}
        runs = {backend: config_of(args, Path(folder), fedgpl, backend) for backend in args.backends}
        runs["local, one by one"] = config_of(args, Path(folder), {**fedgpl, "most_rows": 1}, "local")
        for name, config in runs.items():
            seconds, line, _ = seconds_of(config)
            figures[f"shoal, {name}"] = {"seconds": seconds, "bytes": line["bytes_up"] + line["bytes_down"]}
        _, line, _ = seconds_of(config_of(args, Path(folder), {"name": "fedavg"}, "local"))
        figures["fedavg"] = {"bytes": line["bytes_up"] + line["bytes_down"]}
        figures["difference after a round"] = _difference(args, Path(folder), fedgpl, first)
    floor = median(figures["bare, coalesced"]["seconds"])
    for name, found in figures.items():
        if "seconds" in found:
            spent = median(found["seconds"])
            size = f"{found['bytes'] / 1e6:,.1f}" if "bytes" in found else "-"
            table.add_row(name, f"{spent:.3f}", f"{count / spent:,.0f}", f"{spent / floor:.2f}", size)
    table.add_row("fedavg, the same model", "-", "-", "-", f"{figures['fedavg']['bytes'] / 1e6:,.1f}")
    Console(width=120).print(table)
    ratio = median(figures["shoal, local"]["seconds"]) / floor
    print_figures(figures, {"times the bare loop": target(ratio, 1.3, at_most=True)})


def _difference(
    args: argparse.Namespace, folder: Path, algorithm: dict[str, Any], first: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """How far Shoal's GNN, and its prompts and heads, lie from the bare loop's after one round."""
    config = config_of(args, folder, algorithm, "local")
    job = make_job(config, prepare(config), "once")
    server = Server(job, plan_of(config), LocalBackend().enter(job))
    server.round()
    found = server.state.server
    pairs = ((found["gnn"], first[0]), (found["theta"][0], first[1]))
    return dict(zip(("gnn", "own"), (float((a - b).abs().max()) for a, b in pairs)))


if __name__ == "__main__":
    main()
