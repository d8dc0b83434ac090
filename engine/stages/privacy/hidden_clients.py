"""The stage of hidden clients: bounded changes on hosts, and at the server noise on their sum.

`shoal.engine.stages.privacy.privacy` says what it is a bound of, and `hidden_uploads` what becomes of each upload.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from shoal.algorithms.base import Algorithm, overrides
from shoal.algorithms.protocol import Ask, Reduce, Replies, Tree, Upload
from shoal.algorithms.rng import key
from shoal.engine.config.round_sections import ParticipationOptions
from shoal.engine.messages.cell import Outcome
from shoal.engine.messages.job import Job
from shoal.engine.rounds.stage import AtClient, Phase, Stage, ToHosts
from shoal.engine.stages.changes import bound_norm, changes_of, like
from shoal.engine.stages.privacy import adaptive_clip, banded
from shoal.engine.stages.privacy.accounting import noise_of
from shoal.engine.stages.privacy.hidden_uploads import NoisyUploads, norms_of, with_rows
from shoal.engine.stages.privacy.privacy import bands_of, counted_as, draws_hide
from shoal.engine.stages.privacy.section import PrivacyOptions
from shoal.storage.errors import ShoalError

if TYPE_CHECKING:
    from shoal.engine.rounds.sampling import Plan

# The entry of uploads by which the clip adapts: 1/2 from a client with a norm of at most the clip, else -1/2.
WITHIN = "privacy/within"
# A plain method declares nothing.
PLAIN = Algorithm()


class HiddenClients(Stage):
    """A stage that bounds changes, with noise on each or on the sum: of a client the server learns what epsilon says.

    Noise is at clients or at the server (`privacy.where`). Its note is the clip of the round, where that adapts.
    """

    bounds = True

    def __init__(self, job: Job, plan: "Plan | None") -> None:
        """Prepares the noise; on a host there is no plan. Raises ShoalError as `Release`."""
        options: PrivacyOptions = job.stages["privacy"]
        algorithm = job.algorithm()
        self._clip = options.clip or math.inf
        self._noisy = NoisyUploads(options, algorithm) if options.where == "client" else None
        if plan is None:
            return
        # With Poisson draws an empty round is released too, as noise.
        self.empty_rounds = options.where == "server" and plan.participation.draw == "poisson"
        run = plan.participation, len(job.model_of), plan.rounds, job.seed, job.method_name, algorithm
        self._release = Release(options, *run, draws_hide(job.train))

    def at_client(self, upload: Upload, at: AtClient) -> Upload:
        received = with_rows(at.received, upload.entries)
        if self._noisy is not None:
            return self._noisy.protect(upload, received, at.cell, at.random)
        clip = at.cell.stages.notes.get(self.name)
        changes = changes_of(upload, received, at.cell)
        upload, above = bound_norm(upload, changes, self._clip if clip is None else clip)
        if clip is not None:
            upload.entries[WITHIN] = torch.tensor(-0.5 if above else 0.5)
        return upload

    def before(self, phase: Phase) -> ToHosts | None:
        """Refuses what has no bound, and sends the clip where it adapts."""
        self._release.require_counted(phase.ask, phase.first, phase.round, phase.cohort)
        clip = self._release.clip(phase.kept) if phase.ask.up else None
        if clip is None:
            return None
        phase.columns["clip"] = clip
        return ToHosts(clip, added={WITHIN: Reduce.MEAN})

    def after(self, replies: Replies, phase: Phase) -> Replies:
        for outcome in phase.outcomes:
            self._release.require_forgotten(outcome)
        return self._release.of(replies, phase.ask, phase.round, phase.kept)


def make(job: Job, plan: "Plan | None") -> list[Stage]:
    """Returns the stage of a job that hides clients; raises a ShoalError as `HiddenClients`."""
    return [HiddenClients(job, plan)]


class Release:
    """The numbers that the server makes public of a round.

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
        # Entries have these norms where noise is at clients; None: means get noise here.
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
        """Reads the clip of the next round from what the server keeps; None: it does not adapt."""
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
            # Gathered entries have no bound, as the shape may depend on a client's data.
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
        """Adds noise to the means over m clients, who answered or not; the weight of each is m. It changes what is
        kept.

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
        weights_there = {name: replies.weights.get(name, torch.zeros((), dtype=torch.float64)) for name in ask.up}
        weights = {name: torch.full_like(weight, self._drawn) for name, weight in weights_there.items()}
        return Replies(replies.ids, entries, weights, replies.lists)

    def _within(self, replies: Replies, number: int) -> float:
        """Computes the share of m clients within the clip, with noise; who did not answer counts as half a client."""
        bits = float(replies.entries.get(WITHIN, 0.0)) * len(replies.ids)
        bits += self._of_bits * float(torch.randn((), generator=self._rng(number, WITHIN)))
        return 0.5 + bits / self._drawn

    def _rng(self, number: int, name: str) -> torch.Generator:
        return torch.Generator().manual_seed(key(self._seed, number, "privacy", name))
