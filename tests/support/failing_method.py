"""A user's method, one of whose clients fails."""

from pathlib import Path

METHOD = """
from dataclasses import dataclass
import torch
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import Upload

@dataclass(frozen=True)
class Failing(FedAvg):
    kind: str = "raises"
    client: int = 2
    visits: int = 1

    def upload(self, client, received, phase):
        sent = super().upload(client, received, phase)
        client.state["visits"] = client.state.get("visits", torch.zeros(())) + 1
        if self.kind == "never" or client.info.client != self.client or client.state["visits"] < self.visits:
            return sent
        if self.kind == "raises":
            raise RuntimeError("no luck")
        if self.kind == "nan":
            return Upload({"w": sent.entries["w"] * float("nan")}, sent.weight)
        return Upload({"other": sent.entries["w"]}, sent.weight)
"""


def failing(folder: Path) -> str:
    """Writes it into a folder, and gives `algorithm.name`.

    FedAvg whose client `client` fails from its visit number `visits` on: `kind` is `raises`, `nan`, `other` (it sends
    something else) or `never`.
    """
    (folder / "failing.py").write_text(METHOD)
    return f"{folder / 'failing.py'}:Failing"
