"""FGGP: clients of several domains train one extractor, whose features are classified by prototypes of all of them."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.base import Ask, Client, Context, Forms, Output, Replies, Requests, Trainer, Tree, Upload
from shoal.algorithms.client import ROWS_AT_A_TIME, ClientModel, FlatModel
from shoal.algorithms.graphs.generated_graph import EdgeOptions, Similarity
from shoal.algorithms.graphs.nearest import nearest
from shoal.algorithms.losses.prototypes import class_means
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.methods.fggp.architectures import (
    GKIC,
    HEAD,
    SIZES,
    average_by_kind,
    common_classifier,
    draws_for,
    own_part,
    parts_of,
    what_fits,
)
from shoal.algorithms.methods.fggp.prototypes import (
    Bank,
    Clusters,
    Vote,
    certain_classes,
    certain_prototypes,
    existing,
    last_of_clients,
    newest,
    summed_up,
    votes,
)
from shoal.algorithms.methods.fggp.second_view import (
    Step,
    ViewOfGraphs,
    ViewOfNodes,
    batches_of,
    nearest_in_graphs,
)
from shoal.algorithms.methods.fggp.view_contrast import ViewOptions, loss_of_views
from shoal.algorithms.methods.shared.body import body_of, classifier_of, join_body
from shoal.algorithms.protocol import MODEL, Reduce
from shoal.algorithms.rng import Stream
from shoal.algorithms.training.joint_training import adding
from shoal.algorithms.training.local_training import bounded_loss
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import AboveZero, Count, NotNegative, Positive, Share

GENERATOR = "generator"
# A client of more cannot have all pairs of its nodes in a step: 50 million of some 100 bytes each.
MOST_NODES = 10_000


@dataclass
class Received:
    """The download of a client: the bank, None while there is none, and the round's number, 0 where it was not sent."""

    bank: Bank | None = None
    round: int = 0


@dataclass(frozen=True)
class FGGP(FedAvg):
    """FGGP: federated graph learning with generalizable prototypes, for clients whose graphs are of several domains.

    A model is an extractor and a classifier; the feature of a node is z = ReLU(embedding) (see `feature`). The server
    averages extractors as FedAvg does. The classifier serves local training alone, and under `head_mode: reset` starts
    every visit as the common initial one, which ties the features of all clients to each other.

    Prediction (FCPP). A client sends the prototypes of its classes, means of z weighted by how certain every node is
    (eq. 4), of its trained extractor in evaluation mode; the server keeps the last ones of every client, clusters those
    of a class (eq. 5), and what it finds is the bank. So clients outside the cohort, and their domains, stay in it. A
    node belongs to the class whose entries win the vote (eqs. 2 and 3). There is no filler in the bank. It is sent with
    every download and not kept by clients; where there is none yet, a client's own labelled prototypes stand for it.

    Training (GKIC) minimises, over all nodes of the client, in steps of the whole graph,

        CE(U) + CE(U^g) + beta * contrast(c, c^g) + gamma * L_reg                                       (eq. 9)

    where U and c are scores and prototypes on the graph, U^g and c^g on a second view: A', the graph and an edge from
    every node to its k' nearest by the received extractor (eq. 6), or a graph that a generator, averaged as the
    extractor is, draws from A' (eq. 7). Classes and certainties of c^g are those of c, without gradients; a class
    counts from a mass of `least_mass` on. Neighbours are found anew when the round is a multiple of `knn_every`, when
    those that a client keeps are of more than twice as many rounds ago, or when it has none.

    Down: the extractor's P_f parameters (all P under `head_mode: average`), the generator's P_G, B (H + 1) scalars of
    the bank, and the round's number where neighbours are looked for. Up: P_f, P_G, n_i, and H + 2 scalars (prototype,
    class, mass) of every class that the client has a label of. `gkic: off` trains on CE(U) alone, and any model will
    do. With `fcpp: false` nothing is sent but parameters and the classifier predicts, so that it must be averaged; with
    `gkic: off` as well this is FedAvg, to the bit by autograd. A client without training nodes does not
    train and has no weight. `model.init` has to be `shared`.

    Several architectures (FedPG's Table VI; how FGGP runs on them is our reading): extractors are averaged within each,
    by the same weights; prototypes of all, whose embeddings have the common width H, fill one bank; there is one
    generator. All start from the classifier of client 0's model, so that features of all are tied: downloads have its
    P_h parameters, too, but under `head_mode: average`. The server keeps uploads of a round apart, and in scope
    `global` each client has the newest model of its architecture.

    With `task: graph` items are small graphs (FedPG's Tables VIII and IX; our reading): z is of the readout, and
    prototypes, contrast and vote are of graphs in place of nodes. Clients learn from their training graphs alone, all
    of which have labels, so that eq. 4 is the mean of a class, its mass the number of graphs; steps take batches. The
    second view is made within each training graph, by embeddings of its nodes below the readout.

    Where the paper is silent, or its formulas and its code disagree: an edge is drawn with its probability, generated
    graphs serve all layers, the classifier's too (see `GeneratedGraph`); the contrast has the own class in its
    denominators (`contrast_form: literal` is eq. 8); `vote: class_nearest` gives a node to the class of its nearest
    entry, so that it does not matter how many entries a class has. Of two balanced votes it is the one for a class of
    several domains: `class_avg` takes it for such a class that most of its entries are far.

    Attributes:
        fcpp: The bank predicts, or else the classifier.
        gkic: The second view: `both`; A' alone (`knn_only`); generated from A (`gen_only`); there is none (`off`); or
            `fitting`, the most that a client's model allows: `both` of gcn, gcnii and gin, A' of others that pass
            messages, none of models of hops.
        head_mode: The classifier starts as the common initial one (`reset`), stays with its client (`personal`), or is
            averaged with the rest (`average`).
        cluster: How prototypes of a class become entries, see `summed_up`.
        finch_min: Fewer prototypes of a class are not clustered: FINCH merges any two or three.
        domains: Clusters of a class with `cluster: kmeans`.
        eps: Cosine distance of `cluster: dbscan`.
        bank: Of the `last` prototypes of every client, or the newest `slots` entries of every class, each round's
            clustered by themselves (`ring`, the authors' code).
        slots: As above.
        vote: See `votes`; `sum_cos` is the paper's, `softmax_sum` that of its code.
        k: Entries that vote on a node.
        vote_temperature: Of `softmax_sum` and `class_avg`.
        need_label: A client sends no prototype of a class that it has no label of.
        least_mass: Sum of certainties that makes a prototype: 1, a certain node; 0: any node does, as in eq. 4.
        certainty: Weight of an unlabelled node: its largest `probability`, or its largest `logit`, as eq. 4 is written;
            that may be negative, and the prototype may then point away from its nodes.
        feature: Z, the embedding where it is positive (`relu`), or as it is (`embedding`), as in the equations.
        tau: Temperature of the contrast.
        beta: Weight of the contrast.
        contrast_form: `infonce`, or `literal`.
        gamma: Weight of L_reg.
        neighbours: k'.
        knn_every: Rounds.
        lam: Lambda, what A' weighs in addition to the generator.
        random_pairs: Of every node, that may become edges in addition to those of A'; `all`: every pair of nodes may,
            as eq. 7 and L_reg are written, N^2 / 2 of them in each step. With few, drawn graphs stay as sparse as A'.
        reg_form: L_reg, see `GeneratedGraph`: in `balanced` pairs of A' weigh as much as all others; in `literal`,
            H(A', A^g) as it is written, these have the say.
        similarity: Of two nodes, `cosine`, `max`, or `sigmoid` as eq. 7 is written, see `EdgeOptions`.
        draw: `logistic`, or `gumbel` as eq. 7 is written.
        edge_temperature: Of the relaxed draw.
        hidden: Width of the generator.
    """

    client_models = "grouped"
    reads_embedding = True

    # Its second view adds edges between nodes, to a graph that pairs of nodes would be the edges of.
    supports = frozenset({"node", "graph", "newcomers"})
    forms: ClassVar[Forms] = {
        "paper": {"contrast_form": "literal", "draw": "gumbel", "similarity": "sigmoid", "vote": "sum_cos"}
        | {"finch_min": 1, "head_mode": "personal", "random_pairs": "all", "reg_form": "literal"}
        | {"certainty": "logit", "feature": "embedding", "need_label": False, "least_mass": 0.0, "knn_every": 1},
        "code": {"vote": "softmax_sum", "bank": "ring", "similarity": "max", "finch_min": 1},
    }
    fcpp: bool = True
    gkic: GKIC | Literal["fitting"] = "both"
    head_mode: Literal["reset", "personal", "average"] = "reset"
    cluster: Clusters = "finch"
    finch_min: Positive = 4
    domains: Positive = 6
    eps: AboveZero = 0.1
    bank: Literal["last", "ring"] = "last"
    slots: Positive = 20
    vote: Vote = "class_nearest"
    k: Positive = 20
    vote_temperature: AboveZero = 0.1
    need_label: bool = True
    least_mass: NotNegative = 1.0
    certainty: Literal["probability", "logit"] = "probability"
    feature: Literal["relu", "embedding"] = "relu"
    tau: AboveZero = 0.5
    beta: NotNegative = 1.0
    contrast_form: Literal["infonce", "literal"] = "infonce"
    gamma: NotNegative = 1.0
    neighbours: Positive = 3
    knn_every: Positive = 10
    lam: Share = 0.5
    random_pairs: Count | Literal["all"] = 5
    reg_form: Literal["balanced", "literal"] = "balanced"
    similarity: Similarity = "cosine"
    draw: Literal["logistic", "gumbel"] = "logistic"
    edge_temperature: AboveZero = 1.0
    hidden: Positive = 128

    def __post_init__(self) -> None:
        if not self.fcpp and self.head_mode != "average":
            raise ValueError("without fcpp the classifier predicts, which needs head_mode: average")

    @property
    def _edges(self) -> EdgeOptions:
        drawn = self.similarity, self.edge_temperature, self.draw
        return EdgeOptions(self.random_pairs, self.lam, *drawn, self.reg_form)

    def _generates(self, model: FlatModel | None) -> bool:
        return self._gkic_of(model) in ("both", "gen_only")

    def _completes(self, model: FlatModel | None) -> bool:
        return self._gkic_of(model) in ("both", "knn_only")

    def _gkic_of(self, model: FlatModel | None) -> GKIC:
        """Returns what clients of a model do, which is not read where the option says it."""
        if self.gkic != "fitting":
            return self.gkic
        assert model is not None
        return what_fits(model)

    def _read(self, ctx: Context, number: int) -> FlatModel | None:
        return ctx.build(MODEL, number) if self.gkic == "fitting" else None

    def models(self) -> Mapping[str, Mapping[str, Any] | None]:
        generator = {GENERATOR: {"name": "topology", "hidden": self.hidden}}
        return {MODEL: None, **(generator if self.gkic in ("both", "gen_only", "fitting") else {})}

    # The server.

    def setup(self, ctx: Context) -> Tree:
        models = [ctx.build(MODEL, number) for number in range(len(ctx.models[MODEL]))]
        for model, kind in zip(models, ctx.models[MODEL]):
            self._require_fitting(ctx, model, kind.name)
        averaged = [model.w.detach().clone() if self.head_mode == "average" else body_of(model) for model in models]
        server = {"w": torch.cat(averaged) if len(averaged) > 1 else averaged[0]}
        if len(averaged) > 1:
            server[SIZES] = torch.tensor([len(w) for w in averaged])
            if self.head_mode != "average":
                server[HEAD] = common_classifier(models, ctx)
        if any(map(self._generates, models)):
            server[GENERATOR] = ctx.build(GENERATOR, 0).w.detach().clone()
        return server

    def _require_fitting(self, ctx: Context, model: FlatModel, name: str) -> None:
        """Refuses a run that cannot work, before its first round."""
        if self.head_mode != "average" and not model.has_body:
            raise ShoalError(
                "model.layers",
                f"FGGP averages what lies below the classifier, and a {name} of one layer is nothing else; "
                "take 2 layers, or algorithm.head_mode: average",
            )
        if self._gkic_of(model) == "off":
            return
        coupled = model.coupled
        if coupled is None:
            raise ShoalError(
                "algorithm.gkic",
                f"a second view of the graph needs a model that passes messages, and {name} reads hops; "
                "take gcn, gkic: fitting, or off",
            )
        if self._generates(model) and not draws_for(model):
            raise ShoalError(
                "algorithm.gkic",
                f"the generator makes matrices for gcn, gcnii and gin, not for {name}; take one of these, knn_only, "
                "fitting, or off",
            )
        if model.prompted:
            raise ShoalError("model.prompt", "a second view has no prompt; leave it out, or take algorithm.gkic: off")
        if coupled.fanouts:
            raise ShoalError(
                "model.fanouts", "a second view of the graph is read whole; leave it out, or take gkic: off"
            )
        # Small graphs are small, and come in batches.
        if not ctx.clients[0].items_are_rows:
            return
        largest = max(ctx.clients, key=lambda info: info.nodes)
        if self._generates(model) and self.random_pairs == "all" and largest.nodes > MOST_NODES:
            raise ShoalError(
                "algorithm.random_pairs",
                f"client {largest.client} has {largest.nodes:,} nodes, and all pairs of {MOST_NODES:,} at most are "
                "taken; take a number of pairs, as 5, or more clients",
            )
        if ctx.train.batch_size is not None:
            raise ShoalError(
                "train.batch_size", "both views take all rows in one step; leave it out, or take gkic: off"
            )

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        up = {name: Reduce.MEAN for name in ("w", GENERATOR) if name in server}
        prototypes = dict.fromkeys(("proto", "proto.class", "proto.mass"), Reduce.GATHER) if self.fcpp else {}
        if SIZES in server:
            entries = {**up, "w": Reduce.GATHER, "n": Reduce.STACK, **prototypes}
            got = yield Ask("train", entries, shared=_bank_of(server), private=self._downloads(server, ctx, cohort))
            average_by_kind(server, ctx, got)
            if GENERATOR in up and got.weights[GENERATOR] > 0:
                server[GENERATOR] = got[GENERATOR]
        else:
            shared = {name: tensor for name, tensor in server.items() if not name.startswith("proto")}
            if self._completes(self._read(ctx, 0)):
                shared["round"] = torch.tensor(ctx.round, dtype=torch.int32)
            got = yield Ask("train", {**up, **prototypes}, shared=shared)
            if got.weights["w"] > 0:
                server.update({name: got[name] for name in up})
        if self.fcpp:
            self._fill_bank(server, ctx, got)

    def _downloads(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> dict[int, Tree]:
        """Lists what the clients of several architectures are sent beside the bank."""
        downloads = []
        for number, w in enumerate(parts_of(server["w"], server[SIZES])):
            model, down = self._read(ctx, number), {"w": w.clone()}
            if HEAD in server:
                down[HEAD] = server[HEAD]
            if self._generates(model):
                down[GENERATOR] = server[GENERATOR]
            if self._completes(model):
                down["round"] = torch.tensor(ctx.round, dtype=torch.int32)
            downloads.append(down)
        return {i: downloads[ctx.clients[i].model] for i in cohort}

    def _fill_bank(self, server: Tree, ctx: Context, got: Replies) -> None:
        sent = Bank(torch.cat(got.lists["proto"]), torch.cat(got.lists["proto.class"]).long())
        if len(sent.class_B):
            if self.bank == "last":
                sent = last_of_clients(server, sent, got.ids, [len(proto) for proto in got.lists["proto"]])
            options = self.cluster, self.finch_min, self.domains, self.eps
            bank = summed_up(sent.proto_BH, sent.class_B, ctx.classes, *options, ctx.random("clusters"))
            if self.bank == "ring":
                bank = newest(Bank.from_download(server), bank, self.slots)
            server.update(bank.to_download())
            ctx.notes["mass"] = float(torch.cat(got.lists["proto.mass"]).mean())
        if "bank.class" in server:
            counts_C = torch.bincount(server["bank.class"], minlength=ctx.classes)
            ctx.notes["bank"] = float(counts_C.sum())
            ctx.notes["entries of a class, least"] = float(counts_C.min())
            ctx.notes["entries of a class, most"] = float(counts_C.max())

    def global_model(self, server: Tree) -> Tree:
        return {name: server[name] for name in ("w", SIZES, HEAD, "bank", "bank.class") if name in server}

    # The clients.

    def receive(self, client: Client, down: Tree) -> Received:
        model = client.model
        if "w" in down and self.head_mode == "average":
            model.load(own_part(down, client.info.model))
        elif "w" in down:
            head = client.state.get("head", down.get(HEAD))
            # A model starts a visit with its initial parameters.
            head = classifier_of(model.flat) if head is None else head
            model.load(join_body(model.flat, own_part(down, client.info.model), head))
        if GENERATOR in down:
            client.models[GENERATOR].load(down[GENERATOR])
        return Received(Bank.from_download(down), int(down.get("round", 0)))

    def train(self, client: Client, received: Received, trainer: Trainer, phase: str) -> float:
        model, train = client.model, client.data.train
        if self._gkic_of(model.pattern) == "off" or not len(train):
            return trainer.fit(client, received)
        generator = client.models[GENERATOR] if self._generates(model.pattern) else None
        near_NK = self._nearest(client, received) if self._completes(model.pattern) else None
        of_items = ViewOfNodes if client.info.items_are_rows else ViewOfGraphs
        view = of_items(model, near_NK, generator, self._edges, client.rng("generated graph"))
        trained = [model] if generator is None else [model, generator]
        draws, losses = Stream(client.data.device, model.random("train")), list[Tensor]()
        with ExitStack() as stack:
            optimizers = [stack.enter_context(trainer.optimizer(client, name)) for name in self._names(generator)]
            model.module.train()
            for _ in range(trainer.options.epochs):
                losses.clear()
                for chosen in batches_of(train, trainer.options.batch_size, draws):
                    for optimizer in optimizers:
                        optimizer.zero_grad(set_to_none=False)
                    with draws:
                        step = view.step(chosen)
                        loss = self._objective(client, step, model(step.own), model(step.other))
                        with ExitStack() as adds:
                            for trained_model in trained:
                                adds.enter_context(adding(trained_model))
                            loss.backward()
                    for optimizer in optimizers:
                        optimizer.step()
                    value = loss.detach()
                    losses.append(value if chosen is None else value * (len(chosen) / len(train)))
        return bounded_loss(float(sum(losses)))

    def _names(self, generator: ClientModel | None) -> list[str]:
        return [MODEL] if generator is None else [MODEL, GENERATOR]

    def _objective(self, client: Client, step: Step, own: Output, other: Output) -> Tensor:
        """Computes the loss of equation 9; only a generator has a regularizer."""
        by_logit = self.certainty == "logit"
        options = ViewOptions(
            self.beta, self.tau, self.contrast_form == "literal", self.least_mass, self.feature == "relu", by_logit
        )
        loss = loss_of_views(own, other, step.rows, step.labels, client.info.classes, options)
        return loss if step.regularizer is None or not self.gamma else loss + self.gamma * step.regularizer()

    def _nearest(self, client: Client, received: Received) -> Tensor:
        """Returns the neighbours that the client keeps, computed anew if it is time."""
        kept, now = client.state, received.round
        old = "knn" not in kept or now - int(kept["knn.round"]) > 2 * self.knn_every
        if old or now % self.knn_every == 0:
            if client.info.items_are_rows:
                out = client.model.output(client.model.gathered("all"))
                kept["knn"] = nearest(self._feature(out), self.neighbours)
            else:
                kept["knn"] = nearest_in_graphs(client.model, self.neighbours, self.feature == "relu")
            kept["knn.round"] = torch.tensor(now, dtype=torch.int32)
        return kept["knn"]

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        flat, weight = client.model.flat, self.weight_of(client)
        sent = {"w": client.model.w if self.head_mode == "average" else body_of(flat), "n": torch.tensor(weight)}
        if self.head_mode == "personal":
            client.state["head"] = classifier_of(flat)
        # The server reads the weight apart where clients are of several architectures; it is sent once all the same.
        weights, upload_bytes = {"w": weight}, {"n": 0}
        if GENERATOR in client.models:
            sent[GENERATOR], generates = client.models[GENERATOR].w, self._generates(client.model.pattern)
            # The weight is one number for both. Who does not train it does not send it.
            weights[GENERATOR] = generates * weight
            upload_bytes[GENERATOR] = generates * sent[GENERATOR].nbytes
        return Upload({**sent, **(self._prototypes(client) if self.fcpp else {})}, weights, upload_bytes)

    def _prototypes(self, client: Client) -> Tree:
        """Computes prototypes of the classes that the client may speak for."""
        classes, data, model = client.info.classes, client.data, client.model
        if not client.info.items_are_rows:
            # Small graphs for tests are not counted.
            z_TH = self._feature(model.output(model.gathered("train")))
            proto_CH, counts_C = class_means(z_TH, data.train_label, classes)
            found_J = counts_C.nonzero()[:, 0]
            return {"proto": proto_CH[found_J], "proto.class": found_J.int(), "proto.mass": counts_C[found_J].float()}
        answers = list(model.outputs())
        logits_NC = torch.cat([out.logits_NC for out in answers])
        class_N, certain_N = self._certain(client, logits_NC)
        z_NH = torch.cat([self._feature(out) for out in answers])
        proto_CH, mass_C = certain_prototypes(z_NH, class_N, certain_N, classes)
        there_C = existing(class_N, mass_C, self.least_mass)
        if self.need_label:
            there_C &= torch.bincount(data.train_label, minlength=classes) > 0
        found_J = there_C.nonzero()[:, 0]
        return {"proto": proto_CH[found_J], "proto.class": found_J.int(), "proto.mass": mass_C[found_J]}

    def predict(self, client: Client, received: Received, part: str) -> Tensor:
        if not self.fcpp:
            return super().predict(client, received, part)
        if part == "all":
            z_NH = torch.cat([self._feature(out) for out in client.model.outputs()])
        else:
            z_NH = self._feature(client.model.output(client.model.gathered(part)))
        bank = received.bank or self._own_bank(client)
        if bank is None:
            # No class has a score without a bank and without a label.
            return z_NH.new_zeros(len(z_NH), client.info.classes)
        blocks = z_NH.split(ROWS_AT_A_TIME)
        scores = [votes(z, bank, client.info.classes, self.vote, self.k, self.vote_temperature) for z in blocks]
        return torch.cat(scores)

    def _own_bank(self, client: Client) -> Bank | None:
        """Means of the client's own training nodes, by class; None if it has none."""
        if not client.info.train:
            return None
        z_NH = self._feature(client.model.output(client.model.gathered("train")))
        means_CH, counts_C = class_means(z_NH, client.data.train_label, client.info.classes)
        return Bank(means_CH[counts_C > 0], counts_C.nonzero()[:, 0])

    def _certain(self, client: Client, logits_NC: Tensor) -> tuple[Tensor, Tensor]:
        """Returns class and certainty of every node, `[N]` both, by the option `certainty`."""
        train = client.data.train, client.data.train_label
        return certain_classes(logits_NC, *train, by_logit=self.certainty == "logit")

    def _feature(self, out: Output) -> Tensor:
        """Returns Z, `[N, H]`, by the option `feature`."""
        return F.relu(out.embedding_NH) if self.feature == "relu" else out.embedding_NH


def _bank_of(server: Tree) -> Tree:
    return {name: server[name] for name in ("bank", "bank.class") if name in server}
