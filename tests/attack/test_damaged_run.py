"""A run folder that is damaged at random: each command names what it cannot use, or has the right numbers."""

import numpy as np
import pytest
from damage import DAMAGES, Snapshot, damaged
from run_damages import KINDS, READ_WHEN_FINISHED, attack, line_of, made, put_back

from engine.commands.run import run

# Every damage so many times.
CASES = 6 * len(DAMAGES)


@pytest.mark.parametrize("kind", KINDS)
def test_a_finished_run(kind: str) -> None:
    refused = [attack(seed, kind, resumed=False) for seed in range(CASES)].count("refused")
    # Of three checkpoints, two are not looked at.
    assert refused > (CASES // 2 if kind in ("config", "metrics", "summary") else CASES // 8)


@pytest.mark.parametrize("kind", sorted(KINDS.keys() - set(READ_WHEN_FINISHED)))
def test_a_run_that_is_resumed(kind: str) -> None:
    for seed in range(CASES):
        attack(seed, kind, resumed=True)


def test_every_checkpoint_is_damaged() -> None:
    case = made()
    for seed in range(CASES):
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
