"""A second torch device without a GPU: what runs on it with a tensor of the processor fails, as it would on a GPU."""

import fcntl
import gc
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.utils import cpp_extension

NAME = "other"


@cache
def load() -> torch.device:
    """The device; compiled on first use, into the cache of the user.

    Operators run on the processor, with its numbers. Random ones are drawn from generators of the processor. Skips the
    test where there is no compiler.
    """
    for program in (cpp_extension.get_cxx_compiler(), "ninja"):
        if shutil.which(program) is None:
            pytest.skip(f"the second device is compiled, {program} is not found")
    folder = Path(cpp_extension.get_default_build_root()) / f"shoal-other-device-{torch.__version__}"
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "building", "w") as building:
        fcntl.flock(building, fcntl.LOCK_EX)
        # A killed build leaves the file that torch waits for; whoever holds our lock, which ends with its process, is
        # alone here.
        (folder / "lock").unlink(missing_ok=True)
        cpp_extension.load(
            "shoal_other_device",
            [str(Path(__file__).with_name("device.cpp"))],
            extra_cflags=["-O0"],
            build_directory=str(folder),
            is_python_module=False,
        )
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _Module(NAME))
    return torch.device(NAME, 0)


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Inside the block, tensors of the device may take so many bytes beside those that are there now."""
    ops = torch.ops.shoal_other
    # Tensors of a finished run that wait in cycles would make room if they were freed inside the block.
    gc.collect()
    ops.limit(ops.held() + size)
    try:
        yield
    finally:
        ops.limit(2**63 - 1)


class _Module(ModuleType):
    """What torch looks up as `torch.other`."""

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def synchronize(self) -> None:
        """The device is never behind."""

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """The device draws from the processor's generators."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]
