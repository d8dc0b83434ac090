"""The order of an asynchronous run in simulated time: who starts when from which model, and which uploads make a step.

Work is known by formula, so all of it is known before anyone trains. The server's link is a queue in each direction, as
in synchronous rounds; what the server computes, and evaluations, take no time here.
"""

import heapq
from dataclasses import dataclass

import numpy as np

from shoal.algorithms.rng import key
from shoal.engine.config.round_sections import FEDASYNC, ScheduleOptions
from shoal.engine.simulation.schedule import DEVICES, Classes, Fleet, read_classes, read_network
from shoal.storage.errors import ShoalError


@dataclass(frozen=True)
class Asynchronous:
    """What a run that is not synchronous needs of its config: options, classes of devices, and those of links."""

    options: ScheduleOptions
    devices: Classes
    network: Classes | None

    @classmethod
    def of(cls, options: ScheduleOptions, clients: int) -> "Asynchronous":
        """Reads both files. Raises ShoalError: one is wrong, or there are fewer clients than a key asks for."""
        for name, count in (("concurrency", options.concurrency), ("buffer", options.in_step)):
            if count > clients:
                raise ShoalError(f"schedule.{name}", f"{count} of {clients} clients; choose from 1 to {clients}")
        return cls(options, read_classes(options.devices, "devices", DEVICES), read_network(options.network))

    def fleet(self, clients: int) -> Fleet:
        """Devices and links of so many clients; a ShoalError: the network has no server."""
        return Fleet.of(self.devices, self.network, clients, self.options.seed)


@dataclass(frozen=True)
class Timeline:
    """The first T steps of a server, of m uploads each, of different clients.

    Attributes:
        client: Clients of a step, ascending, int64 `[T, m]`.
        start: The step after which each of them began, with the model of that step; 0: the initial one. `[T, m]`.
        seconds: When a step is, float64 `[T]`.
        unfinished: The same as `start`, of those who train after the last step.
    """

    client: np.ndarray
    start: np.ndarray
    seconds: np.ndarray
    unfinished: np.ndarray


def timeline(
    options: ScheduleOptions, steps: int, fleet: Fleet, compute: np.ndarray, size: tuple[float, float], seed: int
) -> Timeline:
    """Runs the events of all steps; `compute` are seconds of every client `[B]`, `size` bytes of a message down and up.

    Whenever fewer clients than `concurrency` train, others begin, drawn uniformly among those who neither train nor
    wait in the buffer, keyed by the run's seed and the step: those who begin together after a step are the cohort that
    a synchronous round of as many would have. What happens at the same moment happens before anyone begins.
    """
    count, (down, up) = options.in_step, size
    idle, begun = np.ones(len(compute), dtype=bool), np.zeros(len(compute), dtype=np.int64)
    client, start = np.zeros((2, steps, count), dtype=np.int64)
    seconds = np.zeros(steps)
    # Time, client, and whether its upload is at the server, or else in front of the server's link.
    events: list[tuple[float, int, bool]] = []
    training, buffer = set[int](), list[int]()
    sent = received = now = 0.0
    step = draws = 0
    while True:
        present = np.flatnonzero(idle)
        if free := min(options.concurrency - len(training), len(present)):
            rng = np.random.default_rng(key(seed, step + 1, "cohort", *([draws] if draws else [])))
            drawn = present if free == len(present) else rng.choice(present, size=free, replace=False)
            draws += 1
            for i in sorted(drawn.tolist()):
                sent = max(now, sent) + down / fleet.server_up
                messages = 2 * fleet.latency[i] + down / fleet.down[i] + up / fleet.up[i]
                heapq.heappush(events, (sent + messages + compute[i], i, False))
                idle[i], begun[i] = False, step
                training.add(i)
        now = events[0][0]
        while events and events[0][0] == now:
            _, i, arrived = heapq.heappop(events)
            if not arrived:
                received = max(now, received) + up / fleet.server_down
                heapq.heappush(events, (received, i, True))
                continue
            training.remove(i)
            buffer.append(i)
            if len(buffer) == count:
                client[step], seconds[step] = sorted(buffer), now
                start[step] = begun[client[step]]
                idle[buffer] = True
                buffer, step, draws = [], step + 1, 0
            if step == steps:
                return Timeline(client, start, seconds, begun[sorted(training)])


def weight(options: ScheduleOptions, staleness: int) -> float:
    """The weight of an upload by the steps since its client began, 1 for none (Xie et al., 2019,
    section 5.2: polynomial and hinge; FedBuff's is polynomial with a = 1/2). With fedasync `mixing` times it.
    """
    later = max(staleness - options.b, 0)
    forms = {"constant": 1.0, "polynomial": (1.0 + staleness) ** -options.a, "hinge": 1 / (options.a * later + 1)}
    return forms[options.staleness] * (options.mixing if options.name == FEDASYNC else 1.0)
