"""Which clients take part in a round."""

import numpy as np

from engine.randomness import key


def draw_cohort(clients: int, ratio: float, seed: int, round_number: int) -> list[int]:
    """max(1, floor(clients * ratio)) clients, uniform without replacement, ascending; keyed by (seed, round)."""
    size = max(1, int(clients * ratio + 1e-9))
    if size == clients:
        return list(range(clients))
    rng = np.random.default_rng(key(seed, round_number, "cohort"))
    return sorted(rng.choice(clients, size=size, replace=False).tolist())
