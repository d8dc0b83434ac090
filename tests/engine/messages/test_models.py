"""Clients of one federation that train different models, and how a model ends."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.errors import refused
from support.fixtures import Start
from support.small_cells import require_same_tree
from support.small_runs import small_run

from shoal.algorithms.methods.registry.load import describe, load, methods_for
from shoal.algorithms.models.names import ModelSpec
from shoal.engine.config.config import Config, load_config, parse_config
from shoal.engine.messages.models import assign_models, built_models, require_mixable
from shoal.engine.records.run_folder import read_summary, run_path
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run as run_config

MODELS = [
    {"name": "gcn", "hidden": 6, "head": "linear"},
    {"name": "gamlp", "hidden": 8, "init": "own"},
    {"name": "sgc"},
    {"name": "sage", "hidden": 6, "fanouts": [2, 2]},
]


def config_of(models: Any, clients: int = 3, how: dict[str, Any] | None = None, **more: Any) -> Config:
    plain = {"name": "x", "data": {"dataset": "digits"}, "algorithm": "local", "partition": {"clients": clients}}
    models = [{"name": "sgc"}] * models if isinstance(models, int) else models
    return parse_config({**plain, "model": models, "heterogeneity": how or {}, **more}, "test")


@pytest.mark.parametrize(
    ("models", "how", "expected"),
    [
        (3, {}, [0, 1, 2, 0, 1, 2, 0]),
        (3, {"rule": "blocks"}, [0, 0, 0, 1, 1, 2, 2]),
        (5, {"rule": "blocks"}, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]),
        (5, {"rule": "blocks"}, [0, 1, 3]),
        (2, {"rule": "explicit", "clients": [1, 1, 0]}, [1, 1, 0]),
        (1, {"rule": "random"}, [0, 0, 0]),
    ],
)
def test_rules(models: int, how: dict[str, Any], expected: list[int]) -> None:
    assert assign_models(config_of(models, len(expected), how), len(expected)) == expected


@given(st.integers(1, 6), st.integers(1, 40))
def test_random_shares_are_equal_and_keyed_by_a_seed_of_their_own(models: int, clients: int) -> None:
    first, again, other = (
        assign_models(config_of(models, clients, {"rule": "random", "seed": seed}), clients) for seed in (3, 3, 4)
    )
    counts = [first.count(m) for m in range(models)]
    assert max(counts) - min(counts) <= 1
    assert sum(counts) == clients
    assert first == again
    assert models == 1 or clients <= 20 or first != other


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"rule": "explicit"}, "must give the model of each of the 3 clients, found none"),
        ({"rule": "explicit", "clients": [0]}, "must give the model of each of the 3 clients, found 1"),
        ({"rule": "explicit", "clients": [0, 2, 1]}, "client 1 has model 2, there are 0 to 1"),
    ],
)
def test_a_wrong_assignment_is_refused(how: dict[str, Any], says: str) -> None:
    with refused("heterogeneity.clients", says=says):
        assign_models(config_of(2, how=how), 3)


HUGE = 10**12


@pytest.mark.parametrize(
    ("place", "model"),
    [
        ("test: model", []),
        ("test: model.name", {"name": 3}),
        ("test: model.0.name", [{"name": 3}]),
        ("test: model.1.init", [{"name": "sgc"}, {"init": "both"}]),
        ("model.hidden", {"name": "gcn", "hidden": HUGE}),
        ("model.layers", {"name": "gcn", "layers": 10**9}),
        ("model.fanouts", {"name": "gcn", "fanouts": [HUGE, 1]}),
        ("model.theta", {"name": "gcnii", "theta": float("nan")}),
        # Terabytes of parameters, which no dataset could be for.
        ("model", {"name": "gin", "hidden": 2**24}),
        ("model.1.hidden", [{"name": "sgc"}, {"name": "gcn", "hidden": HUGE}]),
        ("model.1.depth", [{"name": "gcn"}, {"name": "sgc", "depth": 3}]),
    ],
)
def test_a_wrong_model_is_refused_before_any_data_is_read(place: str, model: Any) -> None:
    with refused(says=f"{place}: "):
        require_mixable(config_of(model), load(describe("local", {})))


def test_bfloat16_is_refused_for_coupled_models() -> None:
    with refused("engine.precision", says="gcn is not"):
        require_mixable(config_of({"name": "gcn"}, engine={"precision": "bfloat16"}), load(describe("local", {})))


NO_EMBEDDING = {
    "local", "global", "fedavg", "fedprox", "fedopt", "scaffold", "feddc", "fedgta", "fedgl", "adafgl", "class_means",
    "fedsage_plus", "fedsage_plus_fedgta", "fedsage_plus_feddc", "fedgl_fedgta", "fedgl_feddc",
    "feddistill", "fml", "fedgcn", "fedtad", "fedspray", "fedgm", "feddep",
}  # fmt: skip
GCN, SAGE = {"name": "gcn"}, {"name": "sage"}


def last_layers(method: str, *models: dict[str, Any], task: str = "node", of: str = "model") -> list[bool]:
    """Whether the classifier passes messages, of every model of a list, or of the method's own beside them."""
    algorithm = load(describe(method, {"copilot": GCN} if method in ("fml", "fedkd", "fedgkc") else {}))
    shape = {"features": 5, "classes": 3, "hops": 1, "dropout": 0.0, "task": task}
    built = built_models(algorithm, [ModelSpec(**model) for model in models], None, **shape)[of]
    return [built.flat.coupled is not None and built.flat.coupled.conv_head for built in built]


def test_methods_that_read_no_embedding_have_the_papers_models() -> None:
    assert {method for method in methods_for("node") if last_layers(method, GCN) == [True]} == NO_EMBEDDING


@pytest.mark.parametrize(
    ("model", "conv"),
    [
        *((model, True) for model in (GCN, SAGE, {"name": "gat"}, {"name": "gin", "head": "conv"})),
        *(({"name": name}, False) for name in ("gin", "gcnii")),
        ({**GCN, "layers": 4, "jumping": "max"}, True),
        ({**GCN, "head": "linear"}, False),
        ({**SAGE, "fanouts": [2, 2]}, False),
        ({**GCN, "layers": 1}, False),
    ],
)
def test_where_a_config_does_not_say_how_a_model_ends(model: dict[str, Any], conv: bool) -> None:
    assert last_layers("fedavg", model) == [conv]


def test_models_that_are_compared_or_read_otherwise_end_in_a_linear_layer() -> None:
    assert last_layers("local", GCN, {"name": "sgc"}, SAGE) == [False] * 3
    assert last_layers("fedavg", GCN, task="graph") == last_layers("fedavg", GCN, task="edge") == [False]
    # A copilot ends by the same rule, by its own options and not those of the client's model.
    cases = {"fml": [(GCN,), ({**GCN, "head": "linear"},), (GCN, SAGE)], "fedkd": [(GCN,)], "fedgkc": [(GCN,)]}
    found = {
        method: [last_layers(method, *models, of="copilot") for models in lists] for method, lists in cases.items()
    }
    assert found == {"fml": [[True], [True], [False]], "fedkd": [[False]], "fedgkc": [[False]]}


@pytest.mark.parametrize("embedding", [None, 5])
def test_every_client_trains_as_if_all_had_its_model(run: Start, embedding: int | None) -> None:
    mixed = run({"algorithm.name": "local", "model": MODELS, "heterogeneity.embedding": embedding}, rounds=4)
    assert [info.model for info in mixed.infos] == [0, 1, 2, 3, 0, 1]
    assert len(mixed.state.clients) == 6
    for number, model in enumerate(MODELS):
        # Without a width of its own, a list takes that of its first model.
        keys = {"algorithm.name": "local", "heterogeneity.embedding": embedding or 6, "engine.cell_size": 2}
        alone = run({**keys, "model": model}, rounds=4)
        for client in range(number, 6, 4):
            require_same_tree(mixed.state.clients[client], alone.state.clients[client])
            assert (mixed.state.scores["deployed"][client] == alone.state.scores["deployed"][client]).all()


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, Any]:
    keys = {"partition": {"clients": 5}, "heterogeneity": {"rule": "blocks"}, "algorithm": {"name": "local"}}
    return small_run(tmp_path, name="mixed", rounds=4, model=MODELS, run={"checkpoint_every": 2}, **keys)


def test_a_run_is_summarised_exported_and_resumed(plain: dict[str, Any], tmp_path: Path) -> None:
    config = parse_config(plain, "test")
    folder = run_config(config)
    assert load_config(folder) == config
    assert read_summary(folder)["scopes"]["deployed"]["final"]["test"]["rows"] > 0.4
    models = load_file(export(folder) / "models.safetensors")
    head = "backbone.head.linears.0.weight"
    names = ["client/00000/convs.0.lin.weight", f"client/00002/{head}", f"client/00003/{head}"]
    assert [models[name].shape for name in names] == [(6, 8), (8, 8), (6, 8)]
    assert len({name.split("/")[1] for name in models}) == 5
    for change in ({"rule": "round-robin"}, {"embedding": 5}):
        assert run_path(parse_config({**plain, "heterogeneity": change}, "test")) != folder
    parts = {**plain, "run": {**plain["run"], "root": str(tmp_path / "parts"), "max_seconds": 1e-9}}
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            run_config(parse_config(parts, "test"), resume=True)
    again = run_config(parse_config(parts, "test"), resume=True)
    newest = Path("checkpoints") / "round-000004" / "state.safetensors"
    require_same_tree(load_file(again / newest), load_file(folder / newest))


@pytest.mark.parametrize("method", ["fedavg", "fedgta", "global"])
def test_methods_that_average_weights_refuse_a_list(method: str, plain: Any, tmp_path: Path, request: Any) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(plain))
    for dry in ([], ["--dry-run"]):
        line = request.getfixturevalue("refused")("run", path, f"algorithm.name={method}", *dry)
        assert line.startswith(f"shoal: model: {method} needs the same model at every client, found a list of gcn, ")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.yaml"], "nothing was prepared"
