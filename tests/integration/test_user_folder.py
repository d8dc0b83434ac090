"""Shoal in a folder whose own modules have the names of its folders: none of them is imported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from rooms import PACKAGES, ROOT

SHORT = ["rounds=2", "data.root=data", "run.tensorboard=false", "resources.cpus_per_host=0.4"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder; every module and package in it raises as soon as it is imported."""
    folder = tmp_path_factory.mktemp("user")
    raises = "raise RuntimeError(f'imported {__file__}')\n"
    for name in sorted(PACKAGES.keys() - {"shoal"}):
        (folder / f"{name}.py").write_text(raises)
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(raises)
    # A module of a package and a module alone are both found in the working directory.
    (folder / "storage" / "__init__.py").unlink()
    (folder / "storage").rmdir()
    return folder


def shoal(folder: Path, *arguments: str) -> str:
    """Runs the command in a folder and gives what it prints."""
    config = str(ROOT / "configs" / "quickstart.yaml")
    command = [sys.executable, "-m", "shoal", arguments[0], config, *arguments[1:], *SHORT]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def finished(folder: Path, runs: str) -> int:
    """Number of finished runs in a folder of runs."""
    return len(list((folder / runs).glob("quickstart-*/summary.json")))


def test_user_folder_modules_of_our_names_raise(folder: Path) -> None:
    for name in PACKAGES.keys() - {"shoal"}:
        done = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=folder, capture_output=True, text=True)
        assert f"RuntimeError: imported {folder / name}" in done.stderr


def test_user_folder_runs_on_ray(folder: Path) -> None:
    """With a model of the user's own, which the host reads from the run's folder."""
    model = [f"model.name={ROOT / 'examples' / 'model.py'}:Residual", "algorithm.name=fedavg"]
    shoal(folder, "run", "engine.backend=ray", "engine.hosts=1", "run.root=ray", *model)
    assert finished(folder, "ray") == 1


@pytest.mark.slow
def test_user_folder_sweeps_in_parallel(folder: Path) -> None:
    shoal(folder, "sweep", "seed=0,1", "engine.backend=local", "run.root=sweep", "--at-once", "2")
    assert finished(folder, "sweep") == 2
