"""Random streams keyed by what they are for: see `shoal.algorithms.rng`."""

from shoal.algorithms.rng import key

__all__ = ["key"]
