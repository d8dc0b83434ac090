"""The client's part of FedGPL's split model, prompt and head, and its steps within a batch."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.client import Client, FlatModel
from shoal.algorithms.method_errors import ProtocolError
from shoal.algorithms.models.items.plain_graphs import PlainGraphs
from shoal.algorithms.models.prompts.prompts import Prompted
from shoal.algorithms.protocol import moments_key
from shoal.algorithms.rng import seed_default
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.local_training import keep_moments, kept_moments, make_optimizer
from shoal.storage.errors import ShoalError

# Entries of a client's state in a round: its part of the parameters, and where it is.
IN_ROUND = OWN, BATCH, LOSS, OF_HEAD = "own", "batch", "loss", "of_head"


def own_entries(flat: FlatModel) -> Tensor:
    """Marks the prompt's and classifier's entries of `w`, bool `[P]`; raises a ShoalError without a prompt."""
    if not isinstance(flat.module, Prompted):
        raise ShoalError(
            "model.prompt", "fedgpl cuts the model between prompt and GNN; give vpg, or none for classifiers alone"
        )
    own_P = torch.zeros(len(flat.w), dtype=torch.bool, device=flat.w.device)
    # The prompt's parameters come first.
    own_P[: sum(p.numel() for p in flat.module.prompt.parameters())] = True
    own_P[flat.classifier] = True
    if flat.frozen:
        raise ShoalError("model.frozen", "fedgpl keeps the GNN on its server; set algorithm.gnn=frozen instead")
    return own_P


def batches_of(train: int, options: TrainOptions) -> int:
    """Steps of a client with so many training graphs in a round."""
    return options.epochs * -(-train // (options.batch_size or max(train, 1)))


@dataclass(frozen=True)
class OwnPart:
    """A client's prompt and head, in the middle of a round; the client's state tells where it is."""

    client: Client
    options: TrainOptions

    def restart(self) -> None:
        """Resets the batches before the first one of a round."""
        state, device = self.client.state, self.client.data.device
        state.update({BATCH: torch.zeros((), dtype=torch.int64), LOSS: torch.zeros((), device=device)})
        if self.options.opt_state == "reset":
            for name in kept_moments(state, moments_key(OWN)):
                del state[f"{OWN}.opt.{name}"]

    def add_prompt(self) -> PlainGraphs:
        """Adds the prompt to the graphs of the batch."""
        client = self.client
        client.model.module.train()
        assert client.model.items is not None
        return client.model.module.prompt(client.model.items.some(client.data.train[self._graphs()]))  # type: ignore

    def learn_head(self, answer_GH: Tensor) -> Tensor:
        """Computes the gradient of the loss in the answers for the batch, `[B, H]`; keeps that of the head."""
        client, flat = self.client, self.client.model.flat
        graphs = self._graphs()
        answer_GH = answer_GH.clone().requires_grad_()
        flat.w.grad.zero_()  # type: ignore[union-attr]
        flat.module.train()
        seed_default(client.data.device, client.model.random(f"head {int(client.state[BATCH])}"))
        out = flat.module.backbone.classify_items(answer_GH)  # type: ignore
        loss = F.cross_entropy(out.logits_NC, client.data.label[client.data.train[graphs]])
        loss.backward()
        client.state[OF_HEAD] = flat.w.grad[own_entries(flat)]  # type: ignore[index]
        epochs, steps = self.options.epochs, batches_of(client.info.train, self.options)
        if int(client.state[BATCH]) >= steps * (epochs - 1) // epochs:
            client.state[LOSS] = client.state[LOSS] + loss.detach() * (len(graphs) / client.info.train)
        assert answer_GH.grad is not None
        return answer_GH.grad

    def step(self, of_x_NF: Tensor) -> None:
        """Steps prompt and head by the gradient of the features that were sent, and goes to the next batch."""
        client, flat = self.client, self.client.model.flat
        own_P = own_entries(flat)
        gradient = flat.w.grad
        assert gradient is not None
        gradient.zero_()
        sent = self.add_prompt()
        if sent.x_NF.requires_grad:
            sent.x_NF.backward(of_x_NF)
        part = nn.Parameter(client.state[OWN].clone())
        part.grad = gradient[own_P] + client.state.pop(OF_HEAD)
        optimizer = make_optimizer([part], self.options)
        if moments := kept_moments(client.state, moments_key(OWN)):
            optimizer.state[part] = moments
        optimizer.step()
        keep_moments(client.state, moments_key(OWN), optimizer.state[part])
        hold(client, part.detach())
        client.state[BATCH] = client.state[BATCH] + 1

    def _graphs(self) -> Tensor:
        """Returns places of the batch among the training graphs; every epoch has its own order."""
        train, size = self.client.info.train, self.options.batch_size or self.client.info.train
        epoch, number = divmod(int(self.client.state[BATCH]), -(-train // size))
        order = torch.arange(train, device=self.client.data.device)
        if size < train:
            order = torch.randperm(train, generator=self.client.rng(f"order {epoch}"), device=order.device)
        return order[number * size : (number + 1) * size]


def hold(client: Client, own: Tensor) -> None:
    """Makes these the client's prompt and head, float32 `[Q]`."""
    client.state[OWN] = own
    load_part(client, own, own_entries(client.model.flat))


def load_part(client: Client, part: Tensor, where: Tensor) -> None:
    """Replaces the entries of the client's model that `where`, bool `[P]`, marks."""
    w = client.model.w.clone()
    if len(part) != int(where.sum()):
        raise ProtocolError(f"a part of {len(part)} parameters, the model has {int(where.sum())} there")
    w[where] = part
    client.model.load(w)
