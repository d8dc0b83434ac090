"""The order of an asynchronous run in simulated time: who starts when from which model, and which uploads make a step.

Work is known by formula, so all of it is known before anyone trains. The server's link is a queue in each direction, as
in synchronous rounds; what the server computes, and evaluations, take no time here.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.algorithms.rng import key
from shoal.engine.config.round_sections import ParticipationOptions
from shoal.engine.schedules.asynchronous.section import FEDASYNC, TIERS, StepOptions
from shoal.engine.simulation.schedule import Fleet

EVERYBODY = ParticipationOptions()


@dataclass(frozen=True)
class Timeline:
    """The first T steps of a server, each of uploads of m different clients; with tiers m depends on the step.

    Attributes:
        client: Clients of each step, ascending, int64 `[m]`.
        start: The step after which each of them began, with the model of that step; 0: the initial one. `[m]`.
        group: The tier of each step, from 0, the fastest, int64 `[T]`; without tiers 0.
        seconds: When a step is, float64 `[T]`.
        unfinished: The same as `start`, of those who train after the last step.
    """

    client: Sequence[np.ndarray]
    start: Sequence[np.ndarray]
    group: np.ndarray
    seconds: np.ndarray
    unfinished: np.ndarray


def tiers_of(count: int, alone: np.ndarray) -> list[np.ndarray]:
    """Divides clients into so many groups by the seconds of a visit alone, float64 `[B]`: the fastest first, ascending
    in each, of sizes that differ by one at most.
    """
    return [np.sort(group) for group in np.array_split(np.argsort(alone, kind="stable"), count)]


def tier_weights(updates: np.ndarray) -> np.ndarray:
    """Returns the weights of tiers, float64 `[M]`, by their updates so far, int64 `[M]`: T_(M+1-m) / T for the one with
    the m-th most (Chai et al., 2021, equation 4), so that the one with the fewest counts most. Of equals the faster is
    first.
    """
    order = np.argsort(-updates, kind="stable")
    share = np.empty(len(updates))
    share[order] = updates[order[::-1]] / updates.sum()
    return share


def timeline(
    options: StepOptions,
    steps: int,
    fleet: Fleet,
    compute: np.ndarray,
    size: tuple[float, float],
    seed: int,
    cohort: ParticipationOptions = EVERYBODY,
) -> Timeline:
    """Runs the events of all steps; `compute` are seconds of every client `[B]`, `size` bytes of a message down and up.

    Whenever fewer clients than `concurrency` train, others begin, drawn uniformly among those who neither train nor
    wait in the buffer, keyed by the run's seed and the step: those who begin together after a step are the cohort that
    a synchronous round of as many would have. What happens at the same moment happens before anyone begins.

    With tiers each has a buffer of its own, for a cohort that is drawn when no client of the tier trains or waits.
    """
    (down, up), in_tiers = size, options.name == TIERS
    idle, begun = np.ones(len(compute), dtype=bool), np.zeros(len(compute), dtype=np.int64)
    messages = 2 * fleet.latency + down / fleet.down + up / fleet.up
    groups, counts, most = [np.arange(len(compute))], [options.in_step], [options.concurrency]
    if in_tiers:
        groups = tiers_of(options.tiers, messages + compute)
        counts = most = [cohort.size(len(members)) for members in groups]
    tier = np.zeros(len(compute), dtype=np.int64)
    for number, members in enumerate(groups):
        tier[members] = number
    client, start = list[np.ndarray](), list[np.ndarray]()
    seconds, group = np.zeros(steps), np.zeros(steps, dtype=np.int64)
    # An event has time, client, and whether its upload is at the server, or else in front of the server's link.
    events: list[tuple[float, int, bool]] = []
    training, buffers = [0] * len(groups), [list[int]() for _ in groups]
    sent = received = now = 0.0
    step = draws = 0
    while True:
        for number, members in enumerate(groups):
            present = members[idle[members]]
            free = min(most[number] - training[number], len(present))
            if not free or (in_tiers and len(present) < len(members)):
                continue
            rng = np.random.default_rng(key(seed, step + 1, "cohort", *([draws] if draws else [])))
            drawn = present if free == len(present) else rng.choice(present, size=free, replace=False)
            draws += 1
            for i in sorted(drawn.tolist()):
                sent = max(now, sent) + down / fleet.server_up
                heapq.heappush(events, (sent + messages[i] + compute[i], i, False))
                idle[i], begun[i] = False, step
            training[number] += free
        now = events[0][0]
        while events and events[0][0] == now:
            _, i, arrived = heapq.heappop(events)
            if not arrived:
                received = max(now, received) + up / fleet.server_down
                heapq.heappush(events, (received, i, True))
                continue
            number = tier[i]
            training[number] -= 1
            buffers[number].append(i)
            if len(buffers[number]) == counts[number]:
                client.append(np.sort(buffers[number]))
                start.append(begun[client[step]])
                seconds[step], group[step], idle[client[step]] = now, number, True
                buffers[number], step, draws = [], step + 1, 0
            if step == steps:
                return Timeline(client, start, group, seconds, begun[~idle])


def weight(options: StepOptions, staleness: int) -> float:
    """Returns the weight of an upload by the steps since its client began, 1 for none (Xie et al., 2019, section 5.2:
    polynomial and hinge; FedBuff's is polynomial with a = 1/2). With fedasync `mixing` times it.
    """
    later = max(staleness - options.b, 0)
    forms = {"constant": 1.0, "polynomial": (1.0 + staleness) ** -options.a, "hinge": 1 / (options.a * later + 1)}
    return forms[options.staleness] * (options.mixing if options.name == FEDASYNC else 1.0)
