"""Asynchronous rounds in front of a method: FedAsync (Xie et al., 2019), FedBuff (Nguyen et al., AISTATS 2022) and the
tiers of FedAT (Chai et al., SC 2021).

A round is a step of the server. Its uploads come from clients that began with the model w_v of some earlier step, and
stand for changes of the newest model w: an upload w_i counts as w + s (w_i - w_v), with FedAsync as w + s (w_i - w),
where s is the weight of its staleness. The method sees their mean as ever, so that one that averages a single model
needs no other server part. An upload of weight 1 that is not stale is taken as it is.

With tiers a step takes the uploads of a cohort of one tier, all of one model w_v, as they are. Their mean is the tier's
model, and the method sees the mean of all tiers' models, with the weights of `tier_weights`; a tier without a step has
the initial one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from shoal.algorithms.base import Algorithm
from shoal.algorithms.protocol import Replies, Tree, Upload
from shoal.engine.config.config import Config
from shoal.engine.config.round_sections import ParticipationOptions
from shoal.engine.messages.job import Job
from shoal.engine.messages.models import BuiltModel
from shoal.engine.rounds.costs import SIMULATED
from shoal.engine.rounds.sampling import Drawn, Plan, Schedule
from shoal.engine.schedules.asynchronous.events import Timeline, tier_weights, timeline, weight
from shoal.engine.schedules.asynchronous.section import ASYNCHRONOUS, FEDASYNC, FEDBUFF, TIERS, StepOptions
from shoal.engine.schedules.late_uploads import KEY, LateExchange, Visits, staleness_of
from shoal.engine.schedules.schedules import Chosen
from shoal.engine.simulation.schedule import DEVICES, Classes, Fleet, read_classes, read_network
from shoal.engine.simulation.work import work_of
from shoal.storage.errors import ShoalError
from shoal.storage.store.store import Store

# A number, and the weight of an upload, take so many bytes.
FLOAT = 4


class Asynchronous(Schedule):
    """A schedule whose rounds are steps in simulated time; who uploads in which is known before the first."""

    def __init__(self, plan: Plan, clients: int, seed: int, options: StepOptions, time: Timeline, method: str):
        """Prepares the steps of `time`, by what `StepOptions` say; errors name the method."""
        super().__init__(plan, clients, seed)
        self.name, self._options, self._time = options.name, options, time
        self._visits = Visits(time.client, time.start, time.unfinished)
        self.exchange = partial(LateExchange, self, self._visits, method, {})

    def draw(self, number: int, known: Tree) -> Drawn:
        return Drawn(self._time.client[number - 1].tolist())

    def starts(self, number: int) -> dict[int, int]:
        return dict(zip(self._time.client[number - 1].tolist(), self._time.start[number - 1].tolist()))

    def needed_after(self, number: int) -> list[int]:
        return self._visits.needed_after(number)

    def columns(self, number: int, cohort: Sequence[int]) -> dict[str, Any]:
        simulated = {SIMULATED: float(self._time.seconds[number - 1])}
        return simulated | staleness_of(self.starts(number), number, cohort)


class FedBuff(Asynchronous):
    """A schedule that steps with every buffer of uploads; their changes are added to the newest model."""

    def counted(self, upload: Upload, base: Tree, newest: Tree, staleness: int) -> Upload:
        share = weight(self._options, staleness)
        return upload if share == 1 and not staleness else _as_change(upload, base, newest, share)


class FedAsync(Asynchronous):
    """A schedule that steps with every upload, which is mixed into the newest model."""

    def counted(self, upload: Upload, base: Tree, newest: Tree, staleness: int) -> Upload:
        share = weight(self._options, staleness)
        return upload if share == 1 else _as_change(upload, newest, newest, share)


def _as_change(upload: Upload, base: Tree, newest: Tree, share: float) -> Upload:
    """Returns the newest model plus a share of the upload's change from `base`."""
    entries = {name: newest[name] + share * (t - base[name]) for name, t in upload.entries.items()}
    return replace(upload, entries=entries)


class Tiers(Asynchronous):
    """A schedule that steps with a cohort of one tier; `kept` has the models of all tiers, by number and name."""

    def columns(self, number: int, cohort: Sequence[int]) -> dict[str, Any]:
        return {**super().columns(number, cohort), "tier": int(self._time.group[number - 1]) + 1}

    def after(self, number: int, replies: Replies, newest: Tree, kept: Tree) -> Replies:
        tiers = range(self._options.tiers)
        if number == 1:
            kept.update({f"{tier}/{name}": t.clone() for tier in tiers for name, t in newest.items()})
        if not replies.weights["w"] > 0:
            return replies
        # Each tier made so many steps so far, with this one.
        so_far = self._time.group[:number]
        updates = np.bincount(so_far, minlength=len(tiers))
        kept[f"{so_far[-1]}/w"] = replies.entries["w"]
        first, *others = (float(s) * kept[f"{m}/w"].double() for m, s in enumerate(tier_weights(updates)))
        return replace(replies, entries={"w": sum(others, first).float()})


CLASSES: Mapping[str, type[Asynchronous]] = {FEDBUFF: FedBuff, FEDASYNC: FedAsync, TIERS: Tiers}


def require_enough(options: StepOptions, clients: int, cohort: ParticipationOptions) -> None:
    """Raises a ShoalError, which names the key: steps in simulated time take more clients than there are.

    `cohort` is that of a tier.
    """
    counts = {"concurrency": options.concurrency, "buffer": options.in_step}
    for name, count in ({TIERS: options.tiers} if options.name == TIERS else counts).items():
        if count > clients:
            raise ShoalError(f"schedule.{name}", f"{count} of {clients} clients; choose from 1 to {clients}")
    least = clients // options.tiers
    if options.name == TIERS and cohort.size(least) > least:
        raise ShoalError(
            "participation.count",
            f"{cohort.count} clients of each tier, but one has {least}; take fewer, or fewer schedule.tiers",
        )


def describe_run(config: Config, parameters: Sequence[int], rounds: int) -> dict[str, str]:
    """Returns what makes a step of the server, and how stale uploads count."""
    options = ASYNCHRONOUS.of(config)
    if options.name == TIERS:
        return {"schedule": f"{TIERS}, steps in simulated time by cohorts of {options.tiers} groups of about one speed"}
    step = f"a step takes {options.in_step} upload{'s' * (options.in_step > 1)} in simulated time"
    weight_of = {
        "constant": "counts in full",
        "polynomial": f"counts (1 + s)^-{options.a:g}",
        "hinge": f"counts in full, from s = {options.b} on 1 / ({options.a:g} (s - {options.b}) + 1)",
    }[options.staleness]
    mixing = f", of a weight of {options.mixing:g}" if options.name == FEDASYNC else ""
    return {"schedule": f"{options.name}, {step}; one that is s steps stale {weight_of}{mixing}"}


def make_asynchronous(config: Config, participation: ParticipationOptions) -> Chosen:
    """Reads the files of devices and links, and returns what makes the schedule; `participation` is that of a tier.

    Raises ShoalError: a file is wrong, or there are fewer clients than a key asks for.
    """
    options, places = ASYNCHRONOUS.of(config), config.devices.in_steps
    require_enough(options, config.partition.clients, participation)
    assert places.kind is not None
    assert places.network is not None
    classes = read_classes(places.kind, "devices", DEVICES), read_network(places.network)
    cohorts = participation if options.name == TIERS else ParticipationOptions(count=options.in_step)
    return Chosen(partial(_open, options, places.seed, *classes), cohorts)


def _open(
    options: StepOptions,
    seed: int,
    devices: Classes,
    network: Classes | None,
    plan: Plan,
    job: Job,
    store: Store,
    algorithm: Algorithm,
    models: Sequence[BuiltModel],
) -> Schedule:
    """Makes the schedule on the server. Raises ShoalError: the work of a client is not known, or the network has no
    server.
    """
    work, fleet = work_of(job, store, algorithm, models, KEY), Fleet.of(devices, network, store.clients, seed)
    size = FLOAT * len(models[0].flat.w)
    compute = fleet.seconds(work.train) + fleet.seconds(work.upload)
    time = timeline(options, plan.rounds, fleet, compute, (size, size + FLOAT), job.seed, plan.participation)
    return CLASSES[options.name](plan, store.clients, job.seed, options, time, type(algorithm).__name__)
