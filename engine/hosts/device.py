"""The device on which a host computes: its processor, or its share of a GPU."""

import contextlib
import ctypes
import os
import socket
import threading
import time
from functools import cache

import psutil
import torch

from shoal.storage.errors import ShoalError

CONTEXT_BYTES = int(0.7 * 2**30)  # what CUDA keeps of a GPU for a process beside torch's memory
# The cache gets this part of a host's share of a GPU; the rest is for models, activations and states.
CACHE_SHARE = 0.5


def take_device(name: str, share: float, precision: str) -> torch.device:
    """Takes the device of this process, ready for use; of a GPU's memory its share, in (0, 1], is the limit.

    `name` is `cpu` or `cuda` (Ray shows a process no GPU but its own), `precision` `float32`, `tf32` or `bfloat16`.

    Raises:
        ShoalError: There is no GPU that torch can use.
        DeviceLost: It does not answer.
    """
    if name == "cpu":
        return torch.device("cpu")
    # CUDA reads it when it starts: without it no product repeats its last bits.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Clients of many sizes leave holes; segments that grow have none.
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    if not torch.cuda.is_available():
        raise ShoalError(
            "engine.device",
            "cuda",
            f"torch {torch.__version__} finds no GPU on this host; install a torch built for CUDA "
            "there, or set engine.device=cpu",
        )
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        device = torch.device("cuda", torch.cuda.current_device())
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(tensor_bytes(share, total) / total, device)
    except RuntimeError as error:
        raise does_not_answer(error) from error
    return device


def does_not_answer(error: Exception) -> "DeviceLost":
    """Makes the error of a GPU that a process cannot begin to use, with the GPU's number on its machine."""
    number = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return DeviceLost(
        "engine.device",
        "cuda",
        f"GPU {number or 0} of {socket.gethostname()} does not answer ({' '.join(str(error).split())[:200]}); "
        "leave it out of CUDA_VISIBLE_DEVICES",
    )


def tensor_bytes(share: float, total: int) -> int:
    """Computes the bytes for tensors in a share, in (0, 1], of a GPU, less what CUDA keeps; raises a ShoalError at
    none.
    """
    left = int(share * total) - CONTEXT_BYTES
    if left <= 0:
        raise ShoalError(
            "resources.gpus_per_host",
            f"{share:g} of a GPU of {total / 2**30:.1f} GiB is less than the "
            f"{CONTEXT_BYTES / 2**30:.1f} GiB that CUDA takes for a process; take a larger share and fewer hosts",
        )
    return left


def cache_bytes(device: torch.device, share: float, on_processor: int) -> int:
    """Computes the limit of a host's cache: as said on a processor, half its share of the memory for tensors on a
    GPU.
    """
    if device.type != "cuda":
        return on_processor
    return int(CACHE_SHARE * tensor_bytes(share, torch.cuda.get_device_properties(device).total_memory))


def lost(device: torch.device) -> str | None:
    """Returns why a GPU no longer answers this process; None while it does.

    After some errors, as an assertion in a kernel, every later call of the process fails with the same one: only a new
    process can use the GPU.
    """
    if device.type == "cpu":
        return None
    try:
        torch.get_device_module(device).synchronize()
    except RuntimeError as error:
        return " ".join(str(error).split())
    return None


class DeviceLost(ShoalError):
    """The GPU of this process answers no more, whatever the client."""


MOST_OF_A_CORE = 0.01
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
KEPT, LARGEST_KEPT = 2**28, 2**25


class PeakMemory:
    """A thread that samples a process tree; `peak` is the largest sum of proportional set sizes, in bytes."""

    def __init__(self, seconds: float = 2.0) -> None:
        """Starts sampling every `seconds`, or less often where a sample takes long: a look at every mapped page."""
        self.peak = 0
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.is_set():
            began = time.perf_counter()
            self.peak = max(self.peak, tree_memory())
            self._stop.wait(max(self._seconds, (time.perf_counter() - began) / MOST_OF_A_CORE))

    def stop(self) -> int:
        """Takes a last sample, the first time, and returns the peak, in bytes."""
        if self._stop.is_set():
            return self.peak
        self._stop.set()
        self._thread.join()
        self.peak = max(self.peak, tree_memory())
        return self.peak


def keep_freed_memory() -> None:
    """Lets this process keep 256 MiB of freed memory, in pieces of up to 32 MiB; does nothing without glibc.

    By itself glibc hands memory back to the system between two steps of training: a page fault for every 4 KiB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, KEPT)
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)


OF_MALLINFO = (
    "arena",
    "ordblks",
    "smblks",
    "hblks",
    "hblkhd",
    "usmblks",
    "fsmblks",
    "uordblks",
    "fordblks",
    "keepcost",
)


class _MallInfo2(ctypes.Structure):
    """A record as `mallinfo2` of glibc gives it; `fordblks` are bytes of free pieces."""

    _fields_ = [(name, ctypes.c_size_t) for name in OF_MALLINFO]


def give_back_memory(keep: int = KEPT) -> None:
    """Gives freed pieces back to the system where they are twice `keep` bytes; does nothing without glibc 2.33.

    States of large models leave holes between them, which only tensors of the same size fill again.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallinfo2"):
        libc.mallinfo2.restype = _MallInfo2
        if libc.mallinfo2().fordblks > 2 * keep:
            libc.malloc_trim(keep)


def resident() -> int:
    """Reads the bytes that this process has in memory, mapped files included."""
    return _process(os.getpid()).memory_info().rss


@cache
def _process(number: int) -> psutil.Process:
    """Returns the process of a number; to open it takes longer than to read its memory."""
    return psutil.Process(number)


def tree_memory(pid: int | None = None) -> int:
    """Sums proportional set sizes of a process (default: this one) and its descendants, in bytes; 0 if it has ended."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(pid)
        for process in [first, *first.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, AttributeError):
                total += process.memory_full_info().pss
    return total
