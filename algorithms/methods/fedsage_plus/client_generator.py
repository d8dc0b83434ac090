"""A client's generator of missing neighbours: training, exchange with other clients, the augmented graph.

Axes: N nodes of the client, V of them shown and H hidden, L lost edges, F features; M generated nodes, m shown nodes
that others see, k generators, Q parameters of a maker.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from shoal.algorithms.base import Client, Trainer
from shoal.algorithms.client import FlatModel
from shoal.algorithms.graphs.impaired_graph import Impaired, impair
from shoal.algorithms.methods.fedsage_plus.generator import (
    GeneratedFeatures,
    Generator,
    Guess,
    fresh_generator,
    generate_neighbours,
    layer,
    make_maker,
    of_maker,
    root,
    with_noise,
)
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, all_nodes, operator_over
from shoal.algorithms.models.items.augmented_nodes import AugmentedFeatures, AugmentedNodes, with_new_neighbours
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.algorithms.protocol import Tree, moments_key
from shoal.algorithms.rng import generator_on
from shoal.algorithms.training.joint_training import own_optimizer, weighted_sum
from shoal.algorithms.training.local_training import bounded_loss, kept_moments
from shoal.storage.graph.sparse_matrix import Features, ranges
from shoal.storage.options.types import Chance, NotNegative, Positive

# Numbers of a block in the search for the nearest: 16 MB.
BLOCK = 2**22
# Entries of a client's state: parameters of its generator, and the seeds of its hidden nodes and of its augmented
# graph. They also name random streams: another text is another seed.
GENERATOR, HIDDEN, AUGMENTED = "generator", "hidden", "mended"


def own_loss(new: GeneratedFeatures, impaired: Impaired) -> Tensor:
    """Sums mean squared differences of shown nodes' new neighbours from the nearest lost one, over V; a scalar."""
    seen_HPR = new.project(impaired.x_HF)
    return _squares(new, seen_HPR, impaired, *nearest_lost(new, seen_HPR, impaired)) / len(impaired.missing_V)


def others_loss(new: GeneratedFeatures, nodes: int, impaired: Impaired) -> Tensor:
    """Sums mean squared differences of generated nodes from the nearest hidden node, over `nodes`; a scalar.

    `new` are neighbours of so many nodes of another client. At least one node is hidden.
    """
    seen_HPR = new.project(impaired.x_HF)
    made_M = torch.arange(len(new), device=seen_HPR.device)
    return _squares(new, seen_HPR, impaired, made_M, nearest_hidden(new, seen_HPR, impaired)) / max(nodes, 1)


@torch.no_grad()
def nearest_lost(new: GeneratedFeatures, seen_HPR: Tensor, impaired: Impaired) -> tuple[Tensor, Tensor]:
    """Finds the generated nodes whose owner lost neighbours, and the nearest of these among the hidden nodes.

    The first of two equally near ones is taken. Both are places, int64. The second argument is `new.project` of the
    hidden nodes.
    """
    ends_V = impaired.missing_V.cumsum(0)
    count_M = impaired.missing_V[new.owner_M]
    hidden_Q = impaired.lost_L[ranges((ends_V - impaired.missing_V)[new.owner_M], count_M)]
    made_Q = torch.arange(len(new), device=hidden_Q.device).repeat_interleave(count_M)
    block = max(1, BLOCK // seen_HPR.shape[2])
    pairs = zip(made_Q.split(block), hidden_Q.split(block))
    product_Q = torch.cat([seen_HPR.new_empty(0), *(new.products(seen_HPR, made, hidden) for made, hidden in pairs)])
    # The term that all pairs of a generated node share is left out.
    apart_Q = impaired.square_H[hidden_Q] - 2 * product_Q
    least_M = apart_Q.new_full((len(new),), torch.inf).scatter_reduce(0, made_Q, apart_Q, "amin")
    # The first of equally near ones is taken.
    place_Q = torch.arange(len(made_Q), device=made_Q.device)
    place_Q = torch.where(apart_Q == least_M[made_Q], place_Q, len(made_Q))
    first_M = torch.full_like(new.owner_M, len(made_Q)).scatter_reduce(0, made_Q, place_Q, "amin")
    matched = (first_M < len(made_Q)).nonzero()[:, 0]
    return matched, hidden_Q[first_M[matched]]


@torch.no_grad()
def nearest_hidden(new: GeneratedFeatures, seen_HPR: Tensor, impaired: Impaired) -> Tensor:
    """Finds the hidden node nearest to every generated one, place int64 `[M]`; arguments as above."""
    least_M, found_M = seen_HPR.new_full((len(new),), torch.inf), torch.zeros_like(new.owner_M)
    block, first = max(1, BLOCK // max(1, len(new))), 0
    for seen_BPR, square_B in zip(seen_HPR.split(block), impaired.square_H.split(block)):
        nearest = (square_B - 2 * new.all_products(seen_BPR)).min(1)
        nearer_M = nearest.values < least_M
        found_M = torch.where(nearer_M, first + nearest.indices, found_M)
        least_M = torch.where(nearer_M, nearest.values, least_M)
        first += len(square_B)
    return found_M


def _squares(new: GeneratedFeatures, seen_HPR: Tensor, impaired: Impaired, made_Q: Tensor, hidden_Q: Tensor) -> Tensor:
    """Sums the mean squared differences, pair by pair."""
    product_Q = new.products(seen_HPR, made_Q, hidden_Q)
    apart_Q = new.squares_M()[made_Q] - 2 * product_Q + impaired.square_H[hidden_Q]
    return apart_Q.sum() / new.shape[1]


@dataclass(frozen=True)
class GeneratorOptions:
    """Options of generators and of their training.

    Attributes:
        hide: h, share of the nodes that are hidden.
        most_neighbours: P, neighbours at most of a node.
        hidden: Width H of all layers of generators.
        degree: Weight of how many neighbours are missing.
        feature: Weight of the distance from the client's own hidden neighbours.
        label: Weight of the cross-entropy on the augmented graph.
        across: Weight of the distance from hidden nodes of other clients; with 0 nothing of generators is sent.
    """

    hide: Chance = 0.5
    most_neighbours: Positive = 5
    hidden: Positive = 64
    degree: NotNegative = 1.0
    feature: NotNegative = 1.0
    label: NotNegative = 1.0
    across: NotNegative = 1.0


class ClientGenerator:
    """A client's generator during a visit."""

    def __init__(self, client: Client, options: GeneratorOptions) -> None:
        """Draws the hidden nodes at the client's first visit."""
        self._client, self._data, self._options = client, client.data, options
        if HIDDEN not in client.state:
            client.state[HIDDEN] = torch.tensor(client.random(HIDDEN))

    @cached_property
    def _flat(self) -> FlatModel:
        options = self._options
        flat = fresh_generator(self._data, options.hidden, options.most_neighbours, self._client.random(GENERATOR))
        if GENERATOR in self._client.state:
            flat.load(self._client.state[GENERATOR])
        return flat

    @property
    def _module(self) -> Generator:
        assert isinstance(self._flat.module, Generator)
        return self._flat.module

    @cached_property
    def _impaired_graph(self) -> Impaired:
        return impair(self._data, self._options.hide, int(self._client.state[HIDDEN]))

    # These methods use the client's own nodes alone.

    def train(self, trainer: Trainer, steps: int, of_others_Q: Tensor | None = None) -> float:
        """Takes some steps of all shown nodes; gives the last one's loss, without the part of other clients.

        NaN without a step where there is no node, as of a client without training nodes where training sees no others.
        `of_others_Q` is the gradient by the hidden nodes of other clients, held in all steps.
        """
        if not self._data.nodes:
            return math.nan
        flat, noise, loss = self._flat, self._client.rng("noise"), torch.zeros(())
        gradient = flat.w.grad
        assert gradient is not None
        with own_optimizer(self._client, trainer, GENERATOR, flat.w) as optimizer:
            for _ in range(steps):
                gradient.zero_()
                loss = self._objective(noise)
                if loss.requires_grad:
                    loss.backward()
                if of_others_Q is not None:
                    gradient[of_maker(flat)] += self._options.across * of_others_Q
                optimizer.step()
        return bounded_loss(float(loss.detach()))

    def _objective(self, noise: torch.Generator) -> Tensor:
        options, shown = self._options, self._impaired_graph
        guess = self._guess()
        new = generate_neighbours(
            self._module.maker, with_noise(guess.z_NH, noise), guess.count_N, options.most_neighbours
        )
        return weighted_sum(
            (options.degree, lambda: F.smooth_l1_loss(guess.missing_N, shown.missing_V.float())),
            (options.feature, lambda: own_loss(new, shown)),
            (options.label, lambda: self._label_loss(new, guess.count_N)),
        )

    def _guess(self) -> Guess:
        return self._module.guess(self._impaired_graph.around(self._module.encoder.depth))

    def _label_loss(self, new: Features, count_V: Tensor) -> Tensor:
        """Computes the loss of the training nodes that are shown; zero without one."""
        shown, classifier = self._impaired_graph, self._module.classifier
        if not len(shown.train_T):
            return torch.zeros((), device=self._data.device)
        edges = with_new_neighbours(shown.indptr.numpy(), shown.indices.numpy(), count_V.cpu().numpy())
        operator = operator_over("mean", *edges).to(self._data.device)
        around = Neighbourhood(AugmentedFeatures(shown.x_VF, new), (operator,) * classifier.depth, shown.train_T)
        return F.cross_entropy(classifier(around).logits_NC, shown.label_T)

    # These methods exchange with other clients.

    def show(self, nodes: int) -> Tree:
        """Shows others the maker, and noisy embeddings and neighbour counts of m or all shown nodes, drawn."""
        client, state = self._client, self._client.state
        # The generator was drawn just now if this is the first visit.
        state[GENERATOR] = self._flat.w.detach().clone()
        with torch.no_grad():
            guess = self._guess()
        rng = client.rng("nodes for others")
        chosen = torch.randperm(len(guess.z_NH), generator=rng, device=guess.z_NH.device)[:nodes]
        noisy_mH = with_noise(guess.z_NH[chosen], client.rng("noise for others"))
        maker_Q = state[GENERATOR][of_maker(self._flat)].clone()
        return {"maker": maker_Q, "z": noisy_mH, "count": guess.count_N[chosen].int()}

    def judge(self, down: Tree) -> Tensor:
        """Computes gradients of others' makers by the client's own hidden nodes, `[k, Q]`; zero if it hides none.

        Args:
            down: `maker` `[k, Q]`; `z` and `count` of all their nodes behind one another; `size`: how many of each.
        """
        hidden, most, shown = self._options.hidden, self._options.most_neighbours, self._impaired_graph
        gradient_KQ = torch.zeros_like(down["maker"])
        if not len(shown.hidden_H):
            return gradient_KQ
        with torch.random.fork_rng(devices=[]):
            flat = FlatModel(make_maker(self._data.features, hidden, most))
        sizes = down["size"].tolist()
        for number, (z_mH, count_m) in enumerate(zip(down["z"].split(sizes), down["count"].split(sizes))):
            flat.load(down["maker"][number])
            new = generate_neighbours(flat.module, z_mH, count_m.long(), most)  # type: ignore[arg-type]
            gradient = torch.autograd.grad(others_loss(new, len(z_mH), shown), list(flat.module.parameters()))
            gradient_KQ[number] = torch.cat([part.flatten() for part in gradient])
        return gradient_KQ

    # These methods make the augmented graph, which is fixed for good.

    def flush(self) -> None:
        """Fixes the augmented graph, by the generator as it is now."""
        state = self._client.state
        state[AUGMENTED] = torch.tensor(self._client.random(AUGMENTED))
        for name in kept_moments(state, moments_key(GENERATOR)):
            del state[f"{GENERATOR}.opt.{name}"]

    def augment(self, coupled: Coupled) -> AugmentedNodes:
        """Returns the client's nodes in its augmented graph, as a backbone reads them; the host may keep them."""
        seed, w_bytes = int(self._client.state[AUGMENTED]), self._client.state[GENERATOR].cpu().numpy().tobytes()

        def build() -> tuple[Tensor, ...]:
            module = self._module
            with torch.no_grad():
                guess = module.guess(all_nodes(self._data, "mean", module.encoder.depth))
                noisy_NH = with_noise(guess.z_NH, generator_on(self._data.device).manual_seed(seed))
                parts = root(module.maker, noisy_NH), layer(module.maker, self._options.most_neighbours)
                new = GeneratedFeatures(*parts, guess.count_N)
                narrow = math.prod(new.shape) <= sum(part.numel() for part in parts)
                return guess.count_N, *((new.to_dense(),) if narrow else parts)

        key = "augmented", seed, hash(w_bytes)
        count_N, *parts = self._data.cache(key, build)
        new: Features = parts[0] if len(parts) == 1 else GeneratedFeatures(parts[0], parts[1], count_N)

        def matrix() -> object:
            edges = with_new_neighbours(*self._data.csr, count_N.cpu().numpy())
            return operator_over(coupled.operator, *edges).to(self._data.device)

        operator = self._data.cache((*key, coupled.operator), matrix)
        return AugmentedNodes(self._data, AugmentedFeatures(self._data.whole(0), new), operator, coupled)
