"""A store that is damaged at random: `run` names the file or has the bits of the undamaged one, `verify` finds all."""

import numpy as np
import pytest
from damage import DAMAGES, damaged
from store_damages import KINDS, READ_BY_PREPARE_ONLY, answer, attack, faults_of, files_of, is_sparse, made

from storage.manifest import NAME

# Every damage so many times.
CASES, FEW = 6 * len(DAMAGES), 2 * len(DAMAGES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_store(kind: str) -> None:
    read = kind not in READ_BY_PREPARE_ONLY
    # Of sparse files only the columns of features, and of weights of edges, are others.
    cases = CASES if read and not is_sparse(kind) else FEW
    refused = [attack(seed, kind) for seed in range(cases)].count("refused")
    assert refused > cases // 2 if read else refused == 0


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"manifest"}))
def test_an_interrupted_prepare(kind: str) -> None:
    """Without a manifest every file is needed again; those that are not as they were written are made again."""
    case = made(is_sparse(kind))
    files = files_of(case, kind)
    for seed in range(CASES if kind in READ_BY_PREPARE_ONLY else FEW):
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
