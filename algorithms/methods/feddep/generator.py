"""The networks that guess how many neighbours a node misses and what these are embedded to (DGen of FedDEP).

Axes: N nodes, of which V are shown, E width of an embedding, P neighbours at most of a node, K prototypes.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.algorithms.base import Client
from shoal.algorithms.client import FlatModel
from shoal.algorithms.graphs.impaired_graph import Impaired, impair
from shoal.algorithms.methods.feddep.fused_nodes import draw_fusion, fuse
from shoal.algorithms.methods.fedsage_plus.client_generator import GeneratorOptions
from shoal.algorithms.methods.fedsage_plus.generator import Guess, guess_missing, make_maker, with_noise
from shoal.algorithms.models.gnn.sage import GraphSAGE
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, all_nodes
from shoal.algorithms.rng import Stream, generator_on
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.joint_training import weighted_sum
from shoal.algorithms.training.local_training import bounded_loss, make_optimizer
from shoal.storage.shards.view import View


class Guesser(nn.Module):
    """GraphSAGE with a linear head for the number of neighbours, and a perceptron for their embeddings."""

    def __init__(self, features: int, width: int, most: int) -> None:
        """Draws the parameters from torch's default generator; nothing is dropped."""
        super().__init__()
        self.most = most
        self.encoder = GraphSAGE(features, 1, 0, 0.0, hidden=width)
        self.maker = make_maker(width, width, most)

    def guess(self, around: Neighbourhood) -> Guess:
        """Guesses the neighbours that nodes of a graph miss."""
        return guess_missing(self.encoder, around, self.most)

    def make(self, noisy_NE: Tensor) -> Tensor:
        """Makes embeddings of P neighbours of every node from its own, in (-1, 1), `[N, P, E]`."""
        return torch.tanh(self.maker(noisy_NE).logits_NC).unflatten(1, (self.most, -1))


class Classifier(nn.Module):
    """GraphSAGE of two layers that adds embeddings by weights of its own, as the trained model does."""

    def __init__(self, features: int, classes: int, width: int, rng: torch.Generator) -> None:
        """Draws the layers from torch's default generator, and the weights of embeddings from `rng`."""
        super().__init__()
        self.sage = GraphSAGE(features, classes, 0, 0.0, hidden=width, head="conv")
        self.fusion = nn.Parameter(draw_fusion(self.sage, width, rng))

    def loss(self, shown: Impaired, mean_VE: Tensor) -> Tensor:
        """Averages the cross-entropy of the training nodes that are shown; zero without one."""
        if not len(shown.train_T):
            return mean_VE.new_zeros(())
        around = shown.around(self.sage.depth)
        operators = fuse(around.operators, self.sage, mean_VE, self.fusion)
        logits_TC = self.sage(around._replace(operators=operators, rows=shown.train_T)).logits_NC
        return F.cross_entropy(logits_TC, shown.label_T)


class DeepGenerator(nn.Module):
    """A guesser, whose parameters come first, and a classifier that tries what it makes."""

    def __init__(self, features: int, classes: int, width: int, most: int, rng: torch.Generator) -> None:
        """Draws the parameters from torch's default generator, and weights of embeddings from `rng`."""
        super().__init__()
        self.guesser = Guesser(features, width, most)
        self.classifier = Classifier(features, classes, width, rng)


def mean_over_places(made_NPE: Tensor, count_N: Tensor) -> Tensor:
    """Averages the embeddings of a node's neighbours over all P places, of which those behind its number are zero."""
    return (made_NPE * _there(made_NPE, count_N)[:, :, None]).mean(1)


def _there(made_NPE: Tensor, count_N: Tensor) -> Tensor:
    return torch.arange(made_NPE.shape[1], device=count_N.device) < count_N[:, None]


def squares(made_NPE: Tensor, proto_KE: Tensor) -> Tensor:
    """Computes mean squared differences of embeddings from prototypes, `[N, P, K]`."""
    product_NPK = made_NPE @ proto_KE.t()
    norms_NP1, norms_K = made_NPE.square().sum(2, keepdim=True), proto_KE.square().sum(1)
    return (norms_NP1 - 2 * product_NPK + norms_K) / made_NPE.shape[2]


def own_loss(made_NPE: Tensor, count_N: Tensor, proto_KE: Tensor, lost_VK: Tensor) -> Tensor:
    """Averages, over nodes and places, what made embeddings differ from the nearest lost prototype; a scalar.

    Embeddings behind a node's number count zero, as do those of a node that lost none. `lost_VK` says which prototypes
    are of hidden neighbours.
    """
    apart_NPK = squares(made_NPE, proto_KE).masked_fill(~lost_VK[:, None], torch.inf)
    counts_NP = _there(made_NPE, count_N) & lost_VK.any(1, keepdim=True)
    return apart_NPK.min(2).values.where(counts_NP, 0).mean()


def others_loss(made_NPE: Tensor, count_N: Tensor, protos: Sequence[Tensor]) -> Tensor:
    """Averages the same over other clients, each with prototypes `[k, E]` of its own, all of which are candidates."""
    if not protos:
        return made_NPE.new_zeros(())
    apart = squares(made_NPE, torch.cat([*protos])).split([len(proto_kE) for proto_kE in protos], 2)
    nearest_NPJ = torch.stack([part.min(2).values for part in apart], 2)
    return nearest_NPJ.where(_there(made_NPE, count_N)[:, :, None], 0).mean()


def lost_prototypes(impaired: Impaired, cluster_N: Tensor, clusters: int) -> Tensor:
    """Finds the clusters of every shown node's hidden neighbours, bool `[V, K]`."""
    lost_VK = torch.zeros(len(impaired.missing_V), clusters, dtype=torch.bool, device=cluster_N.device)
    owners_L = torch.arange(len(lost_VK), device=cluster_N.device).repeat_interleave(impaired.missing_V)
    lost_VK[owners_L, cluster_N[impaired.hidden_H][impaired.lost_L]] = True
    return lost_VK


def train_generator(
    client: Client,
    options: GeneratorOptions,
    proto_KE: Tensor,
    cluster_N: Tensor,
    protos: Sequence[Tensor],
    steps: int,
    train: TrainOptions,
) -> tuple[Tensor, float]:
    """Trains a fresh generator; gives the parameters of its guesser, and the last loss.

    Args:
        client: The client.
        options: Options of generators.
        proto_KE, cluster_N: The client's own prototypes, and which of them each of its nodes has.
        protos: Prototypes of other clients, one tensor `[k, E]` a client.
        steps: Steps of all shown nodes.
        train: The config's optimizer.
    """
    data, width, most = client.data, options.hidden, options.most_neighbours
    with Stream(data.device, client.random("generator")):
        fresh = DeepGenerator(data.features, client.info.classes, width, most, client.rng("fusion"))
        flat = FlatModel(fresh.to(data.device))
    generator = flat.module
    assert isinstance(generator, DeepGenerator)
    shown = impair(data, options.hide, client.random("hidden"))
    lost_VK = lost_prototypes(shown, cluster_N, len(proto_KE))
    optimizer, noise = make_optimizer([flat.w], train), client.rng("noise")

    def objective() -> Tensor:
        guess = generator.guesser.guess(shown.around(generator.guesser.encoder.depth))
        count_V, made_VPE = guess.count_N, generator.guesser.make(with_noise(guess.z_NH, noise))
        return weighted_sum(
            (options.degree, lambda: F.smooth_l1_loss(guess.missing_N, shown.missing_V.float())),
            (options.feature, lambda: own_loss(made_VPE, count_V, proto_KE, lost_VK)),
            (options.label, lambda: generator.classifier.loss(shown, mean_over_places(made_VPE, count_V))),
            (options.across, lambda: others_loss(made_VPE, count_V, protos)),
        )

    loss = torch.zeros(())
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=False)
        loss = objective()
        if loss.requires_grad:
            loss.backward()
        optimizer.step()
    kept = sum(p.numel() for p in generator.guesser.parameters())
    return flat.w.detach()[:kept].clone(), bounded_loss(float(loss.detach()))


def generate_embeddings(data: View, options: GeneratorOptions, w: Tensor, seed: int) -> Tensor:
    """Generates embeddings of what all nodes of a graph miss, `[N, E]`: of each node's neighbours the mean over places.

    `w` are parameters of a guesser, and the seed is that of the noise.
    """

    def make() -> Tensor:
        with torch.random.fork_rng(devices=[]):
            flat = FlatModel(Guesser(data.features, options.hidden, options.most_neighbours).to(data.device))
        flat.load(w)
        guesser = flat.module
        assert isinstance(guesser, Guesser)
        with torch.no_grad():
            guess = guesser.guess(all_nodes(data, "mean", guesser.encoder.depth))
            noisy_NE = with_noise(guess.z_NH, generator_on(data.device).manual_seed(seed))
            return mean_over_places(guesser.make(noisy_NE), guess.count_N)

    mean_NE: Tensor = data.cache(("generated embeddings", seed, hash(w.cpu().numpy().tobytes())), make)
    return mean_NE
