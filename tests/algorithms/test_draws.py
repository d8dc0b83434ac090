import pytest
import torch

from algorithms.draws import generator_on, seed_default

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("device", [CPU, torch.device("meta")])
def test_all_but_a_gpu_draw_from_the_processor(device: torch.device) -> None:
    assert generator_on(device).device == CPU


def test_a_generator_is_apart_from_the_default_one() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    torch.rand(5, generator=generator_on(CPU).manual_seed(1))
    assert torch.equal(torch.rand(3), expected)


def test_the_default_stream_is_that_of_manual_seed() -> None:
    torch.manual_seed(2**62 + 7)
    expected = torch.rand(3), torch.randperm(9)
    torch.manual_seed(0)
    seed_default(CPU, 2**62 + 7)
    assert torch.equal(torch.rand(3), expected[0])
    assert torch.equal(torch.randperm(9), expected[1])


def test_a_seed_for_a_gpu_leaves_the_processor_s_stream_alone() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    seed_default(CUDA, 7)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.skipif(torch.cuda.is_available(), reason="only without a GPU is asking for its generator an error")
def test_a_gpu_draws_its_own() -> None:
    with pytest.raises(RuntimeError):
        generator_on(CUDA)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    assert generator_on(CUDA).device.type == "cuda"
    seed_default(CUDA, 7)
    drawn = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(7)
    assert torch.equal(torch.rand(3, device="cuda"), drawn)
