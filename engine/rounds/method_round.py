"""The method's part of a round: its generator asks and mixes, and receives the answers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm, Context, Requests
from shoal.algorithms.method_errors import ProtocolError, code_of, yield_place
from shoal.algorithms.protocol import Ask, Mix, Replies
from shoal.engine.messages.devices import CPU, creating_on, moved
from shoal.engine.rounds.exchange import Exchange
from shoal.engine.rounds.mixing import Mixer
from shoal.engine.rounds.protocol_checks import require_finite, require_generator, require_step, require_tree
from shoal.storage.errors import ShoalError


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
            ShoalError: A client failed, the method's code did, asked for what cannot be, or made NaN on the server.
        """
        next_state = self._exchange.next_state
        server = moved(next_state.server, context.device)
        clients = len(context.clients)
        with code_of(self._algorithm, "round", f"{self._where}: "):
            steps = self._algorithm.round(server, context, list(self._exchange.cohort))
            require_generator(steps)
        reply: Replies | Tensor | None = None
        while (step := self._next(steps, reply, context.device, clients)) is not None:
            if isinstance(step, Ask):
                with self._at(steps):
                    self._require_finite(step)
                reply, held = self._exchange.ask(step, is_last_visit)
                self._mixer.hold(held)
            else:
                with self._at(steps):
                    reply = self._mixer.mix(step)
        with code_of(self._algorithm, "round", f"{self._where}: "):
            require_tree(server, "the server's state")
        require_finite(server, f"{self._where}: the server's state")
        next_state.server = moved(server, CPU)

    @contextmanager
    def _at(self, steps: Requests) -> Iterator[None]:
        """Errors about a request inside of the block say where the method makes it."""
        try:
            yield
        except ShoalError as error:
            raise ShoalError(f"{error.line} ({yield_place(self._algorithm, steps)})", error.detail) from error

    def _next(
        self, steps: Requests, reply: Replies | Tensor | None, device: torch.device, clients: int
    ) -> Ask | Mix | None:
        """What the method wants next; None at its end."""
        if isinstance(reply, Replies):
            lists = {name: [t.to(device) for t in tensors] for name, tensors in reply.lists.items()}
            reply = Replies(reply.ids, moved(reply.entries, device), moved(reply.weights, device), lists)
        elif reply is not None:
            reply = reply.to(device)
        with creating_on(device), code_of(self._algorithm, "round", f"{self._where}: "):
            try:
                step = steps.send(reply)
            except StopIteration:
                return None
        try:
            require_step(step, clients)
        except ProtocolError as error:
            raise ShoalError(f"{self._where}: {yield_place(self._algorithm, steps)}, in round(): {error}") from None
        if isinstance(step, Mix):
            return replace(step, rows=step.rows.to(CPU))
        private = {client: moved(tree, CPU) for client, tree in step.private.items()}
        return replace(step, shared=moved(step.shared, CPU), private=private, score_with=moved(step.score_with, CPU))

    def _require_finite(self, ask: Ask) -> None:
        require_finite(ask.shared, f"{self._where}: the download")
        require_finite(ask.score_with, f"{self._where}: the download of an evaluation")
        for client, tree in ask.private.items():
            require_finite(tree, f"{self._where}: the download of client {client},")
