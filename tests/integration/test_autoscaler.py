"""Ray's own autoscaler, whose fake machines are processes here: hosts are waited for, or join while a run is on."""

import json
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from integration.runs import PATIENCE, Runs, assert_same_numbers, until, working
from support.toy_method import NAME as TOY

LISTS = (
    "cluster_synced_files initialization_commands setup_commands head_setup_commands worker_setup_commands "
    "head_start_ray_commands worker_start_ray_commands rsync_exclude rsync_filter"
)
IN_NAMESPACES = ("unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child")
PROVIDER = ("use_node_id_as_ip", "disable_node_updaters", "disable_launch_config_check")


def autoscaling() -> dict[str, object]:
    """No machine but the head, and up to three of one processor on demand."""
    worker = {"resources": {"CPU": 1, "object_store_memory": 150_000_000}, "node_config": {}, "max_workers": 3}
    head = {"resources": {}, "node_config": {}, "max_workers": 0}
    return {
        "cluster_name": "fake",
        "max_workers": 3,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 5,
        "provider": {"type": "fake_multinode", **dict.fromkeys(PROVIDER, True)},
        "available_node_types": {"head": head, "worker": worker},
        "head_node_type": "head",
        "file_mounts_sync_continuously": False,
        **{name: {} for name in ("file_mounts", "auth", "docker")},
        **{name: [] for name in LISTS.split()},
    }


@pytest.fixture
def ray_folder() -> Iterator[Path]:
    # A socket below this folder must have a short path.
    with tempfile.TemporaryDirectory(prefix="shoal-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.skipif(subprocess.run([*IN_NAMESPACES, "true"]).returncode != 0, reason="no namespaces here")
@pytest.mark.parametrize(("on_head", "timeout"), [(0, PATIENCE), (1, 1)], ids=["waited for", "join"])
def test_machines_come_on_demand(tmp_path: Path, ray_folder: Path, on_head: int, timeout: int) -> None:
    """Three machines come. A head without processors has no host; on another the run begins, and they join it."""
    (tmp_path / "scaling.json").write_text(json.dumps(autoscaling()))
    with os.fdopen(os.open(tmp_path / "token", os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
        f.write(secrets.token_hex(32))
    env = {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(tmp_path / "token"),
        "RAY_TMPDIR": str(ray_folder),
        "RAY_FAKE_CLUSTER": "1",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "OMP_NUM_THREADS": "1",
    }
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", f"--temp-dir={ray_folder}"]
    ray += [f"--autoscaling-config={tmp_path / 'scaling.json'}", f"--num-cpus={on_head}", "--disable-usage-stats"]
    ray += ["--include-dashboard=false", "--object-store-memory=150000000"]
    # The shell stays, as the first process of the namespace, whose end is that of Ray.
    both = f'ip link set lo up && {" ".join(ray)} >&2 && "$@"'
    inside = SimpleNamespace(env=env, inside=lambda _, *command: [*IN_NAMESPACES, "sh", "-c", both, "sh", *command])
    go = tmp_path / "go"
    keys = {
        # Clients wait until a file is there.
        "algorithm": {"name": TOY, "kind": "waits", "first": 0, "go": str(go)},
        "engine": {"backend": "local", "cell_size": 1},
    }
    folders = [tmp_path / name for name in ("cluster", "here")]
    for folder in folders:
        folder.mkdir()
    runs, here = (Runs(folder, tmp_path / "data", cluster, **keys) for folder, cluster in zip(folders, (inside, None)))
    # Nothing is left to prepare, for which machines would come.
    go.touch()
    undisturbed = here.here()
    go.unlink()
    hosts = 3 + on_head
    process = runs.start(
        "engine.backend=ray",
        f"engine.hosts={hosts}",
        "ray.address=auto",
        "resources.cpus_per_host=1",
        f"ray.start_timeout={timeout}",
    )
    until(lambda: len(list(working(process, "ray::HostActor.run_call"))) == hosts, process)
    go.touch()
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors.decode()
    assert_same_numbers(runs.run, undisturbed)
    assert runs.log().count(" joined, on ") == 3 * on_head
    assert (f"1 of {hosts} hosts are up; the others join" in errors.decode()) == bool(on_head)
