"""A plan is checked once, and every command takes it."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.errors import refused

import shoal
from shoal.engine.config.config import Config, load_config
from shoal.engine.messages import models
from shoal.engine.preparing import prepare as preparing
from shoal.engine.runs import plan as planning
from shoal.engine.runs.dry_run import expected
from shoal.engine.runs.export import export
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import run
from shoal.engine.studies.study import Study
from shoal.engine.studies.sweep import Sweep

CHECKS = ("describe", "load", "require_supported", "require_mixable", "load_callbacks", "require_known")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the checks of plans, and how often all models are built: as shapes on `meta`, and with values."""
    found: Counter[str] = Counter()

    def count(module: Any, name: str, label: Callable[[], str]) -> None:
        plain = getattr(module, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            found[label()] += 1
            return plain(*args, **kwargs)

        monkeypatch.setattr(module, name, counted)

    for name in CHECKS:
        count(planning, name, lambda name=name: name)  # type: ignore[misc]
    count(preparing, "require_known", lambda: "require_known")
    count(models, "build_models", lambda: "shapes" if torch.empty(0).is_meta else "models")
    return found


# Shapes: of one feature before data is read, then of the data. Values: of the server, and of the one host.
OF_A_RUN = Counter(dict.fromkeys(CHECKS, 1) | {"shapes": 2, "models": 2})


def test_run_checks_everything_once(tiny: Path, calls: Counter[str]) -> None:
    folder = run(load_config(tiny))
    assert calls == OF_A_RUN
    calls.clear()
    export(folder)
    assert calls == OF_A_RUN - Counter(load_callbacks=1, shapes=1, models=1)
    calls.clear()
    assert shoal.run(load_config(tiny)).path == folder
    assert calls == OF_A_RUN - Counter(shapes=1, models=2)


def test_sweep_checks_every_run_once(tiny: Path, calls: Counter[str]) -> None:
    sweep = Sweep(Study(str(tiny), ("seed=0,1",)))
    assert calls["shapes"] == 2
    assert sweep.go()
    assert calls == OF_A_RUN + OF_A_RUN


def test_dry_run_and_prepare_check_everything_once(tiny: Path, calls: Counter[str]) -> None:
    expected(RunPlan.of(load_config(tiny)))
    assert calls == OF_A_RUN - Counter(models=1)
    calls.clear()
    shoal.prepare(load_config(tiny))
    assert calls == OF_A_RUN - Counter(load_callbacks=1, shapes=1, models=2)


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize(
    ("keys", "place", "says"),
    [
        ({"algorithm.name": "fedsgd"}, "algorithm.name", "'fedsgd' is unknown"),
        ({"algorithm.name": "missing.py:Mine"}, "algorithm.name", "missing.py"),
        ({"algorithm.mu": 1}, "algorithm.mu", "unknown"),
        ({"algorithm.weight": "rows"}, "algorithm.weight", "'rows'"),
        ({"task": "graph", "algorithm.name": "fedgta"}, "task", "fedgta is for node"),
        ({"model": [{"name": "gcn"}, {"name": "sgc"}]}, "", "fedavg needs the same model"),
        ({"model.name": "gnn"}, "model.name", "'gnn'"),
        ({"model.depth": 1}, "model.depth", ""),
        ({"model.name": "mlp", "model.hidden": "wide"}, "model.hidden", "'wide'"),
        ({"model.name": "gcn", "model.readout": "sum"}, "model.readout", "is for graph tasks (task: graph)"),
        ({"model.name": "gcn", "engine.precision": "bfloat16"}, "", "decoupled model"),
        ({"resources.gpus_per_host": 2}, "", "a host computes on one GPU, found 2"),
        ({"engine.device": "cuda", "engine.backend": "ray"}, "", "cuda needs a share"),
        ({"engine.precision": "tf32"}, "", "tf32 is of GPUs"),
        ({"data.dataset": "corra", "data.path": None}, "data.dataset", "'corra'"),
        ({"data.split": "file", "data.split_file": "/gone.npy"}, "", "/gone.npy: data.split_file"),
    ],
)
def test_of_refuses_an_impossible_run_for_every_command(
    configure: Callable[..., Config], keys: dict[str, Any], place: str, says: str, trains: bool
) -> None:
    with refused(place, says=says) if place else refused(says=says):
        RunPlan.of(configure(keys), trains=trains)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"participation.trace": "/gone.npy"}, "participation.trace cannot be read"),
        ({"callbacks": [{"name": "tensorbord"}]}, "callbacks: 'tensorbord' is unknown"),
        ({"train.schedule": {"name": "StepLR", "step_size": 1, "gamma": 1e-300}, "rounds": 9}, "train.schedule"),
    ],
)
def test_of_without_rounds_needs_nothing_of_rounds(
    configure: Callable[..., Config], keys: dict[str, Any], says: str
) -> None:
    with refused(says=says):
        RunPlan.of(configure(keys))
    assert RunPlan.of(configure(keys), trains=False).callbacks == {}
