"""FedGM: clients send condensed graphs once, and the server trains a model on all of these together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.base import Algorithm, Ask, Client, Context, Received, Requests, Trainer, Tree, Upload
from shoal.algorithms.losses.prototype_generator import train_kept
from shoal.algorithms.methods.fedgm.condensation import (
    HOPS,
    Matching,
    class_gradients,
    condense,
    condensed_counts,
    draw_weights,
    matching_loss,
    smoothed_training_rows,
    with_ones,
)
from shoal.algorithms.methods.fedgm.joined_graph import Csr, edges_of, inputs_of, joined, smoothing_of
from shoal.algorithms.methods.shared.class_prototypes import rows_upload
from shoal.algorithms.protocol import MODEL, Reduce
from shoal.algorithms.rng import Stream
from shoal.algorithms.training.local_training import bounded_loss, make_optimizer
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import AboveZero, Count, Part, Positive

# Phases.
CONDENSE, MATCH = "condense", "match"
# The server's state holds features of all condensed nodes, flat, the weights of their edges, and their number by client
# and class, `[B, C]`, clients in the order in which they came, which are marked.
NODES, EDGES, COUNTS, MET = "nodes", "edges", "counts", "met"


@dataclass(frozen=True)
class FedGM(Algorithm):
    """FedGM (Zhang et al., IJCAI 2025): the server trains on graphs that clients condense, and improves their nodes.

    In its first round client i makes a graph of m_ic = max(1, floor(`ratio` n_ic)) nodes of each class c that n_ic > 0
    of its training nodes have. X begins as features of training nodes drawn from the class; weights A of edges are an
    MLP's of the features of both ends. With g_c(Z, Theta) the gradient of the mean cross-entropy of class c by an SGC
    that is drawn anew in each step, S = D^-1/2 (A + I) D^-1/2, and S_i that of the client's graph,

        L = sum_c (m_ic / max_c' m_ic') |g_c(S^2 X, Theta) - g_c(S_i^2 X_i, Theta)|^2,

    `edge_steps` steps of Adam train the MLP, then `node_steps` X, in turns. X, A and m of the step of the least L are
    sent. The server joins all graphs without edges between them, and starts a model anew in each round: half of
    `server_epochs` at the config's learning rate, half at a tenth of it.

    In each further round it sends a new Theta; clients answer with g_c on their training nodes, the server averages
    these by m_ic, and takes `match_steps` on X towards them, down the same L; edges stay. Its moments stay, too.

    Written from the abstract and the authors' code; the paper's text was not at hand. The code condenses by gradients
    of a GCN of two layers at 256 sampled training nodes of a class; ours by those of SGC at all of them, as GCond may.
    It sends the MLP instead of A, whose normalisation then runs over nodes of all clients, and chooses among epochs of
    the server by validation nodes; rests of counts go to the largest class, and a class of less than 1 / `ratio` nodes
    has none. Its `ratio` is 0.84 and it takes 1000 steps.

    Clients train no model: the config's optimizer, dropout and decay are those of the server, `train.epochs` is read by
    nobody. A condensed node starts as a copy of a training node's features, and nothing hides it from the server.

    Up: first M F + M (M - 1) / 2 + C scalars, M = sum_c m_ic, then C_i C (F + 1) + C. Down: first nothing, then the
    C (F + 1) numbers of Theta.

    Attributes:
        ratio: Condensed nodes of a training node.
        steps: Steps of a client's condensation.
        condense_lr: Learning rate of nodes and of the MLP.
        edge_steps, node_steps: Length of turns.
        match_steps: Steps on nodes in a round of the server.
        server_epochs: Steps of the model in a round.
    """

    supports = frozenset({"node", "weighted", "newcomers"})

    ratio: Part = 0.1
    steps: Positive = 300
    condense_lr: AboveZero = 0.01
    edge_steps: Count = 5
    node_steps: Positive = 15
    match_steps: Count = 1
    server_epochs: Positive = 300

    # The server.

    def setup(self, ctx: Context) -> Tree:
        coupled, (kind,) = ctx.build(MODEL, 0).coupled, ctx.models[MODEL]
        if coupled is not None and not coupled.weighs_edges:
            raise ShoalError("model.name", f"{kind.name} reads no weights, which condensed edges have; take gcn or sgc")
        if coupled is not None and coupled.fanouts:
            raise ShoalError("model.fanouts", "FedGM trains on all condensed nodes in one step; leave it out")
        if ctx.train.batch_size is not None:
            raise ShoalError("train.batch_size", "FedGM reads all nodes in one step; leave it out")
        return {
            "w": ctx.initial,
            MET: torch.zeros(len(ctx.clients), dtype=torch.bool),
            NODES: ctx.initial.new_zeros(0),
            EDGES: ctx.initial.new_zeros(0),
            COUNTS: torch.zeros(0, ctx.classes, dtype=torch.int64),
        }

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        returning = [i for i in cohort if server[MET][i]]
        changed = False
        if returning and self.match_steps and len(server[NODES]):
            w_CG = draw_weights(ctx.features, ctx.classes, ctx.rng("surrogate"), ctx.device)
            got = yield Ask(MATCH, {"gradient": Reduce.MEAN}, shared={"surrogate": w_CG}, train=False, to=returning)
            counts_C1 = got.weights["gradient"]
            if bool((counts_C1 > 0).any()):
                self._match(server, ctx, w_CG, got["gradient"], counts_C1[:, 0])
                changed = True
        if new := [i for i in cohort if not server[MET][i]]:
            up = dict.fromkeys((NODES, EDGES, COUNTS), Reduce.GATHER)
            got = yield Ask(CONDENSE, up, to=new, score=False)
            server[MET][got.ids] = True
            added = sum(len(x) for x in got.lists[NODES])
            server[NODES] = torch.cat([server[NODES], *got.lists[NODES]])
            server[EDGES] = torch.cat([server[EDGES], *got.lists[EDGES]])
            server[COUNTS] = torch.cat([server[COUNTS], *(counts[None] for counts in got.lists[COUNTS])])
            for name in (f"{NODES}.exp_avg", f"{NODES}.exp_avg_sq"):
                if name in server:
                    server[name] = F.pad(server[name], (0, added))
            changed = changed or bool(added)
        if changed:
            self._train(server, ctx)

    def global_model(self, server: Tree) -> Tree:
        return {"w": server["w"]}

    def _match(self, server: Tree, ctx: Context, w_CG: Tensor, wanted_CCG: Tensor, weight_C: Tensor) -> None:
        """Moves nodes so that their gradients come near those of the cohort, and notes the distance."""
        y_N, graph = _joined(server)
        order_N = y_N.argsort(stable=True)
        counts = torch.bincount(y_N, minlength=ctx.classes).tolist()
        smoothing = smoothing_of(graph, w_CG.device)
        nodes = _Nodes(len(y_N), ctx.features)

        def apart() -> Tensor:
            z_NF: Tensor = nodes.x_NF
            for _ in range(HOPS):
                z_NF = smoothing @ z_NF
            found_CCG = class_gradients(with_ones(z_NF[order_N]), counts, w_CG)
            return matching_loss(found_CCG, wanted_CCG.view_as(found_CCG), weight_C.float())

        ctx.notes["distance"] = train_kept(server, nodes, apart, self.match_steps, self.condense_lr, 0.0, 0, NODES)

    def _train(self, server: Tree, ctx: Context) -> None:
        """Trains a model on all condensed graphs from the common initial parameters."""
        model, stream = ctx.build(MODEL, 0), Stream(ctx.device, ctx.random("train"))
        y_N, graph = _joined(server)
        inputs = inputs_of(model, server[NODES].view(len(y_N), ctx.features), graph)
        model.load(ctx.initial)
        model.set_training(True)
        late = self.server_epochs // 2
        losses: list[Tensor] = []
        for lr, epochs in ((ctx.train.lr, self.server_epochs - late), (ctx.train.lr / 10, late)):
            optimizer = make_optimizer([model.w], replace(ctx.train, lr=lr))
            for _ in range(epochs):
                optimizer.zero_grad(set_to_none=False)
                with stream:
                    loss = F.cross_entropy(model(inputs).logits_NC, y_N)
                    loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        ctx.notes["server loss"] = bounded_loss(float(losses[-1]), float(losses[0]))
        server["w"] = model.w.detach().clone()

    # The clients.

    def receive(self, client: Client, down: Tree) -> Tensor | None:
        """The SGC to differentiate; None: there is none."""
        super().receive(client, down)
        return down.get("surrogate")

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        """Condenses the client's graph into what it uploads."""
        if not client.info.train:
            return float("nan")
        z_TG, x_TF = smoothed_training_rows(client.data)
        options = Matching(self.steps, self.condense_lr, self.edge_steps, self.node_steps)
        condensed = condense(z_TG, x_TF, _real_counts(client), self._counts(client), options, client.rng(CONDENSE))
        client.state[NODES], client.state[EDGES] = condensed.x_MF.flatten(), edges_of(condensed.weight_MM)
        return condensed.loss

    def _counts(self, client: Client) -> Tensor:
        return condensed_counts(client.data.train_label, client.info.classes, self.ratio)

    def upload(self, client: Client, received: Tensor | None, phase: str) -> Upload:
        counts_C = self._counts(client)
        if phase == CONDENSE:
            # The server has them now.
            none = torch.zeros(0, device=client.data.device)
            graph = {name: client.state.pop(name, none) for name in (NODES, EDGES)}
            return Upload({**graph, COUNTS: counts_C.int()})
        assert received is not None
        z_TG, _ = smoothed_training_rows(client.data)
        gradient_CCG = class_gradients(z_TG, _real_counts(client), received)
        return rows_upload(gradient_CCG.flatten(1), counts_C.float(), "gradient")


class _Nodes(nn.Module):
    """Features of nodes as parameters."""

    def __init__(self, nodes: int, features: int) -> None:
        super().__init__()
        self.x_NF = nn.Parameter(torch.empty(nodes, features))


def _real_counts(client: Client) -> list[int]:
    return torch.bincount(client.data.train_label, minlength=client.info.classes).tolist()


def _joined(server: Tree) -> tuple[Tensor, Csr]:
    """Reads labels and edges of all condensed nodes."""
    counts_BC = server[COUNTS]
    classes = torch.arange(counts_BC.shape[1], device=counts_BC.device).expand_as(counts_BC)
    y_N = classes.flatten().repeat_interleave(counts_BC.flatten())
    return y_N, joined(counts_BC.sum(1).tolist(), server[EDGES])
