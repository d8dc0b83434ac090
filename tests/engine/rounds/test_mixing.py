"""Products of mixing against NumPy in float64, and where they go."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from shoal.algorithms.protocol import Mix
from shoal.engine.rounds import server as rounds
from shoal.engine.rounds.costs import Meter
from shoal.engine.rounds.server import Exchange, Server
from shoal.engine.rounds.state import FederationState
from shoal.storage.errors import ShoalError


@pytest.fixture
def meter(start: Callable[..., Server]) -> Meter:
    server = start()
    return Meter(1, server.infos, server._pool, lambda live: None)


def mixer_of(meter: Meter, held: torch.Tensor) -> tuple[Exchange, FederationState]:
    next_state = FederationState(inboxes={4: {"other": torch.ones(1)}})
    exchange = Exchange([], 1, meter._pool, FederationState(), next_state, [], meter)
    exchange._held["w"] = held
    return exchange, next_state


@pytest.mark.parametrize("columns", [1, 3, 2**20])
@pytest.mark.parametrize("shape", [(5, 8), (5, 2, 4), (5,)])
def test_the_product(meter: Meter, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], columns: int) -> None:
    monkeypatch.setattr(rounds, "COLUMNS_AT_A_TIME", columns)
    held, rows = torch.randn(shape), torch.rand(3, 5, dtype=torch.float64)
    mixer, next_state = mixer_of(meter, held)
    result = mixer.mix(Mix("w", rows, dst=[4, 0, 2]))
    expected = np.tensordot(rows.numpy(), held.double().numpy(), axes=1)
    assert result.shape == expected.shape
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-6)
    for row, client in enumerate([4, 0, 2]):
        assert torch.equal(next_state.inboxes[client]["w"], result[row])
    assert next_state.inboxes.keys() == {4, 0, 2}
    assert next_state.inboxes[4].keys() == {"other", "w"}
    assert next_state.touched == {4: False, 0: False, 2: False}


def test_an_inbox_holds_its_own_row_and_no_more(meter: Meter) -> None:
    mixer, next_state = mixer_of(meter, torch.randn(5, 8))
    result = mixer.mix(Mix("w", torch.eye(5), dst=range(5)))
    row = next_state.inboxes[1]["w"]
    assert row.untyped_storage().nbytes() == row.nbytes == 32
    row.zero_()
    assert result[1].abs().sum() > 0
    assert meter.line([], None)["bytes_down"] == 5 * 32


@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 3, 5)])
def test_without_a_destination_the_server_has_it(meter: Meter, shape: tuple[int, ...]) -> None:
    held, rows = torch.randn(5, 2, 2), torch.rand(*shape)
    mixer, next_state = mixer_of(meter, held)
    result = mixer.mix(Mix("w", rows))
    np.testing.assert_allclose(result, np.tensordot(rows.numpy(), held.numpy(), axes=1), rtol=1e-5, atol=1e-6)
    assert (next_state.inboxes.keys(), next_state.touched) == ({4}, {})
    assert meter.line([], None)["bytes_down"] == 0


def test_a_later_upload_takes_the_place_of_an_earlier(meter: Meter) -> None:
    mixer, _ = mixer_of(meter, torch.ones(5, 2))
    mixer._held["v"] = torch.full((3, 2), 7.0)
    mixer._held["w"] = torch.full((2, 2), 3.0)
    assert mixer.mix(Mix("w", torch.ones(2))).tolist() == [6, 6]
    assert mixer.mix(Mix("v", torch.ones(3))).tolist() == [21, 21]


@pytest.mark.parametrize(
    ("mix", "line"),
    [
        (Mix("v", torch.ones(5)), r"Mix\('v'\) before any Ask uploaded it as Reduce\.MIX"),
        (Mix("w", torch.ones(4)), r"the matrix of Mix\('w'\) is \[4\], expected \[5\]"),
        (Mix("w", torch.ones(2, 5), [0, 1, 2]), r"the matrix of Mix\('w'\) is \[2, 5\], expected \[3, 5\]"),
        (Mix("w", torch.ones(2, 4), [0, 1]), r"the matrix of Mix\('w'\) is \[2, 4\], expected \[2, 5\]"),
        (Mix("w", torch.ones(5), [0]), r"the matrix of Mix\('w'\) is \[5\], expected \[1, 5\]"),
        (Mix("w", torch.full((5,), float("nan"))), "the matrix of Mix 'w' holds NaN or infinity"),
        # Twice the largest number of float32.
        (Mix("w", torch.full((1, 5), 2e38), [0]), "the result of Mix 'w' holds NaN or infinity"),
    ],
)
def test_what_does_not_fit_is_named(meter: Meter, mix: Mix, line: str) -> None:
    mixer, next_state = mixer_of(meter, torch.ones(5, 2))
    with pytest.raises(ShoalError, match=f"^{line}"):
        mixer.mix(mix)
    assert next_state.inboxes.keys() == {4}
