"""Numbers of hosts: those that machines have room for, and the one that `engine.hosts: auto` stands for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import psutil
import torch

from shoal.algorithms.protocol import MODEL
from shoal.engine.config.config import Config, device_choice
from shoal.engine.config.sections import ResourcesConfig
from shoal.engine.config.sizes import machine_cores, machine_memory
from shoal.engine.messages.job import Job
from shoal.engine.messages.models import OF_PARAMETER
from shoal.engine.rounds.sampling import Plan, most_cells
from shoal.storage.store.manifest import Manifest

# A process of a run takes so many bytes before it has data, and a visit so many times the data of its client.
OF_PROCESS, OF_VISIT = 400 << 20, 8
# Ray's object store takes the rest of a machine's free memory.
SHARE_OF_HOSTS = 0.7


class HostNumber(NamedTuple):
    """The hosts of a run, and the cores or GPUs that they compute on.

    Attributes:
        hosts: Their number; the process of a run without Ray is one.
        on_ray: They are processes of Ray.
        devices: Cores of all machines, or their GPUs.
        why: What bounds the number, in words; empty: the devices, or the user chose it.
        device: What they compute on: `core`, or `GPU`, which several hosts may share.
    """

    hosts: int
    on_ray: bool
    devices: int
    why: str = ""
    device: str = "core"

    def in_words(self) -> str:
        """Says how many hosts there are, and how many of the devices work."""
        busy = min(self.hosts, self.devices)
        words = (
            f"{f'{self.hosts:,} on Ray' if self.on_ray else 'this process'}, {busy:,} of {self.devices:,} "
            f"{self.device}{'s' if self.devices > 1 else ''} at work"
        )
        if self.device == "GPU" and self.hosts > busy > 0:
            uneven = " at most" if self.hosts % busy else ""
            words += f", each shared by {-(-self.hosts // busy)} hosts{uneven}"
        return f"{words}{f', as {self.why}' if self.why else ''}"


def host_number(config: Config, machines: Sequence[Mapping[str, float]], cells: int, of_host: int) -> HostNumber:
    """Returns the hosts of a run: as many as `engine.hosts` says, or one for each device that has work and memory.

    Args:
        machines: Resources of each by the names that Ray has for them; `memory` in bytes, where that is known.
        cells: Of the largest phase of a round.
        of_host: Bytes that a host takes.
    """
    engine, share = config.engine, resources_of(config, machines)
    cores = max(1, int(sum(machine.get("CPU", 0) for machine in machines)))
    on_ray, on_gpus = engine.backend == "ray", device_choice(config) == "cuda"
    number = HostNumber(1, on_ray, cores)
    if on_gpus:
        number = HostNumber(1, on_ray, int(sum(machine.get("GPU", 0) for machine in machines)), device="GPU")
    if not on_ray:
        return number
    if engine.hosts != "auto":
        return number._replace(hosts=engine.hosts)
    if not on_gpus:
        share = replace(share, cpus_per_host=max(share.cpus_per_host, 1.0))
    limit = math.inf if engine.memory_limit is None else engine.memory_limit
    bounded = [{**machine, "memory": min(machine.get("memory", limit), limit)} for machine in machines]
    fit, in_memory = int(room(machines, share)), int(room(bounded, share, of_host))
    hosts = max(1, min(fit, in_memory, cells))
    why = ""
    if hosts < fit:
        why = f"a round has {cells:,} cells" if cells <= in_memory else f"a host takes {of_host >> 20:,} MiB of memory"
    elif on_gpus and hosts < room(machines, replace(share, cpus_per_host=0.0)):
        why = f"a host takes {share.cpus_per_host:g} of {cores:,} cores (resources.cpus_per_host)"
    return number._replace(hosts=hosts, why=why)


def resources_of(config: Config, machines: Sequence[Mapping[str, float]]) -> ResourcesConfig:
    """Returns what hosts and server take of the machines.

    With `engine.device: cuda` and no share in the config a host has a GPU; where Ray is started for the run, and hosts
    are more than GPUs, an even part of one.
    """
    share, hosts = config.resources, config.engine.hosts
    if share.gpus_per_host or device_choice(config) == "cpu" or config.engine.backend != "ray":
        return share
    gpus = int(sum(machine.get("GPU", 0) for machine in machines) - math.ceil(share.server_gpus))
    shared = hosts != "auto" and config.ray.address is None and 0 < gpus < hosts
    return replace(share, gpus_per_host=part_of_gpu(-(-int(hosts) // gpus)) if shared else 1.0)


def part_of_gpu(hosts: int) -> float:
    """Returns the share of a GPU of each of so many hosts, rounded down to Ray's four digits."""
    return math.floor(1e4 / hosts) / 1e4


def this_machine(config: Config) -> dict[str, float]:
    """Returns the resources of this machine as Ray would count them; its GPUs, if the config has use for any."""
    free = min(psutil.virtual_memory().available, machine_memory())
    uses = config.resources.gpus_per_host or device_choice(config) == "cuda"
    gpus = torch.cuda.device_count() if uses else 0
    return {"CPU": machine_cores(), "GPU": gpus, "memory": SHARE_OF_HOSTS * free}


def cells_and_memory(job: Job, plan: Plan) -> tuple[int, int]:
    """Counts the cells of the largest phase of a round, and the bytes that a host of the job takes."""
    store = job.open_store()
    algorithm = job.algorithm()
    models = [built.flat for built in job.sketch_models(store, algorithm)[MODEL]]
    cells = most_cells(plan, job.infos(store), job.trainers(store, algorithm, models))
    computed = job.hops if job.computes_hops else 0
    return cells, memory_of_host(max(len(model.w) for model in models), largest_client(store.manifest, computed))


def memory_of_host(parameters: int, client: int) -> int:
    """Estimates the bytes of a host with a model of so many parameters, on a client with so many bytes of data."""
    return OF_PROCESS + OF_PARAMETER * parameters + OF_VISIT * client


def largest_client(manifest: Manifest, hops: int) -> int:
    """Returns the bytes of edges, features and so many hops of these, of the largest client of a store."""
    nodes, entries = (int(manifest.clients.count(what).max(initial=0)) for what in ("nodes", "entries"))
    return (1 + hops) * manifest.feature_bytes * nodes // max(1, manifest.nodes) + 4 * entries


def room(machines: Sequence[Mapping[str, float]], share: ResourcesConfig, of_host: int = 0) -> float:
    """Counts the hosts that fit the machines, with the server where it costs the fewest; 0 if it fits nowhere.

    Each host takes `of_host` bytes of memory.
    """
    rooms = []
    for number, machine in enumerate(machines):
        rest = {"CPU": machine.get("CPU", 0) - share.server_cpus, "GPU": machine.get("GPU", 0) - share.server_gpus}
        if min(rest.values()) >= 0:
            others = [*machines[:number], {**machine, **rest}, *machines[number + 1 :]]
            rooms.append(sum(places(room, share.cpus_per_host, share.gpus_per_host, of_host) for room in others))
    return max(rooms, default=0)


def places(machine: Mapping[str, float], cpus: float, gpus: float, of_host: int = 0) -> float:
    """Counts the hosts that fit one machine, by the resources that Ray counts; a share of a GPU must fit one device."""
    slack = 1e-9
    by_cpu = machine.get("CPU", 0) // (cpus - slack) if cpus else math.inf
    if of_host:
        by_cpu = min(by_cpu, machine.get("memory", math.inf) // of_host)
    if not gpus:
        return by_cpu
    devices = machine.get("GPU", 0)
    return min(by_cpu, devices * ((1 + slack) // gpus) if gpus < 1 else devices // gpus)
