"""What it costs to hide uploads in sums: processor seconds and bytes of a round, plain, with masks, and homomorphic.

    python benchmarks/secure.py [--models 1.4k 92k 1M] [--clients 10 50 100] [--turns 5] [--kinds none masks]

FedAvg on clients of 54 nodes each of one drawn graph, three local steps, all clients in each round, nothing scored, in
one process with one thread. The kinds take turns after a first round, and hold the same parameters at the end, to the
rounding. Seconds are the processor's, the median of the turns. Before that comes BFV beside CKKS of the same package.
"""

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import tenseal
import torch
from gpu_runs import config_of
from rich.console import Console
from rich.table import Table

from shoal.engine.config.config import parse_config
from shoal.engine.hosts.backend import LocalBackend
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.costs import unwatched
from shoal.engine.runs.plan import plan_of
from shoal.engine.stages.secure.homomorphic import Homomorphic, KeyHolder
from shoal.engine.stages.secure.section import SecureOptions

KINDS = ("none", "masks", "homomorphic")
# Features and hidden width (0: linear), with seven classes.
MODELS = {"1.4k": (200, 0), "92k": (1433, 64), "1M": (1433, 695)}


def opened(folder: Path, model: str, clients: int, kind: str) -> LocalBackend:
    """A run that has had its first round."""
    features, hidden = MODELS[model]
    keys: dict[str, Any] = {
        "options": {"features": features, "classes": 7},
        "model": {"name": "mlp", "hidden": hidden} if hidden else {"name": "sgc"},
        "propagation": {"hops": 0},
        "secure": {"kind": kind},
    }
    config = parse_config(config_of(folder, "cpu", clients, 54, keys), "secure.py")
    backend = LocalBackend()
    backend.open(make_job(config, prepare(config), kind), plan_of(config), None)
    backend.round(unwatched)
    return backend


def turns(folder: Path, model: str, clients: int, number: int, kinds: list[str]) -> dict[str, tuple[float, float]]:
    """Of each kind processor seconds of a round, and bytes that a client sends."""
    runs = {kind: opened(folder, model, clients, kind) for kind in kinds}
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    sent = {}
    for turn in range(number):
        first = turn % len(kinds)
        for kind in kinds[first:] + kinds[:first]:
            began = time.process_time()
            line = runs[kind].round(unwatched)
            seconds[kind].append(time.process_time() - began)
            sent[kind] = line["bytes_up"] / clients
    plain, *hidden = (runs[kind].state().server["w"] for kind in kinds)
    for w in hidden:
        assert torch.equal(w, hidden[0])
        torch.testing.assert_close(w, plain, rtol=1e-3, atol=1e-4)
    return {kind: (median(seconds[kind]), sent[kind]) for kind in kinds}


def schemes(console: Console, numbers: int = 4096, clients: int = 50) -> None:
    """BFV as it is used beside CKKS: processor seconds to encrypt, bytes, and how far a sum is from the exact one."""
    values = torch.randn(numbers, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    holder = KeyHolder()
    bfv = Homomorphic(SecureOptions("homomorphic"), tuple(range(clients)), holder.public, holder)
    ckks = tenseal.context(tenseal.SCHEME_TYPE.CKKS, 8192, coeff_mod_bit_sizes=[60, 40, 60], n_threads=1)
    ckks.global_scale = 2.0**40
    whole = (values * 2**24).round().long()
    began = time.process_time()
    sent = [bfv.hide(0, "w", whole) for _ in range(clients)]
    seconds = time.process_time() - began
    total = sent[0]
    for one in sent[1:]:
        total = bfv.add(total, one)
    error = (bfv.reveal("w", total, ()).double() / 2**24 - clients * values).abs().max()
    bfv_row = "BFV", seconds, sent[0].nbytes, error
    began = time.process_time()
    encrypted = [tenseal.ckks_vector(ckks, values.tolist()) for _ in range(clients)]
    seconds = time.process_time() - began
    size = len(encrypted[0].serialize())
    read = torch.tensor(sum(encrypted[1:], encrypted[0]).decrypt(), dtype=torch.float64)
    error = (read - clients * values).abs().max()
    for name, spent, nbytes, off in (bfv_row, ("CKKS", seconds, size, error)):
        spent /= clients * numbers
        console.print(f"{name}: {1e6 * spent:.2f} µs and {nbytes / numbers:.1f} bytes a number, off by {off:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--clients", nargs="+", type=int, default=[10, 50, 100])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=100)
    schemes(console)
    for model in asked.models:
        for clients in asked.clients:
            table = Table("", "seconds", "of plain", "bytes of a client", title=f"{model}, {clients} clients")
            with tempfile.TemporaryDirectory() as folder:
                found = turns(Path(folder), model, clients, asked.turns, asked.kinds)
            for kind, (seconds, nbytes) in found.items():
                table.add_row(kind, f"{seconds:.3f}", f"{seconds / found[asked.kinds[0]][0]:.2f}", f"{nbytes:,.0f}")
            console.print(table)


if __name__ == "__main__":
    main()
