"""Names in a config are looked up before what they name is loaded."""

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from support.errors import refused

from shoal.algorithms.models.build import backbone
from shoal.algorithms.models.names import BACKBONES, OF_GRAPHS
from shoal.engine.config.config import load_config, require_names
from shoal.partition.methods.options import Methods
from shoal.partition.partitioning import METHODS
from shoal.storage.datasets.registry import record
from shoal.storage.options.dataset_names import DATASETS

QUICKSTART = "configs/quickstart.yaml"
# Each takes a tenth of a second or more to load.
HEAVY = {"torch", "numpy", "scipy", "pyarrow", "numba", "pandas", "ray", "networkit"}
ARGUMENTS = [
    ["sweep", QUICKSTART, "seed=0,1", "algorithm=fedavg,fedavgg"],
    ["run", QUICKSTART, "model.name=ssgc"],
    ["prepare", QUICKSTART, "data.dataset=coraa"],
    ["run", QUICKSTART, "rounds=many"],
]
SAID = ["algorithm.name: 'fedavgg'", "model.name: there is no 'ssgc'", "unknown dataset 'coraa'", "rounds: "]


def test_wrong_name_is_refused_before_torch_is_imported() -> None:
    code = f"""
import json, sys
from shoal.engine.cli.cli import app
said = []
for arguments in {ARGUMENTS}:
    try:
        app(args=arguments, standalone_mode=False)
    except Exception as error:
        said.append(f"{{type(error).__name__}} {{error}}")
print(json.dumps([said, sorted(sys.modules)]))
"""
    root = Path(__file__).resolve().parents[3]
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    said, loaded = json.loads(answer.stdout)
    assert [line.split()[0] for line in said] == ["ShoalError"] * len(ARGUMENTS)
    for line, expected in zip(said, SAID, strict=True):
        assert expected in line
    assert not HEAVY & set(loaded)


def test_known_names_equal_the_registries() -> None:
    assert [record(name).name for name in DATASETS] == list(DATASETS)
    assert get_args(Methods) == tuple(METHODS)
    for name in [*BACKBONES, *OF_GRAPHS]:
        backbone(name, task="graph")


@pytest.mark.parametrize(
    ("overrides", "key", "says"),
    [
        ("algorithm=fedavgg", "algorithm.name", "did you mean 'fedavg'"),
        ("model.name=star", "model.name", "star reads codes of small graphs"),
        ("model.name=saage", "model.name", "did you mean 'sage'"),
        ("data.dataset=[digits,pubmd] partition.clients=[3,3]", "data.dataset", "did you mean 'pubmed'"),
        ("data.dataset=OGBG-molpcba", "data.dataset", "ogbg-molpcba has 128 labels a graph"),
        ("data.dataset=ogbg-molesol", "data.dataset", "ogbg-molesol has numbers"),
    ],
)
def test_a_wrong_name_is_refused(overrides: str, key: str, says: str) -> None:
    with refused(key, says=says):
        require_names(load_config(QUICKSTART, overrides.split()))


@pytest.mark.parametrize(
    "override", ["algorithm=mine.py:Mine", "model.name=mine.py:Mine", "data.dataset=Mine.py:Mine", "data.dataset=Cora"]
)
def test_require_names_user_files_and_capitals_pass(override: str) -> None:
    require_names(load_config(QUICKSTART, [override]))
