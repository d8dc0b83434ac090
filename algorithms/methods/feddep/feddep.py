"""FedDEP: clients share prototypes of embeddings once, generate those of missing neighbours, and then average."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.base import Ask, Client, Context, Requests, Trainer, Tree, Upload
from shoal.algorithms.client import FlatModel
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.feddep.encoder import Encoder, embed_nodes, summarise
from shoal.algorithms.methods.feddep.fused_nodes import FusedNodes, draw_fusion
from shoal.algorithms.methods.feddep.generator import generate_embeddings, train_generator
from shoal.algorithms.methods.fedsage_plus.client_generator import GeneratorOptions
from shoal.algorithms.protocol import MODEL, Reduce
from shoal.algorithms.rng import Stream, seed_default
from shoal.algorithms.training.joint_training import own_moments, require_whole_steps
from shoal.algorithms.training.local_training import bounded_loss
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import Count, Positive

# Phases of a client's first round, before that of training.
ENCODE, GENERATE, TRAIN = "encode", "generate", "train"
# The server's state and downloads: weights for embeddings, what encoders start from, all prototypes, whose each is, and
# who has generated. A client keeps its own prototypes and the clusters of its nodes between both phases, then the
# parameters of its guesser and the seed of the noise.
FUSION, ENCODER, PROTOTYPES, OWNERS, MET = "fusion", "encoder", "prototypes", "owners", "met"
CLUSTERS, GENERATOR, NOISE = "clusters", "generator", "noise"
SIZES = "sizes"
# Models whose layers multiply by weights before they sum.
TAKEN = ("gcn", "sage")


@dataclass(frozen=True)
class Fusing:
    """The download of a client, and a leaf of it that is trained.

    Attributes:
        down: The download.
        fusion: A copy of its weights for embeddings, a leaf that is trained; None: there are none.
    """

    down: Tree
    fusion: nn.Parameter | None


@dataclass(frozen=True)
class FedDEP(GeneratorOptions, FedAvg):
    """FedDEP (Zhang et al., SDM 2024): FedAvg of models that also read generated embeddings of missing neighbours.

    In its first round a client trains an encoder on its labels, GraphSAGE of two layers with tanh, whose start the
    server gives to all, embeds its nodes and clusters them: the K means are its prototypes, c_u that of node u. They
    are sent once, and the server hands them on. The client then trains a generator alone: it hides a share h of its
    nodes; of the embedding z_v of each of the V others a GraphSAGE says how many hidden neighbours it has, n~_v, and of
    z_v + N(0, 1) a perceptron with tanh what P of them are embedded to, of which the first round(n~_v) count. A step
    minimises

        degree / V sum_v smooth L1(n~_v - n_v)
        + feature / (P V) sum_v,p min over hidden neighbours u of v of MSE(z~_vp, c_u)
        + label CE, of a GraphSAGE on the graph of the V nodes that reads e_v, too
        + across / (P V) sum_v,p min over prototypes c of another client of MSE(z~_vp, c)

    the last one a mean over those of up to `peers` others that were sent until then. With e_v = sum_p z~_vp / P of
    every node of its whole graph, fixed for good, a client trains the model: layer l adds U_l e_v to its output. Models
    and U are averaged. Encoder and model read in each step, and encoders for prototypes, up to `neighbours` neighbours
    of a node, drawn anew: the paper's noise-less local privacy of edges, of which no epsilon is claimed here.

    Models are scored with e as `trained` and `deployed`, the server's own without, on graphs as they are; so is a
    client without training nodes, which generates nothing. Where training sees training nodes alone (`data.inductive`),
    the same generator makes e of all nodes for scores.

    Written from the abstract and the authors' code; the paper's formulas were not at hand. The code sends gradients of
    generators in each step; that prototypes replace them, their nearest one counting, is our reading of the abstract's
    pseudo-FL, as that encoders start alike. It hides validation nodes, reads losses at training nodes, draws P
    prototypes of each other client and adds up clients, clusters by DEC, which is k-means here, gives no e to hidden
    nodes, and has a bias in each U_l, softmax before cross-entropy, dropout, and widths of 256 and 2048.

    Up: in a client's first round k E, k up to K; in each P_w + Q and twice n_i, Q = E sum_l H_l. Down: at first the
    encoder, then k E of each peer and its k; in each round P_w + Q.

    Attributes:
        weight: n_i, as FedAvg has it.
        clusters: K.
        peers: Other clients at most whose prototypes a client gets, drawn.
        encoder_epochs: Steps of an encoder.
        generator_epochs: Steps of a generator.
        neighbours: As above; 0 reads all.
    """

    # Missing neighbours are of nodes.
    supports = frozenset({"node"})

    clusters: Positive = 5
    peers: Positive = 20
    encoder_epochs: Positive = 50
    generator_epochs: Positive = 30
    neighbours: Count = 5

    # The server.

    def setup(self, ctx: Context) -> Tree:
        coupled, (kind,) = ctx.build(MODEL, 0).coupled, ctx.models[MODEL]
        if coupled is None or kind.name not in TAKEN:
            raise ShoalError("model.name", f"FedDEP adds to what layers of gcn or sage sum, found {kind.name}")
        if coupled.fanouts:
            raise ShoalError("model.fanouts", "FedDEP draws algorithm.neighbours in each step; leave it out")
        if not coupled.row_by_row:
            raise ShoalError(
                "model.norm",
                "FedDEP draws neighbours in each step, and norm: batch reads the whole graph; leave it out",
            )
        require_whole_steps(ctx.train)
        with Stream(ctx.device, ctx.random(ENCODER)):
            encoder = FlatModel(Encoder(ctx.features, ctx.classes, self.hidden))
        return {
            "w": ctx.initial,
            FUSION: draw_fusion(coupled, self.hidden, ctx.rng(FUSION)),
            ENCODER: encoder.w.detach().to(ctx.device),
            MET: torch.zeros(len(ctx.clients), dtype=torch.bool),
            PROTOTYPES: ctx.initial.new_zeros(0, self.hidden),
            OWNERS: torch.zeros(0, dtype=torch.int64),
        }

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        if new := [i for i in cohort if not server[MET][i]]:
            yield from self._generate(server, ctx, new)
        up = {"w": Reduce.MEAN, FUSION: Reduce.MEAN}
        got = yield Ask(TRAIN, up, shared=self.global_model(server))
        if got.weights["w"] > 0:
            server["w"], server[FUSION] = got["w"], got[FUSION]

    def _generate(self, server: Tree, ctx: Context, new: list[int]) -> Requests:
        """Lets clients encode, keeps their prototypes, and lets them generate by those of others."""
        up = {PROTOTYPES: Reduce.GATHER} if self.across else {}
        got = yield Ask(ENCODE, up, shared={ENCODER: server[ENCODER]}, to=new, score=False)
        private: dict[int, Tree] = {}
        if self.across:
            sent = got.lists[PROTOTYPES]
            owners = torch.tensor(got.ids, device=ctx.device).repeat_interleave(
                torch.tensor([len(proto_kE) for proto_kE in sent], device=ctx.device)
            )
            # Who comes again, having failed to generate, has new ones.
            others = ~torch.isin(server[OWNERS], owners)
            server[PROTOTYPES] = torch.cat([server[PROTOTYPES][others], *sent])
            server[OWNERS] = torch.cat([server[OWNERS][others], owners])
            rng = ctx.rng("peers")
            private = {i: self._of_peers(server, i, rng) for i in got.ids}
        answers = yield Ask(GENERATE, {}, private=private, to=got.ids, score=False)
        server[MET][answers.ids] = True

    def _of_peers(self, server: Tree, client: int, rng: torch.Generator) -> Tree:
        """Collects prototypes of others for a client, one behind another, and how many each of these has."""
        owners, counts = server[OWNERS].unique(return_counts=True)
        others = (owners != client).nonzero()[:, 0]
        order = torch.randperm(len(others), generator=rng, device=rng.device)
        drawn = others[order[: self.peers].to(others.device)]
        rows = [server[PROTOTYPES][server[OWNERS] == owner] for owner in owners[drawn]]
        return {PROTOTYPES: torch.cat([server[PROTOTYPES][:0], *rows]), SIZES: counts[drawn].int()}

    def global_model(self, server: Tree) -> Tree:
        return {"w": server["w"], FUSION: server[FUSION]}

    # The clients.

    def receive(self, client: Client, down: Tree) -> Fusing:
        super().receive(client, down)
        received = Fusing(down, nn.Parameter(down[FUSION].clone()) if FUSION in down else None)
        if received.fusion is not None and GENERATOR in client.state:
            client.model.answer_in(self._nodes(client, received.fusion))
        return received

    def _nodes(self, client: Client, fusion: Tensor) -> FusedNodes:
        """Makes the client's nodes with what was generated, with zeros where nothing was."""
        coupled, state = client.model.coupled, client.state
        assert coupled is not None
        if GENERATOR in state:
            mean_NE = generate_embeddings(client.data, self, state[GENERATOR], int(state[NOISE]))
        else:
            mean_NE = fusion.detach().new_zeros(client.data.nodes, self.hidden)
        return FusedNodes(client.data, mean_NE, fusion, coupled)

    def train(self, client: Client, received: Fusing, trainer: Trainer, phase: str) -> float:
        if not client.info.train:
            return float("nan")
        if phase == ENCODE:
            return self._encode(client, received.down[ENCODER], trainer)
        if phase == GENERATE:
            return self._learn_to_generate(client, received.down, trainer)
        assert received.fusion is not None
        return self._train(client, received.fusion, trainer)

    def _encode(self, client: Client, w: Tensor, trainer: Trainer) -> float:
        z_NE, loss = embed_nodes(client, self.hidden, w, self.encoder_epochs, self.neighbours, trainer.options)
        client.state[PROTOTYPES], client.state[CLUSTERS] = summarise(z_NE, self.clusters, client.random(CLUSTERS))
        return loss

    def _learn_to_generate(self, client: Client, down: Tree, trainer: Trainer) -> float:
        state = client.state
        protos = down[PROTOTYPES].split(down[SIZES].tolist()) if PROTOTYPES in down else ()
        proto_KE, cluster_N = state.pop(PROTOTYPES), state.pop(CLUSTERS)
        epochs = self.generator_epochs
        state[GENERATOR], loss = train_generator(client, self, proto_KE, cluster_N, protos, epochs, trainer.options)
        state[NOISE] = torch.tensor(client.random(NOISE))
        return loss

    def _train(self, client: Client, fusion: nn.Parameter, trainer: Trainer) -> float:
        model, y = client.model, client.data.train_label
        nodes, rng = self._nodes(client, fusion), np.random.default_rng(model.random("neighbours"))
        values: list[Tensor] = []
        with trainer.optimizer(client) as optimizer, own_moments(client, trainer, FUSION, fusion) as other:
            model.flat.set_training(True)
            seed_default(y.device, model.random("train"))
            for _ in range(trainer.options.epochs):
                optimizer.zero_grad(set_to_none=False)
                other.zero_grad()
                loss = F.cross_entropy(model(nodes.drawn(self.neighbours, rng)).logits_NC, y)
                loss.backward()
                optimizer.step()
                other.step()
                values.append(loss.detach())
        return bounded_loss(float(values[-1]), float(values[0]))

    def predict(self, client: Client, received: Fusing, part: str) -> Tensor:
        if received.fusion is not None and GENERATOR in client.state and client.model.items is None:
            # Training sees training nodes alone: all nodes, which are scored, get embeddings by the same generator.
            client.model.answer_in(self._nodes(client, received.fusion))
        return super().predict(client, received, part)

    def upload(self, client: Client, received: Fusing, phase: str) -> Upload:
        if phase == ENCODE:
            none = torch.zeros(0, self.hidden, device=client.data.device)
            return Upload({PROTOTYPES: client.state.get(PROTOTYPES, none)} if self.across else {})
        if phase == GENERATE:
            return Upload({})
        assert received.fusion is not None
        weight = self.weight_of(client)
        return Upload({"w": client.model.w, FUSION: received.fusion.detach()}, {"w": weight, FUSION: weight})
