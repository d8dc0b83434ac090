"""Every config in the repository is one that a run accepts."""

from pathlib import Path

import pytest
import yaml

from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.models.build import build
from shoal.engine.config.config import load_config
from shoal.engine.config.config_text import RENAMED
from shoal.engine.messages.models import assign_models, require_mixable
from shoal.engine.records.graphs import sources
from shoal.storage.options.dataset_names import DATASETS

FOLDER = Path(__file__).resolve().parent.parent / "configs"
# Papers are read where `shoal reproduce` is tested, projects run where tutorials are.
OTHERS = {*(FOLDER / "papers").glob("*.yaml"), *(FOLDER / "projects").rglob("*.yaml")}
FILES = sorted({*FOLDER.rglob("*.yaml")} - OTHERS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_config_loads(path: Path) -> None:
    config = load_config(path)
    require_mixable(config, load(describe(config.algorithm.name, config.algorithm.options)))
    for model in config.models():
        build(model.name, 4, 3, config.propagation.hops, config.train.dropout, model.options, task=config.task)
    assert all(source.dataset in DATASETS for source in sources(config))
    assert path.read_text().startswith("# "), "a config says in its first line what it is"


def test_every_kind_of_config_is_loaded() -> None:
    """Folders of `configs/`, and the tasks of nodes and graphs."""
    assert {path.parent.name for path in FILES} >= {"configs", "fedgta", "fedpg", "fedgkc", "fggp", "fedgpl"}
    assert {load_config(path).task for path in FILES} >= {"node", "graph"}


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_config_with_earlier_keys_is_the_same_config(path: Path, tmp_path: Path) -> None:
    """Each renamed key by its first name with each of its values, in the file and on the command line."""
    for old, (new, values) in RENAMED.items():
        section, key = old.split(".")
        for earlier, today in values.items():
            plain = yaml.safe_load(path.read_text())
            plain.setdefault(section, {})[key] = earlier
            (tmp_path / path.name).write_text(yaml.safe_dump(plain))
            expected = load_config(path, [f"{new}={today}"])
            assert load_config(tmp_path / path.name) == expected
            assert load_config(path, [f"{old}={earlier}"]) == expected


@pytest.mark.parametrize("name", ["products", "papers100m"])
def test_papers_config_without_ogb_files_takes_a_twin(name: str) -> None:
    config = load_config(FOLDER / f"papers/fedgta/{name}.yaml", ["data.synthetic=true", "data.options.scale=0.01"])
    assert config.data.dataset == f"{name}-like"


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
