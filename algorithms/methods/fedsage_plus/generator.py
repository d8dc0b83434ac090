"""The networks that guess what neighbours a node misses: how many, and with what features (NeighGen of FedSage+).

Axes: N nodes, M generated ones, F features, H width, P neighbours at most of a node.
"""

from typing import NamedTuple

from torch import Tensor, nn

from shoal.algorithms.client import FlatModel
from shoal.algorithms.methods.fedsage_plus.generated_features import GeneratedFeatures, layer, root
from shoal.algorithms.models.gnn.sage import GraphSAGE
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood
from shoal.algorithms.models.layers.head import Head
from shoal.algorithms.rng import Stream
from shoal.storage.store.view import View


class Guess(NamedTuple):
    """What the encoder says of nodes.

    Attributes:
        missing_N: How many neighbours each misses, of any sign; differentiable.
        count_N: The same as a whole number from 0 to P, int64: how many are generated.
        z_NH: Embeddings.
    """

    missing_N: Tensor
    count_N: Tensor
    z_NH: Tensor


class Generator(nn.Module):
    """GraphSAGE of two layers with a linear head for the number, a perceptron for features, a classifier to try them.

    Attributes:
        encoder: Its classifier, of one class, says how many neighbours are missing.
        maker: Makes features of P neighbours of the embedding of a node, see `generated`.
        classifier: A separate GraphSAGE, trained on augmented graphs, and not used for prediction.
        most: P.
    """

    def __init__(self, features: int, classes: int, hidden: int, most: int) -> None:
        """Draws the parameters from torch's default generator; nothing is dropped.

        Args:
            features: Width F.
            classes: Number of classes C.
            hidden: Width H of all layers.
            most: P.
        """
        super().__init__()
        self.most = most
        self.encoder = GraphSAGE(features, 1, 0, 0.0, hidden=hidden)
        self.maker = make_maker(features, hidden, most)
        self.classifier = GraphSAGE(features, classes, 0, 0.0, hidden=hidden)

    def guess(self, around: Neighbourhood) -> Guess:
        """What neighbours the nodes of a graph miss."""
        out = self.encoder(around)
        missing_N = out.logits_NC[:, 0]
        count_N = missing_N.detach().nan_to_num().round().clamp(0, self.most).long()
        return Guess(missing_N, count_N, out.embedding_NH)


def make_maker(features: int, hidden: int, most: int) -> Head:
    """Two layers, H to H to P F."""
    return Head(hidden, hidden, most * features, 2, 0.0)


def generated(maker: Head, noisy_NH: Tensor, count_N: Tensor, most: int) -> GeneratedFeatures:
    """Generated neighbours, `[M, F]`, those of the first node first.

    Args:
        maker: What `make_maker` made.
        noisy_NH: Embeddings with noise.
        count_N: How many neighbours a node gets, int64.
        most: P.
    """
    return GeneratedFeatures(root(maker, noisy_NH), layer(maker, most), count_N)


def fresh_generator(data: View, hidden: int, most: int, seed: int) -> FlatModel:
    """A generator for a client's features, drawn from a seed."""
    with Stream(data.device, seed):
        return FlatModel(Generator(data.features, data.classes, hidden, most))


def of_maker(flat: FlatModel) -> slice:
    """Where the parameters of the maker lie among those of a generator."""
    module = flat.module
    before, own = (sum(p.numel() for p in part.parameters()) for part in (module.encoder, module.maker))  # type: ignore
    return slice(before, before + own)
