import contextlib

import pytest
import torch

from shoal.algorithms.rng import Stream, generator_on, seed_default

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_the_default_stream_is_that_of_manual_seed() -> None:
    torch.manual_seed(2**62 + 7)
    expected = torch.rand(3), torch.randperm(9)
    torch.manual_seed(0)
    seed_default(CPU, 2**62 + 7)
    assert torch.equal(torch.rand(3), expected[0])
    assert torch.equal(torch.randperm(9), expected[1])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    assert generator_on(CUDA).device.type == "cuda"
    seed_default(CUDA, 7)
    drawn = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(7)
    assert torch.equal(torch.rand(3, device="cuda"), drawn)


def drawn(seed: int, count: int) -> torch.Tensor:
    return torch.rand(count, generator=torch.Generator().manual_seed(seed))


def test_a_stream_goes_on_where_its_last_block_ended() -> None:
    stream, found = Stream(CPU, 2**62 + 7), []
    for count in (2, 3, 1):
        torch.manual_seed(count)
        with stream:
            found.append(torch.rand(count))
    assert torch.equal(torch.cat(found), drawn(2**62 + 7, 6))


def test_streams_in_turns_and_inside_of_each_other_know_nothing_of_each_other() -> None:
    one, other = Stream(CPU, 1), Stream(CPU, 2)
    with one:
        first = torch.rand(2)
        with other:
            second = torch.rand(3)
        third = torch.rand(2)
    with other:
        fourth = torch.rand(1)
    assert torch.equal(torch.cat([first, third]), drawn(1, 4))
    assert torch.equal(torch.cat([second, fourth]), drawn(2, 4))


def test_around_a_stream_the_default_one_goes_on() -> None:
    torch.manual_seed(3)
    before = torch.rand(1)
    stream = Stream(CPU, 1)
    between = torch.rand(1)
    with contextlib.suppress(KeyError), stream:
        torch.rand(5)
        raise KeyError
    assert torch.equal(torch.cat([before, between, torch.rand(2)]), drawn(3, 4))
    with stream:
        torch.rand(1)
    assert torch.equal(torch.rand(1), drawn(3, 5)[4:])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_stream_on_a_gpu() -> None:
    torch.cuda.manual_seed(3)
    state, stream = torch.get_rng_state(), Stream(CUDA, 7)
    with stream:
        first = torch.rand(1, device=CUDA)
    outer = torch.rand(2, device=CUDA)
    with stream:
        second = torch.rand(1, device=CUDA)
    torch.cuda.manual_seed(3)
    assert torch.equal(torch.rand(2, device=CUDA), outer)
    torch.cuda.manual_seed(7)
    assert torch.equal(torch.cat([torch.rand(1, device=CUDA) for _ in range(2)]), torch.cat([first, second]))
    assert torch.equal(torch.get_rng_state(), state)
