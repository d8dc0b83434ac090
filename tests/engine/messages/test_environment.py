"""What last bits depend on, as the machine itself says it."""

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from shoal.engine.messages import environment as environment_module
from shoal.engine.messages.environment import differences, environment


def test_of_this_machine() -> None:
    found = environment("cpu")
    assert found.keys() == {"cpu", "device", "python", "torch", "numpy", "shoal"}
    assert found["torch"] == torch.__version__
    assert found["python"] == platform.python_version()
    versions = [sys.executable, "-c", "import numpy; print(numpy.__version__)"]
    assert found["numpy"] == subprocess.run(versions, capture_output=True, text=True, check=True).stdout.strip()
    assert environment("cuda") == {**found, "device": "cuda"}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have no model name")
def test_the_processor_has_a_name() -> None:
    with open("/proc/cpuinfo") as f:
        assert environment("cpu")["cpu"] in f.read()
    assert environment("cpu")["cpu"]


def test_other_code_is_another_environment(tmp_path: Path) -> None:
    root = Path(environment_module.__file__).parents[2]
    shutil.copytree(root, tmp_path / "shoal", ignore=shutil.ignore_patterns("__pycache__"))
    ask = "from shoal.engine.messages.environment import environment; print(environment('cpu')['shoal'])"

    def answer() -> str:
        command = [sys.executable, "-c", ask]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip()

    assert answer() == environment("cpu")["shoal"]
    file = tmp_path / "shoal" / "algorithms" / "methods" / "fedavg.py"
    file.write_text(file.read_text() + "# changed\n")
    assert answer() != environment("cpu")["shoal"]


def test_differences() -> None:
    here = environment("cpu")
    assert differences(here, "cpu") == []
    assert differences(here, "cuda") == ["device (cpu -> cuda)"]
    old = {**here, "torch": "1.0", "python": "2.7"}
    assert differences(old, "cpu") == [f"python (2.7 -> {here['python']})", f"torch (1.0 -> {here['torch']})"]
    # Recorded before there was such a key.
    del old["torch"], old["python"]
    assert differences(old, "cpu")[1] == f"torch (None -> {here['torch']})"
