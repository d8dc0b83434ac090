"""Options of prompts that are out of range, and models that take none: one line that names the key."""

import math

import pytest

from shoal.algorithms.models.build import build
from shoal.storage.errors import ShoalError


@pytest.mark.parametrize(
    ("name", "task", "prompt", "line"),
    [
        ("gcn", "node", "vpg", "model.prompt: is for graph tasks (task: graph); leave it out"),
        ("gcn", "edge", "vpg", "model.prompt: is for graph tasks (task: graph); leave it out"),
        ("mlp", "graph", "vpg", "model.prompt: mlp reads what was computed of features and edges before"),
        ("star", "graph", "gpf", "model.prompt: star reads what was computed of features and edges before"),
        (
            "gcn",
            "graph",
            "best",
            "model.prompt: there is no 'best'; name one of all_in_one, gpf, gpf_plus, none, supt, vpg",
        ),
        ("gcn", "graph", 3, "model.prompt: there is no 3; name one of"),
        ("gcn", "graph", None, "model.prompt: there is no None; name one of"),
        ("gcn", "graph", {"nodes": 0.5}, "model.prompt: there is no None; name one of"),
        ("gcn", "graph", {"name": ["vpg"]}, "model.prompt: there is no ['vpg']; name one of"),
        ("gcn", "graph", {"name": "gpf", "nodes": 0.5}, "model.prompt.nodes: gpf has no such option; it has none"),
        ("gcn", "graph", {"name": "vpg", "nodes": "x"}, "model.prompt.nodes: must be of type float, found 'x'"),
        ("gcn", "graph", {"name": "vpg", "nodes": 0.0}, "model.prompt.nodes: must be above 0 and at most 1, found 0.0"),
        ("gcn", "graph", {"name": "vpg", "nodes": 1.5}, "model.prompt.nodes: must be above 0 and at most 1, found 1.5"),
        ("gcn", "graph", {"name": "vpg", "nodes": math.nan}, "model.prompt.nodes: must be finite, found nan"),
        ("gcn", "graph", {"name": "vpg", "edges": -0.1}, "model.prompt.edges: must be at least 0 and at most 1, found"),
        ("gcn", "graph", {"name": "vpg", "edges": 1.1}, "model.prompt.edges: must be at least 0 and at most 1, found"),
        ("gcn", "graph", {"name": "vpg", "rule": "mid"}, "model.prompt.rule: must be one of high, low, found 'mid'"),
        ("gcn", "graph", {"name": "vpg", "candidates": -1}, "model.prompt.candidates: must be at least 0, found -1"),
        ("gcn", "graph", {"name": "vpg", "joined": 1.0}, "model.prompt.joined: must be above 0 and below 1, found 1.0"),
        ("gcn", "graph", {"name": "gpf_plus", "vectors": 0}, "model.prompt.vectors: must be at least 1, found 0"),
        ("gcn", "graph", {"name": "supt", "vectors": 0}, "model.prompt.vectors: must be at least 1, found 0"),
        ("gcn", "graph", {"name": "supt", "share": 0.0}, "model.prompt.share: must be above 0 and at most 1, found"),
        ("gcn", "graph", {"name": "supt", "share": 1.1}, "model.prompt.share: must be above 0 and at most 1, found"),
        ("gcn", "graph", {"name": "supt", "form": "mid"}, "model.prompt.form: must be one of soft, hard, found 'mid'"),
        ("gcn", "graph", {"name": "all_in_one", "tokens": 0}, "model.prompt.tokens: must be at least 1, found 0"),
        (
            "gcn",
            "graph",
            {"name": "all_in_one", "inner": 0.0},
            "model.prompt.inner: must be above 0 and below 1, found",
        ),
        (
            "gcn",
            "graph",
            {"name": "all_in_one", "cross": 1.0},
            "model.prompt.cross: must be above 0 and below 1, found",
        ),
    ],
)
def test_refused(name: str, task: str, prompt: object, line: str) -> None:
    with pytest.raises(ShoalError) as error:
        build(name, 5, 3, 0, 0.5, {"prompt": prompt}, task=task)
    assert str(error.value).startswith(line)
