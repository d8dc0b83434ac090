"""The names of run folders, stores, splits and hops, by which a later command finds what an earlier one made."""

import re
from pathlib import Path

import pytest

from shoal.engine.config.config import load_config
from shoal.engine.preparing.identity import store_path
from shoal.engine.records.run_folder import run_path

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
# Config, overrides; store, split, hops: those of `BY_DEFAULT`, where they are left out.
BY_DEFAULT = ("stratified-20-40-40-seed0", "r0.5-k3-float32")
PER_CLIENT = ("per_client-20-40-40-seed0", "r0.5-k3-float32")
NAMES = [
    ("cora", "", "cora-louvain10-c4c76723", PER_CLIENT),
    ("pubmed", "", "pubmed-louvain10-d9a63476", PER_CLIENT),
    ("quickstart", "", "digits-louvain10-9f9415de", BY_DEFAULT),
    ("sbm-200", "", "sbm-metis200-309ef85f", BY_DEFAULT),
    (
        "cora-heterogeneous",
        "model.1.name=gin model.1.hidden=32 heterogeneity.rule=random heterogeneity.seed=3",
        "cora-louvain10-c4c76723",
        BY_DEFAULT,
    ),
    (
        "quickstart",
        "propagation.hops=2 propagation.r=0 propagation.dtype=float16 propagation.rows=labelled",
        "digits-louvain10-9f9415de",
        (BY_DEFAULT[0], "r0.0-k2-float16-labelled"),
    ),
    (
        "quickstart",
        "data.split=per_client data.split_seed=3 data.fractions=[0.6,0.2,0.2]",
        "digits-louvain10-9f9415de",
        ("per_client-60-20-20-seed3", BY_DEFAULT[1]),
    ),
    (
        "quickstart",
        "train.lr=1 train.batch_size=64 participation.ratio=0.3 participation.trace=FILE model.name=gcn model.init=own",
        "digits-louvain10-9f9415de",
        BY_DEFAULT,
    ),
    (
        "sbm-200",
        "partition.method=semi-external partition.imbalance=1.1 partition.seed=5 engine.memory_limit=8GiB",
        "sbm-semi-external200-3199cccf",
        BY_DEFAULT,
    ),
    ("sbm-200", "partition.method=file partition.file=FILE", "sbm-file200-2bc0e121", BY_DEFAULT),
    # Stores of dense features have the same names by whatever key.
    ("cora", "data.layout=dense", "cora-louvain10-0a44b7a9", PER_CLIENT),
    ("quickstart", "data.layout=dense", "digits-louvain10-1b5ca882", BY_DEFAULT),
    ("sbm-200", "data.layout=dense", "sbm-metis200-309ef85f", BY_DEFAULT),
]


@pytest.mark.parametrize(("name", "overrides", "store", "others"), NAMES)
def test_names(name: str, overrides: str, store: str, others: tuple[str, str], tmp_path: Path) -> None:
    """Files count by their content, wherever they lie."""
    (tmp_path / "file").write_text("content")
    changed = overrides.replace("FILE", str(tmp_path / "file")).split()
    config = load_config(CONFIGS / f"{name}.yaml", ["data.root=/data", "run.root=/runs", *changed])
    assert (store_path(config).name, config.data.split_name, config.propagation.name) == (store, *others)
    # `test_run_identity.py` has the digits of runs.
    assert re.fullmatch(rf"{config.name}-[0-9a-f]{{8}}", run_path(config).name)
