"""A run folder that is damaged at random: each command names what it cannot use, or has the right numbers."""

import numpy as np
import pytest

from attack.damage import DAMAGES, Snapshot, damaged
from attack.run_damages import KINDS, READ_WHEN_FINISHED, attack, line_of, made, put_back
from shoal.engine.runs.run import run

# Every damage twice, and four times more where there are minutes.
SOME, MORE = range(2 * len(DAMAGES)), range(2 * len(DAMAGES), 6 * len(DAMAGES))
SEEDS = [pytest.param(SOME, id="some"), pytest.param(MORE, id="more", marks=pytest.mark.slow)]


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("kind", KINDS)
def test_finished_run_damaged_is_refused_or_sound(kind: str, seeds: range) -> None:
    refused = [attack(seed, kind, resumed=False) for seed in seeds].count("refused")
    # Of three checkpoints, two are not looked at.
    assert refused > len(seeds) // (2 if kind in ("config", "metrics", "summary") else 8)


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - set(READ_WHEN_FINISHED)))
def test_unfinished_run_damaged_is_refused_or_resumed(kind: str, seeds: range) -> None:
    for seed in seeds:
        attack(seed, kind, resumed=True)


@pytest.mark.parametrize("seeds", SEEDS)
def test_run_without_a_sound_checkpoint_is_refused(seeds: range) -> None:
    case = made()
    for seed in seeds:
        put_back(case, case.cut_off)
        rng = np.random.default_rng([seed, 2])
        for folder in sorted((case.folder / "checkpoints").iterdir()):
            files = sorted(folder.iterdir())
            before = Snapshot(folder)
            # Swapped with the same file of another one, it would be sound there.
            while not (before.changed() and all(path.parent == folder for path in before.changed())):
                damaged(files[rng.integers(len(files))], seed, rng)
        left = Snapshot(case.folder)
        line = line_of(lambda: run(case.config, resume=True))
        assert line is not None
        assert "no checkpoint can be used (" in line
        assert {path for path in left.changed() if path.name != "run.log"} == set()
