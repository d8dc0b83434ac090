"""A method of a user with clients that misbehave as a test says; hosts read this file, too, and import no tests."""

import ctypes
import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from shoal.algorithms.base import Client, Context, Received, Requests
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import Tree, Upload

NAME = f"{__file__}:Toy"


@dataclass(frozen=True)
class Toy(FedAvg):
    """FedAvg with clients that misbehave when they upload.

    Attributes:
        kind: What they do; it `raises`, sends `nan` or the entry `other`, `prints`, `hangs` or `waits` for the file
            `go`; or its process `dies`, `exits`, `exits with 7`, `leaves` by a call of C, `crashes`, `is killed` or
            `forks`. `exits on the server` is of round 2, `never` of none.
        client: The number of the client.
        first: Clients from this number on do so as well.
        visits: From this visit of theirs on; the first is 1.
        times: How often, in all processes together; files in `folder` count them.
    """

    kind: str = "raises"
    client: int = 2
    first: int = 10**9
    visits: int = 1
    times: int = 10**9
    folder: str = ""
    go: str = ""

    def round(self, server: Tree, ctx: Context, cohort: list[int]) -> Requests:
        yield from super().round(server, ctx, cohort)
        if self.kind == "exits on the server" and ctx.round == 2:
            os._exit(0)

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        if not self._is_due(client):
            return super().upload(client, received, phase)
        if self.kind == "raises":
            raise RuntimeError("no luck")
        if self.kind == "crashes":
            ctypes.string_at(0)
        sent = super().upload(client, received, phase)
        if self.kind == "nan":
            return Upload({"w": sent.entries["w"] * float("nan")}, sent.weight)
        if self.kind == "other":
            return Upload({"other": sent.entries["w"]}, sent.weight)
        self._disturb()
        return sent

    def _is_due(self, client: Client) -> bool:
        number = client.info.client
        if self.visits > 1:
            client.state["visits"] = client.state.get("visits", torch.zeros(())) + 1
        due = number == self.client or number >= self.first
        if not due or (self.visits > 1 and client.state["visits"] < self.visits):
            return False
        if self.folder:
            before = len(os.listdir(self.folder))
            if before >= self.times:
                return False
            (Path(self.folder) / str(before)).touch()
        return True

    def _disturb(self) -> None:
        if self.kind == "prints":
            print("here I am")
        if self.kind == "hangs":
            threading.Event().wait()
        while self.kind == "waits" and not os.path.exists(self.go):
            time.sleep(0.05)
        if self.kind in ("dies", "exits", "exits with 7"):
            os._exit({"dies": 1, "exits": 0, "exits with 7": 7}[self.kind])
        if self.kind == "leaves":
            ctypes.CDLL(None)._exit(0)
        if self.kind == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.kind == "forks":
            child = os.fork()
            if not child:
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0


@dataclass(frozen=True)
class Shown(Toy):
    """The toy method with personal models, whose clients send the number of the process that they are in, too."""

    client_models = "personal"

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        sent = super().upload(client, received, phase)
        return Upload({**sent.entries, "process": torch.tensor(os.getpid())}, sent.weight)
