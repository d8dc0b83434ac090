"""A twin asks for what the originals ask for: neighbours first of all, and then more than a linear model of them."""

from pathlib import Path

import pytest
from support.small_runs import small_run

from shoal.engine.config.config import parse_config
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.run import run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_mlp_is_far_below_sgc_and_sgc_below_gamlp(tmp_path: Path) -> None:
    """One client on the official split of 51 thousand nodes, so that nothing but the models differs."""
    accuracy = {}
    for model in ("mlp", "sgc", "gamlp"):
        plain = small_run(
            tmp_path,
            rounds=30,
            data={"dataset": "arxiv-like", "split": "public", "options": {"scale": 0.3}},
            partition={"method": "random", "clients": 1},
            propagation={"hops": 3},
            model={"name": model, **({} if model == "sgc" else {"hidden": 128})},
            train={"epochs": 3, "lr": 0.01, "weight_decay": 0.0, "dropout": 0.2},
            evaluation={"every": 30},
        )
        scopes = read_summary(run(parse_config(plain, "test")))["scopes"]
        accuracy[model] = scopes["global"]["final"]["test"]["rows"]
    assert accuracy["mlp"] + 0.2 < accuracy["sgc"]
    assert accuracy["sgc"] + 0.005 < accuracy["gamlp"]
    # Nodes of another class than their community leave room above.
    assert accuracy["gamlp"] < 0.9
