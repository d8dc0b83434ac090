"""Ray: starts it or joins a cluster, checks that the hosts fit, and places them."""

import logging
import math
import os
import secrets
import signal
import socket
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import numpy as np
import psutil
import ray
import torch
from ray._private import ray_constants, services
from ray._private.state import available_resources_per_node
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from shoal.engine.cluster.raylet import RayletEnded, has_ended, why_ended
from shoal.engine.cluster.room import part_of_gpu, resources_of, room
from shoal.engine.config.config import Config, ResourcesConfig
from shoal.engine.config.sizes import machine_cores
from shoal.engine.records.at_work import end_process
from shoal.engine.screen.interrupt import end_children
from shoal.engine.screen.progress import say
from shoal.storage.errors import ShoalError
from shoal.storage.files.places import cache_folder, remove_temporary, short_folder

TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
CONNECT_SECONDS = 10
START_SECONDS, SECONDS_IN_SILENCE, SECONDS_BETWEEN_LOOKS, SECONDS_BETWEEN_LINES = 120.0, 15.0, 0.2, 30.0
# Ray looks for its raylet for ten seconds at a time.
SECONDS_TO_LEAVE = 15.0
# On a busy machine Ray's helpers may be slow to start; the second time their files are in memory.
TRIES = 2
# A socket has at most 107 bytes, of which Ray names 66 below its folder.
LONGEST_FOLDER = 41
# Small outcomes go straight to the server: the object store would cost the raylet more time. Reports of tasks, timings
# and metrics have no reader in a cluster that ends with the command.
PRIVATE = {
    "max_direct_call_object_size": 2**20,
    "task_events_report_interval_ms": 0,
    "enable_timeline": False,
    "enable_metrics_collection": False,
}


def connect(config: Config) -> "Patience":
    """Starts Ray or joins the cluster of `ray.address`, and waits for machines; returns the rest of the time for that.

    Raises ShoalError: there is no cluster, or too little room: in a cluster that is joined, not for a single host.
    """
    address = config.ray.address
    _token(joining=address is not None)
    # Ray's own messages would drown the table; errors still come through as exceptions.
    always: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    # Every run has another namespace, since two runs on one cluster have actors of the same names.
    always["namespace"] = f"shoal-{config.name}-{secrets.token_hex(3)}"
    always["runtime_env"] = environment = dict(config.ray.runtime_env.items())
    try:
        _probe(address)
        if address is None:
            _start(always)
        else:
            environment["py_modules"] = [*environment.get("py_modules", ()), _package()]
            with _signals_kept(), _in_time(address):
                ray.init(address=address, **always)
    except Exception as error:
        remove_temporary()
        if isinstance(error, ShoalError):
            raise
        reason = " ".join(str(error).split())[:300]
        raise ShoalError(
            "ray.address",
            f"no Ray cluster can be reached at {address or 'this machine'} ({reason}); start one with "
            "`ray start --head`, set RAY_AUTH_TOKEN_PATH as there, or leave ray.address null",
        ) from error
    share_tensors()
    try:
        return _await_room(config)
    except ShoalError:
        ray.shutdown()
        remove_temporary()
        raise


class NotStarted(ShoalError):
    """Ray does not start on this machine, though nothing is wrong with the config."""


def raylet_fault() -> str:
    """Returns a line that says why the raylet of this process's Ray has ended."""
    return f"{why_ended(_folder)}, and use --resume"


# The folder of the Ray that this process started last, and the processes that this process started for it.
_folder: Path | None = None
_started: list[psutil.Process] = []


def _start(always: Mapping[str, Any]) -> None:
    """Starts a Ray on this machine, a second time if its raylet ends meanwhile. Raises NotStarted: both have failed."""
    global _folder, _started
    for number in range(1, TRIES + 1):
        earlier = {child.pid for child in psutil.Process().children()}
        _folder = short_folder("ray-", LONGEST_FOLDER)
        # Without an address Ray would join the cluster that was started on this machine last. It listens on the
        # loopback address, since it takes no other machines.
        private = {"include_dashboard": False, "_system_config": PRIVATE, "_temp_dir": str(_folder)}
        look = services.get_node

        def find_node(*where: Any) -> Any:
            # Ray itself would ask for 30 s, of a raylet that is slow, and of one that has ended.
            while True:
                if has_ended(earlier):  # noqa: B023
                    raise RayletEnded
                try:
                    return look(*where)  # noqa: B023
                except RuntimeError:
                    time.sleep(SECONDS_BETWEEN_LOOKS)

        try:
            with (
                _signals_kept(),
                _in_time("this machine"),
                patch.object(services, "get_node", find_node),
                patch.object(ray_constants, "ENABLE_RAY_CLUSTER", False),
            ):
                ray.init(address="local", **private, **always)
            _started = [child for child in psutil.Process().children() if child.pid not in earlier]
            return
        except RayletEnded:
            fault = why_ended(_folder)
            ray.shutdown()
            end_children(earlier)
            if number == TRIES:
                raise NotStarted("ray", f"{fault}; tried {TRIES} times; engine.backend=local needs no Ray") from None
            say(f"Ray did not start: {fault}; trying again")


def disconnect(config: Config) -> None:
    """Leaves the cluster of `ray.address`, or ends the Ray that `connect` started."""
    # Other children, as the service of Weights & Biases, work to the end of the command.
    of_ray = []
    for process in _started if config.ray.address is None else ():
        with suppress(psutil.Error):
            of_ray += [*process.children(recursive=True), process]
    ray.shutdown()
    # Ray ends its processes, but if some of them were killed it leaves others behind.
    for process in of_ray:
        with suppress(psutil.Error):
            process.kill()
    remove_temporary()


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Keeps the handler of SIGTERM inside of the block, and SIGHUP from all processes that start there.

    Ray installs a handler that raises. Raised in a callback of a fork, its exception is lost, and the run ignores the
    signal. A terminal that is closed sends SIGHUP to every process: without Ray a run could not write a checkpoint.
    """
    change = signal.signal

    def keep(number: int, handler: Any) -> Any:
        return signal.getsignal(number) if number == signal.SIGTERM else change(number, handler)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        with patch.object(signal, "signal", keep):
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _in_time(where: str) -> Iterator[None]:
    """Says, inside of the block, what is waited for; ends the process after a limit, or when its raylet ends.

    Ray itself waits for minutes, in no way to interrupt, or ends the process without a word.
    """
    done = threading.Event()
    earlier = {child.pid for child in psutil.Process().children()}

    def watch() -> None:
        began, announced = time.monotonic(), False
        while not done.wait(SECONDS_BETWEEN_LOOKS):
            waited = time.monotonic() - began
            # An interrupt ends Ray's processes first and this one soon after, so that it has some time.
            if has_ended(earlier) and not done.wait(SECONDS_TO_LEAVE):
                _end(raylet_fault())
            if waited > START_SECONDS:
                _end(f"did not start at {where} in {START_SECONDS:.0f} s; look there, or set engine.backend=local")
            if waited > SECONDS_IN_SILENCE and not announced:
                announced = True
                say(f"waiting for Ray at {where}, {START_SECONDS:.0f} s at most")

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _end(line: str) -> NoReturn:
    say(f"shoal: ray: {line}")
    end_children()
    end_process(2)


def _probe(address: str | None) -> None:
    """Tries the port of an address: Ray itself would wait for minutes if nothing listens there."""
    if address is None:
        try:
            with socket.create_server(("127.0.0.1", 0)) as server:
                socket.create_connection(server.getsockname(), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            raise ShoalError(
                "ray",
                f"its processes cannot reach one another at 127.0.0.1 ({error.strerror or error}); switch it "
                "on (`ip link set lo up`), or set engine.backend=local",
            ) from error
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.removeprefix("ray://"), int(port)), timeout=CONNECT_SECONDS).close()


def _token(joining: bool) -> None:
    """Writes the token of a Ray that starts here to a file that only its owner can read, as Ray itself would not.

    Raises ShoalError: the file of the token of a cluster is not there.
    """
    path = os.environ.get(TOKEN_PATH)
    if joining:
        if path is not None and not Path(path).exists():
            raise ShoalError(TOKEN_PATH, Path(path), "no such file; copy the token of the cluster there")
        return
    if path is None:
        path = str(cache_folder() / "ray_token")
        os.environ[TOKEN_PATH] = path
    if not Path(path).exists():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as f:
            f.write(secrets.token_hex(32))


def _package() -> str:
    """Returns the folder of the package, which Ray ships to machines that may lack it; links in it become folders."""
    return str(Path(__file__).absolute().parents[2])


def share_tensors() -> None:
    """Makes Ray send this process's CPU tensors as NumPy arrays, which readers map without a copy."""
    ray.util.register_serializer(torch.Tensor, serializer=_to_array, deserializer=_from_array)
    with warnings.catch_warnings():
        # Shared memory is read-only, and no reader writes into a received tensor. Torch warns once in a process.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        _from_array(np.frombuffer(bytes(1), dtype=np.uint8))


def _to_array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()


def _from_array(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array)


def _await_room(config: Config) -> "Patience":
    """Waits for machines with room for all hosts in a cluster that is joined; after that takes those that it has.

    Where the number is to follow from the cluster, it waits for room for one.
    """
    joined = config.ray.address is not None
    hosts = 1 if config.engine.hosts == "auto" else config.engine.hosts
    waits = Patience(config.ray.start_timeout)
    asked = False
    try:
        while (fit := room(machines := free_machines(config), share := resources_of(config, machines))) < hosts:
            missing = _missing(fit, machines, share)
            if not (joined and waits.on(f"{hosts} hosts: {missing}")):
                if joined and fit >= 1:
                    break
                way = f"use fewer hosts or {_smaller(hosts, machines, share)}"
                if not config.resources.gpus_per_host and share.gpus_per_host > _gpus(machines):
                    way = "set engine.device=cpu, or join a cluster with GPUs by ray.address"
                raise ShoalError(
                    f"engine.hosts {config.engine.hosts} with resources.cpus_per_host {share.cpus_per_host:g} and "
                    f"gpus_per_host {share.gpus_per_host:g}: {missing}; {way}"
                )
            if not asked:
                _ask_autoscaler(hosts, share)
                asked = True
            time.sleep(0.5)
        return waits
    finally:
        # The request keeps machines for hosts that start now. If the run ends here, none are needed any more.
        if asked:
            _ask_autoscaler(0, share)


def free_machines(config: Config) -> list[dict[str, float]]:
    """Lists the resources of each machine; where the number of hosts follows from them, what no other run has taken."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    if config.engine.hosts != "auto":
        return [node["Resources"] for node in alive]
    if config.ray.address is None:
        # Ray does not know which cores this process may use.
        return [{**node["Resources"], "CPU": min(machine_cores(), node["Resources"].get("CPU", 0))} for node in alive]
    free = available_resources_per_node()
    return [free.get(node["NodeID"], {}) for node in alive]


def _missing(fit: float, machines: Sequence[Mapping[str, float]], share: ResourcesConfig) -> str:
    have = ", ".join(f"{sum(machine.get(kind, 0) for machine in machines):g} {kind}" for kind in ("CPU", "GPU"))
    beside = f" beside the server (resources.server_cpus {share.server_cpus:g}, server_gpus {share.server_gpus:g})"
    return (
        f"the cluster has room for {fit:g}{beside if share.server_cpus or share.server_gpus else ''} "
        f"({len(machines)} machines, {have})"
    )


def _smaller(hosts: int, machines: Sequence[Mapping[str, float]], share: ResourcesConfig) -> str:
    """Returns the share of a GPU with which the hosts fit, in words; that shares be smaller, if there is none."""
    gpus = int(_gpus(machines))
    if share.gpus_per_host and 0 < gpus < hosts:
        of_each = -(-hosts // gpus)
        if room(machines, replace(share, gpus_per_host=(part := part_of_gpu(of_each)))) >= hosts:
            return f"let {of_each} share a GPU, with resources.gpus_per_host={part:g}"
    return "smaller shares"


def _gpus(machines: Sequence[Mapping[str, float]]) -> float:
    return sum(machine.get("GPU", 0) for machine in machines)


def _ask_autoscaler(hosts: int, share: ResourcesConfig) -> None:
    """Asks for machines for so many hosts, which replaces earlier requests; without an autoscaler nothing happens."""
    from ray.autoscaler.sdk import request_resources  # only where something is missing: takes half a second

    bundle = {"CPU": share.cpus_per_host, "GPU": share.gpus_per_host}
    request_resources(bundles=[{kind: count for kind, count in bundle.items() if count}] * hosts)


class Patience:
    """A limit for waiting, which says every half a minute what is waited for."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = time.monotonic()
        self._next = SECONDS_IN_SILENCE

    def on(self, what: str) -> bool:
        """Returns whether to wait on, and says so from time to time."""
        waited = time.monotonic() - self._began
        if waited >= self._seconds:
            return False
        if waited >= self._next:
            self._next = waited + SECONDS_BETWEEN_LINES
            say(f"waiting for {what}; {self._seconds - waited:.0f} s more (ray.start_timeout)")
        return True


# Ray reserves free GPUs within milliseconds, so that these seconds are enough.
SECONDS_TO_RESERVE = 10.0


def gpu_places(count: int, cpus: float, gpus: float, server_gpus: float = 0.0) -> list[Any]:
    """Spreads hosts evenly over GPUs: one scheduling strategy a host; nothing where there is no choice.

    There is none without shares, with one host, or with fewer than two free GPUs. A bundle of a placement group
    reserves each shared GPU whole, for as long as the hosts live. `cpus` and `gpus` are those of one host.
    """
    free = math.floor(ray.available_resources().get("GPU", 0.0) - math.ceil(server_gpus))
    several = min(count, free)
    if not 0 < gpus < 1 or several < 2 or several * math.floor(1 / gpus + 1e-9) < count:
        return []
    of_each = [len(range(number, count, several)) for number in range(several)]
    bundles = [{"GPU": 1.0, **({"CPU": cpus * hosts} if cpus else {})} for hosts in of_each]
    group = placement_group(bundles, strategy="SPREAD")
    if not group.wait(SECONDS_TO_RESERVE):
        remove_placement_group(group)
        return []
    return [PlacementGroupSchedulingStrategy(group, host % several) for host in range(count)]
