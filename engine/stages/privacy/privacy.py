"""Differential privacy of clients: changes of bounded norm, each client once, and noise on their sum at the server.

That is DP-FedAvg (McMahan et al., Learning differentially private recurrent language models, ICLR 2018, algorithm 1)
with cohorts of a fixed size m: the server releases w + (sum_i clip(w_i - w, C) + N(0, (z C)^2)) / m once a round. Two
federations are neighbours if they differ in all data of one client, so that their sums differ by 2 C at most. Epsilon
is that of m of n clients drawn without replacement; `shoal.engine.stages.privacy.accounting` has it, and its sources.

With `participation.draw: poisson` cohorts are as in the paper, and the sum is divided by m = q n all the same.
Neighbours have one client more or less: sums differ by C (Mironov, Talwar, Zhang, Renyi differential privacy of the
sampled Gaussian mechanism, 2019, section 3).

With `cyclic` a client takes part once in as many rounds as there are groups, for sure: epsilon is that of its rounds,
not amplified. `banded` and `adaptive_clip` say why it holds for them.

Each client counts once, in each row of a mean by row, and with `privacy.where: client` noise is on each upload
(`shoal.engine.stages.privacy.hidden_uploads`). Rows that no client has are noise, and none of them is missing: which
are would tell the classes of all. The stage is in `shoal.engine.stages.privacy.hidden_clients`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.train_options import TrainOptions
from shoal.engine.config.config import Config
from shoal.engine.config.round_sections import ParticipationOptions
from shoal.engine.sections.sections import changes_cohorts, options_of
from shoal.engine.stages.privacy import adaptive_clip
from shoal.engine.stages.privacy.accounting import epsilon_after, noise_at_clients, noise_of, releases, require_noise
from shoal.engine.stages.privacy.hidden_uploads import norms_of
from shoal.engine.stages.privacy.section import PRIVACY, PrivacyOptions
from shoal.storage.errors import ShoalError


def drawn_of(config: Config) -> tuple[int, int]:
    """Returns the number of clients drawn for a round, the expected one where that is random, and of all clients."""
    clients = config.partition.clients
    return min(config.participation.size(clients), clients), clients


def counted_as(
    participation: ParticipationOptions, clients: int, rounds: int, forget: bool = True
) -> tuple[int, int, int, bool]:
    """Returns the clients drawn for a round, all, rounds, and if each is drawn on its own: what epsilon is of.

    Draws count where clients `forget` alone, see `draws_hide`.
    """
    if participation.draw == "cyclic":
        return 1, 1, -(-rounds // participation.groups(clients)), False
    drawn = min(participation.size(clients), clients) if forget else clients
    return drawn, clients, rounds, participation.draw == "poisson"


def draws_hide(train: TrainOptions) -> bool:
    """Returns whether draws of cohorts count: clients keep nothing between rounds, `train.opt_state: reset`.

    What a client keeps can tell in which rounds it took part, which the bound of drawn cohorts takes as unknown. Other
    runs have the epsilon of a client that takes part in all rounds, which holds whatever it keeps.
    """
    return train.opt_state == "reset"


def bands_of(options: PrivacyOptions, participation: ParticipationOptions, clients: int) -> int:
    """Counts the rounds that share noise; raises a ShoalError if a client takes part more often."""
    groups = participation.groups(clients) if options.mechanism == "banded" else 1
    bands = options.bands or groups
    if bands > groups:
        raise ShoalError(
            "privacy.bands", f"{bands}, and a client takes part once in any {groups} rounds; take {groups} or fewer"
        )
    return bands


def options_on_hosts(config: Config) -> PrivacyOptions | None:
    """Returns the options of a run that hides clients, with the noise of each upload where noise is there.

    Returns None where nodes are hidden: then nothing happens to uploads.
    """
    options = PRIVACY.of(config)
    if options.unit != "client":
        return None
    return options if options.where == "server" else replace(options, noise=noise_at_clients(config), epsilon=None)


def describe_run(config: Config, parameters: Sequence[int], rounds: int) -> dict[str, str]:
    """Returns what hides a client or a node, and epsilon after so many rounds."""
    return {"privacy": bound_of(config, rounds)}


def require_possible(config: Config, cohort: int) -> None:
    """Raises a ShoalError, which names the key: noise is not given once, or what else is chosen has no bound."""
    options, (drawn, clients) = PRIVACY.of(config), drawn_of(config)
    if options.unit != "client":
        return
    method, at_clients = load(describe(config.algorithm.name, config.algorithm.options)), options.where == "client"
    secure, availability = options_of(config, "secure") is not None, options_of(config, "availability")
    require_noise(options)
    if options.delta * clients >= 1:
        raise ShoalError("privacy.delta", f"{options.delta:g} of {clients} clients; take less than {1 / clients:g}")
    for place, idle, why in (
        (
            "participation.trace",
            availability is None or availability.trace is None,
            "who is online is not drawn; take null",
        ),
        (
            "participation",
            not changes_cohorts(config),
            "availability, devices, dropout and selection draw others",
        ),
        ("participation.without", not config.participation.without, "clients are left out; take an empty list"),
        ("data.newcomers", options_of(config, "newcomers") is None, "newcomers are never drawn; take 0"),
        ("aggregation.kind", options_of(config, "aggregation") is None, "privacy.unit bounds means; take mean"),
        (
            "participation",
            not method.sends_once or drawn == clients,
            f"{config.algorithm.name} counts one upload, in round 1; take participation.ratio=1",
        ),
        (
            "engine.on_client_error",
            config.engine.on_client_error == "fail" or not (at_clients or method.sends_once or secure),
            "it shows which client failed; take fail",
        ),
        (
            "communication.upload",
            not at_clients or options_of(config, "communication") is None,
            "noise at clients is of all numbers; take none",
        ),
    ):
        if not idle:
            raise ShoalError(place, f"has no bound with privacy.unit=client: {why}")
    if secure and draws_one_alone(config):
        raise ShoalError(
            "secure.kind",
            "skips rounds of one client, which poisson draws too often for privacy.delta; take participation.draw="
            "fixed, or more clients a round",
        )
    if at_clients:
        norms_of(method)
    bands_of(options, config.participation, clients)
    noise = _noise(config)
    if options.quantile is not None:
        adaptive_clip.split(noise, drawn)


def draws_one_alone(config: Config) -> bool:
    """Returns whether a round of one client, which hidden sums skip, is so likely that it adds 1 % or more to delta.

    Skips are no function of what has noise. A run with them differs from one that reads all sums with the chance p of
    such a round at most, which adds (1 + e^epsilon) p to delta.
    """
    drawn, clients = drawn_of(config)
    if config.participation.draw != "poisson" or PRIVACY.of(config).where == "client":
        return False
    if drawn == clients:
        return clients < 3
    # A neighbour has a client less.
    share, others = drawn / clients, clients - 2
    chance = math.log(config.rounds * drawn) + others * math.log1p(-share)
    return chance + np.logaddexp(0, epsilon_of(config, config.rounds)) > math.log(PRIVACY.of(config).delta / 100)


def epsilon_of(config: Config, rounds: int) -> float:
    """Computes epsilon of a client or a node after so many rounds of a run; raises as `epsilon_after`."""
    if PRIVACY.of(config).unit == "node":
        from shoal.engine.stages.privacy.node_privacy import epsilon_of_node

        return epsilon_of_node(config, rounds)
    return epsilon_after(_noise(config), PRIVACY.of(config).delta, *_count_draws(config, rounds))


def bound_of(config: Config, rounds: int) -> str:
    """Describes what hides a client or node, and epsilon after so many rounds with its unit; raises as
    `epsilon_after`.
    """
    if PRIVACY.of(config).unit == "node":
        from shoal.engine.stages.privacy.node_privacy import bound_of_node

        return bound_of_node(config, rounds)
    options, participation, once = PRIVACY.of(config), config.participation, releases(config, 2) == 1
    poisson, at_clients = participation.draw == "poisson", options.where == "client"
    neighbours = "with or without it" if poisson and not at_clients else "all its data replaced"
    bands, holders = bands_of(options, participation, config.partition.clients), config.partition.overlap
    return (
        f"epsilon {epsilon_of(config, rounds):.3g} of a client ({neighbours}), delta {options.delta:g}; "
        f"noise {_noise(config):.4g}"
        + (f" in {bands} bands" if options.mechanism == "banded" else "")
        + f", clip {options.clip}"
        + (f" at first, then near quantile {options.quantile:g} of norms" if options.quantile is not None else "")
        + f"{', on each upload' * at_clients}{', sent once' * once}"
        + (", draws not counted (train.opt_state: keep)" if _could_be_drawn(config) else "")
        + (f", up to {holders} times this epsilon of a node, which so many clients hold" if holders > 1 else "")
    )


def _noise(config: Config) -> float:
    return noise_of(PRIVACY.of(config), *_count_draws(config, config.rounds))


def _count_draws(config: Config, rounds: int) -> tuple[int, int, int, bool]:
    rounds = releases(config, rounds)
    if PRIVACY.of(config).where == "client":
        return 1, 1, rounds, False
    return counted_as(config.participation, config.partition.clients, rounds, draws_hide(config.train))


def _could_be_drawn(config: Config) -> bool:
    """Returns whether epsilon would be less if clients kept nothing."""
    drawn, clients = drawn_of(config)
    is_drawn = drawn < clients and config.participation.draw != "cyclic" and PRIVACY.of(config).where == "server"
    return is_drawn and not draws_hide(config.train)
