"""Hosts as Ray actors, spread over the machines of a cluster."""

import os
import traceback
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from shoal.algorithms.protocol import Tree
from shoal.engine.cluster.cluster import gpu_places, share_tensors
from shoal.engine.cluster.roster import DataLocality, local_clients
from shoal.engine.hosts.device import DeviceLost, resident
from shoal.engine.hosts.host import Host
from shoal.engine.messages.cell import Cell, Outcome
from shoal.engine.messages.job import Job
from shoal.storage.errors import ShoalError

START_SECONDS = 120.0


class HostActor(Host):
    """A host as a Ray actor."""

    def __init__(self) -> None:
        super().__init__()
        share_tensors()

    def ping(self) -> int:
        """Process id of the host, once it is up."""
        return os.getpid()

    def run_call(self, job_id: str, cells: Sequence[Cell], shared: Tree) -> list[Outcome | None]:
        """Runs the cells of one call; their outcomes have the memory that the process holds afterwards.

        A process whose GPU no longer answers ends itself: Ray starts a new one, and the cells run again.
        """
        try:
            outcomes = list(self.run_cells(job_id, cells, shared))
        except DeviceLost:
            traceback.print_exc()
            os._exit(1)
        held = resident()
        for outcome in outcomes:
            if outcome is not None:
                outcome.memory = held
        return outcomes

    def enter(self, job: Job) -> DataLocality:
        """Opens a job, unless its machine has the files of no client; returns the clients whose files it has."""
        locality = local_clients(job, ray.util.get_node_ip_address())
        if locality.clients:
            self.open(job)
        return locality


def start_hosts(count: int, cpus: float, gpus: float, server_gpus: float = 0.0) -> list[Any]:
    """Starts host actors, which Ray restarts when they die; `await_hosts` waits for them."""
    places = gpu_places(count, cpus, gpus, server_gpus) or ["SPREAD"] * count
    actor = ray.remote(HostActor)
    return [
        actor.options(
            num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=0, scheduling_strategy=place
        ).remote()
        for place in places
    ]


def await_hosts(hosts: Sequence[Any]) -> None:
    """Waits until all hosts are up for the first time; raises a ShoalError if they are not in time."""
    try:
        ray.get([host.ping.remote() for host in hosts], timeout=START_SECONDS)
    except (GetTimeoutError, RayError) as error:
        raise ShoalError(
            "engine.hosts", f"{len(hosts)} host actors did not start ({' '.join(str(error).split())[:200]})"
        ) from error
