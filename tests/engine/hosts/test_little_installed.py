"""A run in one process needs no Ray and no partitioner that it does not use."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys

ABSENT = {"ray", "pymetis", "kaminpar", "networkit"}


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, Absent())
from shoal.engine.cli.main import main

main()
"""
CONFIG = """
name: little
rounds: 1
data: {dataset: sbm, store: STORE, root: ROOT, options: {nodes: 100, features: 5, classes: 4, degree: 6.0}}
partition: {method: random, clients: 3}
propagation: {hops: 1}
engine: {backend: local}
algorithm: {name: fedavg}
run: {root: ROOT}
"""


def test_a_local_run_without_ray_and_partitioners(tmp_path: Path) -> None:
    config = tmp_path / "little.yaml"
    config.write_text(CONFIG.replace("STORE", str(tmp_path / "store")).replace("ROOT", str(tmp_path)))
    command = [sys.executable, "-c", PROGRAM, "run", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[3])
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("summary.json"))
