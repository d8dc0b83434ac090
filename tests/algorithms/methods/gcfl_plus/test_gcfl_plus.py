"""When a cluster divides and how, told to the server's part by hand; what clients send; what is refused."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from shoal.algorithms.base import Ask, Context, Mix, Replies, Tree
from shoal.algorithms.client import ClientInfo
from shoal.algorithms.methods.gcfl_plus.gcfl_plus import GCFLPlus, leaving_half, shares
from shoal.algorithms.methods.registry.load import describe, load
from shoal.engine.config.config import Config
from shoal.engine.rounds.server import Server
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run as run_config
from shoal.storage.errors import ShoalError

Run = Callable[..., Server]
Keys = Mapping[str, Any]
MakeContext = Callable[..., Context]
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
        {
            "n": 5 * trains,
            "moved": held.norm(dim=1),
            "gradient": torch.tensor([norms[i] for i in ids]) * trains,
        },
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


def test_two_groups_become_two_clusters(make_context: MakeContext) -> None:
    server = state(NORMS)
    ctx = context(make_context, [3] * 5)
    change = opposed(5)
    (ask,) = play(METHOD, server, ctx, change, NORMS)
    assert ask.train
    assert ask.to is None
    assert not ask.shared
    assert all(torch.equal(tree["w"], torch.ones(2)) and tree.keys() == {"w"} for tree in ask.private.values())
    assert sorted(ask.private) == [0, 1, 2, 3, 4]
    # The smaller half leaves; both had the same model, and each moves with its own.
    assert server["cluster"].tolist() == [1, 0, 1, 0, 0]
    assert server["known"].tolist() == [0] * 5
    staying = 1 + (change[1] + change[3] + change[4]) / 3
    leaving = 1 + (change[0] + change[2]) / 2
    torch.testing.assert_close(server["models"], torch.stack([staying, leaving]))
    assert ctx.notes == {"clusters": 2.0, "least mean change": 0.25, "largest change": pytest.approx(16.0625**0.5)}
    # The next round sends every client its own, and asks for full series again.
    norms = [5.0, 1.0, 6.0, 1.0, 2.0]
    (ask,) = play(METHOD, server, ctx, change, norms)
    assert all(torch.equal(ask.private[i]["w"], staying) for i in (1, 3, 4))
    assert all(torch.equal(ask.private[i]["w"], leaving) for i in (0, 2))
    assert server["known"].tolist() == [1] * 5
    assert server["norms"].tolist() == [[NORMS[i], norms[i]] for i in range(5)]
    assert len(server["models"]) == 2


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


def test_two_clusters_divide_in_one_round(make_context: MakeContext) -> None:
    norms = [1.0, 1.0, 3.0, 2.0, 7.0, 7.0]
    server = state(norms)
    server["cluster"] = torch.tensor([0, 1, 0, 0, 1, 1])
    server["models"] = torch.tensor([[1.0, 1.0], [2.0, 2.0]])
    change = {i: torch.tensor([far, 0.0]) for i, far in enumerate([3.0, 3.0, -3.0, 0.0, -3.0, 0.0])}
    play(METHOD, server, context(make_context, [3] * 6), change, norms)
    assert len(set(server["cluster"].tolist())) == len(server["models"]) == 4
    assert server["cluster"][1] == 3
    assert server["cluster"][[4, 5]].tolist() == [1, 1]
    torch.testing.assert_close(server["models"][[1, 3]], torch.tensor([[0.5, 2.0], [5.0, 2.0]]))


def test_cluster_without_participants_is_unchanged(make_context: MakeContext) -> None:
    """Its mean change is none, and nobody of it goes far."""
    norms = [1.0, 3.0, 1.0, 1.0, 1.0, 1.0]
    server = state(norms)
    server["cluster"] = torch.tensor([0, 0, 0, 1, 1, 1])
    server["models"] = torch.ones(2, 2)
    play(METHOD, server, context(make_context, [3] * 6), {i: torch.tensor([9.0, 0.0]) for i in (3, 4, 5)}, norms)
    assert server["cluster"].tolist() == [0, 0, 0, 1, 1, 1]
    assert server["models"].tolist() == [[1.0, 1.0], [10.0, 1.0]]


def test_a_single_client(make_context: MakeContext, run: Run, tmp_path: Path) -> None:
    server = state([1.0])
    play(METHOD, server, context(make_context, [3]), {0: torch.tensor([0.0, 0.25])}, [7.0])
    assert server["models"].tolist() == [[1.0, 1.25]]
    assert server["norms"].tolist() == [[1.0, 7.0]]
    one = {"partition.method": "random", "partition.clients": 1, "data.store": str(tmp_path / "store")}
    found = run({**one, "algorithm.name": "gcfl_plus", **EAGER}, rounds=3).state
    assert len(found.server["models"]) == 1
    assert found.server["known"].tolist() == [3]
    assert found.scores["served"][0][:, 0].any()


def test_halves() -> None:
    def leaving(*norms: float) -> list[bool]:
        return leaving_half(torch.tensor(norms)[:, None]).tolist()

    assert leaving(1, 1, 5) == [False, False, True]
    assert leaving(5, 1, 1) == [True, False, False]
    assert leaving(1, 5, 1, 5) == [False, True, False, True]
    assert leaving(2, 2, 2) == [False, False, False]


def test_shares() -> None:
    rows = shares(torch.tensor([0, 2, 0, 1]), torch.tensor([1.0, 5.0, 3.0, 0.0]), 4)
    assert rows.dtype == torch.float32
    assert rows.tolist() == [[0.25, 0, 0.75, 0], [0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]


def test_what_clients_send(start: Run, patchy: Keys, recorded: Any) -> None:
    """Client 3, without training rows, visits alone after another, whose gradient lies in the host's model."""
    keys = {**patchy, "algorithm.name": "gcfl_plus", "engine.cell_size": 6, "model.hidden": 8}
    server = start({name: value for name, value in keys.items() if name != "participation.trace"}, pool=recorded.on)
    (body,) = server.state.server["models"]
    server.round()
    assert sorted(recorded.downloads) == [0, 1, 2, 3, 4, 5]
    assert all(torch.equal(down["w"], body) for down in recorded.downloads.values())
    untrained = recorded.uploads.pop(3)
    assert [float(untrained[name]) for name in ("n", "moved", "gradient")] == [0.0, 0.0, 0.0]
    assert not untrained["change"].any()
    for sent in recorded.uploads.values():
        assert float(sent["n"]) == 14
        assert float(sent["moved"]) == pytest.approx(float(sent["change"].norm()), rel=1e-5)
        assert sent["gradient"] > 0
        assert sent.keys() == {"change", "n", "moved", "gradient"}


@pytest.mark.parametrize("share", ["body", "all"])
def test_clients_that_start_apart_share_what_is_shared(start: Run, patchy: Keys, recorded: Any, share: str) -> None:
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps1": -0.1}, "eps1 and eps2 must not be negative"),
        ({"eps2": -0.1}, "eps1 and eps2 must not be negative"),
        ({"window": 0}, "window must be 1 to 1000"),
        ({"window": 1001}, "window must be 1 to 1000"),
        ({"warmup": -1}, "warmup must not be negative"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ShoalError, match=f"^algorithm: gcfl_plus: {message}$"):
        load(describe("gcfl_plus", options))
    load(describe("gcfl_plus", {"eps1": 0, "eps2": 0, "window": 1, "warmup": 0}))
    load(describe("gcfl_plus", {"window": 1000}))


def test_a_model_without_a_body_has_only_all_to_share(start: Run) -> None:
    with pytest.raises(ShoalError, match=r"^model\.layers: GCFLPlus shares what lies below .* a sgc of one layer"):
        start({"algorithm.name": "gcfl_plus", "model": {"name": "sgc"}})
    start({"algorithm.name": "gcfl_plus", "algorithm.share": "all", "model": {"name": "sgc"}}).round()


@pytest.mark.parametrize("path", ["analytic", "batched"])
def test_trainers_that_leave_no_gradient_are_refused(start: Run, path: str) -> None:
    refusal = rf"^engine\.trainer: {path} needs a method of plain cross-entropy, which GCFLPlus is not; use autograd$"
    with pytest.raises(ShoalError, match=refusal):
        start({"algorithm.name": "gcfl_plus", "engine.trainer": path}).round()
