"""An adapter beside the same layers in plain torch, in training and out of it."""

import pytest
import torch
import torch.nn.functional as F
from support.plain_dropout import dropped
from torch import Tensor, nn

from shoal.algorithms.models.build import build, width_of
from shoal.algorithms.models.decoupled.fixed_hops import MLP
from shoal.algorithms.models.layers.adapted import Adapted


def adapted(dropout: float) -> Adapted:
    """An MLP of width 7 whose embedding is brought to 6, for four classes."""
    torch.manual_seed(0)
    module = build("mlp", 5, 4, 0, dropout, {"hidden": 7}, embedding=6)
    assert isinstance(module, Adapted)
    return module


@pytest.mark.parametrize("dropout", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("training", [True, False])
def test_equals_plain_layers(dropout: float, training: bool) -> None:
    module = adapted(dropout).train(training)
    first, adapter, last = (nn.Linear(wide, narrow) for wide, narrow in ((5, 7), (7, 6), (6, 4)))
    plain = nn.ModuleList([first, adapter, last])
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(module.parameters()), plain.parameters())
    x = torch.randn(30, 5)

    def drop(x: Tensor) -> Tensor:
        return dropped(x, dropout, training) if dropout else x

    torch.manual_seed(9)
    out = module([x])
    torch.manual_seed(9)
    embedding = adapter(drop(F.relu(first(x))))
    torch.testing.assert_close(out.embedding_NH, embedding)
    torch.testing.assert_close(out.logits_NC, last(drop(embedding)))


@pytest.mark.parametrize("training", [True, False])
def test_logistic_sgc_becomes_a_linear_map_of_its_hop_and_a_linear_classifier(training: bool) -> None:
    """FedGKC's SGC: nothing is dropped of the hop, ReLU is nowhere."""
    module = build("sgc", 5, 4, 2, 0.3, {}, embedding=6).train(training)
    adapter, last = nn.Linear(5, 6), nn.Linear(6, 4)
    plain = nn.ModuleList([adapter, last])
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(module.parameters()), plain.parameters())
    hop = torch.randn(30, 5)
    torch.manual_seed(9)
    out = module([hop])
    torch.manual_seed(9)
    torch.testing.assert_close(out.embedding_NH, adapter(hop))
    torch.testing.assert_close(out.logits_NC, last(dropped(adapter(hop), 0.3, training)))


def test_reads_what_its_backbone_reads() -> None:
    for name, inputs in (("mlp", (0,)), ("sgc", (2,)), ("gamlp", (0, 1, 2)), ("gcn", (0,))):
        module = build(name, 5, 4, 2, 0.0, {}, embedding=6)
        assert isinstance(module, Adapted)
        assert module.inputs == inputs
        assert width_of(module) == 6


def test_reset_equals_a_fresh_model_of_the_same_seed() -> None:
    torch.manual_seed(7)
    fresh = Adapted(MLP(5, 6, 0, 0.0, hidden=7), 6, 4, 0.0)
    module = adapted(0.0)
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(3.0)
    torch.manual_seed(7)
    module.reset_parameters()
    for (name, p), q in zip(module.named_parameters(), fresh.parameters(), strict=True):
        assert torch.equal(p, q), name
