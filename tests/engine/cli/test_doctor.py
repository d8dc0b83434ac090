"""What the doctor says of packages and of the machine, as their own sources say it."""

import importlib.metadata
import os
import re
import tomllib

import pytest
import torch
from rooms import ROOT

from shoal.engine.cli.doctor import OPTIONAL, REQUIRED, show_doctor
from shoal.engine.screen.tables import console


def doctor() -> list[str]:
    with console.capture() as captured:
        show_doctor()
    return captured.get().splitlines()


def row(lines: list[str], name: str) -> list[str]:
    (cells,) = [cells for line in lines if (cells := [cell.strip() for cell in line.split("│")])[1:2] == [name]]
    return cells[2:-1]


def test_every_required_package_has_its_version() -> None:
    lines = doctor()
    for name in REQUIRED:
        assert row(lines, name)[0] == importlib.metadata.version(name)
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split(r"[~>=<]", line)[0] for line in wanted} == set(REQUIRED)


def test_doctor_missing_package_names_what_it_disables(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"ray", "dgl"}
    distribution = importlib.metadata.distribution

    def without(name: str) -> importlib.metadata.Distribution:
        if name in missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return distribution(name)

    monkeypatch.setattr(importlib.metadata, "distribution", without)
    lines = doctor()
    assert row(lines, "ray") == ["missing", "required: pip install -e ."]
    version, use = row(lines, "dgl")
    assert version == "missing"
    assert use.startswith("without it: no DGLGraph in and out")
    assert missing & OPTIONAL.keys()


def test_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_DATA", "/not/there")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    lines = doctor()
    assert row(lines, "processor") == [f"{os.cpu_count()} cores"]
    assert row(lines, "Ray") == ["joins 10.0.0.1:6379 with ray.address=auto"]
    assert "from SHOAL_DATA" in " ".join(lines)
    assert row(lines, "free disk there")[0].endswith("iB")
    if not torch.cuda.is_available():
        assert row(lines, "GPUs")[0].startswith("none that torch can use")
    monkeypatch.delenv("RAY_ADDRESS")
    assert row(doctor(), "Ray") == ["starts on this machine when a run begins"]
