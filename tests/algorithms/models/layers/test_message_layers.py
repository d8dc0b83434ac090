"""Layers beside PyG's: the same parameters under the same names, drawn with the same numbers, made or reset."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn

from shoal.algorithms.models.layers import message_layers as ours


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 6), nn.LayerNorm(6))


PAIRS: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "gcn": (partial(ours.GCNConv, 5, 6), partial(pyg.GCNConv, 5, 6)),
    "sage": (partial(ours.SAGEConv, 5, 6), partial(pyg.SAGEConv, 5, 6)),
    "gin": (lambda: ours.GINConv(mlp()), lambda: pyg.GINConv(mlp(), train_eps=True)),
    "gat": (partial(ours.GATConv, 5, 3, 2), partial(pyg.GATConv, 5, 3, 2)),
    "gcnii": (partial(ours.GCN2Conv, 6, 0.1, 0.5, 3), partial(pyg.GCN2Conv, 6, 0.1, 0.5, 3)),
    "transformer": (partial(ours.TransformerConv, 5, 3, 2), partial(pyg.TransformerConv, 5, 3, 2)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_parameters_are_pygs(name: str) -> None:
    made = []
    for make in PAIRS[name]:
        torch.manual_seed(1)
        layer = make()
        drawn = {key: p.clone() for key, p in layer.named_parameters()}
        layer.reset_parameters()  # type: ignore[operator]
        made.append([*drawn.items(), *layer.named_parameters(), ("next", torch.rand(3))])
    assert [key for key, _ in made[0]] == [key for key, _ in made[1]]
    for (key, mine), (_, theirs) in zip(*made):
        assert torch.equal(mine, theirs), key


def test_numbers_of_layers_are_pygs() -> None:
    mine, theirs = PAIRS["gcnii"][0](), PAIRS["gcnii"][1]()
    assert (mine.alpha, mine.beta) == (theirs.alpha, theirs.beta)
    assert PAIRS["gat"][0]().negative_slope == PAIRS["gat"][1]().negative_slope
    outputs = [torch.randn(4, 3) for _ in range(3)]
    assert torch.equal(ours.largest(outputs), pyg.JumpingKnowledge("max")(outputs))
