"""Products of uploads on hosts: the bits of one process, also where a host does not answer."""

from dataclasses import replace
from typing import Any

import pytest
import ray
import torch
from support.errors import refused
from support.fixtures import MakeJob
from torch import Tensor

from shoal.algorithms.protocol import Reduce
from shoal.engine.cluster.mixing import LEAST_OF_A_BLOCK, split, take_blocks
from shoal.engine.cluster.ray_pool import RayPool
from shoal.engine.hosts.backend import ServerLost
from shoal.engine.messages.cell import Outcome
from shoal.engine.rounds.reduction import TILE, Sums, UploadsHere, combine

UP = {"w": Reduce.MIX, "small": Reduce.MIX, "h": Reduce.STACK}
WIDTH = LEAST_OF_A_BLOCK // 2 + 5


def cell(ids: list[int], pool: RayPool, width: int = WIDTH) -> Outcome:
    """A cell whose large uploads are in the cluster's memory."""
    tensors = {"w": uploads(ids, width).reshape(len(ids), 1, width), "small": uploads(ids, 3), "h": uploads(ids, 2)}
    outcome = Outcome(ids=ids, tensors=tensors)
    refs = [ray.put(t) for t in take_blocks(outcome, UP)]
    for entry, (part,) in outcome.blocks.items():
        outcome.blocks[entry] = [replace(part, refs=[refs[place] for place in part.refs], pool=pool)]
    return outcome


def uploads(ids: list[int], width: int) -> Tensor:
    return torch.stack([torch.randn(width, generator=torch.Generator().manual_seed(i)) for i in ids])


@pytest.mark.parametrize("how", ["on hosts", "no host is in time", "no host is ready"])
def test_products_have_the_bits_of_one_process(hosts: list[Any], job_of: MakeJob, how: str) -> None:
    pool = RayPool(hosts, job_of(), 0.0 if how == "no host is in time" else 60.0, 4)
    if how != "no host is ready":
        pool.require_data(range(6))
    outcomes = [cell([1, 4], pool), cell([0, 2, 3], pool)]
    assert [outcome.blocks.keys() for outcome in outcomes] == [{"w"}, {"w"}]
    replies, held = combine(outcomes, [1, 4, 0, 2, 3], UP, Sums())
    assert (replies.ids, replies.entries.keys(), held.keys()) == ([0, 1, 2, 3, 4], {"h"}, {"w", "small"})
    here = UploadsHere([t.reshape(1, WIDTH) for t in uploads([0, 1, 2, 3, 4], WIDTH)])
    rows = torch.rand(6, 5)
    for some in (rows[:2], rows[:1]):
        product = held["w"].product(some)
        assert product.shape == (len(some), 1, WIDTH)
        assert torch.equal(product, here.product(some))
    # More rows than uploads, for clients.
    for mine, expected in zip(held["w"].give(rows), here.give(rows), strict=True):
        assert not isinstance(mine, Tensor)
        assert (mine.shape, mine.nbytes, len(mine.refs)) == ((1, WIDTH), 4 * WIDTH, 2)
        assert torch.equal(torch.cat(ray.get(list(mine.refs))).reshape(mine.shape), expected)


def test_what_cannot_be_mixed_is_refused(hosts: list[Any], job_of: MakeJob) -> None:
    pool = RayPool(hosts, job_of(), 60.0, 4)
    pool.require_data(range(6))
    _, held = combine([cell([0, 1], pool)], [0, 1], UP, Sums())
    with refused(says="the result of Mix 'w' holds NaN or infinity; the round is not committed"):
        held["w"].product(torch.full((1, 2), 3e38))
    with refused(says="upload() gives 'w' as [1, 655365] at client 0 and as [1, 655366] at client 2"):
        combine([cell([0, 1], pool), cell([2], pool, WIDTH + 1)], [0, 1, 2], UP, Sums())


@ray.remote(num_cpus=0)
class Owner:
    """What it puts into the cluster's memory ends with it."""

    def owned(self, blocks: list[Tensor]) -> list[Any]:
        return [ray.put(block) for block in blocks]


def test_lost_uploads_lose_the_server(hosts: list[Any], job_of: MakeJob) -> None:
    """The run goes back to its newest checkpoint."""
    pool, owner = RayPool(hosts, job_of(), 60.0, 4), Owner.remote()
    pool.require_data(range(6))
    outcome = cell([0, 1], pool)
    (part,) = outcome.blocks["w"]
    outcome.blocks["w"] = [replace(part, refs=ray.get(owner.owned.remote(ray.get(list(part.refs)))))]
    _, held = combine([outcome], [0, 1], UP, Sums())
    ray.kill(owner)

    def mix_until_it_is_noticed() -> None:
        while True:
            held["w"].product(torch.ones(1, 2))

    with pytest.raises(ServerLost, match="uploads were lost with their machine"):
        mix_until_it_is_noticed()


@pytest.mark.parametrize("width", [1, TILE, 3 * TILE + 1, 20 * TILE])
def test_blocks_are_whole_tiles(width: int) -> None:
    blocks = split(uploads([0, 1], width), 8)
    assert torch.equal(torch.cat(blocks, dim=1), uploads([0, 1], width))
    assert all(block.shape[1] % TILE == 0 for block in blocks[:-1])
    assert max(block.shape[1] for block in blocks) <= TILE * (-(-width // TILE) // 8 + 1)
