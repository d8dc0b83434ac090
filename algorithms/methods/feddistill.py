"""FedDistill: clients share the mean logits of every class instead of parameters."""

from dataclasses import dataclass

from torch import Tensor

from shoal.algorithms.base import Client, Output, pure
from shoal.algorithms.losses.distillation import distilled_by_class
from shoal.algorithms.methods.shared.class_prototypes import ClassRows
from shoal.storage.options.types import NotNegative


@dataclass(frozen=True)
class FedDistill(ClassRows):
    """Federated distillation (Jeong et al., 2018): mean logits g_c = sum_i n_ic g_ic / sum_i n_ic over the cohort.

    A client keeps its own model, of any architecture, and trains it on cross-entropy + gamma * mean over its training
    rows of KL(softmax(g_{y_v}) || softmax(logits_v)), on rows whose class has mean logits; in round 1 none has.

    For the messages see `ClassRows`. Logits of the upload are of evaluation mode after training, in published code of
    the training steps. The paper takes the receiver's own part out of what it is taught; here it stays in. gamma = 0
    trains as Local; FedGen's code has 1.
    """

    # Clients share logits.
    reads_embedding = False
    gamma: NotNegative = 1.0

    @pure
    def loss(self, out: Output, y: Tensor, w: Tensor, received: tuple[Tensor, Tensor] | None) -> Tensor:
        plain = super().loss(out, y, w, received)
        if not self.gamma or received is None:
            return plain
        teacher_CC, known_C = received
        return plain + self.gamma * distilled_by_class(teacher_CC, known_C, y, out.logits_NC)

    def rows_of(self, client: Client) -> Tensor:
        return client.model.logits_of("train")
