"""The plan of a run: its config, checked once before data is read; every command on configs takes one."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from shoal.algorithms.base import Algorithm, keeps_models, overrides
from shoal.algorithms.methods.registry.load import MethodSpec, describe, load
from shoal.engine.callbacks.callback import Callback
from shoal.engine.callbacks.calls import load_callbacks
from shoal.engine.config.config import Config, device_choice, require_one_thread
from shoal.engine.config.names import own_among
from shoal.engine.config.round_sections import ParticipationOptions
from shoal.engine.config.run_identity import named_keys
from shoal.engine.messages.models import KnownModels, require_mixable, require_supported
from shoal.engine.preparing.checks import require_known
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records import inputs
from shoal.engine.records.run_folder import path_named, run_place
from shoal.engine.records.summary import ALL, SOME, some_take_part
from shoal.engine.records.untrained import Untrained, describe_untrained, require_trainable, untrained_of
from shoal.engine.rounds.sampling import (
    IN_BATCHES,
    ONE_BY_ONE,
    Plan,
    draw_cohort,
    require_cohorts,
    require_evaluated,
    require_sample,
    require_without,
)
from shoal.engine.runs.rehearsal import rehearse_setup
from shoal.engine.schedules.schedules import choose_schedule
from shoal.engine.scores.measures import measures_of
from shoal.engine.sections.section import load as load_place
from shoal.engine.sections.sections import SECTIONS
from shoal.storage.options.types import is_own
from shoal.storage.store.manifest import Manifest
from shoal.storage.store.store import Store


@dataclass(frozen=True)
class RunPlan:
    """A checked run, before data is read.

    `method` travels to hosts, `algorithm` is the method with its hyper-parameters; `device` is `cpu` or `cuda`;
    callbacks are by the name that messages use; `rounds` are its cohorts, evaluations and cells.
    """

    config: Config
    method: MethodSpec
    algorithm: Algorithm
    device: str
    callbacks: Mapping[str, Callback]
    rounds: Plan

    @property
    def one_model(self) -> str:
        """Returns whether `ALL` or `SOME` clients take part, if the method has one model, which the server holds.

        Clients of such a method keep no model of their own: what each deploys is the server's model of the round in
        which it took part last. Empty: the method has no model of all clients.
        """
        method = self.algorithm
        if method.centralized or keeps_models(method) or not overrides(method, "global_model"):
            return ""
        return SOME if some_take_part(self.config) else ALL

    @classmethod
    def of(cls, config: Config, trains: bool = True, known: KnownModels | None = None) -> "RunPlan":
        """Checks method, models, device, dataset, callbacks and rounds of a config. A ShoalError names the key.

        The method's `setup` is called, too, on made-up sizes, so that it refuses before any data is prepared.

        Without `trains`, to prepare and export, it needs no callbacks, no learning rates and no trace. Models that are
        `known` from plans of other configs are not built again.
        """
        method = describe(config.algorithm.name, config.algorithm.options)
        algorithm = load(method)
        require_supported(config, algorithm)
        require_mixable(config, algorithm, known)
        callbacks = load_callbacks(config) if trains else {}
        if trains:
            require_one_thread(config)
            config.train.require_rates(config.rounds)
            require_evaluated(config.evaluation.last, config.evaluation.every, config.rounds)
            metrics = config.evaluation.metrics
            measures_of(metrics, own_among("evaluation.metrics", metrics))
        device = device_choice(config)
        require_known(config)
        rounds = plan_of(config, algorithm.centralized or not trains)
        for feature in SECTIONS:
            if feature.checks_method and feature.is_on(config):
                load_place(feature.checks_method)(config, algorithm)
        if trains:
            rehearse_setup(config, algorithm, known)
        return cls(config, method, algorithm, device, callbacks, rounds)

    @cached_property
    def inputs(self) -> dict[str, str]:
        """The digests of the files that the config names, read once. Raises ShoalError: one cannot be read."""
        return inputs.contents(self.config)

    @cached_property
    def named(self) -> dict[str, Any]:
        """The keys and contents that name the run; raises as `inputs`."""
        return named_keys(self.config.plain(), self.inputs)

    @cached_property
    def folder(self) -> Path:
        """The run folder, whose name is the identity of the run; raises as `inputs`."""
        return path_named(self.config, self.named)

    @property
    def place(self) -> Path | str:
        """The place of the run: its folder, or its address as text."""
        return run_place(self.config, self.folder)

    def bring(self) -> None:
        """Brings the run from its address, if it has one, to `folder`; as `bring_here`."""
        if isinstance(self.place, str):
            from shoal.engine.runs.remote_run import bring_here

            bring_here(self.place, self.folder)

    def prepare(self, repair: bool = True) -> Store:
        """Opens the store that the method trains on; as `shoal.engine.preparing.prepare.prepare`."""
        return prepare(self.config, self.algorithm.centralized, repair, known=True)

    def require_trainable(self, untrained: Untrained, item: str) -> str:
        """Says how many clients have no training item, where these are the most of them; else returns an empty text.

        Raises ShoalError: nearly all have none, and `data.allow_untrained` does not say that this is meant. A method of
        the user's own that replaces the training of clients may need none.
        """
        if not (is_own(self.config.algorithm.name) and overrides(self.algorithm, "train")):
            require_trainable(self.config, untrained, item)
        return describe_untrained(untrained.as_counts(), item)

    def untrained(self, manifest: Manifest) -> Untrained:
        """Counts the clients of a store that have no training item, of those that may take part."""
        return untrained_of(manifest, self.config.data.split_name, self.rounds.never_train)


def plan_of(config: Config, centralized: bool = False) -> Plan:
    """Plans the rounds of a config; the single client of a centralized method takes part in every round."""
    participation = ParticipationOptions() if centralized else config.participation
    clients = config.partition.clients
    features = [] if centralized else [section for section in SECTIONS if section.is_on(config)]
    absent = tuple(i for feature in features if feature.absent for i in load_place(feature.absent)(config))
    online = None
    if not centralized:
        require_without(participation.without, clients)
        clients -= len(absent)
        require_cohorts(participation, clients)
        saying = (load_place(feature.online)(config, absent) for feature in features if feature.online)
        online = next((rounds for rounds in saying if rounds is not None), None)
        require_sample(config.evaluation.clients, clients)
        if checking := [feature.checks for feature in features if feature.checks]:
            cohort = len(draw_cohort(config.partition.clients, participation, config.seed, 1, None, absent))
            for place in checking:
                load_place(place)(config, cohort)
    size: int | str = config.engine.cell_size
    if size == "auto":
        batches = device_choice(config) == "cuda" and config.engine.trainer != "autograd"
        size = IN_BATCHES if batches else ONE_BY_ONE
    evaluation, sample = config.evaluation, "all" if centralized else config.evaluation.clients
    schedule, participation = choose_schedule(config, participation, None if centralized else clients)
    keeps = config.run.keep_records, config.run.client_scores
    return Plan(
        config.rounds, participation, evaluation.every, size, online, *keeps, sample, absent,
        evaluation.last, schedule,
    )  # fmt: skip
