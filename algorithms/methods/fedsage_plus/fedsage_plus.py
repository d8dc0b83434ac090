"""FedSage+: clients generate the neighbours that other clients hold, augment their graphs, and then average."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm, Ask, Client, Context, Received, Replies, Requests, Trainer, Tree, Upload
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.feddc import FedDC
from shoal.algorithms.methods.fedgta.fedgta import FedGTA
from shoal.algorithms.methods.fedsage_plus.client_generator import AUGMENTED, ClientGenerator, GeneratorOptions
from shoal.algorithms.methods.moon import MOON
from shoal.algorithms.protocol import MODEL, Reduce
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import Count, Positive

# Phases of a round of generators, and where a client's state counts those rounds.
SHOW, JUDGE, LEARN, ROUNDS = "show", "judge", "learn", "rounds"


@dataclass(frozen=True)
class AugmentedGraphs(GeneratorOptions, Algorithm):
    """FedSage+ (Zhang et al., NeurIPS 2021) before the averaging of models, which the other base class does.

    In the first `generator_rounds` rounds clients train generators. A client hides a share h of its nodes, drawn once.
    An encoder reads the graph of the others, V nodes; of the embedding z_v it says how many hidden neighbours v has,
    n~_v, and of z_v + N(0, 1) what features P of them have, of which the first round(n~_v) (0 to P) are generated:
    x~_v1, x~_v2, … A step minimises

        degree / V sum_v smooth L1(n~_v - n_v)
        + feature / V sum_v,p min over hidden neighbours u of v of MSE(x~_vp, x_u)
        + label CE, of a GraphSAGE on the graph of the V nodes and the generated ones
        + across / m sum_v,p min over hidden nodes u of another client of MSE(x~_vp, x_u)

    the last one a mean over `peers` other clients. For it a client shows the maker of features, Q parameters, and the
    noisy embeddings of m of its nodes; others answer with the gradient by their own hidden nodes, whose features never
    leave them, and their mean is held in all `train.epochs` steps of the round. No model is averaged in these rounds,
    and what is scored is the initial one.

    At its first visit after these rounds a client takes the steps of those that it missed, without the others, then
    augments its graph for good: every node of the whole graph gets its generated neighbours. Models train on that
    graph, and are scored on it for the client's own nodes, as `trained` and `deployed`; those of a client that did not
    come yet, and the server's own model, on the graph as it is. Where training sees training nodes alone
    (`data.inductive`), their graph is augmented for training, and that of all nodes, by the same generator, for scores;
    a client without any has no generator, and is scored on its graph as it is.

    In the paper all other clients judge, by all of their nodes, and are added up; squares are added up, too, of which
    its code takes means, as here. Generators of the code are of widths 256 and 2048, with dropout. The number of
    neighbours is not cut at zero before its loss, which would leave nodes without a gradient.

    Bytes of a client in a round of generators, k = min(peers, cohort - 1): up 4 Q + 4 m (H + 1) + 4 k Q, down
    k (4 Q + 4 m (H + 1) + 4) + 4 Q, with Q = H (H + 1) + P F (H + 1). With `generator_rounds: 0` nothing is changed.

    Attributes:
        generator_rounds: As above.
        peers: Other clients that judge a generator in a round, drawn anew in each.
        sampled_nodes: m at most.
    """

    # Missing neighbours are of nodes.
    supports = frozenset({"node"})
    generator_rounds: Count = 10
    peers: Positive = 5
    sampled_nodes: Positive = 64

    # The server.

    def setup(self, ctx: Context) -> Tree:
        if not self.generator_rounds:
            return super().setup(ctx)
        coupled, (kind,) = ctx.build(MODEL, 0).coupled, ctx.models[MODEL]
        if coupled is None:
            raise ShoalError(
                "model.name",
                f"FedSage+ augments the graph that messages are passed along, and {kind.name} reads hops; "
                "take sage, or another model that reads the graph",
            )
        if coupled.fanouts:
            raise ShoalError("model.fanouts", "FedSage+'s augmented graphs are read whole; leave it out")
        if self.generator_rounds >= ctx.rounds:
            raise ShoalError(
                "algorithm.generator_rounds",
                f"{self.generator_rounds} rounds of generators leave none of {ctx.rounds} "
                "to average models in; take fewer, or more rounds",
            )
        return super().setup(ctx)

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        if ctx.round > self.generator_rounds:
            yield from super().round(server, ctx, cohort)
            return
        judged = (yield from self._judge(ctx)) if self.across else {}
        yield Ask(LEARN, {}, private=judged)

    def _judge(self, ctx: Context) -> Generator[Ask, Any, dict[int, Tree]]:
        """Asks the clients of the cohort to judge each other's generators; gives each the gradients of its own."""
        got = yield Ask(SHOW, {"maker": Reduce.STACK, "z": Reduce.GATHER, "count": Reduce.GATHER}, train=False)
        shown_to = draw_peers(len(got.ids), self.peers, ctx.rng("peers"), ctx.device)
        if not shown_to.shape[1]:
            return {}
        private = {client: shown_by(got, places) for client, places in zip(got.ids, shown_to)}
        answers = yield Ask(JUDGE, {"gradient": Reduce.STACK}, private=private, train=False, to=got.ids)
        place = {client: number for number, client in enumerate(got.ids)}
        judged = torch.stack([shown_to[place[client]] for client in answers.ids])
        gradient = answers["gradient"]
        return {
            i: {"gradient": gradient[judged == place[i]].mean(0)} for i in got.ids if bool((judged == place[i]).any())
        }

    # The clients.

    def receive(self, client: Client, down: Tree) -> Received:
        received = super().receive(client, down)
        if AUGMENTED in client.state:
            _answer_in_augmented(client, ClientGenerator(client, self))
        return received

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        state, epochs = client.state, trainer.options.epochs
        done = int(state.get(ROUNDS, torch.zeros(())))
        if phase == LEARN:
            state[ROUNDS] = torch.tensor(done + 1)
            return ClientGenerator(client, self).train(trainer, epochs, received.get("gradient"))
        if self.generator_rounds and client.data.nodes and AUGMENTED not in state:
            generator = ClientGenerator(client, self)
            if done < self.generator_rounds:
                generator.train(trainer, epochs * (self.generator_rounds - done))
            generator.flush()
            _answer_in_augmented(client, generator)
        return super().train(client, received, trainer, phase)

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        if AUGMENTED in client.state and client.model.items is None:
            # Training sees training nodes alone: all nodes, which are scored, are augmented by the same generator.
            _answer_in_augmented(client, ClientGenerator(client, self))
        return super().predict(client, received, part)

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        if phase == SHOW:
            return Upload(ClientGenerator(client, self).show(self.sampled_nodes))
        if phase == JUDGE:
            return Upload({"gradient": ClientGenerator(client, self).judge(received)})
        return Upload({}) if phase == LEARN else super().upload(client, received, phase)


@dataclass(frozen=True)
class FedSagePlus(AugmentedGraphs, FedAvg):
    """FedSage+ (Zhang et al., NeurIPS 2021): FedAvg on augmented graphs, see `AugmentedGraphs`.

    Down: in the first phase what others' generators are judged by, in the second w `[P]`. Up: w_i `[P]` and n_i, the
    client's own nodes. Scope `global` is w on clients' graphs as they are. With `generator_rounds: 0` it is FedAvg, to
    the bit with `engine.trainer: autograd`. FedSage, without the plus, is `fedavg` with `model: sage`.

    Attributes:
        weight: n_i, as FedAvg has it.
    """


@dataclass(frozen=True)
class FedSagePlusFedGTA(AugmentedGraphs, FedGTA):
    """FedSage+ whose second phase averages as FedGTA does (Table 5 of its paper), see `AugmentedGraphs` and `FedGTA`.

    Labels spread over the graph as it is, from the predictions for the client's nodes in the augmented one.
    """


@dataclass(frozen=True)
class FedSagePlusMOON(AugmentedGraphs, MOON):
    """FedSage+ whose second phase trains as MOON does (Table 5 of FedGTA's paper), see `AugmentedGraphs` and `MOON`."""


@dataclass(frozen=True)
class FedSagePlusFedDC(AugmentedGraphs, FedDC):
    """FedSage+ whose second phase is FedDC (Table 5 of FedGTA's paper), see `AugmentedGraphs` and `FedDC`."""


def draw_peers(clients: int, peers: int, rng: torch.Generator, device: torch.device) -> Tensor:
    """Draws the k clients whose generators each judges, places int64 `[clients, k]`; k judge each, too."""
    ring = torch.randperm(clients, generator=rng, device=device)
    steps = torch.arange(1, min(peers, clients - 1) + 1, device=device)
    judged = torch.empty(clients, len(steps), dtype=torch.int64, device=device)
    judged[ring] = ring[(torch.arange(clients, device=device)[:, None] + steps) % clients]
    return judged


def shown_by(got: Replies, places: Tensor) -> Tree:
    """Collects what some clients show, for one that judges it."""
    z, count = ([got.lists[name][place] for place in places.tolist()] for name in ("z", "count"))
    size = torch.tensor([len(part) for part in count], dtype=torch.int32)
    return {"maker": got["maker"][places], "z": torch.cat(z), "count": torch.cat(count), "size": size}


def _answer_in_augmented(client: Client, generator: ClientGenerator) -> None:
    assert client.model.coupled is not None
    client.model.answer_in(generator.augment(client.model.coupled))
