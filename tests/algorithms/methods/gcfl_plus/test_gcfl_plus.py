"""When a cluster divides and how, told to the server's part by hand; what clients send; what is refused."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.fixtures import Keys, MakeContext, Start
from torch import Tensor

from shoal.algorithms.base import Ask, Context, Mix, Replies, Tree
from shoal.algorithms.client import ClientInfo
from shoal.algorithms.methods.gcfl_plus.gcfl_plus import GCFLPlus
from shoal.engine.config.config import Config
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run as run_config

# Norms of the last gradients of five clients: two groups.
NORMS = [1.0, 3.0, 1.0, 3.0, 3.0]
EAGER = {"algorithm.eps1": 9.0, "algorithm.eps2": 0.0, "algorithm.window": 1, "algorithm.warmup": 0}
METHOD = GCFLPlus(eps1=0.5, eps2=2.0, window=2, warmup=3)


def context(make: MakeContext, trained: list[int], round_number: int = 4) -> Context:
    infos = [ClientInfo(i, 5, rows, 3) for i, rows in enumerate(trained)]
    return replace(make(len(trained), 3), clients=infos, round=round_number)


def state(norms: list[float], window: int = 2) -> Tree:
    """One cluster of clients whose series are full and constant, its model being 1, 1."""
    count = len(norms)
    return {
        "models": torch.ones(1, 2),
        "cluster": torch.zeros(count, dtype=torch.int64),
        "norms": torch.tensor(norms)[:, None].repeat(1, window),
        "known": torch.full((count,), window),
    }


def play(method: GCFLPlus, server: Tree, ctx: Context, change: dict[int, Tensor], norms: list[float]) -> list[Ask]:
    """A round in which some clients send a change each; those without training rows send zeros."""
    ids = sorted(change)
    trains = torch.tensor([float(ctx.clients[i].train > 0) for i in ids])
    held = torch.stack([change[i] for i in ids]) * trains[:, None]
    replies = Replies(
        ids,
        {"n": 5 * trains, "moved": held.norm(dim=1), "gradient": torch.tensor([norms[i] for i in ids]) * trains},
        {},
    )
    steps, asks = method.round(server, ctx, ids), []
    step = next(steps)
    try:
        while True:
            if isinstance(step, Ask):
                asks.append(step)
                step = steps.send(replies)
            else:
                assert isinstance(step, Mix)
                assert (step.entry, step.dst) == ("change", None)
                step = steps.send(step.rows @ held)
    except StopIteration:
        return asks


def opposed(count: int, far: float = 4.0) -> dict[int, Tensor]:
    """Changes whose mean is 0.25 in the second direction."""
    signs = [1.0, -1.0] * (count // 2) + [0.0] * (count % 2)
    return {i: torch.tensor([far * sign, 0.25]) for i, sign in enumerate(signs)}


@pytest.mark.parametrize(
    ("options", "changes", "divides"),
    [
        ({}, {}, True),
        ({"warmup": 4}, {}, False),
        # Not smaller, not larger, is not enough.
        ({"eps1": 0.25}, {}, False),
        ({"eps1": 0.2501}, {}, True),
        ({"eps2": float(torch.tensor([4.0, 0.25]).norm())}, {}, False),
        ({"eps2": 16.0625**0.5 - 1e-4}, {}, True),
        ({}, {"known": [2, 2, 2, 2, 0]}, False),
        # With this round's it is full.
        ({}, {"known": [1, 2, 1, 2, 2]}, True),
        ({}, {"trained": [3, 3, 0, 0, 0]}, False),
        ({}, {"trained": [3, 3, 3, 0, 0]}, True),
        ({}, {"norms": [1.0] * 5}, False),
    ],
)
def test_all_conditions_are_needed(
    make_context: MakeContext, options: dict[str, Any], changes: dict[str, Any], divides: bool
) -> None:
    norms = changes.get("norms", NORMS)
    server = state(norms)
    server["known"] = torch.tensor(changes.get("known", [2] * 5))
    ctx = context(make_context, changes.get("trained", [3] * 5))
    even = {i: torch.tensor([4.0 if i == 0 else -4.0 if i == 1 else 0.0, 0.25]) for i in range(5)}
    play(replace(METHOD, **options), server, ctx, even, norms)
    assert len(server["models"]) == 1 + divides
    assert bool(server["cluster"].any()) == divides


def test_who_is_away_or_does_not_train(make_context: MakeContext) -> None:
    """Client 6, away, follows its series; 5, without training rows, stays with more clients."""
    norms = [*NORMS, 9.0, 1.0]
    server = state(norms)
    server["known"][5] = 0
    ctx = context(make_context, [3, 3, 3, 3, 3, 0, 3])
    change = {i: t for i, t in opposed(6).items() if i != 4}
    play(METHOD, server, ctx, change, norms)
    assert server["cluster"].tolist() == [0, 1, 0, 1, 1, 0, 0]
    # Of three and three the half without client 0 leaves; the new series of 6 begins with its next visit.
    assert server["known"].tolist() == [0] * 7
    assert server["norms"][5].tolist() == [9.0, 9.0]
    # Who comes alone moves its cluster alone, and nobody whose series is short is in the way of others.
    before = server["models"].clone()
    play(METHOD, server, ctx, {6: torch.tensor([1.0, 2.0])}, norms)
    torch.testing.assert_close(server["models"], before + torch.tensor([[1.0, 2.0], [0.0, 0.0]]))
    play(METHOD, server, ctx, {5: torch.tensor([1.0, 2.0])}, norms)
    torch.testing.assert_close(server["models"], before + torch.tensor([[1.0, 2.0], [0.0, 0.0]]))
    assert server["known"].tolist() == [0, 0, 0, 0, 0, 0, 1]


def test_a_single_client(make_context: MakeContext, run: Start, tmp_path: Path) -> None:
    server = state([1.0])
    play(METHOD, server, context(make_context, [3]), {0: torch.tensor([0.0, 0.25])}, [7.0])
    assert server["models"].tolist() == [[1.0, 1.25]]
    assert server["norms"].tolist() == [[1.0, 7.0]]
    one = {"partition.method": "random", "partition.clients": 1, "data.store": str(tmp_path / "store")}
    found = run({**one, "algorithm.name": "gcfl_plus", **EAGER}, rounds=3).state
    assert len(found.server["models"]) == 1
    assert found.server["known"].tolist() == [3]
    assert found.scores["served"][0][:, 0].any()


@pytest.mark.parametrize("share", ["body", "all"])
def test_clients_that_start_apart_share_what_is_shared(start: Start, patchy: Keys, recorded: Any, share: str) -> None:
    """All begin with client 0's; classifiers are their own."""
    own = {"algorithm.name": "gcfl_plus", "algorithm.share": share, "model.hidden": 8, "model.init": "own"}
    server = start({**patchy, **own}, pool=recorded.on)
    model = server._built["model"][0].flat
    head = model.classifier
    expected = server._initial
    expected = torch.cat([expected[: head.start], expected[head.stop :]]) if share == "body" else expected
    assert torch.equal(server.state.server["models"], expected[None])
    server.round()
    assert {i: tuple(down) for i, down in recorded.downloads.items()} == {0: ("w",), 2: ("w",)}
    kept = [server.state.clients[i].get("classifier") for i in (0, 2)]
    if share == "all":
        assert kept == [None, None]
    else:
        assert all(t is not None and t.shape == (4 * 9,) for t in kept)
        assert not torch.equal(kept[0], kept[1])


def test_an_export_has_clients_and_no_model_of_the_server(configure: Callable[..., Config], tmp_path: Path) -> None:
    keys = {"algorithm.name": "gcfl_plus", **EAGER, "rounds": 2, "run.root": str(tmp_path), "run.tensorboard": False}
    config = configure(keys)
    models = load_file(export(run_config(config)) / "models.safetensors")
    assert {name.split("/")[0] for name in models} == {"client"}
    tops = {tuple(tensor.flatten().tolist()) for name, tensor in models.items() if "linears.0.weight" in name}
    assert len(tops) == 3
