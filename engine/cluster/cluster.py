"""Ray: started on this machine or joined, and asked for what a run needs before anything else happens."""

import logging
import math
import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ray
from ray.exceptions import RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from shoal.engine.cluster import tensor_transport
from shoal.engine.config.config import Config, ResourcesConfig
from shoal.storage.errors import ShoalError

TOKEN_PATH = "RAY_AUTH_TOKEN_PATH"
CONNECT_SECONDS = 10
# Small outcomes go straight to the server: through the object store they cost the raylet more time. What Ray would
# report of tasks, timings and metrics has no reader in a cluster that ends with the command.
PRIVATE = {
    "max_direct_call_object_size": 2**20,
    "task_events_report_interval_ms": 0,
    "enable_timeline": False,
    "enable_metrics_collection": False,
}


def connect(config: Config) -> None:
    """Starts Ray or joins the cluster of `ray.address`, then compares the run's requests with what there is.

    Raises:
        ShoalError: No cluster at the address, or one too small for the hosts.
    """
    _token(joining=config.ray.address is not None)
    _probe(config.ray.address)
    # Ray's own messages would drown the table; errors still come through as exceptions.
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
    try:
        with _sigterm_kept():
            if config.ray.address is None:
                # Without an address Ray would join whatever cluster was started on this machine last.
                ray.init(address="local", include_dashboard=False, _system_config=PRIVATE, **quiet)
            else:
                ray.init(address=config.ray.address, runtime_env={"py_modules": [_package()]}, **quiet)
    except Exception as error:
        raise _unreachable(config.ray.address or "this machine", error) from error
    tensor_transport.register()
    try:
        _require_resources(config)
    except ShoalError:
        ray.shutdown()
        raise


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Nobody changes what SIGTERM does meanwhile.

    Ray would take it while it starts, and answer with an exception; one that is raised in a callback of a fork, of
    which it does many, is printed and lost, and the run goes on as if nobody had asked it to stop.
    """
    change = signal.signal

    def keep(number: int, handler: Any) -> Any:
        return signal.getsignal(number) if number == signal.SIGTERM else change(number, handler)

    with patch.object(signal, "signal", keep):
        yield


def _probe(address: str | None) -> None:
    """Asks the port first: Ray itself would wait for minutes where nobody listens."""
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isdigit():
        try:
            socket.create_connection((host.removeprefix("ray://"), int(port)), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            raise _unreachable(str(address), error) from error


def _unreachable(where: str, error: Exception) -> ShoalError:
    reason = " ".join(str(error).split())[:300]
    return ShoalError(
        f"ray.address: no Ray cluster can be reached at {where} ({reason}); start one with `ray start --head`, "
        "set RAY_AUTH_TOKEN_PATH as there, or leave ray.address null"
    )


def _token(joining: bool) -> None:
    """Keeps Ray's token in a file that only its owner can read; Ray itself would write it readable to all."""
    path = os.environ.get(TOKEN_PATH)
    if path is None:
        if joining:
            return
        path = str(Path("~/.cache/shoal/ray_token").expanduser())
        os.environ[TOKEN_PATH] = path
    if not Path(path).exists():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as f:
            f.write(secrets.token_hex(32))


def _package() -> str:
    """The package, shipped to a cluster whose machines may not have it."""
    return str(Path(__file__).absolute().parents[2])


def _require_resources(config: Config) -> None:
    """Hosts that can never be placed would wait for ever without an error."""
    share = config.resources
    deadline = time.monotonic() + (10 if config.ray.address else 0)
    while True:
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        room = _room(machines, share)
        if room >= config.engine.hosts:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    have = ", ".join(f"{sum(machine.get(kind, 0) for machine in machines):g} {kind}" for kind in ("CPU", "GPU"))
    beside = f" beside the server (resources.server_cpus {share.server_cpus:g}, server_gpus {share.server_gpus:g})"
    raise ShoalError(
        f"engine.hosts {config.engine.hosts} with resources.cpus_per_host {share.cpus_per_host:g} and gpus_per_host "
        f"{share.gpus_per_host:g}: the cluster has room for {room:g}"
        f"{beside if share.server_cpus or share.server_gpus else ''} ({len(machines)} machines, {have}); "
        "use fewer hosts or smaller shares"
    )


def _room(machines: Sequence[Mapping[str, float]], share: ResourcesConfig) -> float:
    """How many hosts fit the machines, the server standing where it takes the least room; 0 if it fits nowhere."""
    buffers = []
    for number, machine in enumerate(machines):
        left = {
            "CPU": machine.get("CPU", 0) - share.server_cpus,
            "GPU": machine.get("GPU", 0) - share.server_gpus,
        }
        if min(left.values()) >= 0:
            beside = [*machines[:number], left, *machines[number + 1 :]]
            buffers.append(sum(places(one, share.cpus_per_host, share.gpus_per_host) for one in beside))
    return max(buffers, default=0)


def places(machine: Mapping[str, float], cpus: float, gpus: float) -> float:
    """How many hosts fit one machine with the resources that Ray counts; a share of a GPU must fit one device."""
    slack = 1e-9
    by_cpu = machine.get("CPU", 0) // (cpus - slack) if cpus else math.inf
    if not gpus:
        return by_cpu
    devices = machine.get("GPU", 0)
    return min(by_cpu, devices * ((1 + slack) // gpus) if gpus < 1 else devices // gpus)


SECONDS_BETWEEN_LOOKS = 5.0
SECONDS_GONE = 20.0
SECONDS_TO_ANSWER = 2.0


class ClusterHealth:
    """Looks now and then whether the control service (GCS) answers, and whether this machine is still a part."""

    def __init__(self) -> None:
        """Of the cluster that this process is connected to."""
        context = ray.get_runtime_context()
        host, _, port = context.gcs_address.rpartition(":")
        self._address, self._node = (host.strip("[]"), int(port)), context.get_node_id()
        self._answered = self._looked = time.monotonic()

    def require(self) -> None:
        """Looks, unless it just did.

        Raises:
            ShoalError: The control service is gone for some time, or Ray's process on this machine (raylet) has ended.
        """
        now = time.monotonic()
        if now - self._looked < SECONDS_BETWEEN_LOOKS:
            return
        self._looked = now
        if self._answers():
            self._answered = time.monotonic()
            self.require_machine()
        elif now - self._answered > SECONDS_GONE:
            host, port = self._address
            raise ShoalError(
                f"ray: the control service of the cluster (GCS) at {host}:{port} has not answered for "
                f"{now - self._answered:.0f} s; start the cluster again and use --resume"
            )

    def require_machine(self) -> None:
        """Looks for this machine in the cluster.

        Raises:
            ShoalError: It is no part of it any more.
        """
        if not self._answers():
            return
        try:
            nodes = ray.nodes()
        except RayError:
            return
        if not any(node["Alive"] for node in nodes if node["NodeID"] == self._node):
            raise ShoalError(
                "ray: the process of Ray on this machine (raylet) has ended; look for lack of memory, and use --resume"
            )

    def _answers(self) -> bool:
        try:
            socket.create_connection(self._address, timeout=SECONDS_TO_ANSWER).close()
        except OSError:
            return False
        return True


# GPUs that nobody uses are there at once.
SECONDS = 10.0


def gpu_places(count: int, cpus: float, gpus: float, server_gpus: float = 0.0) -> list[Any]:
    """Where hosts go so that each GPU has as many of them as the next, or one less: scheduling strategies, one a host.

    Each GPU that they share is reserved whole, by a bundle of a placement group, for as long as the hosts live.

    Args:
        count: How many hosts.
        cpus: CPUs of each.
        gpus: Share of a GPU of each.
        server_gpus: What the server takes of the GPUs beside them.

    Returns:
        Nothing where there is nothing to choose: no shares, one host, or not several GPUs that nobody uses.
    """
    free = math.floor(ray.available_resources().get("GPU", 0.0) - math.ceil(server_gpus))
    several = min(count, free)
    if not 0 < gpus < 1 or several < 2 or several * math.floor(1 / gpus + 1e-9) < count:
        return []
    of_each = [len(range(number, count, several)) for number in range(several)]
    bundles = [{"GPU": 1.0, **({"CPU": cpus * hosts} if cpus else {})} for hosts in of_each]
    group = placement_group(bundles, strategy="SPREAD")
    if not group.wait(SECONDS):
        remove_placement_group(group)
        return []
    return [PlacementGroupSchedulingStrategy(group, host % several) for host in range(count)]
