"""Every config in the repository is one that a run accepts."""

from pathlib import Path

import pytest
import yaml

from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.models.build import build
from shoal.engine.config.config import load_config
from shoal.engine.config.config_text import RENAMED
from shoal.engine.messages.models import assign_models, require_mixable
from shoal.engine.preparing.identity import sources
from shoal.engine.studies.study import read_study
from shoal.engine.studies.sweep import Sweep
from shoal.storage.options.dataset_names import DATASETS

FOLDER = Path(__file__).resolve().parent.parent / "configs"
FILES = sorted(FOLDER.rglob("*.yaml"))
STUDIES = [path for path in FILES if "axes" in yaml.safe_load(path.read_text())]
CONFIGS = [path for path in FILES if path not in STUDIES]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_config_loads(path: Path) -> None:
    config = load_config(path)
    require_mixable(config, load(describe(config.algorithm.name, config.algorithm.options)))
    for model in config.models():
        build(model.name, 4, 3, config.propagation.hops, config.train.dropout, model.options, task=config.task)
    assert all(source.dataset in DATASETS for source in sources(config))
    assert path.read_text().startswith("# "), "a config says in its first line what it is"


def test_every_kind_of_config_is_loaded() -> None:
    """Folders of `configs/`, its studies, and the tasks of nodes and graphs."""
    assert {path.parent.name for path in FILES} >= {"configs", "fedgta", "fedpg", "fedgkc", "fggp", "fedgpl"}
    assert STUDIES
    assert {load_config(path).task for path in CONFIGS} >= {"node", "graph"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.relative_to(FOLDER)))
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


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_study_runs_are_all_valid(path: Path) -> None:
    study = read_study(str(path), (), None, 2, "served")
    plans = Sweep(study).plans
    assert len(plans) >= 20
    assert "local" in {plan.config.algorithm.name for plan in plans}, "a comparison of methods has its control"
    assert path.read_text().startswith("# "), "a study says in its first line what it is"


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("path", STUDIES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_study_runs_on_a_small_graph(path: Path, tmp_path: Path) -> None:
    """All methods and the last two of all other values, one seed, on a drawn graph."""
    study = yaml.safe_load(path.read_text())
    config = yaml.safe_load((path.parent / study["config"]).read_text())
    axes = study["axes"]
    small = {"nodes": 150, "features": 6, "classes": 3}
    axes["data.dataset"] = ["sbm"]
    axes = {key: values if key == "algorithm" else 1 if key == "seeds" else values[-2:] for key, values in axes.items()}
    config |= {
        "rounds": 2,
        "data": {**config["data"], "root": str(tmp_path), "options": small, "split": "stratified"},
        "partition": {**config["partition"], "clients": 3, "method": "metis"},
        "engine": {"backend": "local"},
        "run": {"root": str(tmp_path / "runs"), "tensorboard": False},
    }
    if len(axes["algorithm"]) > 6:
        axes["participation.ratio"] = [1.0]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**study, "config": "config.yaml", "axes": axes}))
    sweep = Sweep(read_study(str(tmp_path / "study.yaml"), (), None, 2, "served"))
    assert sweep.go(), [row.error for row in sweep.rows if row.error]
    assert all(row.figures or row.state == "not chosen" for row in sweep.rows)


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
