"""What coupled backbones are made of: parameters, how they are drawn, and what making one imports."""

import subprocess
import sys

import pytest
import torch
from support.coupled_models import CLASSES, FEATURES, NAMES, every_backbone, make
from support.reset_models import assert_reset_as_fresh

from shoal.algorithms.models.build import build


@pytest.mark.parametrize(("hidden", "heads"), [(6, 1), (6, 6), (1, 1)])
def test_gat_takes_any_number_of_heads_that_divides_its_width(hidden: int, heads: int) -> None:
    first, last = make("gat", hidden=hidden, heads=heads).convs
    assert first.att_src.shape == (1, heads, hidden // heads)
    assert last.att_src.shape == (1, 1, hidden)


@every_backbone
def test_fanouts_are_kept_for_training_steps(name: str) -> None:
    assert make(name, fanouts=[3, -1]).fanouts == (3, -1)
    assert make(name, fanouts=[1, 1]).fanouts == (1, 1)
    assert make(name, layers=1, fanouts=[2]).fanouts == (2,)
    assert make(name).inputs == (0,)


def test_making_a_coupled_model_draws_what_its_reset_draws() -> None:
    """PyG's layers draw when they are made, some twice; of that nothing is seen in the stream."""
    for name in NAMES:
        torch.manual_seed(3)
        model = build(name, FEATURES, CLASSES, 0, 0.0, {})
        after = torch.rand(2)
        torch.manual_seed(3)
        model.reset_parameters()
        assert torch.equal(torch.rand(2), after)


@every_backbone
def test_reset_equals_a_fresh_model_of_the_same_seed(name: str) -> None:
    assert_reset_as_fresh(make(name, seed=7), make(name, seed=8), 7)


@every_backbone
def test_everything_a_model_learns_is_a_parameter(name: str) -> None:
    assert not list(make(name).buffers())


def test_pyg_is_imported_only_with_a_backbone_that_needs_it() -> None:
    code = "import sys, shoal.engine.hosts.host\n"
    code += "from shoal.algorithms.models.build import build; build('sgc', 4, 3, 1, 0.0, {})"
    subprocess.run([sys.executable, "-c", f"{code}; assert 'torch_geometric' not in sys.modules"], check=True)


def test_parameter_counts() -> None:
    counts = {name: sum(p.numel() for p in build(name, 100, 47, 0, 0.5, {"hidden": 64}).parameters()) for name in NAMES}
    head = 64 * 47 + 47
    assert counts == {
        "gcn": 100 * 64 + 64 + 64 * 64 + 64 + head,
        "sage": 2 * 100 * 64 + 64 + 2 * 64 * 64 + 64 + head,
        "gat": 100 * 64 + 3 * 64 + 64 * 64 + 3 * 64 + head,
        "gin": 100 * 64 + 64 + 3 * (64 * 64 + 64) + 4 * 64 + 2 + head,
        "gcnii": 100 * 64 + 64 + 2 * 64 * 64 + head,
        "transformer": 4 * (100 * 64 + 64 + 64 * 64 + 64) + head,
    }
