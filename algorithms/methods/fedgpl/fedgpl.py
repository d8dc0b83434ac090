"""FedGPL: one GNN on the server, prompts and heads on the clients; tasks share these by how much they help."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.base import Algorithm, Ask, Client, Context, Forms, Mix, Requests, Trainer, Tree, Upload
from shoal.algorithms.methods.fedgpl.own_part import (
    BATCH,
    IN_ROUND,
    LOSS,
    OWN,
    OwnPart,
    batches_of,
    hold,
    load_part,
    own_entries,
)
from shoal.algorithms.methods.fedgpl.server_gnn import GNN, ServerGNN
from shoal.algorithms.models.items.plain_graphs import PlainGraphs
from shoal.algorithms.protocol import MODEL, Reduce
from shoal.algorithms.training.local_training import bounded_loss
from shoal.storage.options.types import AboveZero, Positive

Mixing = Literal["hidta", "task_mean", "mean", "none"]
Diagonal = Literal["weight_norm", "delta"]
Distance = Literal["rms", "norm"]
STILL = 1e-12
GRAPHS = dict.fromkeys(("x", "pairs", "arrows", "first"), Reduce.GATHER)
UpdatesGNN = Literal["frozen", "round_accumulate", "per_batch_seq", "per_client_avg"]
Noise = Literal["off", "paper", "clipped"]
Exchange = Generator[Ask | Mix, Any, None]
# The largest |u| below a half: beyond it the logarithm is infinite.
FURTHEST = 0.5 - 2**-24


@dataclass(frozen=True)
class Trained:
    """Parameters of clients before and after a round, float64, and their tasks; of those that have training data."""

    start_NQ: Tensor
    end_NQ: Tensor
    task_N: Tensor

    @property
    def members_TN(self) -> Tensor:
        """Every row the mean over the clients of a task, zero for a task without any, float64."""
        of_task_TN = F.one_hot(self.task_N).T.double()
        return of_task_TN / of_task_TN.sum(1, keepdim=True).clamp(min=1)


def task_weights(trained: Trained, mixing: Mixing, diagonal: Diagonal, distance: Distance = "rms") -> Tensor:
    """Computes the weights of every client's parameters in the next ones of a task, float64 `[T, N]`.

    Rows of tasks with a client sum to one, others are zero. `hidta` is of equations (5) to (7), `task_mean` the mean
    within a task, `mean` that over all clients. `diagonal`: see `transferability`. Equation (6) has the `norm` of a
    client's parameters minus its task's; `rms` divides it by sqrt(Q), so that it does not grow with Q.

    As printed, (6) and (7) have parameters from before the round, by which training would be lost; all here are those
    after it, as in the paper's algorithm 1.
    """
    members_TN = trained.members_TN
    if mixing == "task_mean":
        return members_TN
    there_T1 = members_TN.sum(1, keepdim=True)
    if mixing == "mean":
        return there_T1 / len(trained.task_N) * torch.ones_like(members_TN)
    tau_TN = transferability(trained, diagonal)[:, trained.task_N]
    mean_NQ = (members_TN @ trained.end_NQ)[trained.task_N]
    square_NQ = (trained.end_NQ - mean_NQ).square()
    closeness_N = F.logsigmoid(-(square_NQ.mean(dim=1) if distance == "rms" else square_NQ.sum(dim=1)).sqrt())
    # The closeness of the target itself cancels in the weights of one target.
    weight_TN = torch.softmax(tau_TN.log() + closeness_N, dim=1)
    # A task with no other to listen to has a row of 0 / 0, which becomes its own members.
    return torch.where(there_T1 > 0, torch.where(weight_TN.isnan(), members_TN, weight_TN), 0.0)


def transferability(trained: Trained, diagonal: Diagonal) -> Tensor:
    """Measures how far the step of a task leads towards another one (eq. 5), float64 `[T, T]`, rows being targets.

    tau_pq = <theta'_p - theta_p, theta'_q - theta_p> / ||theta'_p - theta_p||, theta being means over the clients of a
    task. Negative ones, of which the paper says nothing, count as 0: with them the sum below (7) may vanish. By (5)
    tau_pp = ||theta'_p - theta_p|| (`delta`); the published code has ||theta'_p|| (`weight_norm`), which is larger by
    one to two orders: a task then listens mostly to itself. A task that stood still listens to itself alone.
    """
    members_TN = trained.members_TN
    start_TQ, end_TQ = members_TN @ trained.start_NQ, members_TN @ trained.end_NQ
    step_TQ = end_TQ - start_TQ
    length_T = step_TQ.norm(dim=1)
    still_T = length_T < STILL
    towards_TT = step_TQ @ end_TQ.T - (step_TQ * start_TQ).sum(1, keepdim=True)
    tau_TT = (towards_TT / length_T.clamp(min=STILL)[:, None]).clamp(min=0)
    tau_TT[still_T] = 0
    own_T = end_TQ.norm(dim=1) if diagonal == "weight_norm" else length_T
    tau_TT.diagonal().copy_(torch.where(still_T, 1.0, own_T))
    return tau_TT


@dataclass
class Turn:
    """The download of a client in one exchange, and its upload."""

    down: Tree
    up: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class FedGPL(Algorithm):
    """Federated graph prompt learning (arXiv 2411.02003): a split model, and HiDTA.

    The model of the config has a prompt. Clients hold the prompt and the classifier, Q parameters; the GNN stays on the
    server. A batch of B graphs takes four messages: the prompted graphs go up, their embeddings come down, gradients of
    these go up, gradients of the prompted features come down; prompt and classifier then take one step together. The
    last message of a batch is that which asks for the graphs of the next. Clients whose batch has the same number go
    through the GNN together, in passes of up to `most_rows` nodes.

    Tasks are the domains of the federation. At the end of a round the server mixes prompts and classifiers by task
    (`task_mixing`), for clients that were away, too, and each client starts the next round with those of its task.
    Scope `trained` is what clients hold before mixing, `deployed` after it; the GNN reaches hosts for evaluation alone.

    Bytes of a batch with n nodes, e pairs of neighbours and B graphs: 4 F n + 8 e + 4 (B + 1) + 4 B H up and
    4 F n + 4 B H down; of a round besides, 4 Q each way.

    The server sees features, edges and gradients of the answers; from these and the classifier, which it mixes, labels
    can be inferred. Noise covers neither edges, numbers of nodes, nor prompt and classifier, which every client sends
    as they are once a round: no epsilon bounds what these reveal of its nodes, and a note counts them. A prompt that
    chooses nodes sends other rows, too, if one node changes. Without `clipped` nothing is private.

    Attributes:
        gnn: `frozen`: as the first round found it, the effect of the public code. `round_accumulate`, the paper and the
            default here: one step of Adam a round on the mean gradient of all clients' batches. `per_batch_seq`, what
            the public code means to do, and `configs/papers/fedgpl/cora.yaml` does: a step after every batch, clients
            one after another in an order drawn for the round. `per_client_avg`: every client has a copy with its own
            moments for the round, and a step after each of its batches; copies are averaged.
        server_lr: Learning rate of the GNN.
        mixing: `hidta`, or for comparison `task_mean`, `mean` over all clients (FedAvg), or `none`.
        diagonal: See `task_mixing.transferability`; the paper's is `delta`.
        distance: See `task_mixing.task_weights`; the paper's is `norm`.
        noise: On what clients send in a batch: `off`, `paper` or `clipped`, see `add_noise`.
        epsilon: Of one row in one release. Notes of a round say what is spent so far at most: on the rows of one
            training graph, and, where graphs were cut out of one, on those of a node, which may lie in many graphs.
        clip: Largest L1 norm of a row, `clipped` only.
        most_rows: Nodes of a pass through the GNN.
        recompute: The server keeps what clients sent until the gradients come, and not what the GNN made of it.
    """

    forms: ClassVar[Forms] = {
        # The paper's prompt is an option of the model, see `VPG`.
        "paper": {"gnn": "round_accumulate", "diagonal": "delta", "distance": "norm"},
        "code": {"gnn": "frozen"},
    }
    gnn: UpdatesGNN = "round_accumulate"
    server_lr: AboveZero = 0.001
    mixing: Mixing = "hidta"
    diagonal: Diagonal = "weight_norm"
    distance: Distance = "rms"
    noise: Noise = "off"
    epsilon: AboveZero = 100.0
    clip: AboveZero = 1.0
    most_rows: Positive = 65_536
    recompute: bool = False
    supports = frozenset({"graph"})

    # The server's part.

    def setup(self, ctx: Context) -> Tree:
        flat = ctx.build(MODEL, 0)
        own_P = own_entries(flat)
        w = flat.w.detach()
        return {GNN: w[~own_P].clone(), "theta": w[own_P].expand(len(ctx.clients), -1).clone()}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        able = [i for i in cohort if ctx.clients[i].train]
        pending = {i: {"theta": server["theta"][i]} for i in cohort}
        if self.gnn == "per_batch_seq":
            # The order is drawn, because the last client moves the GNN most.
            for place in torch.randperm(len(able), generator=ctx.rng("order of clients")).tolist():
                yield from self._train(ctx, [self._gnn(ctx, server, [able[place]])], pending)
        elif self.gnn == "per_client_avg":
            copies: list[Tree] = [{GNN: server[GNN]} for _ in able]
            yield from self._train(ctx, [self._gnn(ctx, copy, [i]) for copy, i in zip(copies, able)], pending)
            if copies:
                server[GNN] = torch.stack([copy[GNN] for copy in copies]).double().mean(dim=0).float()
        elif able:
            gnn = self._gnn(ctx, server, able)
            yield from self._train(ctx, [gnn], pending)
            if self.gnn == "round_accumulate":
                gnn.step(self.server_lr)
        got = yield Ask("end", {"theta": Reduce.STACK}, private=pending, score_with={GNN: server[GNN]})
        self._mix(server, ctx, got.ids, got["theta"])
        if self.noise == "clipped":
            # Every training graph is released twice an epoch: as features, and as the gradient of its answer.
            spent = 2 * ctx.train.epochs * ctx.round * self.epsilon
            ctx.notes["epsilon of a training graph"] = spent
            if (graphs := ctx.clients[0].graphs_of_node) is not None:
                ctx.notes["epsilon of a node's rows"] = graphs * spent
            ctx.notes["classifiers sent without noise"] = ctx.round

    def _gnn(self, ctx: Context, tree: Tree, clients: Sequence[int]) -> ServerGNN:
        flat = ctx.build(MODEL, 0)
        own_P = own_entries(flat)
        if self.gnn == "frozen":
            flat.module.requires_grad_(False)
        return ServerGNN(tree, clients, flat, own_P, self.most_rows, self.recompute)

    def _train(self, ctx: Context, gnns: Sequence[ServerGNN], pending: dict[int, Tree]) -> Exchange:
        """Trains on all batches of some clients, same numbers together; `pending` holds each client's next download."""
        steps = {i: batches_of(ctx.clients[i].train, ctx.train) for gnn in gnns for i in gnn.clients}
        for number in range(max(steps.values(), default=0)):
            yield from self._exchange(ctx, gnns, number, [i for i in steps if steps[i] > number], pending)
            if self.gnn in ("per_batch_seq", "per_client_avg"):
                for gnn in gnns:
                    gnn.step(self.server_lr)

    def _exchange(
        self, ctx: Context, gnns: Sequence[ServerGNN], number: int, clients: Sequence[int], pending: dict[int, Tree]
    ) -> Exchange:
        """Exchanges the messages of one batch."""
        received = {i: pending.pop(i) for i in clients if i in pending}
        got = yield Ask("forward", GRAPHS, private=received, to=clients, score=False)
        columns = zip(got.ids, *(got.lists[name] for name in GRAPHS))
        sent = {
            i: PlainGraphs(x, pairs, first.long(), arrows if arrows.shape[1] else None)
            for i, x, pairs, arrows, first in columns
        }
        answers: dict[int, Tensor] = {}
        for gnn in gnns:
            seed = ctx.random(f"batch {number} from client {gnn.clients[0]}")
            answers |= gnn.forward({i: sent[i] for i in gnn.clients if i in sent}, seed)
        private = {i: {"answer": answer} for i, answer in answers.items()}
        got = yield Ask("backward", {"of_answer": Reduce.GATHER}, private=private, to=got.ids, score=False)
        of_answer = dict(zip(got.ids, got.lists["of_answer"]))
        for gnn in gnns:
            for i, of_x in gnn.backward(of_answer).items():
                pending[i] = {"of_x": of_x}

    def _mix(self, server: Tree, ctx: Context, ids: Sequence[int], theta_NQ: Tensor) -> None:
        """Prompts and heads for the next round, from those of clients that trained."""
        able = [place for place, i in enumerate(ids) if ctx.clients[i].train]
        if not able:
            return
        who = torch.tensor([ids[place] for place in able])
        task_of = torch.tensor([info.domain for info in ctx.clients])
        if self.mixing == "none":
            server["theta"][who] = theta_NQ[able]
            return
        trained = Trained(server["theta"][who].double(), theta_NQ[able].double(), task_of[who])
        weights_TN = task_weights(trained, self.mixing, self.diagonal, self.distance)
        mixed_TQ = (weights_TN @ trained.end_NQ).float()
        there = torch.isin(task_of, trained.task_N)
        ctx.record_mixing(there.nonzero()[:, 0].tolist(), who.tolist(), weights_TN[task_of[there]])
        server["theta"][there] = mixed_TQ[task_of[there]]

    def global_model(self, server: Tree) -> Tree:
        return {GNN: server[GNN], "thetas": server["theta"]}

    # The clients' part.

    def receive(self, client: Client, down: Tree) -> Turn:
        if GNN in down:
            load_part(client, down[GNN], ~own_entries(client.model.flat))
        if "thetas" in down:
            hold(client, down["thetas"][client.info.client].clone())
        elif "theta" in down:
            hold(client, down["theta"].clone())
        elif OWN in client.state:
            hold(client, client.state[OWN])
        return Turn(down)

    def train(self, client: Client, received: Turn, trainer: Trainer, phase: str) -> float:
        part, down = OwnPart(client, trainer.options), received.down
        if "theta" in down:
            part.restart()
        if "of_x" in down:
            part.step(down["of_x"])
        if phase == "forward":
            graphs = part.add_prompt()
            x_NF = self._add_noise(client, graphs.x_NF.detach(), "x")
            arrows = graphs.pairs_2E[:, :0] if graphs.arrows_2E is None else graphs.arrows_2E.int()
            received.up = {"x": x_NF, "pairs": graphs.pairs_2E, "arrows": arrows, "first": graphs.first.int()}
        elif phase == "backward":
            received.up = {"of_answer": self._add_noise(client, part.learn_head(down["answer"]), "answer")}
        else:
            received.up = {"theta": client.state[OWN]}
            return bounded_loss(float(client.state[LOSS])) if client.info.train else float("nan")
        return float("nan")

    def _add_noise(self, client: Client, rows: Tensor, what: str) -> Tensor:
        rng = client.rng(f"noise {what} {int(client.state[BATCH])}")
        return add_noise(rows, self.noise, self.epsilon, self.clip, rng)

    def upload(self, client: Client, received: Turn, phase: str) -> Upload:
        if phase == "end":
            for name in IN_ROUND:
                client.state.pop(name, None)
        return Upload(received.up)


def laplace(shape: torch.Size, scale: float, rng: torch.Generator, device: torch.device) -> Tensor:
    """Draws of the Laplace distribution around 0, of variance 2 scale^2, float32."""
    u = (torch.rand(shape, generator=rng, device=device) - 0.5).clamp(-FURTHEST, FURTHEST)
    return -scale * u.sign() * torch.log1p(-2 * u.abs())


def add_noise(x_NF: Tensor, noise: Noise, epsilon: float, clip: float, rng: torch.Generator) -> Tensor:
    """Adds Laplace noise to rows (eq. 4), in a new tensor unless there is none.

    `paper` has the scale (max - min) / epsilon over the whole tensor: the range of the very data is no bound of what
    one row can change, so this is not epsilon-differentially private. `clipped` shrinks rows to an L1 norm of `clip`
    and has the scale 2 clip / epsilon, which is, for every row and release, under replacement of the row.
    """
    if noise == "off" or not x_NF.numel():
        return x_NF
    if noise == "paper":
        scale = float(x_NF.max() - x_NF.min()) / epsilon
    else:
        scale = 2 * clip / epsilon
        x_NF = x_NF * (clip / x_NF.abs().sum(1, keepdim=True).clamp(min=clip))
    return x_NF + laplace(x_NF.shape, scale, rng, x_NF.device)
