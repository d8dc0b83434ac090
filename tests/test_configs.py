"""Every config in the repository is one that a run accepts."""

from pathlib import Path

import pytest

from algorithms.backbones import build
from algorithms.methods.loading import describe, load
from engine.preparing.prepare import sources
from engine.settings.config import load_config
from engine.wire.models import assign_models, require_mixable
from storage.datasets import LOADERS

FOLDER = Path(__file__).resolve().parent.parent / "configs"
CONFIGS = sorted(FOLDER.rglob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_loads(path: Path) -> None:
    config = load_config(path)
    require_mixable(config, load(describe(config.algorithm.name, config.algorithm.options)))
    for model in config.models():
        build(model.name, 4, 3, config.propagation.hops, config.train.dropout, model.options, task=config.task)
    assert all(source.dataset in LOADERS for source in sources(config))
    assert path.read_text().startswith("# "), "a config says in its first line what it is"


@pytest.mark.parametrize(
    ("scenario", "expected"),
    [
        ("architectures", ["gcn 2", "gat 2", "sage 2", "gin 2", "sgc 1"]),
        ("scales", ["sgc 1", "gcn 2", "gcn 4", "gcn 6", "gcn 8"]),
    ],
)
def test_scenarios_of_fedgkc_give_client_k_model_k_mod_5(scenario: str, expected: list[str]) -> None:
    config = load_config(FOLDER / f"papers/fedgkc/{scenario}.yaml")
    models = [f"{model.name} {model.options.get('layers', 1)}" for model in config.models()]
    assert [models[number] for number in assign_models(config, 12)] == (expected * 3)[:12]
    # The paper draws every client's own initial parameters; deep ones need jumping knowledge.
    assert all(model.init == "own" for model in config.models())
    deep = [model for model in config.models() if model.options.get("layers", 1) > 2]
    assert all(model.options["jumping"] == "max" for model in deep)
