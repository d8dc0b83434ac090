"""The stages of `gpu.py`: `gpu_stages.py NAME DEVICE SMALLEST ROWS` runs one and writes its rows as it goes."""

import importlib.util
import itertools
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_runs import config_of, differing, folder, played, wait

from shoal.algorithms.methods.registry.load import methods_for
from shoal.storage.shards.view import smooth_by_torch

Row = dict[str, Any]
COPILOT = {"name": "gcn", "hidden": 8, "head": "linear"}
MENDED = ("fedsage_plus", "fedsage_plus_fedgta", "fedsage_plus_moon", "fedsage_plus_feddc")
OPTIONS: dict[str, Row] = {name: {"copilot": COPILOT} for name in ("fml", "fedkd", "fedgkc")}
OPTIONS |= {name: {"generator_rounds": 1} for name in MENDED}
OPTIONS |= {"gcfl_plus": {"warmup": 1}, "adafgl": {"shared_rounds": 1}}
ROUNDS: dict[str, Row] = {
    "topk": {"communication": {"upload": "topk"}},
    "int8": {"communication": {"upload": "int8"}},
    "hostile, median": {"attack": {"kind": "sign_flip", "share": 0.25}, "aggregation": {"kind": "median"}},
    "hostile, geometric median": {
        "attack": {"kind": "gaussian", "share": 0.25},
        "aggregation": {"kind": "geometric_median"},
    },
    "private": {"privacy": {"unit": "client", "clip": 1.0, "noise": 0.1}},
    "masked": {"secure": {"kind": "masks"}},
    "fedbuff": {"schedule": {"name": "fedbuff", "concurrency": 4, "buffer": 2}},
    "chosen by loss": {"participation": {"ratio": 0.5, "selection": "loss"}},
    "cut edges, hops": {"data": {"cross_edges": "hops"}},
    "cut edges, gcn": {"data": {"cross_edges": "one_hop"}, "model": {"name": "gcn"}},
    "fedgta, cut edges": {"data": {"cross_edges": "hops"}, "algorithm": {"name": "fedgta", "cross_edges": True}},
}
MODELS = ("sgc", "mlp", "gamlp", "sign", "s2gc", "gbp", "gcn", "sage", "gat", "gin", "gcnii")
# Hidden width (0: linear), nodes of a client, features, classes.
SHAPES = {"linear": (0, 2400, 128, 172), "mlp": (256, 2400, 128, 172), "tiny": (64, 54, 1433, 7)}
ASSERT = (
    "import torch; x = torch.zeros(2, device='cuda'); x[torch.tensor([5], device='cuda')]; torch.cuda.synchronize()"
)


@dataclass(frozen=True)
class Where:
    """The device of a stage, and whether it only tests the command."""

    device: torch.device
    smallest: bool


def versions(where: Where) -> Iterator[Row]:
    """What it runs on."""
    yield {"what": "python", "value": platform.python_version()}
    yield {"what": "torch", "value": torch.__version__}
    yield {"what": "ray", "value": "installed" if importlib.util.find_spec("ray") else "not installed"}
    if where.device.type == "cuda":
        of = torch.cuda.get_device_properties(where.device)
        yield {
            "what": "device",
            "value": f"{of.name}, {of.total_memory / 2**30:.1f} GiB",
        }
        yield {"what": "cuda", "value": torch.version.cuda}
    else:
        yield {"what": "device", "value": f"the processor, {torch.get_num_threads()} threads"}


def ceilings(where: Where) -> Iterator[Row]:
    """How fast a copy and a product can be at most."""
    device, size = where.device, 64 if where.smallest else 8192 if where.device.type == "cuda" else 1024
    source = torch.ones(size * size)
    from_where = {"pageable": source, **({"pinned": source.pin_memory()} if device.type == "cuda" else {})}
    for name, x in from_where.items():
        seconds = time_of(partial(x.to, device, copy=True, non_blocking=True), device)
        yield {"what": f"copy to the device, {name}", "GB/s": x.nbytes / seconds / 1e9}
    there = source.to(device)
    yield {"what": "copy on the device", "GB/s": 2 * there.nbytes / time_of(there.clone, device) / 1e9}
    for name, dtype, setting in (
        ("float32", torch.float32, "highest"),
        ("tf32", torch.float32, "high"),
        ("bfloat16", torch.bfloat16, "highest"),
    ):
        torch.set_float32_matmul_precision(setting)
        a = torch.ones(size, size, dtype=dtype, device=device)
        yield {"what": f"product, {name}", "TFLOP/s": 2 * size**3 / time_of(partial(torch.mm, a, a), device) / 1e12}


def time_of(work: Callable[[], Any], device: torch.device, times: int = 5) -> float:
    """Mean seconds of some goes after a first one."""
    work()
    wait(device)
    began = time.perf_counter()
    for _ in range(times):
        work()
    wait(device)
    return (time.perf_counter() - began) / times


def methods(where: Where) -> Iterator[Row]:
    """Every method against the processor, and twice against itself."""
    names = ("fedavg", "fedgta") if where.smallest else methods_for("node")
    cases = {name: {"algorithm": {"name": name, **OPTIONS.get(name, {})}, "model": model_of(name)} for name in names}
    if "fedgcn" in cases:
        cases["fedgcn"]["data"] = {"cross_edges": "one_hop"}
    yield from compared(where, cases)


def model_of(method: str) -> Row:
    """A model that a method can train."""
    coupled = {"fggp", "fedgcn", *MENDED}
    norm = {"norm": "batch", "head": "conv"} if method == "fggp" else {}
    return {"name": "gcn", "hidden": 8, **norm} if method in coupled else {"name": "gamlp", "hidden": 8}


def models(where: Where) -> Iterator[Row]:
    """Every model, the same way."""
    names = ("sgc", "gcn") if where.smallest else MODELS
    yield from compared(where, {name: {"model": {"name": name}} for name in names})


def rounds(where: Where) -> Iterator[Row]:
    """What may stand between clients and the server, and edges between clients, the same way."""
    yield from compared(where, {name: ROUNDS[name] for name in ("topk",)} if where.smallest else ROUNDS)


def compared(where: Where, cases: dict[str, Row]) -> Iterator[Row]:
    """Two rounds on the device, again on it, and on the processor; an error is a row, and the next case follows."""
    with folder() as place:
        for name, keys in cases.items():
            row: Row = {"case": name}
            try:
                there, again, here = (
                    played(config_of(Path(place), kind, 4, 40, keys), 2)
                    for kind in (where.device.type, where.device.type, "cpu")
                )
                row["beside the processor"] = differing(there.state, here.state, exact=False) or "same to 1e-4"
                row["again"] = differing(there.state, again.state, exact=True) or "same bits"
            except Exception as error:
                row["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:160]
            yield row


def bare_loop(where: Where, clients: int, shape: tuple[int, int, int, int]) -> float:
    """Milliseconds a client of a round written out in torch: three steps of Adam on each client, one after another.

    All data lies on the device, training rows alone, a fifth of the nodes. Nothing is checked, recorded or fetched.
    """
    hidden, nodes, features, classes = shape
    device, rows = where.device, max(1, nodes // 5)
    sizes = (features, hidden, classes) if hidden else (features, classes)
    layers: list[torch.nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [torch.nn.Linear(a, b), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1]).to(device)
    weights = list(model.parameters())
    shared = [w.detach().clone() for w in weights]
    x_NF = [torch.randn(rows, features, device=device) for _ in range(clients)]
    y_N = [torch.randint(classes, (rows,), device=device) for _ in range(clients)]

    def round_of_all() -> None:
        sums = [torch.zeros_like(w) for w in shared]
        for x, y in zip(x_NF, y_N):
            with torch.no_grad():
                torch._foreach_copy_(weights, shared)
            optimizer = torch.optim.Adam(weights, lr=0.01, weight_decay=5e-4, fused=True)
            for _ in range(3):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(x), y).backward()
                optimizer.step()
            torch._foreach_add_(sums, [w.detach() for w in weights])
        for mine, total in zip(shared, sums):
            mine.copy_(total / clients)

    return 1000 * time_of(round_of_all, device, times=2) / clients


def paths(where: Where) -> Iterator[Row]:
    """A bare loop, autograd and batched: seconds of a client-round, and its launches, waits and copies."""
    names = ("linear",) if where.smallest else (*SHAPES, "sgc", "gamlp", "gcn")
    for name in names:
        hidden, nodes, features, classes = SHAPES.get(name, (64, 200, 64, 10))
        clients = 8 if where.smallest else 500 if name in SHAPES and where.device.type == "cuda" else 128
        if where.smallest or where.device.type == "cpu":
            # Every client needs training nodes of some class.
            nodes, classes = min(nodes, 60), min(classes, 4)
        model: Row = {"name": "mlp", "hidden": hidden} if hidden else {"name": "sgc"}
        if name not in SHAPES:
            model = {"name": name}
        keys: Row = {"options": {"features": features, "classes": classes}, "model": model}
        keys["propagation"] = {"hops": 0 if name in SHAPES else 2}
        if name in SHAPES:
            loop = bare_loop(where, clients, (hidden, nodes, features, classes))
            yield {"case": name, "nodes": nodes, "path": "bare loop", "moments": "reset", "ms a client": loop}
        with folder() as place:
            for path, cell, precision, moments in ways(where):
                if name == "gcn" and precision == "bfloat16":
                    continue
                engine = {"trainer": path, "cell_size": cell, "precision": precision}
                of_way = {"engine": engine, "train": {"dropout": 0.0, "opt_state": moments}}
                plain = config_of(Path(place), where.device.type, clients, nodes, {**keys, **of_way})
                row: Row = {"case": name, "nodes": nodes, "path": path, "cell": cell, "precision": precision}
                row["moments"] = moments
                try:
                    found = played(plain, 2 if where.smallest else 4, count=True)
                    row["ms a client"] = 1000 * found.seconds / clients
                    row |= {f"{what} a client": n / clients for what, n in found.counts.items()}
                except Exception as error:
                    row["error"] = " ".join(f"{type(error).__name__}: {error}".split())[:160]
                yield row


def ways(where: Where) -> list[tuple[str, int, str, str]]:
    """Path, clients of a cell, precision, and whether Adam's moments are kept or, as in the bare loop, begun anew."""
    plain = (
        [("autograd", 4), ("batched", 4)] if where.smallest else [("autograd", 15), ("batched", 64), ("batched", 128)]
    )
    found = [(path, cell, "float32", "keep") for path, cell in plain]
    if where.smallest:
        return found
    rounded = ("tf32", "bfloat16") if where.device.type == "cuda" else ("bfloat16",)
    return [*found, ("batched", 128, "float32", "reset"), *(("batched", 128, name, "keep") for name in rounded)]


def graphs(where: Where) -> Iterator[Row]:
    """A round of GCN on whole graphs, beside the same steps of plain torch on one of them."""
    nodes, features, hidden, classes = (60, 16, 8, 4) if where.smallest else (50_000, 128, 256, 40)
    with folder() as place:
        keys: Row = {"options": {"features": features, "classes": classes, "degree": 14.0}}
        for name in ("gcn", "sage"):
            keys |= {"model": {"name": name, "hidden": hidden}, "engine": {"trainer": "autograd"}}
            found = played(config_of(Path(place), where.device.type, 4, nodes, keys), 2 if where.smallest else 4, True)
            yield {"case": name, "nodes": nodes, "ms a client": 1000 * found.seconds / 4, **found.counts}
    ends_2E = torch.randint(nodes, (2, 14 * nodes), device=where.device)
    ends_2E = torch.cat([ends_2E, torch.arange(nodes, device=where.device).expand(2, -1)], 1)
    matrix = torch.sparse_coo_tensor(ends_2E, torch.full((ends_2E.shape[1],), 1 / 15, device=where.device)).coalesce()
    matrix, transposed = matrix.to_sparse_csr(), matrix.t().to_sparse_csr()
    x_NF = torch.randn(nodes, features, device=where.device)
    y_N = torch.randint(classes, (nodes // 5,), device=where.device)
    layers = torch.nn.ModuleList([torch.nn.Linear(features, hidden), torch.nn.Linear(hidden, classes)]).to(where.device)

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(matrix, x)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(transposed, gradient.contiguous())

    def client() -> None:
        optimizer = torch.optim.Adam(layers.parameters(), lr=0.01, weight_decay=5e-4, fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            h_NH = Product.apply(layers[0](x_NF)).relu()
            torch.nn.functional.cross_entropy(Product.apply(layers[1](h_NH))[: len(y_N)], y_N).backward()
            optimizer.step()

    yield {"case": "gcn in plain torch", "nodes": nodes, "ms a client": 1000 * time_of(client, where.device)}


def uploads(where: Where) -> Iterator[Row]:
    """A round of methods whose upload is more than the model, counted."""
    nodes = 40 if where.smallest else 22_000 if where.device.type == "cuda" else 1000
    with folder() as place:
        for name in ("fedavg", "fedgta", "fedpg"):
            keys = {"algorithm": {"name": name}, "options": {"classes": 4 if where.smallest else 172}}
            plain = config_of(Path(place), where.device.type, 4, nodes, keys)
            found = played(plain, 2 if where.smallest else 4, count=True)
            yield {"case": name, "nodes": nodes, "ms a client": 1000 * found.seconds / 4, **found.counts}


def propagation(where: Where) -> Iterator[Row]:
    """The device's sparse product beside the same on the processor."""
    nodes, degree, width = (100, 4, 8) if where.smallest else (100_000, 14, 128)
    entry_E = torch.randint(nodes, (nodes * degree,), generator=torch.Generator().manual_seed(0))
    start_N = torch.arange(0, nodes * degree + 1, degree)
    matrix = torch.sparse_csr_tensor(start_N, entry_E, torch.ones(nodes * degree), (nodes, nodes))
    for device in dict.fromkeys((where.device, torch.device("cpu"))):
        there, x_NF = matrix.to(device), torch.ones(nodes, width, device=device)
        degree_N = torch.full((nodes,), float(degree), device=device)
        seconds = time_of(partial(smooth_by_torch, there, degree_N, x_NF), device)
        yield {"device": str(device), "entries": nodes * degree, "ms": 1000 * seconds}


def faults(where: Where) -> Iterator[Row]:
    """Peak memory, too little memory, and an assertion on the device."""
    if where.device.type != "cuda":
        yield {"case": "memory and faults", "found": "not done: they need a GPU"}
        return
    x = torch.ones(2**28, device=where.device)
    yield {"case": "peak", "found": f"{torch.cuda.max_memory_allocated() / 2**20:.0f} MiB, 1024 wanted"}
    del x
    try:
        torch.empty(2**46, device=where.device)
        yield {"case": "out of memory", "found": "no error"}
    except torch.OutOfMemoryError:
        free = torch.ones(4, device=where.device).sum().item() == 4
        yield {"case": "out of memory", "found": f"an error; usable after it: {free}"}
    done = subprocess.run([sys.executable, "-c", ASSERT], capture_output=True, text=True, timeout=60)
    last = done.stderr.strip().splitlines()[-1:] or ["no error"]
    yield {"case": "assertion", "found": f"status {done.returncode}: {last[0][:120]}"}


def shares(where: Where) -> Iterator[Row]:
    """One host with a whole GPU beside four with a quarter each, on Ray."""
    if where.device.type != "cuda" or importlib.util.find_spec("ray") is None:
        yield {"case": "1 x 1.0 beside 4 x 0.25", "found": "not done: it needs a GPU and Ray"}
        return
    with folder() as place:
        for hosts, share in ((1, 1.0), (4, 0.25)):
            plain = config_of(Path(place), "cuda", 64, 400, {"engine": {"backend": "ray", "hosts": hosts}})
            plain["resources"] = {"gpus_per_host": share}
            yield {"case": f"{hosts} x {share}", "ms a client": 1000 * played(plain, 6).seconds / 64}


@dataclass(frozen=True)
class Stage:
    """What is done, and for how many seconds at most."""

    run: Callable[[Where], Iterator[Row]]
    seconds: float


STAGES = {
    "versions": Stage(versions, 30),
    "ceilings": Stage(ceilings, 40),
    "models": Stage(models, 90),
    "paths": Stage(paths, 300),
    "graphs": Stage(graphs, 60),
    "uploads": Stage(uploads, 60),
    "propagation": Stage(propagation, 30),
    "faults": Stage(faults, 60),
    "shares": Stage(shares, 90),
    "methods": Stage(methods, 150),
    "rounds": Stage(rounds, 60),
}


def main() -> None:
    name, device, smallest, out = sys.argv[1:]
    rows: list[Row] = []
    for row in STAGES[name].run(Where(torch.device(device), smallest == "1")):
        rows.append(row)
        Path(out).write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
