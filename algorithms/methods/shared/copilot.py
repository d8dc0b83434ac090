"""Base class of methods with a private model and a shared copilot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shoal.algorithms.base import Algorithm, Ask, Client, Context, Received, Requests, Tree, Upload
from shoal.algorithms.methods.shared.requirements import require_nodes
from shoal.algorithms.models.names import BACKBONES, HEADLESS
from shoal.algorithms.protocol import MODEL, Reduce
from shoal.algorithms.training.joint_training import require_whole_steps
from shoal.storage.errors import ShoalError

COPILOT = "copilot"


@dataclass(frozen=True)
class WithCopilot(Algorithm):
    """Every client has its own model, of any kind, that never leaves it, and a copilot of one kind for all.

    Copilots, written as models in a config, start equal, and are averaged over the cohort, weighted by nodes. A client
    that was away keeps both models until its copilot is overwritten at its next visit. The client's own model predicts.
    """

    reads_embedding = True

    copilot: Mapping[str, Any] = field(default_factory=lambda: {"name": "gcn"})
    client_models = "heterogeneous"

    def models(self) -> Mapping[str, Mapping[str, Any] | None]:
        if self.copilot.get("name") in HEADLESS:
            raise ShoalError(
                "algorithm.copilot", f"{self.copilot['name']} classifies nothing; choose one of {', '.join(BACKBONES)}"
            )
        return {MODEL: None, COPILOT: self.copilot}

    def setup(self, ctx: Context) -> Tree:
        return {"w": ctx.build(COPILOT, 0).w.detach().clone()}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        got = yield Ask("train", {"w": Reduce.MEAN}, shared={"w": server["w"]})
        if got.weights["w"] > 0:
            server["w"] = got["w"]

    def receive(self, client: Client, down: Tree) -> Received:
        if "w" in down:
            client.models[COPILOT].load(down["w"])
        return down

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        return Upload({"w": client.models[COPILOT].w}, {"w": float(client.info.items)})


@dataclass(frozen=True)
class TaughtRows(WithCopilot):
    """A method whose two models teach each other on some rows, which takes no label.

    Attributes:
        rows: The training rows of the step (`train`), as in the papers, or all nodes that training sees (`all`, ours).
            None: all nodes, but of small graphs or pairs those of the training.
    """

    rows: Literal["all", "train"] | None = None

    def setup(self, ctx: Context) -> Tree:
        require_whole_steps(ctx.train)
        if self.rows == "all":
            require_nodes(ctx)
        return super().setup(ctx)

    def taught(self, client: Client) -> Literal["all", "train"]:
        return self.rows or ("all" if client.info.items_are_rows else "train")
