"""A machine with made-up GPUs: Ray counts them, and a host computes on the second device as on the GPU it was given.

`install` is the hook that Ray calls in every worker process, also in one that replaces another.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from support.other_device.device import NAME, load
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shoal.engine.hosts import host
from shoal.engine.hosts.device import does_not_answer
from shoal.engine.hosts.host import Host
from shoal.engine.messages.cell import Outcome

TESTS = Path(__file__).parents[2]
# A folder for notes of hosts, and by GPU the operators after which it is lost.
NOTES, LOST_AFTER = "MADE_UP_GPUS", "MADE_UP_GPUS_LOST_AFTER"
HOOK = f"{__name__}.install"
FAULT = "CUDA error: unspecified launch failure"


def variables(folder: Path, gpus: int, lost_after: Mapping[str, int] | None = None) -> dict[str, str]:
    """The environment of a run on a machine with so many GPUs; hosts note in the folder which one they take.

    A GPU is lost after so many operators; after fewer than none, it is from the beginning.
    """
    folder.mkdir()
    for number, operators in (lost_after or {}).items():
        if operators < 0:
            (folder / f"lost-{number}").touch()
    counted = {"RAY_OVERRIDE_RESOURCES": json.dumps({"GPU": gpus}), "PYTHONPATH": str(TESTS)}
    return {**os.environ, **counted, NOTES: str(folder), LOST_AFTER: json.dumps(lost_after or {})}


def taken(folder: Path) -> list[dict[str, Any]]:
    """Which GPU each process took, with which share, in the order of GPUs."""
    notes = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(notes, key=lambda note: (note["gpu"], note["process"]))


class _Gpu(TorchDispatchMode):
    """Lets so many operators of the device pass; after these it is lost, for this process and for later ones."""

    def __init__(self, mark: Path, operators: float) -> None:
        super().__init__()
        self._mark, self._left = mark, operators

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = tree_leaves((args, kwargs))
        if any(t.device.type == NAME for t in leaves if isinstance(t, Tensor)):
            self._left -= 1
            if self._left < 0:
                self._mark.touch()
            self.synchronize()
        return op(*args, **(kwargs or {}))

    def synchronize(self) -> None:
        """Fails once the GPU is lost."""
        if self._mark.exists():
            raise RuntimeError(FAULT)


def install() -> None:
    """Lets hosts of this process compute on the second device."""
    folder, run_cells = Path(os.environ[NOTES]), Host.run_cells
    gpus: list[_Gpu] = []

    def take_device(name: str, share: float, precision: str) -> torch.device:
        # Ray names the GPU when it makes a host of the worker.
        device, number = load(), os.environ["CUDA_VISIBLE_DEVICES"]
        operators = json.loads(os.environ[LOST_AFTER]).get(number, float("inf"))
        gpus[:] = [gpu := _Gpu(folder / f"lost-{number}", operators)]
        try:
            gpu.synchronize()
        except RuntimeError as error:
            raise does_not_answer(error) from error
        torch.get_device_module(device).synchronize = gpu.synchronize
        note = {"gpu": number, "share": share, "process": os.getpid()}
        (folder / f"{os.getpid()}.json").write_text(json.dumps(note))
        return device

    def run_cells_there(self: Host, *received: Any) -> Iterator[Outcome | None]:
        with gpus[0]:
            yield from run_cells(self, *received)

    host.take_device = take_device
    Host.run_cells = run_cells_there  # type: ignore[method-assign]
