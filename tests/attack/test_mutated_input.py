"""Wrong configs, data sets and run folders: each is accepted as meant, or refused in one line that names it."""

import resource
from collections.abc import Callable
from types import ModuleType

import pytest

from attack import config_mutations, data_mutations, foreign_parts, user_inputs

# Every tenth of a thousand; the later ones are slow.
CASES, PARTS, SOON = 1000, 10, 4
MOST_MEMORY = 1 << 20  # KiB


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("part", [pytest.param(i, marks=[pytest.mark.slow] * (i >= SOON)) for i in range(PARTS)])
@pytest.mark.parametrize("mutations", [config_mutations, data_mutations])
def test_mutated_input_is_accepted_or_refused_in_one_line(mutations: ModuleType, part: int) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = []
    for seed in range(part, CASES, PARTS):
        try:
            refused.append(mutations.attack(seed) is not None)
        except Exception as error:
            raise AssertionError(f"{mutations.__name__}.attack({seed}): {type(error).__name__}") from error
    # The mutations are neither all harmless nor all alike.
    assert len(refused) / 2 < sum(refused) < len(refused)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MOST_MEMORY


@pytest.mark.parametrize(
    ("attack", "cases"),
    [
        (user_inputs.labels, 100),
        (user_inputs.columns, 100),
        (user_inputs.attributes, 60),
        (user_inputs.weights, 60),
        (foreign_parts.folders, 20),
        (foreign_parts.parts, 8),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_what_a_user_means_is_read_or_named(attack: Callable[[int], object], cases: int) -> None:
    for seed in range(cases):
        attack(seed)
