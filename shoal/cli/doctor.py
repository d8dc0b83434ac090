"""Shows what this installation can and cannot do."""

import importlib.metadata
import importlib.util
import os
import shutil
from pathlib import Path

import psutil
from rich.table import Column

from shoal.engine.config.sizes import machine_cores, machine_memory, size
from shoal.engine.messages.environment import bfloat16_support
from shoal.engine.screen.output import Table
from shoal.engine.screen.tables import console
from shoal.storage.datasets.sources.source import data_root

REQUIRED = (
    "ray", "torch", "torch-geometric", "pyarrow", "numpy", "scipy", "numba", "pymetis", "kaminpar", "networkit",
    "faiss-cpu", "scikit-learn", "pydantic", "omegaconf", "pyyaml", "typer", "rich", "tabulate", "safetensors",
    "tensorboard", "jinja2", "matplotlib", "psutil", "xxhash",
)  # fmt: skip
OPTIONAL = {
    "ogb": "scores by OGB's official Evaluator, shoal read RUN ogb (pip install --editable '.[ogb]')",
    "pandas": "data frames of runs in a program (pip install --editable '.[notebook]')",
    "mlflow-skinny": "callback mlflow (pip install --editable '.[mlflow]')",
    "wandb": "callback wandb (pip install --editable '.[wandb]')",
    "optuna": "search of options, shoal sweep --search (pip install --editable '.[search]')",
    "tenseal": "secure=homomorphic (pip install --editable '.[homomorphic]')",
    "torch-sparse": "SparseTensor in and out; no build for this torch exists, 0.6.18 is compiled (make test-adapters)",
    "dgl": "DGLGraph in and out (pip install --editable '.[dgl]': 1.1.3, below Python 3.12; 2.x is for older torch)",
}
# Drivers of GPUs have these files: NVIDIA's, Windows' below Linux, and AMD's.
DRIVERS = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


def show_doctor() -> None:
    """Prints what is installed and from where, what is missing and what that disables, and what the machine has."""
    table = Table(title="packages")
    for name in ("package", "version", "from"):
        table.add_column(name, overflow="fold")
    for name, (version, where) in ((name, _find_package(name)) for name in ("shoal", *REQUIRED, *OPTIONAL)):
        lacks = version is None and name in OPTIONAL
        table.add_row(name, version or "missing", f"without it: no {OPTIONAL[name]}" if lacks else where)
    console.print(table)
    table = Table("", Column(overflow="fold"), title="machine", show_header=False)
    for name, text in machine().items():
        table.add_row(name, text)
    console.print(table)


def packages() -> dict[str, str | None]:
    """Returns the version of every package that Shoal uses; None if it is missing."""
    return {name: _find_package(name)[0] for name in ("shoal", *REQUIRED, *OPTIONAL)}


def machine() -> dict[str, str]:
    """Returns the parts of the machine, in words."""
    memory, root, ray = psutil.virtual_memory(), data_root(None), os.environ.get("RAY_ADDRESS")
    cores, gpus = machine_cores(), _gpus()
    at_work = f"{len(gpus):,} in a run on Ray with engine.device=cuda, a host on each; 1 with engine.backend=local"
    return {
        "processor": "1 core" if cores == 1 else f"{cores:,} cores",
        "cores at work": f"{cores:,} in a run on Ray (engine.hosts), 1 with engine.backend=local",
        "bfloat16": bfloat16_support(),
        "memory": f"{size(min(memory.available, machine_memory()))} free of {size(machine_memory())}",
        "shared memory": _free(Path("/dev/shm")) + " (Ray's object store)",
        "GPUs": ", ".join(gpus) or "none that torch can use; runs train on the CPU",
        **({"GPUs at work": at_work} if gpus else {}),
        "Ray": f"joins {ray} with ray.address=auto" if ray else "starts on this machine when a run begins",
        "data folder": f"{root} ({'from SHOAL_DATA' if 'SHOAL_DATA' in os.environ else 'default; set SHOAL_DATA'})",
        "free disk there": _free(root),
        "free disk here": _free(Path.cwd()),
    }


def _find_package(name: str) -> tuple[str | None, str]:
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None, "required: pip install -e ."
    if name == "shoal":
        return distribution.version, str(Path(__file__).absolute().parents[1])
    return distribution.version, str(distribution.locate_file(""))


def _free(path: Path) -> str:
    while not path.exists():
        path = path.parent
    return size(shutil.disk_usage(path).free)


def _gpus() -> list[str]:
    """Returns the names of the GPUs that torch can use."""
    if any(map(os.path.exists, DRIVERS)):
        # Torch takes two seconds to import, which a machine without a driver is spared.
        import torch

        if torch.cuda.is_available():
            return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return []
