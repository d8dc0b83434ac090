from collections.abc import Iterator

import numpy as np
import pytest
import torch
from support.other_device.device import load
from support.plain_dropout import dropped
from torch import Tensor

from shoal.algorithms.models.layers.dropout import KEYED, drop, fill_kept, fill_kept_by_key, fill_kept_of_steps, masks
from shoal.algorithms.rng import Stream, generator_on

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_outside_training_and_at_zero_nothing_happens() -> None:
    x = torch.randn(4, 3)
    state = torch.get_rng_state()
    with masks(lambda x, p: torch.zeros_like(x)):
        assert drop(x, 0.5, training=False) is x
        assert drop(x, 0.0, training=True) is x
    assert drop(x, 0.5, training=False) is x
    assert drop(x, 0.0, training=True) is x
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("p", [0.2, 0.3, 0.5, 0.75])
def test_fill_kept_on_cpu_reads_sixteen_bits_an_entry(p: float) -> None:
    """So many entries meet every value of 16 bits, the one that p falls on, too."""
    x = torch.randn(600, 1001)
    torch.manual_seed(3)
    expected = dropped(x, p)
    torch.manual_seed(3)
    assert torch.equal(drop(x, p, training=True), expected)


@pytest.mark.parametrize("p", [0.0003, 0.1, 0.5, 0.9, 0.9997])
def test_entries_are_dropped_as_often_as_asked_whatever_the_others_are(p: float) -> None:
    """Counts by place within a word, in all, and of pairs of neighbours, which overlap: within five deviations."""
    count = 400_000
    generator = torch.Generator().manual_seed(7)
    kept = fill_kept(torch.empty(count), p, generator).double()
    assert set(kept.unique().tolist()) == {0.0, 1.0}
    by_place = kept.view(-1, 4).sum(0).tolist()
    both = [float((kept[:-lag] * kept[lag:]).sum()) for lag in (1, 2, 4)]
    # A pair shares each of its entries with another one: at most three times the variance.
    for found, draws, share, times in [
        *((of_place, count / 4, 1 - p, 1) for of_place in by_place),
        (float(kept.sum()), count, 1 - p, 1),
        *((together, count, (1 - p) ** 2, 3) for together in both),
    ]:
        assert abs(found - draws * share) < 5 * (times * draws * share * (1 - share)) ** 0.5 + 5


@pytest.mark.parametrize("out", [torch.empty(0), torch.empty(3, 0), torch.empty(1), torch.empty(5, 3), torch.empty(7)])
def test_any_shape_is_filled_and_every_draw_goes_on_in_the_stream(out: Tensor) -> None:
    generator = torch.Generator().manual_seed(2)
    first = fill_kept(out.fill_(9), 0.5, generator).clone()
    again = fill_kept(torch.empty(out.shape), 0.5, torch.Generator().manual_seed(2))
    assert first.shape == out.shape
    assert torch.equal(first, again)
    assert ((first == 0) | (first == 1)).all()
    many = torch.stack([fill_kept(torch.empty(64), 0.5, generator) for _ in range(2)])
    assert not torch.equal(many[0], many[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_type_changes_no_draw_and_neither_do_strides(dtype: torch.dtype) -> None:
    plain = fill_kept(torch.empty(6, 5), 0.4, torch.Generator().manual_seed(5))
    assert torch.equal(fill_kept(torch.empty(6, 5, dtype=dtype), 0.4, torch.Generator().manual_seed(5)).float(), plain)
    turned = torch.empty(5, 6).t()
    assert torch.equal(fill_kept(turned, 0.4, torch.Generator().manual_seed(5)), plain)


def test_dropout_p_near_one_keeps_one_of_65536() -> None:
    torch.manual_seed(0)
    out = drop(torch.ones(1_000_000), 1 - 2**-20, training=True)
    assert 0 < int((out > 0).sum()) < 50
    assert out.isfinite().all()


@pytest.mark.parametrize("p", [0.2, 0.75])
def test_another_device_draws_what_clients_of_one_batch_draw(p: float) -> None:
    """From its default stream, as the stacked trainer draws from a client's own; a GPU draws by keys."""
    device = load()
    x = torch.randn(50, 20).to(device)
    with Stream(device, 3):
        out = drop(x, p, training=True).cpu()
    kept = fill_kept(torch.empty_like(x), p, generator_on(device).manual_seed(3)).cpu().bool()
    torch.testing.assert_close(out, torch.where(kept, x.cpu() / (1 - p), torch.zeros(())))


@pytest.fixture(params=["other", pytest.param("cuda", marks=GPU)])
def keyed(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """A device that draws by keys."""
    device = load() if request.param == "other" else torch.device(request.param)
    KEYED.add(device.type)
    yield device
    KEYED.discard("other")


def by_hand(seed: int, number: int, entries: int, p: float) -> np.ndarray:
    """Words of SplitMix64 in Python's numbers, four entries each."""
    kept: list[bool] = []
    for place in range(1, -(-entries // 4) + 1):
        z = (place * 0x9E3779B97F4A7C15 + seed + number * 0xD1342543DE82EF95) % 2**64
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            z = (z ^ (z >> shift)) * factor % 2**64
        words = [(z >> 16 * k) % 2**16 for k in range(4)]
        kept += [(word - 2**16 if word >= 2**15 else word) + 2**15 >= round(p * 2**16) for word in words]
    return np.array(kept[:entries])


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_a_keyed_device_draws_for_each_client_what_it_would_alone(keyed: torch.device, p: float) -> None:
    """Written out, and whatever other rows there are; draws of a visit count on from each other."""
    seeds = [5, 2**63 - 1, 77]
    x = torch.ones(7, 5, device=keyed)
    outer = Stream(keyed, 1)
    for b, seed in enumerate(seeds):
        with outer, Stream(keyed, seed):
            alone = [drop(x, p, training=True).cpu() for _ in range(3)]
        for number, out in enumerate(alone):
            assert ((out > 0).flatten().numpy() == by_hand(seed, number, 35, p)).all()
            together = fill_kept_by_key(torch.empty(3, 9, 5, device=keyed), p, torch.tensor(seeds).to(keyed), number)
            assert torch.equal(together[b, :7].cpu(), (out > 0).float())


def test_keyed_draws_are_independent(keyed: torch.device) -> None:
    """Shares of entries, of pairs in one draw, and of one entry in two draws or two clients: five deviations."""
    p, count, seeds = 0.3, 200_000, [2**40 + 1, 2**40 + 2]
    draws = [
        fill_kept_by_key(torch.empty(2, count, device=keyed), p, torch.tensor(seeds).to(keyed), number).cpu().double()
        for number in (0, 1)
    ]
    assert all(set(kept.unique().tolist()) == {0.0, 1.0} for kept in draws)
    first, second = draws[0]
    for one, other in [(first, second), (first, draws[1][0]), *((first[:-k], first[k:]) for k in (1, 2, 3, 4, 8))]:
        for found, share in ((one.mean(), 1 - p), ((one * other).mean(), (1 - p) ** 2)):
            assert abs(float(found) - share) < 5 * (3 * share * (1 - share) / count) ** 0.5


def test_masks_are_used_in_call_order_and_reset() -> None:
    x, asked = torch.ones(2), list[tuple[Tensor, float]]()

    def numbers() -> Iterator[Tensor]:
        yield from (torch.tensor([1.0, 0.0]), torch.tensor([0.0, 3.0]))

    received = numbers()

    def mask_of(x: Tensor, p: float) -> Tensor:
        asked.append((x, p))
        return next(received)

    with masks(mask_of):
        first, second = drop(x, 0.1, training=True), drop(2 * x, 0.6, training=True)
        with masks(lambda x, p: torch.full_like(x, 5.0)):
            assert drop(x, 0.1, training=True).tolist() == [5.0, 5.0]
        with pytest.raises(StopIteration):
            drop(x, 0.1, training=True)
    assert first.tolist() == [1.0, 0.0]
    assert second.tolist() == [0.0, 6.0]
    assert [p for _, p in asked] == [0.1, 0.6, 0.1]
    assert torch.equal(asked[1][0], 2 * x)
    torch.manual_seed(0)
    expected = dropped(x, 0.5)
    torch.manual_seed(0)
    assert torch.equal(drop(x, 0.5, training=True), expected)


def test_masks_after_an_error_are_reset() -> None:
    with pytest.raises(RuntimeError, match="on purpose"), masks(lambda x, p: torch.zeros_like(x)):
        raise RuntimeError("on purpose")
    assert drop(torch.ones(1000), 0.5, training=True).any()


@pytest.mark.parametrize("drops", [[(8, 0.5), (12, 0.5)], [(6, 0.5), (12, 0.5)], [(8, 0.3), (12, 0.5)], []])
def test_draws_of_steps_are_those_one_after_another(drops: list[tuple[int, float]]) -> None:
    ends = []
    for at_once in (True, False):
        torch.manual_seed(1)
        kept = torch.zeros(3, sum(count for count, _ in drops))
        if at_once:
            fill_kept_of_steps(kept, drops)
        else:
            for row in kept:
                for part, (_, p) in zip(row.split([count for count, _ in drops]), drops):
                    fill_kept(part, p)
        ends.append((kept, torch.rand(2)))
    assert all(map(torch.equal, *ends))
