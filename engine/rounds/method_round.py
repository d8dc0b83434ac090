"""The method's part of a round: its generator asks and mixes, and receives the answers."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from algorithms.base import Algorithm, Context, Steps
from algorithms.protocol import Ask, Mix, Replies
from engine.rounds.exchange import Exchange
from engine.rounds.mixing import Mixer
from engine.rounds.soundness import require_finite
from engine.wire.devices import CPU, creating_on, moved


class MethodRound:
    """One run of `Algorithm.round`, on the server's device; everything that leaves it lies on the processor."""

    def __init__(self, algorithm: Algorithm, exchange: Exchange, mixer: Mixer, where: str) -> None:
        """Of one round.

        Args:
            algorithm: The method.
            exchange: Asks clients.
            mixer: Mixes their uploads.
            where: What an error says of the round and the method.
        """
        self._algorithm, self._exchange, self._mixer, self._where = algorithm, exchange, mixer, where

    def run(self, context: Context, is_last_visit: Callable[[int], bool]) -> None:
        """Drives the generator to its end; the server's state in the draft is then the new one.

        Args:
            context: What the method knows of the run.
            is_last_visit: As for `Exchange.ask`.

        Raises:
            ShoalError: A client failed, or the method made NaN on the server; names it.
        """
        draft = self._exchange.draft
        server = moved(draft.server, context.device)
        steps = self._algorithm.round(server, context, list(self._exchange.cohort))
        reply: Replies | Tensor | None = None
        while (step := self._next(steps, reply, context.device)) is not None:
            if isinstance(step, Ask):
                self._require_finite(step)
                reply, held = self._exchange.ask(step, is_last_visit)
                self._mixer.hold(held)
            else:
                reply = self._mixer.mix(step)
        require_finite(server, f"{self._where}: the server's state")
        draft.server = moved(server, CPU)

    def _next(self, steps: Steps, reply: Replies | Tensor | None, device: torch.device) -> Ask | Mix | None:
        """What the method wants next; None at its end."""
        if isinstance(reply, Replies):
            lists = {name: [t.to(device) for t in tensors] for name, tensors in reply.lists.items()}
            reply = Replies(reply.ids, moved(reply.entries, device), moved(reply.weights, device), lists)
        elif reply is not None:
            reply = reply.to(device)
        with creating_on(device):
            try:
                step = steps.send(reply)
            except StopIteration:
                return None
        if isinstance(step, Mix):
            return replace(step, rows=step.rows.to(CPU))
        private = {client: moved(tree, CPU) for client, tree in step.private.items()}
        return replace(step, shared=moved(step.shared, CPU), private=private)

    def _require_finite(self, ask: Ask) -> None:
        require_finite(ask.shared, f"{self._where}: the download")
        for client, tree in ask.private.items():
            require_finite(tree, f"{self._where}: the download of client {client},")
