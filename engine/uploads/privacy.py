"""Differential privacy of clients: changes of bounded norm, each client once, and noise on their sum at the server.

That is DP-FedAvg (McMahan et al., Learning differentially private recurrent language models, ICLR 2018, algorithm 1)
with cohorts of a fixed size m: the server releases w + (sum_i clip(w_i - w, C) + N(0, (z C)^2)) / m once a round. Two
federations are neighbours if they differ in all data of one client, so that their sums differ by 2 C at most. Epsilon
is that of m of n clients drawn without replacement (Wang, Balle, Kasiviswanathan, Subsampled Renyi differential
privacy and analytical moments accountant, AISTATS 2019, theorem 27), as the package dp-accounting computes it.

With `participation.draw: poisson` cohorts are as in the paper, and the sum is divided by m = q n all the same.
Neighbours have one client more or less: sums differ by C (Mironov, Talwar, Zhang, Renyi differential privacy of the
sampled Gaussian mechanism, 2019, section 3).
"""

import torch

from shoal.algorithms.protocol import Ask, Reduce, Replies, Tree, Upload
from shoal.algorithms.rng import key
from shoal.engine.config.accounting import epsilon_after, noise_of, require_noise
from shoal.engine.config.config import Config
from shoal.engine.config.round_sections import PrivacyOptions
from shoal.engine.messages.cell import Cell
from shoal.engine.uploads.compression import like
from shoal.storage.errors import ShoalError


def drawn_of(config: Config) -> tuple[int, int]:
    """Clients of each round, or so many in the mean, and all."""
    clients = config.partition.clients
    return min(config.participation.size(clients), clients), clients


def require_possible(config: Config) -> None:
    """Raises a ShoalError, which names the key: noise is not given once, or what else is chosen has no bound."""
    options, clients = config.privacy, config.partition.clients
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
    ):
        if not idle:
            raise ShoalError(place, f"has no bound with privacy.unit=client: {why}")
    _noise(config)


def epsilon_of(config: Config, rounds: int) -> float:
    """Epsilon of a client or a node after so many rounds of a run; raises as `epsilon_after`."""
    if config.privacy.unit == "node":
        from shoal.engine.config.node_privacy import epsilon_of_node

        return epsilon_of_node(config, rounds)
    poisson = config.participation.draw == "poisson"
    return epsilon_after(_noise(config), config.privacy.delta, *drawn_of(config), rounds, poisson)


def bound_of(config: Config, rounds: int) -> str:
    """What hides a client or a node, and epsilon after so many rounds with its unit; raises as `epsilon_after`."""
    if config.privacy.unit == "node":
        from shoal.engine.config.node_privacy import bound_of_node

        return bound_of_node(config, rounds)
    options, poisson = config.privacy, config.participation.draw == "poisson"
    neighbours = "with or without it" if poisson else "all its data replaced"
    return (
        f"epsilon {epsilon_of(config, rounds):.3g} of a client ({neighbours}), delta {options.delta:g}; "
        f"noise {_noise(config):.4g}, clip {options.clip}"
    )


def _noise(config: Config) -> float:
    return noise_of(config.privacy, *drawn_of(config), config.rounds, config.participation.draw == "poisson")


def once(upload: Upload, received: Tree, cell: Cell) -> Upload:
    """An upload that counts as one client whatever it says: without weight as no change.

    Raises ShoalError: an entry has a weight for each row.
    """
    entries = dict(upload.entries)
    for name, how in cell.up.items():
        weight = upload.weight.get(name, 1.0)
        if how is Reduce.MEAN and isinstance(weight, torch.Tensor):
            raise ShoalError(
                "privacy.unit",
                f"client counts each client once, and {name!r} has a weight for each of its rows, which tells the "
                "rows of a client; take privacy.unit=none, or a method that averages models",
            )
        if how is Reduce.MEAN and not weight:
            base = like(entries[name], received.get(name))
            entries[name] = torch.zeros_like(entries[name]) if base is None else base.to(entries[name].dtype)
    return Upload(entries, {}, upload.upload_bytes)


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
    ) -> None:
        """Of a run; raises as `noise_of`."""
        self.noise = noise_of(options, drawn, clients, rounds, poisson)
        self._deviation = self.noise * (options.clip or 0.0) / drawn
        self._seed, self._drawn, self._method = seed, drawn, method

    def require_counted(self, ask: Ask, first: bool) -> None:
        """Raises a ShoalError if a phase is not the first of its round, or not of the clients drawn for it."""
        apart = [entry for entry in ask.up if any(entry in tree for tree in ask.private.values())]
        for wrong, what in (
            (not first, "exchanges more than once a round"),
            (ask.to is not None, "chooses clients of its own"),
            (bool(apart), f"sends each client another {', '.join(apart)}"),
        ):
            if wrong:
                raise ShoalError(
                    "privacy.unit",
                    f"client counts one sum of changes a round, and {self._method} {what}; take privacy.unit=none, "
                    "or a method of one mean a round",
                )

    def of(self, replies: Replies, ask: Ask, number: int) -> Replies:
        """The means over m clients, who answered or not, with noise; the weight of each is m.

        Raises ShoalError: no client was drawn, and an entry is no change of what the server sends.
        """
        entries: Tree = {}
        for name in ask.up:
            mean = replies.entries.get(name, ask.shared.get(name))
            if mean is None:
                raise ShoalError(
                    "participation.draw",
                    f"poisson drew no client in round {number}, and {self._method} sends no {name!r} that would stay "
                    "as it is; take more clients, or fixed",
                )
            if len(replies.ids) != self._drawn:
                base = like(mean, ask.shared.get(name))
                base = torch.zeros_like(mean) if base is None else base
                mean = base + (mean - base) * (len(replies.ids) / self._drawn)
            if self._deviation:
                rng = torch.Generator().manual_seed(key(self._seed, number, "privacy", name))
                mean = mean + self._deviation * torch.randn(mean.shape, generator=rng)
            entries[name] = mean
        known = {name: replies.weights.get(name, torch.zeros((), dtype=torch.float64)) for name in ask.up}
        weights = {name: torch.full_like(weight, self._drawn) for name, weight in known.items()}
        return Replies(replies.ids, entries, weights, replies.lists)
