"""Sketches of several clients at once are those of each by itself."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from shoal.algorithms.losses.label_propagation import with_training_labels
from shoal.algorithms.methods.fedgta.batched_sketch import batched_sketch
from shoal.algorithms.methods.fedgta.label_sketch import SketchForm, sketch_by_torch
from shoal.algorithms.training.batched.batched_inputs import padded
from shoal.storage.store.view import View

CLASSES = 3
DEFAULTS: dict[str, Any] = {
    "lp_steps": 3,
    "lp_seed_weight": 0.3,
    "rows": "stochastic",
    "orders": 4,
    "moments": "hybrid",
    "moment_steps": "all",
    "confidence": "paper",
}
# One without edges, one with a single node, one without training nodes, one whose last node has no edge.
CLIENTS: list[tuple[int, list[tuple[int, int]], list[int]]] = [
    (5, [(0, 1), (1, 2), (2, 3), (0, 3)], [0, 2]),
    (4, [], [1]),
    (1, [], [0]),
    (7, [(0, 6), (5, 6), (1, 2), (2, 6), (3, 4)], [6, 1, 3]),
    (3, [(0, 1), (1, 2)], []),
]


@pytest.fixture(params=[False, True], ids=["", "weighted"])
def views(request: pytest.FixtureRequest, make_view: Callable[..., View]) -> list[View]:
    rng = np.random.default_rng(1)
    made = []
    for nodes, edges, train in CLIENTS:
        weight = rng.uniform(0.2, 3, (nodes, nodes)).astype(np.float32)
        label = rng.integers(CLASSES, size=nodes)
        made.append(make_view(nodes, edges, label, train, CLASSES, None, weight + weight.T if request.param else None))
    return made


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"moments": "raw"},
        {"moments": "central", "orders": 1},
        {"moment_steps": "last"},
        {"rows": "raw"},
        {"confidence": "normalized"},
        {"confidence": "uniform", "lp_steps": 1},
        {"lp_seed_weight": 0.0},
    ],
    ids=str,
)
@pytest.mark.parametrize("labels", [True, False])
def test_equal_those_of_each(views: list[View], changes: dict[str, Any], labels: bool) -> None:
    form = SketchForm(**{**DEFAULTS, **changes})
    draws = torch.Generator().manual_seed(0)
    logits = [3 * torch.randn(view.nodes, CLASSES, generator=draws) for view in views]
    moments_BSC, confidence_B = batched_sketch(views, padded(logits, 5), form, labels)
    assert confidence_B.dtype == torch.float64
    for view, logits_NC, found_SC, h in zip(views, logits, moments_BSC, confidence_B, strict=True):
        seed_NC = F.softmax(logits_NC, dim=1)
        alone = sketch_by_torch(view, with_training_labels(view, seed_NC) if labels else seed_NC, form)
        torch.testing.assert_close(found_SC, alone.moments_SC, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(h, torch.as_tensor(alone.confidence), rtol=1e-6, atol=0)
