"""Where hosts compute: on their processor, or on their share of a GPU."""

import os
from collections.abc import Sequence

import torch

from algorithms.flat_model import FlatModel
from storage.errors import ShoalError

# Of a host's share of a GPU; the rest is for models, activations and states.
CACHE_SHARE = 0.5


def take_device(name: str, share: float, precision: str) -> torch.device:
    """The device of this process, ready for use: on a GPU with its share of the memory as a limit.

    Args:
        name: `cpu` or `cuda`; Ray shows a process no GPU but its own.
        share: Of the GPU, in (0, 1].
        precision: `float32`, `tf32`, or `bfloat16`.

    Raises:
        ShoalError: There is no GPU that torch can use.
    """
    if name == "cpu":
        return torch.device("cpu")
    # Read when CUDA starts: without it no product repeats its last bits.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if not torch.cuda.is_available():
        raise ShoalError(
            f"engine.device: cuda: torch {torch.__version__} finds no GPU on this host; install a torch built for CUDA "
            "there, or set engine.device=cpu"
        )
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.cuda.set_per_process_memory_fraction(share)
    return torch.device("cuda", torch.cuda.current_device())


def cache_bytes(device: torch.device, share: float, on_processor: int) -> int:
    """Limit of what a host caches: as said on a processor, half its share of the memory on a GPU."""
    if device.type != "cuda":
        return on_processor
    return int(CACHE_SHARE * share * torch.cuda.get_device_properties(device).total_memory)


def placed(models: Sequence[FlatModel], device: torch.device) -> list[FlatModel]:
    """The models where a host computes."""
    return list(models) if device.type == "cpu" else [model.on(device) for model in models]
