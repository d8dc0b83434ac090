"""Short runs on a device for `gpu.py`: their parameters, seconds, and what the profiler counts."""

import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from shoal.engine.cluster.open_backend import open_backend
from shoal.engine.config.config import parse_config
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.costs import unwatched
from shoal.engine.rounds.state import FederationState
from shoal.engine.runs.plan import plan_of

VIEWS = {"view", "slice", "select", "detach", "transpose", "t", "as_strided", "expand", "unsqueeze", "squeeze", "alias"}
VIEWS |= {"permute", "narrow", "split", "split_with_sizes", "unbind", "reshape", "empty", "empty_strided", "empty_like"}
VIEWS |= {"result_type", "lift_fresh", "_unsafe_view", "unflatten", "resolve_conj", "resolve_neg", "is_nonzero"}


@dataclass(frozen=True)
class Played:
    """What a run left.

    Attributes:
        state: After the last round.
        seconds: Of a round after the first, the median.
        counts: Of a round, `launches`, `synchronisations` and `copies`; empty where nothing was counted.
    """

    state: FederationState
    seconds: float
    counts: dict[str, int]


def config_of(store: Path, device: str, clients: int, nodes: int, keys: dict[str, Any]) -> dict[str, Any]:
    """Clients of a drawn graph, of 16 features and 4 classes where `keys`, by section, do not say otherwise."""
    options = {"nodes": clients * nodes, "features": 16, "classes": 4, "degree": 6.0, **keys.get("options", {})}
    sections: dict[str, Any] = {
        "data": {"dataset": "sbm", "root": str(store), "store": str(store / "store"), "options": options},
        "partition": {"method": "random", "clients": clients},
        "propagation": {"hops": 2},
        "model": {"name": "sgc"},
        "algorithm": {"name": "fedavg"},
        "train": {"dropout": 0.0},
        "evaluation": {"every": 100},
        "engine": {"backend": "local", "device": device},
    }
    for name in keys.keys() - {"options"}:
        sections[name] = {**sections.get(name, {}), **keys[name]}
    return {"name": "gpu", "rounds": 100, **sections}


def played(plain: dict[str, Any], rounds: int, count: bool = False) -> Played:
    """Runs some rounds and times them; where things are counted, one more is profiled."""
    config = parse_config(plain, "gpu.py")
    job = make_job(config, prepare(config), "gpu")
    backend = open_backend(config)
    backend.open(job, plan_of(config), None)
    device = torch.device(str(plain["engine"]["device"]))
    seconds, counts = [], {}
    try:
        for _ in range(rounds):
            began = time.perf_counter()
            backend.round(unwatched)
            wait(device)
            seconds.append(time.perf_counter() - began)
        if count:
            with profile(activities=activities(device)) as profiler:
                backend.round(unwatched)
            counts = counted(profiler)
        return Played(backend.state(), statistics.median(seconds[1:] or seconds), counts)
    finally:
        backend.close()


def wait(device: torch.device) -> None:
    """Waits until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize()


def activities(device: torch.device) -> list[ProfilerActivity]:
    """What is profiled on a device."""
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]


def counted(profiler: profile) -> dict[str, int]:
    """Launches, synchronisations and copies.

    On a GPU they are calls of CUDA's runtime. On a processor a launch is an operator that calls no other and is no mere
    view; a synchronisation reads a number of a tensor; a copy is `aten::copy_`.
    """
    events = profiler.events() or []
    of_cuda = Counter(event.name for event in events if event.name.startswith("cuda"))
    if of_cuda:
        total = {
            "launches": ("cudaLaunchKernel",),
            "synchronisations": ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"),
            "copies": ("cudaMemcpy",),
        }
        return {
            name: sum(n for call, n in of_cuda.items() if call.startswith(starts)) for name, starts in total.items()
        }
    operators = [event for event in events if event.name.startswith("aten::")]
    leaves = [e.name[6:] for e in operators if not any(child.name.startswith("aten::") for child in e.cpu_children)]
    return {
        "launches": sum(name not in VIEWS for name in leaves),
        "synchronisations": leaves.count("_local_scalar_dense"),
        "copies": leaves.count("copy_"),
    }


def tensors_of(state: FederationState) -> dict[str, torch.Tensor]:
    """All that a run keeps, by place."""
    of_clients = {f"client {i}, {name}": t for i, tree in state.clients.items() for name, t in tree.items()}
    return {**state.server, **of_clients}


def differing(there: FederationState, here: FederationState, exact: bool) -> str:
    """What differs most of two runs: the name and its largest relative distance; empty where nothing does."""
    mine, others = tensors_of(there), tensors_of(here)
    if mine.keys() != others.keys():
        return "other entries"
    worst, name = 0.0, ""
    for place, t in mine.items():
        other = others[place]
        if t.shape != other.shape:
            return f"{place}: other shapes"
        same = torch.equal(t, other) if exact else torch.allclose(t.double(), other.double(), rtol=1e-4, atol=1e-5)
        if not same:
            distance = float((t.double() - other.double()).norm() / other.double().norm().clamp(min=1e-30))
            worst, name = max((worst, name), (distance, place))
    return f"{name}: {worst:.2g}" if name else ""


def folder() -> tempfile.TemporaryDirectory[str]:
    """For the stores of a stage."""
    return tempfile.TemporaryDirectory(prefix="shoal-gpu-")
