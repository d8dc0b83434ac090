"""Every config in the repository is one that a run accepts."""

from pathlib import Path

import pytest

from algorithms.backbones import build
from algorithms.methods.loading import describe, load
from engine.preparing.prepare import source
from engine.settings.config import load_config
from engine.wire.models import require_mixable
from storage.datasets import LOADERS

FOLDER = Path(__file__).resolve().parent.parent / "configs"
CONFIGS = sorted(FOLDER.rglob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_loads(path: Path) -> None:
    config = load_config(path)
    require_mixable(config, load(describe(config.algorithm.name, config.algorithm.options)))
    for model in config.models():
        build(model.name, 4, 3, config.propagation.hops, config.train.dropout, model.options)
    assert source(config).dataset in LOADERS
    assert path.read_text().startswith("# "), "a config says in its first line what it is"
