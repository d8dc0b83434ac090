"""A store that is damaged at random: `run` names the file or has the bits of the undamaged one, `verify` finds all."""

import numpy as np
import pytest

from attack.damage import DAMAGES, damaged
from attack.store_damages import KINDS, READ_BY_PREPARE_ONLY, answer, attack, faults_of, files_of, is_sparse, made
from shoal.storage.store.manifest import NAME

# Every damage twice, and four times more where there are minutes.
SOME, MORE = range(2 * len(DAMAGES)), range(2 * len(DAMAGES), 6 * len(DAMAGES))
SEEDS = [pytest.param(SOME, id="some"), pytest.param(MORE, id="more", marks=pytest.mark.slow)]


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_finished_store_damaged_is_refused_or_sound(kind: str, seeds: range) -> None:
    refused = [attack(seed, kind) for seed in seeds].count("refused")
    assert refused == 0 if kind in READ_BY_PREPARE_ONLY else refused > len(seeds) // 2


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"manifest"}))
def test_interrupted_prepare_damaged_is_refused_or_finished(kind: str, seeds: range) -> None:
    """Without a manifest every file is needed again; those that are not as they were written are made again."""
    case = made(is_sparse(kind))
    files = files_of(case, kind)
    for seed in seeds:
        rng = np.random.default_rng([seed, 1])
        path = files[rng.integers(len(files))]
        (case.store / NAME).unlink()
        what = damaged(path, seed, rng)
        line = answer(case, kind)
        if line is None:
            assert faults_of(case.store) == [], what
        else:
            assert kind == "journal", (what, line)
            assert line.startswith(f"{path}: "), (what, line)
        case.sound.restore()
