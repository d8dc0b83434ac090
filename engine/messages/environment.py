"""The environment on which a run's last bits depend beside its config."""

import platform
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from shoal.storage.files.digest import digest, text_digest

# These instructions multiply in bfloat16, the first of them faster than float32's (`benchmarks/fast_paths.py`).
BFLOAT16 = ("amx_bf16", "avx512_bf16")
PACKAGES = ("engine", "algorithms", "storage", "partition")


def environment(device: str) -> dict[str, Any]:
    """Reads processor, device type and versions, as recorded in checkpoints and the summary."""
    # The import takes seconds, and a reader of recorded environments has no use for it.
    import torch

    return {
        "cpu": _cpu(),
        "device": device,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "shoal": _shoal(),
    }


@cache
def _shoal() -> str:
    """Computes the digest of Shoal's own code."""
    root = Path(__file__).absolute().parents[2]
    files = sorted(path for name in PACKAGES for path in (root / name).rglob("*.py"))
    return text_digest("".join(digest(path) for path in files))[:8]


def bfloat16_support() -> str:
    """Describes what this processor has for products in bfloat16, by Linux, and whether float32 is faster."""
    flags = (_cpu_line("flags") or "").split()
    instructions = [name for name in BFLOAT16 if name in flags]
    named = ", ".join(instructions) or "no instructions for it"
    return named if BFLOAT16[0] in instructions else f"{named}; slower than float32 without {BFLOAT16[0]}"


def _cpu() -> str:
    return _cpu_line("model name") or platform.processor()


def _cpu_line(name: str) -> str | None:
    """Reads what Linux says of the first processor under a name; None: nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith(name)), None)


def differences(old: dict[str, Any], device: str) -> list[str]:
    """Lists what differs from a recorded environment, as `key (old -> new)`."""
    new = environment(device)
    return [f"{key} ({old.get(key)} -> {value})" for key, value in new.items() if old.get(key) != value]
