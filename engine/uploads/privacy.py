"""Differential privacy of clients: changes of bounded norm, each client once, and noise on their sum at the server.

That is DP-FedAvg (McMahan et al., Learning differentially private recurrent language models, ICLR 2018, algorithm 1)
with cohorts of a fixed size m: the server releases w + (sum_i clip(w_i - w, C) + N(0, (z C)^2)) / m once a round. Two
federations are neighbours if they differ in all data of one client, so that their sums differ by 2 C at most. Epsilon
is that of m of n clients drawn without replacement (Wang, Balle, Kasiviswanathan, Subsampled Renyi differential
privacy and analytical moments accountant, AISTATS 2019, theorem 27), as the package dp-accounting computes it.

With `participation.draw: poisson` cohorts are as in the paper, and the sum is divided by m = q n all the same.
Neighbours have one client more or less: sums differ by C (Mironov, Talwar, Zhang, Renyi differential privacy of the
sampled Gaussian mechanism, 2019, section 3).

Each client counts once, in each row of a mean by row, and with `privacy.where: client` noise is on each upload
(`shoal.engine.uploads.hidden_uploads`). Rows that no client has are noise, and none of them is missing: which are would
tell the classes of all.
"""

from collections.abc import Sequence

import torch

from shoal.algorithms.base import Algorithm, overrides
from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.protocol import Ask, Reduce, Replies, Tree
from shoal.algorithms.rng import key
from shoal.engine.config.accounting import epsilon_after, noise_at_clients, noise_of, releases, require_noise
from shoal.engine.config.config import Config
from shoal.engine.config.round_sections import PrivacyOptions
from shoal.engine.uploads.compression import like
from shoal.engine.uploads.hidden_uploads import norms_of, with_rows
from shoal.storage.errors import ShoalError

# Declares nothing.
PLAIN = Algorithm()


def drawn_of(config: Config) -> tuple[int, int]:
    """Clients of each round, or so many in the mean, and all."""
    clients = config.partition.clients
    return min(config.participation.size(clients), clients), clients


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
            config.engine.on_client_error == "fail" or not (at_clients or method.sends_once),
            "it shows whose upload failed; take fail",
        ),
        (
            "communication.upload",
            not at_clients or config.communication.upload == "none",
            "noise at clients is of all numbers; take none",
        ),
    ):
        if not idle:
            raise ShoalError(place, f"has no bound with privacy.unit=client: {why}")
    if at_clients:
        norms_of(method)
    _noise(config)


def epsilon_of(config: Config, rounds: int) -> float:
    """Epsilon of a client or a node after so many rounds of a run; raises as `epsilon_after`."""
    if config.privacy.unit == "node":
        from shoal.engine.config.node_privacy import epsilon_of_node

        return epsilon_of_node(config, rounds)
    rounds = releases(config, rounds)
    if config.privacy.where == "client":
        return epsilon_after(_noise(config), config.privacy.delta, 1, 1, rounds)
    poisson = config.participation.draw == "poisson"
    return epsilon_after(_noise(config), config.privacy.delta, *drawn_of(config), rounds, poisson)


def bound_of(config: Config, rounds: int) -> str:
    """What hides a client or a node, and epsilon after so many rounds with its unit; raises as `epsilon_after`."""
    if config.privacy.unit == "node":
        from shoal.engine.config.node_privacy import bound_of_node

        return bound_of_node(config, rounds)
    options, once = config.privacy, releases(config, 2) == 1
    poisson, at_clients = config.participation.draw == "poisson", options.where == "client"
    neighbours = "with or without it" if poisson and not at_clients else "all its data replaced"
    return (
        f"epsilon {epsilon_of(config, rounds):.3g} of a client ({neighbours}), delta {options.delta:g}; "
        f"noise {_noise(config):.4g}, clip {options.clip}{', on each upload' * at_clients}{', sent once' * once}"
    )


def _noise(config: Config) -> float:
    if config.privacy.where == "client":
        return noise_at_clients(config)
    rounds = releases(config, config.rounds)
    return noise_of(config.privacy, *drawn_of(config), rounds, config.participation.draw == "poisson")


class Release:
    """What the server makes public of a round.

    Attributes:
        noise: z, in clips.
    """

    def __init__(
        self,
        options: PrivacyOptions,
        seed: int,
        drawn: int,
        clients: int,
        rounds: int,
        method: str,
        poisson: bool = False,
        algorithm: Algorithm = PLAIN,
    ) -> None:
        """Of a run; raises as `noise_of` and `norms_of`."""
        self._once, self._has_norms = algorithm.sends_once, overrides(algorithm, "norms")
        # Of uploads with noise of their own; None: means get it here.
        self._norms = norms_of(algorithm) if options.where == "client" else None
        self.noise = noise_of(options, drawn, clients, min(rounds, 1) if self._once else rounds, poisson)
        self._deviation = self.noise * (options.clip or 0.0) / drawn
        self._seed, self._drawn, self._method = seed, drawn, method

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

    def of(self, replies: Replies, ask: Ask, number: int) -> Replies:
        """The means over m clients, who answered or not, with noise; the weight of each is m.

        Raises ShoalError: no client was drawn, and an entry is no change of what the server sends.
        """
        if self._norms is not None or not ask.up:
            return replies
        entries, shared = Tree(), with_rows(ask.shared, replies.entries)
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
            if self._deviation:
                rng = torch.Generator().manual_seed(key(self._seed, number, "privacy", name))
                mean = mean + self._deviation * torch.randn(mean.shape, generator=rng)
            entries[name] = mean
        known = {name: replies.weights.get(name, torch.zeros((), dtype=torch.float64)) for name in ask.up}
        weights = {name: torch.full_like(weight, self._drawn) for name, weight in known.items()}
        return Replies(replies.ids, entries, weights, replies.lists)
