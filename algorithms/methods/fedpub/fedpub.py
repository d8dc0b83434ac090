"""Fed-PUB: averages among clients whose models do the same on a random graph, each with its own mask."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.base import (
    Algorithm,
    Ask,
    Client,
    Context,
    Forms,
    Mix,
    Pull,
    Requests,
    Term,
    Trainer,
    Tree,
    Upload,
)
from shoal.algorithms.client import ClientModel, FlatModel
from shoal.algorithms.losses.prototypes import unit
from shoal.algorithms.methods.shared.requirements import require_body
from shoal.algorithms.models.inputs.masked_features import smoothing_over
from shoal.algorithms.models.inputs.neighbourhood import Inputs, Neighbourhood, operator_over
from shoal.algorithms.protocol import MODEL, Reduce
from shoal.algorithms.rng import seed_default
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.joint_training import own_optimizer
from shoal.algorithms.training.local_training import batches, bounded_loss
from shoal.storage.options.types import NotNegative

# A client's state holds its mask under this name, `[W]`; absent before its first training, when all are one.
MASK = "mask"
# The proxy graph is the authors': an edge inside a block with this probability, none between blocks.
BLOCKS, NODES, INSIDE = 5, 100, 0.1


@dataclass
class Received:
    """The download of a client, and its model in training.

    Attributes:
        w: The parameters that it received, and after its training those that it has, without masks, `[P]`.
        near: The parameters that training stays near: w as mixed for the client; None before the first mix.
        seed: Seed of the proxy graph; 0 where it was not sent.
    """

    w: Tensor
    near: Tensor | None
    seed: int


@dataclass(frozen=True)
class FedPUB(Algorithm):
    """Fed-PUB (Baek et al., ICML 2023): personalised averages of clients that share a community of the whole graph.

    A client computes with w * m, m its own mask for every entry of every weight matrix, one at first. Both w and m
    are trained, by the config's optimizer, on

        CE(w * m) + l1 |m|_1 + proximal |w - w_received|^2

    without the last term until the server mixed a w for the client. Neither penalty has a gradient in the authors' code
    (`form: code`), and l1 is 0 here: |m|_1 is a sum over all entries, so that under Adam any weight of it takes every
    mask to 0 within some hundred steps. `form: paper` has it. A model that is evaluated has no use for masks below
    `threshold`: they are 0.

    The server compares clients by sketches h_j, the mean embedding that the model j, masks included, gives the 500
    nodes of a random proxy graph of five blocks, and client i receives sum_j a_ij w_j over the cohort, with
    a_ij = exp(tau cos(h_i, h_j)) / sum_k exp(tau cos(h_i, h_k)). The proxy graph is drawn once a run; only its seed is
    sent. A client without a training node receives but does not count. One that takes part for the
    first time starts from the initial parameters.

    Down: 8 bytes of the seed, the mix `[P]`, to a newcomer the initial parameters. Up: w_i `[P]` and h_i `[H]`. Masks
    never travel. tau = 0 is the plain mean of the cohort; without masks and penalties and with a tau so large that
    only equal sketches are mixed it is Local, to the bit with `engine.trainer: autograd`.

    Attributes:
        tau: How much likeness counts; the authors' code has 3 to 10.
        l1: Weight of the masks' size.
        proximal: Weight of the distance.
        threshold: As above.
        masks: There are masks.
    """

    reads_embedding = True

    # The proxy graph has nodes and edges, and nothing that pairs or graphs would be pooled from.
    supports = frozenset({"node", "weighted", "newcomers"})
    forms: ClassVar[Forms] = {"paper": {"l1": 1e-3}, "code": {"l1": 0.0, "proximal": 0.0}}
    tau: NotNegative = 10.0
    l1: NotNegative = 0.0
    proximal: NotNegative = 1e-3
    threshold: NotNegative = 1e-3
    masks: bool = True

    # The server.

    def setup(self, ctx: Context) -> Tree:
        (kind,) = ctx.models[MODEL]
        require_body(ctx.build(MODEL, 0), kind, "Fed-PUB compares clients by what is below the classifier")
        met = torch.zeros(len(ctx.clients), dtype=torch.bool)
        return {"initial": ctx.initial, "met": met, "proxy": torch.tensor(ctx.random("proxy graph"))}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        newcomers = {i: {"w": server["initial"]} for i in cohort if not server["met"][i]}
        up = {"w": Reduce.MIX, "sketch": Reduce.STACK}
        got = yield Ask("train", up, shared={"proxy": server["proxy"]}, private=newcomers)
        if not got.ids:
            return
        counts_B = torch.tensor([ctx.clients[i].train > 0 for i in got.ids], device=ctx.device)
        rows = mixing_rows(got["sketch"], counts_B, self.tau)
        ctx.notes["contributors"] = float((1 / rows.square().sum(1)).mean())
        ctx.notes["own weight"] = float(rows.diagonal().mean())
        ctx.record_mixing(got.ids, got.ids, rows)
        yield Mix("w", rows, dst=got.ids)
        server["met"][got.ids] = True

    # The clients.

    def receive(self, client: Client, down: Tree) -> Received:
        mixed = client.inbox.get("w")
        # Without either, the client starts from the initial parameters, which the model has now.
        w = (down.get("w", client.model.w) if mixed is None else mixed).clone()
        self._deploy(client, w)
        return Received(w, mixed, int(down.get("proxy", 0)))

    def _deploy(self, client: Client, w: Tensor) -> None:
        """Loads the parameters that the model is evaluated with."""
        if MASK in client.state:
            w = apply_mask(w, client.state[MASK], in_matrices(client.model.flat), self.threshold)
        client.model.load(w)

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        if not client.info.train:
            return float("nan")
        if not self.masks:
            loss = trainer.fit(client, received)
            received.w = client.model.w.clone()
            return loss
        client.model.load(received.w)
        loss = self._train_masked(client, trainer, self._proximal_term(client, received.near))
        received.w = client.model.w.clone()
        self._deploy(client, received.w)
        return loss

    def pull(self, client: Client, received: Received, options: TrainOptions) -> Pull | None:
        if received.near is None or not self.proximal:
            return None
        return Pull(origin=received.near, mu=2 * self.proximal)

    def _proximal_term(self, client: Client, near: Tensor | None) -> Term | None:
        w = client.model.flat.w
        if near is None or not self.proximal:
            return None
        return lambda: self.proximal * (w - near).square().sum()

    def _train_masked(self, client: Client, trainer: Trainer, penalty: Term | None) -> float:
        """Trains w, which is left in the model, and the mask, which is left in the client's state."""
        flat, places_P = client.model.flat, in_matrices(client.model.flat)
        w, gradient = flat.w, flat.w.grad
        assert gradient is not None
        inputs_of, y = batches(client), client.data.train_label
        kept_W = client.state.get(MASK)
        mask_W = nn.Parameter(torch.ones(int(places_P.sum()), device=y.device) if kept_W is None else kept_W)
        losses: list[Tensor] = []
        with trainer.optimizer(client) as optimizer, own_optimizer(client, trainer, MASK, mask_W) as mask_optimizer:
            seed_default(y.device, client.model.random("train"))
            client.model.module.train()
            for first, places in steps(y, trainer.options):
                target = y if places is None else y[places]
                kept, factor_P = w.detach().clone(), factors(mask_W.detach(), places_P)
                gradient.zero_()
                w.detach().mul_(factor_P)
                value = F.cross_entropy(client.model(inputs_of(places)).logits_NC, target)
                value.backward()
                w.detach().copy_(kept)
                size = self.l1 * mask_W.abs().sum()
                size.backward()
                assert mask_W.grad is not None
                mask_W.grad += (gradient * kept)[places_P]
                gradient.mul_(factor_P)
                value = value.detach() + size.detach()
                if penalty is not None:
                    distance = penalty()
                    distance.backward()
                    value = value + distance.detach()
                optimizer.step()
                mask_optimizer.step()
                mask_optimizer.zero_grad()
                losses = [] if first else losses
                losses.append(value * (len(target) / len(y)))
        return bounded_loss(float(sum(losses)))

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        return Upload({"w": received.w, "sketch": sketch(client.model, received.seed)})


def steps(y: Tensor, options: TrainOptions) -> Iterator[tuple[bool, Tensor | None]]:
    """Whether a step is the first of an epoch, and the places of its training rows, of labels y; None: all."""
    size = options.batch_size or len(y)
    for _ in range(options.epochs):
        if size >= len(y):
            yield True, None
            continue
        for number, places in enumerate(torch.randperm(len(y), device=y.device).split(size)):
            yield number == 0, places


def mixing_rows(sketch_BH: Tensor, counts_B: Tensor, tau: float) -> Tensor:
    """Computes the mixing matrix `[B, B]`: row i is exp(tau cos(h_i, h_j)) over the j that count, its sum one.

    Where no client counts each keeps its own.
    """
    direction_BH = unit(sketch_BH.double())
    cos_BB = (direction_BH @ direction_BH.T).clamp(-1, 1).fill_diagonal_(1)
    if not bool(counts_B.any()):
        return torch.eye(len(counts_B), device=sketch_BH.device)
    return (tau * cos_BB).masked_fill(~counts_B, -torch.inf).softmax(1).float()


def in_matrices(flat: FlatModel) -> Tensor:
    """Marks the parameters that are entries of a weight matrix, bool `[P]`; the others, as biases, have no mask."""
    parts = [torch.full((p.numel(),), p.dim() == 2, device=p.device) for p in flat.module.parameters()]
    return torch.cat(parts)


def apply_mask(w: Tensor, mask_W: Tensor, places_P: Tensor, threshold: float = 0.0) -> Tensor:
    """Multiplies entries of matrices by their masks: the parameters that a model computes with, `[P]`.

    Masks are in the order of the entries, whose places `in_matrices` gives; one below the threshold counts as 0.
    """
    return w * factors(torch.where(mask_W.abs() < threshold, 0, mask_W), places_P)


def factors(mask_W: Tensor, places_P: Tensor) -> Tensor:
    """Returns the factor of every parameter, `[P]`: 1 outside of matrices."""
    return torch.ones_like(places_P, dtype=mask_W.dtype).masked_scatter(places_P, mask_W)


def proxy_graph(seed: int, features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws row starts and columns of the symmetric adjacency, int32, and features from N(0, 1), float32 `[500, F]`."""
    rng = np.random.default_rng(seed)
    nodes = BLOCKS * NODES
    joined = np.zeros((nodes, nodes), dtype=bool)
    for block in range(BLOCKS):
        inside = slice(block * NODES, (block + 1) * NODES)
        joined[inside, inside] = np.triu(rng.random((NODES, NODES)) < INSIDE, 1)
    joined |= joined.T
    starts = np.concatenate([[0], np.cumsum(joined.sum(1))]).astype(np.int32)
    return starts, joined.nonzero()[1].astype(np.int32), rng.standard_normal((nodes, features), dtype=np.float32)


def sketch(model: ClientModel, seed: int) -> Tensor:
    """Computes a model's mean embedding over the nodes of the proxy graph, in evaluation mode, `[H]`."""
    coupled, kernel = model.coupled, model.data.propagation
    # Hops are smoothed as the client's own are.
    r = 0.5 if kernel is None else kernel.r
    reads = (*model.flat.inputs, r) if coupled is None else (coupled.operator, coupled.depth)
    inputs = model.data.cache(("proxy graph", seed, *reads), lambda: _inputs(model, seed, r))
    return model.output(inputs).embedding_NH.mean(0)


def _inputs(model: ClientModel, seed: int, r: float) -> Inputs:
    data, coupled = model.data, model.coupled
    starts, columns, features = proxy_graph(seed, data.features)
    x_NF = torch.from_numpy(features).to(data.device)
    if coupled is not None:
        operator = operator_over(coupled.operator, starts, columns, zero_features=True).to(data.device)
        return Neighbourhood(x_NF, (operator,) * coupled.depth)
    smoothing = smoothing_over(starts, columns, r).to(data.device)
    hops = [x_NF]
    for _ in range(max(model.flat.inputs)):
        hops.append(smoothing @ hops[-1])
    return [hops[k] for k in model.flat.inputs]
