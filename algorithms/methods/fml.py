"""FML: a client's own model and a common one learn from each other."""

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from shoal.algorithms.base import Client, Received, Trainer, Upload, pure
from shoal.algorithms.losses.distillation import distillation_loss
from shoal.algorithms.methods.shared.copilot import COPILOT, TaughtRows
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.training.joint_training import Outputs, label_loss, train_jointly, weighted_sum
from shoal.storage.options.types import Share


@dataclass(frozen=True)
class FML(TaughtRows):
    """Federated mutual learning (Shen et al., 2020).

    A client has its own model, of any kind, and a copilot (the paper's meme), which alone is sent. In every epoch
    both answer, in training mode; then each takes one step, the own model on

        alpha * CE + (1 - alpha) * KL(copilot || own)

    and the copilot on beta * CE + (1 - beta) * KL(own || copilot). A teacher is detached, and its output is from
    before either step. CE is the mean over training rows, the KL that over `rows` (see `TaughtRows`). The
    server averages copilots over the cohort, weighted by nodes.

    Up: the copilot's parameters and the weight, P + 1 scalars. Down: P. Without training rows there is no CE: with
    `rows: all` such a client is taught by what remains of the sum; a copilot that did not train has weight 0. alpha = 1
    trains the own model as Local, to the bit by autograd; then it teaches the copilot, nothing dropped.

    Attributes:
        alpha, beta: Weights of the labels for the own model and for the copilot.
    """

    # Models teach each other by logits.
    reads_embedding = False
    alpha: Share = 0.5
    beta: Share = 0.5

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        # A client of an edge task may have no item at all.
        rows = self.taught(client)
        if not (client.info.train if rows == "train" else client.info.items):
            return float("nan")
        personal = pure(partial(self._mutual, client, MODEL, COPILOT, self.alpha))
        copilot = pure(partial(self._mutual, client, COPILOT, MODEL, self.beta))
        if self.alpha < 1:
            return train_jointly(client, trainer, {MODEL: personal, COPILOT: copilot}, rows)[MODEL]
        # A pass over all nodes would drop other activations than Local does.
        loss = trainer.fit(client, received)
        own_output = {MODEL: client.model.output(client.model.gathered(rows))}
        train_jointly(client, trainer, {COPILOT: lambda outputs: copilot({**own_output, **outputs})}, rows)
        return loss

    def _mutual(self, client: Client, learner: str, teacher: str, labels: float, outputs: Outputs) -> Tensor:
        """Computes the loss of one of the two; without a gradient where it has no term."""
        out = outputs[learner]
        return weighted_sum(
            (labels * bool(client.info.train), lambda: label_loss(client, out, self.taught(client))),
            (1 - labels, lambda: distillation_loss(outputs[teacher].logits_NC, out.logits_NC)),
        )

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        trained = client.info.train or (self.taught(client) == "all" and self.beta < 1)
        return Upload({"w": client.models[COPILOT].w}, {"w": float(client.info.items) if trained else 0.0})
