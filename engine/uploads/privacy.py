"""Differential privacy of clients: changes of bounded norm, each client once, and noise on their sum at the server.

That is DP-FedAvg (McMahan et al., Learning differentially private recurrent language models, ICLR 2018, algorithm 1)
with cohorts of a fixed size m: the server releases w + (sum_i clip(w_i - w, C) + N(0, (z C)^2)) / m once a round. Two
federations are neighbours if they differ in all data of one client, so that their sums differ by 2 C at most. Epsilon
is that of m of n clients drawn without replacement; `shoal.engine.config.accounting` has it, and its sources.

With `participation.draw: poisson` cohorts are as in the paper, and the sum is divided by m = q n all the same.
Neighbours have one client more or less: sums differ by C (Mironov, Talwar, Zhang, Renyi differential privacy of the
sampled Gaussian mechanism, 2019, section 3).

With `cyclic` a client takes part once in as many rounds as there are groups, for sure: epsilon is that of its rounds,
not amplified. `banded` and `adaptive_clip` say why it holds for them.

Each client counts once, in each row of a mean by row, and with `privacy.where: client` noise is on each upload
(`shoal.engine.uploads.hidden_uploads`). Rows that no client has are noise, and none of them is missing: which are would
tell the classes of all.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from shoal.algorithms.base import Algorithm, overrides
from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.protocol import Ask, Reduce, Replies, Tree
from shoal.algorithms.rng import key
from shoal.algorithms.train_options import TrainOptions
from shoal.engine.config.accounting import epsilon_after, noise_of, releases, require_noise
from shoal.engine.config.config import Config
from shoal.engine.config.round_sections import ParticipationOptions, PrivacyOptions
from shoal.engine.messages.cell import WITHIN, Outcome
from shoal.engine.uploads import adaptive_clip, banded
from shoal.engine.uploads.compression import like
from shoal.engine.uploads.hidden_uploads import norms_of, with_rows
from shoal.storage.errors import ShoalError

# Declares nothing.
PLAIN = Algorithm()


def drawn_of(config: Config) -> tuple[int, int]:
    """Clients of each round, or so many in the mean, and all."""
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
    """How many rounds share noise; raises a ShoalError if a client takes part more often."""
    groups = participation.groups(clients) if options.mechanism == "banded" else 1
    bands = options.bands or groups
    if bands > groups:
        raise ShoalError(
            "privacy.bands", f"{bands}, and a client takes part once in any {groups} rounds; take {groups} or fewer"
        )
    return bands


def require_possible(config: Config) -> None:
    """Raises a ShoalError, which names the key: noise is not given once, or what else is chosen has no bound."""
    options, (drawn, clients) = config.privacy, drawn_of(config)
    method, at_clients = load(describe(config.algorithm.name, config.algorithm.options)), options.where == "client"
    require_noise(options)
    if options.delta * clients >= 1:
        raise ShoalError("privacy.delta", f"{options.delta:g} of {clients} clients; take less than {1 / clients:g}")
    for place, idle, why in (
        ("participation.trace", config.participation.trace is None, "who is online is not drawn; take null"),
        (
            "participation",
            not config.participation.simulates,
            "availability, devices, dropout and selection draw others",
        ),
        ("participation.without", not config.participation.without, "clients are left out; take an empty list"),
        ("data.newcomers", not config.data.newcomers, "newcomers are never drawn; take 0"),
        ("aggregation.kind", config.aggregation.kind == "mean", "privacy.unit bounds means; take mean"),
        (
            "participation",
            not method.sends_once or drawn == clients,
            f"{config.algorithm.name} counts one upload, in round 1; take participation.ratio=1",
        ),
        (
            "engine.on_client_error",
            config.engine.on_client_error == "fail"
            or not (at_clients or method.sends_once or config.secure.kind != "none"),
            "it shows which client failed; take fail",
        ),
        (
            "communication.upload",
            not at_clients or config.communication.upload == "none",
            "noise at clients is of all numbers; take none",
        ),
    ):
        if not idle:
            raise ShoalError(place, f"has no bound with privacy.unit=client: {why}")
    if config.secure.kind != "none" and draws_one_alone(config):
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
    """Whether a round of one client, which hidden sums skip, is so likely that it adds 1 % or more to delta.

    Skips are no function of what has noise. A run with them differs from one that reads all sums with the chance p of
    such a round at most, which adds (1 + e^epsilon) p to delta.
    """
    drawn, clients = drawn_of(config)
    if config.participation.draw != "poisson" or config.privacy.where == "client":
        return False
    if drawn == clients:
        return clients < 3
    # A neighbour has a client less.
    share, others = drawn / clients, clients - 2
    chance = math.log(config.rounds * drawn) + others * math.log1p(-share)
    return chance + np.logaddexp(0, epsilon_of(config, config.rounds)) > math.log(config.privacy.delta / 100)


def epsilon_of(config: Config, rounds: int) -> float:
    """Epsilon of a client or a node after so many rounds of a run; raises as `epsilon_after`."""
    if config.privacy.unit == "node":
        from shoal.engine.config.node_privacy import epsilon_of_node

        return epsilon_of_node(config, rounds)
    return epsilon_after(_noise(config), config.privacy.delta, *_counted(config, rounds))


def bound_of(config: Config, rounds: int) -> str:
    """What hides a client or a node, and epsilon after so many rounds with its unit; raises as `epsilon_after`."""
    if config.privacy.unit == "node":
        from shoal.engine.config.node_privacy import bound_of_node

        return bound_of_node(config, rounds)
    options, participation, once = config.privacy, config.participation, releases(config, 2) == 1
    poisson, at_clients = participation.draw == "poisson", options.where == "client"
    neighbours = "with or without it" if poisson and not at_clients else "all its data replaced"
    bands = bands_of(options, participation, config.partition.clients)
    return (
        f"epsilon {epsilon_of(config, rounds):.3g} of a client ({neighbours}), delta {options.delta:g}; "
        f"noise {_noise(config):.4g}"
        + (f" in {bands} bands" if options.mechanism == "banded" else "")
        + f", clip {options.clip}"
        + (f" at first, then near quantile {options.quantile:g} of norms" if options.quantile is not None else "")
        + f"{', on each upload' * at_clients}{', sent once' * once}"
        + (", draws not counted (train.opt_state: keep)" if _could_be_drawn(config) else "")
    )


def _noise(config: Config) -> float:
    return noise_of(config.privacy, *_counted(config, config.rounds))


def _counted(config: Config, rounds: int) -> tuple[int, int, int, bool]:
    rounds = releases(config, rounds)
    if config.privacy.where == "client":
        return 1, 1, rounds, False
    return counted_as(config.participation, config.partition.clients, rounds, draws_hide(config.train))


def _could_be_drawn(config: Config) -> bool:
    """Returns whether epsilon would be less if clients kept nothing."""
    drawn, clients = drawn_of(config)
    is_drawn = drawn < clients and config.participation.draw != "cyclic" and config.privacy.where == "server"
    return is_drawn and not draws_hide(config.train)


class Release:
    """What the server makes public of a round.

    What later rounds need is kept in the server's state, a tree: the clip (float64, a number), and of each entry that
    the round before had the last rows of banded noise, `[bands - 1, ...]` or fewer, the newest first.

    Attributes:
        noise: z, in clips.
    """

    def __init__(
        self,
        options: PrivacyOptions,
        participation: ParticipationOptions,
        clients: int,
        rounds: int,
        seed: int,
        method: str,
        algorithm: Algorithm = PLAIN,
        forget: bool = True,
    ) -> None:
        """Finds the noise of a run, `forget` as of `counted_as`.

        Raises ShoalError: as `noise_of`, `norms_of`, `bands_of` and `adaptive_clip.split`.
        """
        self._once, self._has_norms = algorithm.sends_once, overrides(algorithm, "norms")
        # Of uploads with noise of their own; None: means get it here.
        self._norms = norms_of(algorithm) if options.where == "client" else None
        counted = counted_as(participation, clients, min(rounds, 1) if self._once else rounds, forget)
        self.noise = noise_of(options, *counted)
        self._forget = options.where == "server" and counted[0] < counted[1]
        self._of_changes, self._of_bits = self.noise, 0.0
        self._seed, self._drawn, self._method = seed, min(participation.size(clients), clients), method
        if options.quantile is not None:
            self._of_changes, self._of_bits = adaptive_clip.split(self.noise, self._drawn)
        self._column = banded.column(bands_of(options, participation, clients))
        self._first_clip, self._quantile = options.clip or 0.0, options.quantile

    def clip(self, kept: Tree) -> float | None:
        """The clip of the next round, from what the server keeps; None: it does not adapt."""
        return None if self._quantile is None else float(kept.get("clip", self._first_clip))

    def require_counted(self, ask: Ask, first: bool, number: int, cohort: Sequence[int]) -> None:
        """Raises a ShoalError if an entry has no bound, or epsilon would not count what clients send in a phase."""
        self._require_bounded(ask)
        means = self._norms is None
        apart = [entry for entry in ask.up if means and any(entry in tree for tree in ask.private.values())]
        for wrong, what in (
            (bool(ask.up) and not first, "exchanges more than once a round"),
            (bool(ask.up) and self._once and number > 1, "sends after round 1 what it declares to send once"),
            (
                means and bool(ask.up) and ask.to is not None and list(ask.to) != list(cohort),
                "chooses clients of its own",
            ),
            (bool(apart), f"sends each client another {', '.join(apart)}"),
        ):
            if wrong:
                raise ShoalError(
                    "privacy.unit",
                    f"client counts one sum of changes a round, and {self._method} {what}; take privacy.unit=none, "
                    "or a method of one mean a round",
                )

    def require_forgotten(self, outcome: Outcome) -> None:
        """Raises a ShoalError if a client keeps something after its visit, and epsilon counts draws."""
        if not self._forget:
            return
        keeping = [client for client, state in outcome.states.items() if state] + list(outcome.kept)
        if keeping:
            raise ShoalError(
                f"client {min(keeping)}",
                f"keeps something of {self._method} after its visit, and epsilon counts draws of clients that keep "
                "nothing; take train.opt_state=keep, with which draws do not count, or participation.ratio=1",
            )

    def _require_bounded(self, ask: Ask) -> None:
        for entry, how in ask.up.items():
            # Of what is gathered a client's data may say the shape.
            if how is Reduce.MEAN or (entry in (self._norms or ()) and how is not Reduce.GATHER):
                continue
            if self._norms is not None:
                raise ShoalError(
                    "privacy.where",
                    f"client hides means, and entries of one shape with a norm in norms(), and {entry!r} of "
                    f"{self._method} is neither; take privacy.unit=none, or a method that declares its norm",
                )
            how_sent = "mixed" if how is Reduce.MIX else "kept for every client"
            way_out = "privacy.where=client, for noise on each upload" if self._has_norms else "privacy.unit=none"
            raise ShoalError(
                "privacy.unit",
                f"client bounds means, and {entry!r} of {self._method} is {how_sent}; take {way_out}, "
                "or a method that sends means alone",
            )

    def of(self, replies: Replies, ask: Ask, number: int, kept: Tree) -> Replies:
        """The means over m clients, who answered or not, with noise; the weight of each is m. It changes what is kept.

        Raises ShoalError: no client was drawn, and an entry is no change of what the server sends.
        """
        if self._norms is not None or not ask.up:
            return replies
        entries, shared = Tree(), with_rows(ask.shared, replies.entries)
        clip, before = self.clip(kept) or self._first_clip, dict(kept)
        deviation = self._of_changes * clip / self._drawn
        kept.clear()
        if self._quantile is not None:
            following = adaptive_clip.next_clip(clip, self._within(replies, number), self._quantile)
            kept["clip"] = torch.tensor(following, dtype=torch.float64)
        for name in ask.up:
            mean = replies.entries.get(name, shared.get(name))
            if mean is None:
                raise ShoalError(
                    "participation.draw",
                    f"poisson drew no client in round {number}, and {self._method} sends no {name!r} that would stay "
                    "as it is; take more clients, or fixed",
                )
            if len(replies.ids) != self._drawn:
                base = like(mean, shared.get(name))
                base = torch.zeros_like(mean) if base is None else base
                mean = base + (mean - base) * (len(replies.ids) / self._drawn)
            if deviation:
                drawn = torch.randn(mean.shape, generator=self._rng(number, name))
                # A client reaches the next rounds, not releases: after a gap noise begins anew.
                earlier = before.get(f"{number - 1}/{name}", drawn.new_empty(0, *drawn.shape))
                noise = banded.next_row(self._column, drawn, earlier)
                mean = mean + deviation * noise
                if len(self._column) > 1:
                    kept[f"{number}/{name}"] = torch.cat([noise[None], earlier])[: len(self._column) - 1]
            entries[name] = mean
        known = {name: replies.weights.get(name, torch.zeros((), dtype=torch.float64)) for name in ask.up}
        weights = {name: torch.full_like(weight, self._drawn) for name, weight in known.items()}
        return Replies(replies.ids, entries, weights, replies.lists)

    def _within(self, replies: Replies, number: int) -> float:
        """The share of m clients within the clip, with noise; who did not answer counts as half a client."""
        bits = float(replies.entries.get(WITHIN, 0.0)) * len(replies.ids)
        bits += self._of_bits * float(torch.randn((), generator=self._rng(number, WITHIN)))
        return 0.5 + bits / self._drawn

    def _rng(self, number: int, name: str) -> torch.Generator:
        return torch.Generator().manual_seed(key(self._seed, number, "privacy", name))
