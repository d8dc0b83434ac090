"""Gradient inversion: features, and edges, of one client from the change of the model that it sent in a round.

The attacker knows the model, the parameters that the client received, and its steps: it looks for nodes with which the
same steps change the parameters in the same direction (Zhu et al., Deep leakage from gradients, NeurIPS 2019), by the
cosine of Geiping et al., Inverting gradients, NeurIPS 2020. Labels are guessed as in `properties`. Where a linear layer
reads the rows, they start as changes of its weights over those of its bias, which is the row where one node trained it
(Phong et al., Privacy-preserving deep learning via additively homomorphic encryption, IEEE TIFS 2018). Of a GCN,
features and a symmetric adjacency are found together (Sinha et al., Gradient inversion attack on graph neural networks,
2024). Axes: N rows that are looked for, n training nodes, F numbers of a row, C classes, H units, P parameters.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.func import functional_call

from shoal.algorithms.base import trains_plainly
from shoal.algorithms.client import Client
from shoal.algorithms.models.gnn.gcn import GCN
from shoal.algorithms.models.inputs.neighbourhood import Inputs, Neighbourhood
from shoal.algorithms.protocol import Tree
from shoal.algorithms.rng import key
from shoal.algorithms.train_options import TrainOptions
from shoal.attacks.membership import area
from shoal.attacks.properties import guesses_of
from shoal.attacks.seen_uploads import RELEASED, UPLOAD, Sent, seen_round
from shoal.past.reader import Reading
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError
from shoal.tables.text_table import TextTable

# The search takes `STEPS` steps. `ROWS_RATE` is in units of the rows' mean size; a GCN has a rate for its features and
# another one for the logits of its edges.
STEPS, ROWS_RATE, FEATURES_RATE, EDGES_RATE = 500, 0.05, 0.01, 0.05
# Every edge starts from this logit: graphs are sparse.
NO_EDGE = -3.0
# Adam's steps are near to signs, which have no slope. So many root mean squares of the gradient are added to its root.
SMOOTH = 0.1
# Chance is measured on at most `OTHERS` other clients. The search is for at most `MOST` numbers, features or pairs.
OTHERS, MOST = 50, 2**24
HEADS = ("rows", "cosine", "of training nodes", "AUC of edges")


@dataclass(frozen=True)
class InversionReader:
    """The reader that inverts the gradients of one client in a round."""

    round: Annotated[int, Field(ge=1)] = 1
    client: Annotated[int, Field(ge=0)] | None = None

    def read(self, past: PastRun) -> Reading:
        """Returns the table of `inversion`. Raises as `inversion`."""
        return Reading.of(inversion(past.path, self.round, self.client))


def inversion(run: Path, number: int, client: int | None = None) -> TextTable:
    """Attacks one client of a round, by default the one of the fewest training nodes.

    Gives, in percent, the mean cosine of the client's rows and found ones, each matched with another, the AUC of its
    edges, and the cosines of rows of other clients and of their mean, which are chance.

    Raises ShoalError: as `seen_round`, or the client did not train or is too large, or the attack does not know the
    steps of the run's model, method or options.
    """
    past = PastRun(run).of_round(number)
    past.require_classes("inversion")
    sizes, train = past.job.infos(past.job.open_training(past.store)), past.job.train.in_round(number)
    trained = {i: sizes[i].train for i in past.cohort(number) if sizes[i].train}
    if client is None and trained:
        client = min(trained, key=lambda i: trained[i])
    if client not in trained or len(trained) < 2:
        why = f"client {client} is none of them" if len(trained) > 1 else "none is left to compare with"
        raise ShoalError(run, "--client", f"{len(trained)} clients trained in round {number}, {why}; name another")
    if train.batch_size is not None or not trains_plainly(past.plan.algorithm):
        why = "inversion knows steps on all rows by cross-entropy alone; attack a run that trains so"
        raise ShoalError(run, "--kind", why)
    seen = seen_round(past, number, (client,))
    victim = seen.client(client)
    true_NF, rng = rows_of(victim), torch.Generator()
    rng.manual_seed(key(past.job.seed, client, "inversion"))
    drawn = sorted(trained.keys() - {client}, key=lambda i: key(past.job.seed, client, i))[:OTHERS]
    others_MF = torch.cat([rows_of(seen.client(i)) for i in drawn])
    guesses = [
        (UPLOAD if message.client is not None else RELEASED, *attack.search(rng))
        for message in (*seen.sent, seen.released)
        if (attack := Attack.on(message, victim, train, bool((others_MF >= 0).all())))
    ]
    if not guesses:
        raise ShoalError(run, "--kind", f"no model comes and goes in round {number}, to be inverted; take membership")
    some = torch.randperm(len(others_MF), generator=rng)[: len(true_NF)]
    chance = (("of others", others_MF[some], None), ("mean of others", others_MF.mean(0).expand_as(true_NF), None))
    rows = tuple((name, *_success(victim, true_NF, guess, edges)) for name, guess, edges in (*guesses, *chance))
    title = f"inversion of client {client} in round {number} (%): {len(victim.data.train)} training nodes of "
    return TextTable(HEADS, rows, 1, title=f"{title}{victim.info.nodes}", notes=seen.notes)


def rows_of(client: Client) -> Tensor:
    """Returns what the attack looks for: hops of a decoupled model's training nodes, concatenated, or a GCN's features.

    Float32 `[N, F]`. Raises ShoalError: the attack does not know the model, or these are too many numbers.
    """
    model, data, kind = client.model, client.data, type(client.model.pattern.backbone)
    is_gcn = kind is GCN and not model.pattern.backbone.fanouts
    crossed = model.coupled is not None and data.propagation is not None and data.propagation.first_layer
    if not (model.coupled is None or is_gcn) or not data.items_are_rows or model.pattern.prompted or crossed:
        why = f"no {kind.__name__} of this run, but decoupled models of nodes and gcn on the edges of one client"
        raise ShoalError("--kind", f"inversion knows {why}; attack such a run")
    numbers = data.nodes * max(data.nodes, data.features) if is_gcn else len(data.train) * data.features
    if numbers > MOST:
        raise ShoalError("--client", f"{numbers:,} numbers are to be found, {MOST:,} at most; name a smaller client")
    hops: Any = [data.whole(0)] if is_gcn else model.gathered("train")
    return torch.cat([hop.to_dense().float() for hop in hops], 1)


def _success(client: Client, true_NF: Tensor, found_NF: Tensor, edges_NN: Tensor | None) -> tuple[str, str, str]:
    cosine_NN = (F.normalize(true_NF, dim=1) @ F.normalize(found_NF, dim=1).T).double().numpy()
    rows, places = linear_sum_assignment(-cosine_NN)
    matched_N, auc = np.zeros(len(true_NF)), "-"
    matched_N[rows] = cosine_NN[rows, places]
    train = slice(None) if client.model.coupled is None else client.data.train.numpy()
    if edges_NN is not None:
        pairs = np.triu_indices(len(places), 1)
        signal, has = edges_NN[places][:, places].numpy()[pairs], client.data.adjacency.to_dense().numpy()[pairs] > 0
        auc = f"{100 * area(signal[has], signal[~has]):.1f}" if has.any() and not has.all() else "-"
    return f"{100 * matched_N.mean():.1f}", f"{100 * matched_N[train].mean():.1f}", auc


@dataclass(frozen=True)
class Attack:
    """The knowledge of an attacker: of the client's data its numbers of nodes and F alone.

    Attributes:
        model: The client's model; its parameters are not read.
        start_P: Parameters that the client received.
        change_P: The change of these parameters that it sent.
        label_n: Guessed labels of training nodes, int64, ascending.
        shape: N and F.
        positive: Features are at least 0, as those of others are.
    """

    model: Any
    start_P: Tensor
    change_P: Tensor
    label_n: Tensor
    shape: tuple[int, int]
    train: TrainOptions
    positive: bool

    @classmethod
    def on(cls, sent: Sent, client: Client, train: TrainOptions, positive: bool) -> "Attack | None":
        """Makes the attack on one message; None: no whole model came and went."""
        flat, info = client.model.pattern, client.info
        if (start_and_change := sent.change(len(flat.w))) is None:
            return None
        # The shares that the bias tells, at n quantiles.
        ends_C = dict(guesses_of(sent, client))["classifier's bias"][1].cumsum()
        label_n = torch.from_numpy(np.searchsorted(ends_C[:-1], (np.arange(info.train) + 0.5) / info.train))
        shape = info.train if flat.coupled is None else info.nodes, client.data.features * len(flat.inputs)
        start_P, change_P = (t.float() for t in start_and_change)
        return cls(flat, start_P, change_P, label_n, shape, train, positive)

    def search(self, rng: torch.Generator) -> tuple[Tensor, Tensor | None]:
        """Finds the rows `[N, F]` of the best match, and of a GCN the probability of each edge, `[N, N]`."""
        is_gcn, row_NF = self.model.coupled is not None, self._first_rows(rng).requires_grad_()
        rate = FEATURES_RATE if is_gcn else ROWS_RATE * float(row_NF.detach().abs().mean())
        groups, best = [{"params": [row_NF], "lr": rate}], float("inf")
        match: tuple[Tensor, Tensor | None] = row_NF.detach().clone(), None
        if is_gcn:
            logit_NN = (NO_EDGE + 0.1 * torch.randn(len(row_NF), len(row_NF), generator=rng)).requires_grad_()
            groups.append({"params": [logit_NN], "lr": EDGES_RATE})
        optimizer = torch.optim.Adam(groups)
        self.model.module.eval()
        for _ in range(STEPS):
            read_NF = row_NF.clamp(min=0) if self.positive else row_NF
            edges_NN = ((logit_NN + logit_NN.T) / 2).sigmoid() * (1 - torch.eye(len(row_NF))) if is_gcn else None
            loss = 1 - F.cosine_similarity(self.simulate_training(self.inputs(read_NF, edges_NN)), self.change_P, dim=0)
            if (value := float(loss.detach())) < best:
                best, match = value, (read_NF.detach().clone(), None if edges_NN is None else edges_NN.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return match

    def simulate_training(self, inputs: Inputs) -> Tensor:
        """Returns the change of all parameters by local training on inputs, `[P]`, differentiable; without dropout.

        Moments start at zero, as in a client's first round, and Adam's root is smoothed.
        """
        train, w_P = self.train, self.start_P.requires_grad_()
        first_P = second_P = torch.zeros_like(w_P)
        for step in range(1, train.epochs + 1):
            logits_nC = functional_call(self.model.module, self._by_name(w_P), (inputs,)).logits_NC
            (g_P,) = torch.autograd.grad(F.cross_entropy(logits_nC, self.label_n), w_P, create_graph=True)
            g_P = g_P + train.weight_decay * w_P
            if train.optimizer == "sgd":
                first_P = train.momentum * first_P + g_P
                w_P = w_P - train.lr * first_P
                continue
            first_P, second_P = 0.9 * first_P + 0.1 * g_P, 0.999 * second_P + 0.001 * g_P.square()
            root_P = (second_P / (1 - 0.999**step) + 1e-20).sqrt() + SMOOTH * g_P.detach().square().mean().sqrt()
            w_P = w_P - train.lr / (1 - 0.9**step) * first_P / root_P
        return w_P - self.start_P

    def inputs(self, row_NF: Tensor, edges_NN: Tensor | None) -> Inputs:
        """Makes the inputs of the model from rows, and from a symmetric adjacency without loops."""
        if edges_NN is None:
            return list(row_NF.chunk(len(self.model.inputs), 1))
        loops_NN = edges_NN + torch.eye(len(edges_NN))
        root_N = loops_NN.sum(1).rsqrt()
        matrix: Any = root_N[:, None] * loops_NN * root_N
        # Nodes have no order, so the first ones may stand for those that train.
        return Neighbourhood(row_NF, (matrix,) * self.model.coupled.depth, torch.arange(len(self.label_n)))

    def _first_rows(self, rng: torch.Generator) -> Tensor:
        """Returns rows to start from: a unit's change of weights over that of its bias; or random rows without one."""
        change = self._by_name(self.change_P)
        name = next((name for name, t in change.items() if t.shape[1:] == self.shape[1:]), "")
        bias_H = change.get(name.removesuffix("weight") + "bias")
        if self.model.coupled is not None or bias_H is None:
            return 0.1 * torch.rand(self.shape, generator=rng)
        unit_N = bias_H.abs().argsort(descending=True)[torch.arange(self.shape[0]) % len(bias_H)]
        if len(self.model.module.head.linears) == 1:
            unit_N = self.label_n
        row_NF = (change[name][unit_N] / bias_H[unit_N, None]).nan_to_num(0.0, 0.0, 0.0)
        return row_NF.clamp(min=0) if self.positive else row_NF

    def _by_name(self, w_P: Tensor) -> Tree:
        sent = set(map(id, self.model.parameters))
        names = (name for name, p in self.model.module.named_parameters() if id(p) in sent)
        return dict(zip(names, self.model.parts(w_P), strict=True))
