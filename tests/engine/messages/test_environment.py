"""What last bits depend on: the machine as it names itself, versions, and seeds keyed by what they are for."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from shoal.algorithms.rng import key
from shoal.engine.messages import environment as environment_module
from shoal.engine.messages.environment import differences, environment


def test_other_code_is_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, root = environment("cpu")["shoal"], Path(environment_module.__file__).parents[2]
    shutil.copytree(root, tmp_path / "shoal", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(environment_module, "__file__", f"{tmp_path}/shoal/engine/messages/environment.py")
    # The digest is kept for the life of a process.
    read_again = environment_module._shoal.__wrapped__
    assert read_again() == here
    file = tmp_path / "shoal" / "algorithms" / "methods" / "fedavg.py"
    file.write_text(file.read_text() + "# changed\n")
    assert read_again() != here


def test_differences() -> None:
    here = environment("cpu")
    assert differences(here, "cpu") == []
    assert differences(here, "cuda") == ["device (cpu -> cuda)"]
    # Recorded before there was a key of torch.
    old = {name: value for name, value in here.items() if name != "torch"} | {"python": "2.7"}
    assert differences(old, "cpu") == [f"python (2.7 -> {here['python']})", f"torch (None -> {here['torch']})"]


def test_seeds_stay_as_they_are() -> None:
    """Written down once: runs that were made with them can be resumed."""
    assert key(0, "init") == 6767970929478544064
    assert key(3, 17, 5, "train") == 2619537492269166922


def test_every_bit_of_63_of_a_seed_is_used_and_no_other() -> None:
    assert len({key(1, 23), key(12, 3), key(123), key(1, 2, 3), key("1,23"), key("1 23")}) == 6
    seeds = [key(0, number, "train") for number in range(4000)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    ones = Counter(bit for seed in seeds for bit in range(63) if seed >> bit & 1)
    # Half of 4000, by six deviations of about 32.
    assert all(abs(ones[bit] - 2000) < 190 for bit in range(63))
