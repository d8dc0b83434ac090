"""The first signal asks, the second one interrupts; afterwards all is as before."""

import signal

import pytest

from shoal.engine.screen.interrupt import graceful


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_graceful_second_signal_interrupts(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt), graceful() as interrupt:  # noqa: PT012
        assert not interrupt.asked
        signal.raise_signal(number)
        assert interrupt.asked
        signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_graceful_without_a_signal_runs_to_the_end() -> None:
    with graceful() as interrupt:
        pass
    assert not interrupt.asked
    # Each run is asked by itself.
    with graceful() as again:
        signal.raise_signal(signal.SIGTERM)
    assert (interrupt.asked, again.asked) == (False, True)
