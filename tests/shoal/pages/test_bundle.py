"""A bundle has the very files of the run and its export, a page without other files, and what it ran on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyarrow as pa
import pytest
from safetensors.torch import load

import shoal


def test_export_by_name_into_a_bundle(
    small: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: Callable[..., int]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = shoal.run({**small, "run": {"root": "runs", "tensorboard": False}})
    assert status("export", run.path.name, "--bundle", "all.zip") == 0
    with ZipFile("all.zip") as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    for name in ("config.yaml", "summary.json", "metrics.jsonl"):
        assert found.pop(name) == (run.path / name).read_bytes()
    models = load(found.pop("models.safetensors"))
    assert {name: t.tolist() for name, t in models.items()} == {name: t.tolist() for name, t in run.models().items()}
    assert pa.ipc.open_file(found.pop("predictions.arrow")).read_all().equals(run.predictions())
    versions = json.loads(found.pop("versions.json"))
    assert versions["environment"] == run.summary["environment"]
    page = found.pop("index.html").decode()
    assert "FedAvg" in page
    assert 'src="figures' not in page
    assert 'href="figures' not in page
    assert not found
    # The page of a bundle is not put into the run.
    assert not (run.path / "report").exists()


def test_a_bundle_of_another_ending_is_refused(tmp_path: Path, refused: Callable[..., str]) -> None:
    out = tmp_path / "all.tar"
    assert refused("export", tmp_path, "--bundle", out) == f"shoal: {out}: expected a file that ends in .zip"
