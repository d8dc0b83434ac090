"""Epsilon of sums with Gaussian noise, and the noise for an epsilon, as dp-accounting computes them."""

from functools import lru_cache
from types import ModuleType
from typing import Any

from shoal.algorithms.methods.registry.load import describe, load
from shoal.engine.config.config import Config
from shoal.engine.config.round_sections import PrivacyOptions
from shoal.storage.errors import ShoalError

# Noise for an epsilon is found to this accuracy, on the side of more noise, and not looked for below.
STEP, LEAST_NOISE = 1e-3, 0.05


def accounting() -> ModuleType:
    """The package dp_accounting; raises a ShoalError if it is not installed."""
    try:
        import dp_accounting
        import dp_accounting.rdp
    except ImportError:
        raise ShoalError("privacy.epsilon", "needs the package dp-accounting; pip install 'shoal[privacy]'") from None
    return dp_accounting


def epsilon_after(noise: float, delta: float, drawn: int, clients: int, rounds: int, poisson: bool = False) -> float:
    """Epsilon of a client after so many rounds with `drawn` of `clients`; infinite without noise.

    Raises ShoalError: dp-accounting is not installed.
    """
    if not noise:
        return float("inf") if rounds else 0.0
    accountant = _accountant(poisson)
    accountant.compose(_release(noise, drawn, clients, poisson), rounds)
    return float(accountant.get_epsilon(delta))


@lru_cache
def noise_of(options: PrivacyOptions, drawn: int, clients: int, rounds: int, poisson: bool = False) -> float:
    """z, as it is given, or the least with which all rounds together stay within epsilon.

    Raises ShoalError: dp-accounting is not installed.
    """
    if options.noise is not None:
        return options.noise
    dp = accounting()
    return float(
        dp.calibrate_dp_mechanism(
            lambda: _accountant(poisson),
            lambda noise: dp.SelfComposedDpEvent(_release(noise, drawn, clients, poisson), rounds),
            options.epsilon,
            options.delta,
            bracket_interval=dp.LowerEndpointAndGuess(LEAST_NOISE, 1.0),
            tol=STEP,
        )
    )


def _accountant(poisson: bool) -> Any:
    dp = accounting()
    relation = dp.NeighboringRelation.ADD_OR_REMOVE_ONE if poisson else dp.NeighboringRelation.REPLACE_ONE
    return dp.rdp.RdpAccountant(neighboring_relation=relation)


def _release(noise: float, drawn: int, clients: int, poisson: bool) -> object:
    dp = accounting()
    if poisson:
        return dp.PoissonSampledDpEvent(drawn / clients, dp.GaussianDpEvent(noise))
    # Its deviation is z C, and one client's data changes the sum by 2 C.
    return dp.SampledWithoutReplacementDpEvent(clients, drawn, dp.GaussianDpEvent(noise / 2))


def releases(config: Config, rounds: int) -> int:
    """Of so many rounds those in which a client sends something."""
    method = load(describe(config.algorithm.name, config.algorithm.options))
    return min(rounds, 1) if method.sends_once else rounds


def noise_at_clients(config: Config) -> float:
    """z of the noise on each upload; raises as `noise_of`.

    The server knows who sent it, so that no draw of cohorts hides a client: all rounds count as if it took part.
    """
    return noise_of(config.privacy, 1, 1, releases(config, config.rounds))


def require_noise(options: PrivacyOptions) -> None:
    """Raises a ShoalError, which names the key: noise is not given once, or has no clip."""
    if (options.noise is None) == (options.epsilon is None):
        raise ShoalError("privacy.noise", "give either privacy.noise, or privacy.epsilon, which finds the noise")
    if options.clip is None and options.quantile is not None:
        raise ShoalError("privacy.clip", "privacy.quantile needs a clip to begin with, found null; set a number")
    if options.clip is None and options.noise != 0:
        raise ShoalError("privacy.clip", "noise is a multiple of the clip, found null; set a number")
