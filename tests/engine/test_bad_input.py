"""What a user can get wrong: one clear line that names the file or key and the way out, and exit status 2."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from engine.commands import cli
from engine.records.run_folder import METRICS, SUMMARY

PLAIN: dict[str, Any] = {
    "name": "bad",
    "rounds": 2,
    "data": {"dataset": "sbm", "options": {"nodes": 120, "features": 8, "classes": 3}},
    "partition": {"method": "metis", "clients": 4},
    "propagation": {"hops": 1},
    "model": {"name": "sgc"},
    "algorithm": {"name": "fedavg"},
    "engine": {"backend": "local"},
    "run": {"tensorboard": False},
}

Command = Callable[..., str]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A sound config whose store and runs lie in a folder of the test."""
    plain = {**PLAIN, "data": {**PLAIN["data"], "root": str(tmp_path), "store": str(tmp_path / "store")}}
    plain["run"] = {**PLAIN["run"], "root": str(tmp_path / "runs")}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command that must fail, and returns its one line."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["shoal", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert end.value.code == 2
        (line,) = [text for text in capsys.readouterr().err.splitlines() if text.startswith("shoal: ")]
        return line

    return run


@pytest.fixture
def shoal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a command that must succeed."""

    def run(*arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", ["shoal", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code

    return run


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("train.learning_rate=0.1", ("train.learning_rate", "unknown key", "lr")),
        ("participants=3", ("participants", "unknown key", "participation")),
        ("rounds=many", ("rounds", "many", "integer")),
        ("rounds=0", ("rounds", "greater than or equal to 1")),
        ("participation.ratio=0", ("participation.ratio", "greater than 0")),
        ("participation.ratio=1.5", ("participation.ratio", "less than or equal to 1")),
        ("engine.cell_size=auto4", ("engine.cell_size", "auto4")),
        ("engine.memory_limit=lots", ("engine.memory_limit", "lots")),
        ("data.split=random", ("data.split", "random", "stratified")),
        ("data.fractions=[0.9,0.2,0.2]", ("fractions", "at most 1")),
        ("data.dataset=corra", ("data.dataset", "corra", "cora")),
        ("data.options.homophilia=1", ("data.options.homophilia", "homophily")),
        ("data.options.nodes=few", ("data.options.nodes", "few")),
        ("partition.method=leiden", ("partition.method", "leiden", "metis")),
        ("partition.clients=121", ("partition.clients", "121", "120 nodes")),
        ("algorithm.name=fedsgd", ("algorithm.name", "fedsgd", "fedavg")),
        ("algorithm.mu=1", ("algorithm.mu", "unknown", "weight")),
        ("algorithm.weight=rows", ("algorithm.weight", "rows")),
        ("algorithm.name=missing.py:Mine", ("algorithm.name", "missing.py")),
        ("model.name=gnn", ("model.name", "gnn", "sgc")),
        ("model.hiden=3", ("model.hiden", "hidden")),
        ("model.hidden=wide", ("model.hidden", "wide")),
        ("rounds", ("rounds", "key.sub=value")),
    ],
)
def test_config(config: Path, refused: Command, override: str, parts: tuple[str, ...]) -> None:
    line = refused("run", config, override)
    assert all(part in line for part in parts), line


def test_missing_and_broken_config(tmp_path: Path, refused: Command) -> None:
    assert "no such config" in refused("run", tmp_path / "none.yaml")
    (tmp_path / "broken.yaml").write_text("name: [")
    assert "broken.yaml: not a config" in refused("run", tmp_path / "broken.yaml")


def shard(config: Path, client: int = 2) -> Path:
    return config.parent / "store" / "clients" / f"{client:05d}.arrow"


def test_missing_shard(config: Path, refused: Command, shoal: Callable[..., None]) -> None:
    shoal("prepare", config)
    shard(config).unlink()
    line = refused("run", config)
    assert str(shard(config)) in line
    assert "missing; run `shoal prepare`" in line


def test_truncated_shard(config: Path, refused: Command, shoal: Callable[..., None]) -> None:
    shoal("prepare", config)
    os.truncate(shard(config), 1000)
    line = refused("run", config)
    assert "client 2" in line
    assert f"{shard(config)}: 1000 bytes, the manifest says" in line


def test_damaged_shard_is_mended_by_prepare(config: Path, refused: Command, shoal: Callable[..., None]) -> None:
    shoal("prepare", config)
    sound = shard(config).read_bytes()
    shard(config).write_bytes(sound[:-50] + bytes(50))
    line = refused("verify", config.parent / "store")
    assert f"{shard(config)}: checksum does not match" in line
    shard(config).unlink()
    shoal("prepare", config)
    assert shard(config).read_bytes() == sound
    shoal("verify", config.parent / "store")


def test_manifest_of_another_version(config: Path, refused: Command, shoal: Callable[..., None]) -> None:
    shoal("prepare", config)
    manifest = config.parent / "store" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99', 1))
    line = refused("run", config)
    assert str(manifest) in line
    assert "format 1" in line


def test_store_of_another_dataset(config: Path, refused: Command, shoal: Callable[..., None]) -> None:
    shoal("prepare", config)
    line = refused("run", config, "data.dataset=digits", "data.options={}")
    assert f"{config.parent / 'store'}: this store was made from" in line
    assert "digits" in line
    line = refused("run", config, "partition.clients=5")
    assert "data.store" in line


def test_no_disk_space(config: Path, refused: Command, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", small], capture_output=True)
    if mounted.returncode:
        pytest.skip("a file system of 64 KiB cannot be mounted here")
    try:
        line = refused("prepare", config, f"data.store={small / 'store'}", "data.options.nodes=5000")
        assert str(small) in line
        assert "GiB are free" in line
    finally:
        subprocess.run(["umount", small], check=True)


def test_cluster_that_cannot_be_reached(config: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "engine", "run", config, "engine.backend=ray", "ray.address=127.0.0.1:1"]
    env = {**os.environ, "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    result = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert result.returncode == 2
    assert "no Ray cluster can be reached at 127.0.0.1:1" in result.stderr
    assert "Traceback" not in result.stderr
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


def test_cluster_that_is_too_small(config: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "engine", "run", config, "engine.backend=ray", "engine.hosts=9000"]
    env = {**os.environ, "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token")}
    result = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    assert result.returncode == 2
    assert "engine.hosts 9000" in result.stderr
    assert "the cluster has room for " in result.stderr


def unfinished(config: Path) -> Path:
    """Makes a finished run look cut off after its first round."""
    (run,) = (config.parent / "runs").iterdir()
    (run / SUMMARY).unlink()
    (run / METRICS).write_text((run / METRICS).read_text().splitlines()[0] + "\n")
    return run


def test_resume_with_a_changed_config(config: Path, refused: Command, shoal: Callable[..., None]) -> None:
    shoal("run", config)
    run = unfinished(config)
    line = refused("run", config, "train.lr=0.5", "--resume")
    assert str(run) in line
    assert "train.lr (0.01 -> 0.5)" in line
    line = refused("run", config)
    assert "--resume" in line
    assert "--fresh" in line
    shoal("run", config, "engine.retries=9", "--resume")


def test_two_runs_on_one_folder(config: Path, refused: Command, shoal: Callable[..., None]) -> None:
    from engine.records.run_folder import RunFolder
    from engine.settings.config import load_config

    folder = RunFolder(load_config(config))
    line = refused("run", config)
    assert f"{folder.path}: another run" in line
    folder.close()
    shoal("run", config)


def test_nan_in_features(config: Path, refused: Command, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    x = np.ones((6, 2), dtype=np.float32)
    x[4, 1] = np.nan
    np.save(own / "x.npy", x)
    np.save(own / "y.npy", np.array([0, 1, 0, 1, 0, 1]))
    np.save(own / "edge_index.npy", np.array([[0, 1, 2], [1, 2, 3]]))
    line = refused("run", config, "data.dataset=files", f"data.path={own}", "data.options={}", "partition.clients=1")
    assert str(own / "x.npy") in line
    assert "4" in line


def test_client_whose_code_fails(config: Path, refused: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from algorithms.methods.fedavg import FedAvg\n"
        "@dataclass(frozen=True)\n"
        "class Mine(FedAvg):\n"
        "    def upload(self, client, given, phase):\n"
        "        if client.info.client == 3:\n"
        "            raise RuntimeError('no luck')\n"
        "        return super().upload(client, given, phase)\n"
    )
    line = refused("run", config, f"algorithm.name={tmp_path / 'mine.py'}:Mine")
    assert "round 1, client 3: RuntimeError: no luck" in line
    (run,) = (tmp_path / "runs").iterdir()
    assert "in upload" in (run / "run.log").read_text()


def test_export_of_nothing(tmp_path: Path, refused: Command) -> None:
    assert "no such config" in refused("export", tmp_path)
    assert "manifest.json" in refused("verify", tmp_path)
    assert "manifest.json" in refused("inspect", tmp_path)


def test_damaged_checkpoint_falls_back(config: Path, shoal: Callable[..., None]) -> None:
    shoal("run", config, "run.checkpoint_every=1")
    (run,) = (config.parent / "runs").iterdir()
    final = (run / "checkpoints" / "round-000002" / "state.safetensors").read_bytes()
    (run / SUMMARY).unlink()
    os.truncate(run / "checkpoints" / "round-000002" / "state.safetensors", 100)
    shoal("run", config, "run.checkpoint_every=1", "--resume")
    assert (run / "checkpoints" / "round-000002" / "state.safetensors").read_bytes() == final
    shutil.rmtree(run)
