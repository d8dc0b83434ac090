"""Clients of one federation that train different models."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from support.small_runs import small_run
from support.sparse_rows import sparse

from shoal.algorithms.methods.registry.load import describe, load, methods_for
from shoal.algorithms.models.build import build, width_of
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood
from shoal.algorithms.models.layers.readout import Adapted
from shoal.algorithms.models.model_options import ModelSpec
from shoal.algorithms.models.names import BACKBONES
from shoal.engine.cli.main import command
from shoal.engine.config.config import Config, load_config, parse_config
from shoal.engine.messages.models import assign_models, built_models, require_mixable
from shoal.engine.records.run_folder import read_summary, run_path
from shoal.engine.rounds.server import Server
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run as run_config
from shoal.storage.errors import ShoalError

MODELS = [
    {"name": "gcn", "hidden": 6, "head": "linear"},
    {"name": "gamlp", "hidden": 8, "init": "own"},
    {"name": "sgc"},
    {"name": "sage", "hidden": 6, "fanouts": [2, 2]},
]


def config_of(models: int, clients: int, how: dict[str, Any]) -> Config:
    plain = {"name": "x", "data": {"dataset": "digits"}, "algorithm": "local", "partition": {"clients": clients}}
    return parse_config({**plain, "model": [{"name": "sgc"}] * models, "heterogeneity": how}, "test")


@pytest.mark.parametrize(
    ("models", "clients", "how", "expected"),
    [
        (3, 7, {}, [0, 1, 2, 0, 1, 2, 0]),
        (3, 7, {"rule": "blocks"}, [0, 0, 0, 1, 1, 2, 2]),
        (5, 10, {"rule": "blocks"}, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]),
        (5, 3, {"rule": "blocks"}, [0, 1, 3]),
        (2, 3, {"rule": "explicit", "clients": [1, 1, 0]}, [1, 1, 0]),
        (1, 3, {"rule": "random"}, [0, 0, 0]),
    ],
)
def test_rules(models: int, clients: int, how: dict[str, Any], expected: list[int]) -> None:
    assert assign_models(config_of(models, clients, how), clients) == expected


@given(st.integers(1, 6), st.integers(1, 40))
def test_random_shares_are_equal_and_keyed_by_a_seed_of_their_own(models: int, clients: int) -> None:
    numbers = assign_models(config_of(models, clients, {"rule": "random", "seed": 3}), clients)
    counts = [numbers.count(m) for m in range(models)]
    assert max(counts) - min(counts) <= 1
    assert sum(counts) == clients
    assert numbers == assign_models(config_of(models, clients, {"rule": "random", "seed": 3}), clients)
    if models > 1 and clients > 20:
        assert numbers != assign_models(config_of(models, clients, {"rule": "random", "seed": 4}), clients)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"rule": "explicit"}, "heterogeneity.clients: must give the model of each of the 3 clients, found none"),
        ({"rule": "explicit", "clients": [0]}, "must give the model of each of the 3 clients, found 1"),
        ({"rule": "explicit", "clients": [0, 2, 1]}, "client 1 has model 2, there are 0 to 1"),
        ({"clients": [0, 1, 1]}, "heterogeneity.clients: read by rule explicit only, the rule is round-robin"),
    ],
)
def test_a_wrong_assignment_is_one_line(how: dict[str, Any], message: str) -> None:
    with pytest.raises(ShoalError, match=message):
        assign_models(config_of(2, 3, how), 3)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ([], r"test: model: .*at least 1 item"),
        ([{"name": 3}], r"test: model\.0\.name: .*string, found 3"),
        ([{"name": "sgc"}, {"init": "both"}], r"test: model\.1\.init: .*'shared' or 'own', found 'both'"),
        ({"name": 3}, r"test: model\.name: .*string, found 3"),
        ("sgc", r"test: model: .*, found 'sgc'"),
    ],
)
def test_a_wrong_model_names_its_place_in_the_list(model: Any, message: str) -> None:
    plain = {"name": "x", "data": {"dataset": "digits"}, "algorithm": "local", "model": model}
    with pytest.raises(ShoalError, match=f"^{message}"):
        parse_config(plain, "test")


@pytest.mark.parametrize(("name", "options"), [("sgc", {}), ("gamlp", {"hidden": 8}), ("gcn", {"hidden": 8})])
def test_an_adapter_is_the_backbone_with_a_linear_map_in_its_head(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    module = build(name, 5, 3, 0, 0.5, options, embedding=6).eval()
    assert isinstance(module, Adapted)
    own = width_of(module.backbone)
    x = torch.randn(4, 5)
    inputs: Any = [x]
    if name == "gcn":
        inputs = Neighbourhood(x, (sparse(torch.eye(4)),) * 2)
    out, inner = module(inputs), module.backbone(inputs)
    adapter = module.backbone.head.linears[-1]
    assert adapter.weight.shape == (6, own)
    torch.testing.assert_close(out.embedding_NH, adapter(inner.embedding_NH))
    torch.testing.assert_close(out.logits_NC, module.head.linears[0](out.embedding_NH))
    out.logits_NC.sum().backward()
    assert all(p.grad is not None for p in module.parameters())


def test_a_model_of_the_right_width_is_left_alone() -> None:
    assert not isinstance(build("gcn", 5, 3, 0, 0.5, {"hidden": 8}, embedding=8), Adapted)
    assert not isinstance(build("gcn", 5, 3, 0, 0.5, {"hidden": 8}), Adapted)


NO_EMBEDDING = {
    "local", "global", "fedavg", "fedprox", "fedopt", "scaffold", "feddc", "fedgta", "fedgl", "adafgl", "class_means",
    "fedsage_plus", "fedsage_plus_fedgta", "fedgl_fedgta", "feddistill", "fml",
}  # fmt: skip


def last_layers(method: str, *models: dict[str, Any], task: str = "node", of: str = "model") -> list[bool]:
    """Whether the classifier passes messages, of every model of a list, or of the method's own beside them."""
    algorithm = load(describe(method, {"copilot": {"name": "gcn"}} if method in ("fml", "fedkd", "fedgkc") else {}))
    shape = {"features": 5, "classes": 3, "hops": 1, "dropout": 0.0, "task": task}
    built = built_models(algorithm, [ModelSpec(**model) for model in models], None, 2**30, **shape)[of]
    return [built.flat.coupled is not None and built.flat.coupled.conv_head for built in built]


def test_methods_that_read_no_embedding_have_the_papers_models() -> None:
    assert {method for method in methods_for("node") if last_layers(method, {"name": "gcn"}) == [True]} == NO_EMBEDDING


@pytest.mark.parametrize(
    ("model", "conv"),
    [
        ({"name": "gcn"}, True),
        ({"name": "sage"}, True),
        ({"name": "gat"}, True),
        ({"name": "gin"}, False),
        ({"name": "gcnii"}, False),
        ({"name": "gcn", "layers": 4, "jumping": "max"}, True),
        ({"name": "gcn", "head": "linear"}, False),
        ({"name": "gin", "head": "conv"}, True),
        ({"name": "sage", "fanouts": [2, 2]}, False),
        ({"name": "gcn", "layers": 1}, False),
    ],
)
def test_where_a_config_does_not_say_how_a_model_ends(model: dict[str, Any], conv: bool) -> None:
    assert last_layers("fedavg", model) == [conv]


def test_a_copilot_ends_by_the_same_rule() -> None:
    models: tuple[dict[str, Any], ...] = ({"name": "gcn"}, {"name": "sage"})
    assert last_layers("fml", models[0], of="copilot") == [True]
    assert last_layers("fml", *models, of="copilot") == [False]
    # By its own options, not those of the client's model.
    assert last_layers("fml", {"name": "gcn", "head": "linear"}, of="copilot") == [True]
    for method in ("fedkd", "fedgkc"):
        assert last_layers(method, models[0], of="copilot") == [False]


def test_models_that_are_compared_or_read_otherwise_end_in_a_linear_layer() -> None:
    assert last_layers("local", {"name": "gcn"}, {"name": "sgc"}, {"name": "sage"}) == [False] * 3
    for task in ("graph", "edge"):
        assert last_layers("fedavg", {"name": "gcn"}, task=task) == [False]


@pytest.mark.parametrize("embedding", [None, 5])
def test_every_client_trains_as_if_all_had_its_model(run: Callable[..., Server], embedding: int | None) -> None:
    mixed = run({"algorithm.name": "local", "model": MODELS, "heterogeneity.embedding": embedding}, rounds=4)
    assert [info.model for info in mixed.infos] == [0, 1, 2, 3, 0, 1]
    assert len(mixed.state.clients) == 6
    for number, model in enumerate(MODELS):
        # Without a width of its own, a list takes that of its first model.
        keys = {"algorithm.name": "local", "heterogeneity.embedding": embedding or 6}
        alone = run({**keys, "model": model}, rounds=4)
        for client in range(number, 6, 4):
            states = [server.state.clients[client] for server in (mixed, alone)]
            assert states[0].keys() == states[1].keys()
            assert all(torch.equal(t, states[1][name]) for name, t in states[0].items())
            assert (mixed.state.scores["served"][client] == alone.state.scores["served"][client]).all()


@pytest.mark.parametrize("cell_size", [1, 2, "auto"])
def test_any_cells_give_the_same_numbers(run: Callable[..., Server], cell_size: int | str) -> None:
    keys = {"algorithm.name": "local", "model": MODELS, "participation.ratio": 0.7}
    one, other = (run({**keys, "engine.cell_size": size}, rounds=4) for size in (6, cell_size))
    assert one.state.clients.keys() == other.state.clients.keys()
    for client, state in one.state.clients.items():
        assert all(torch.equal(t, other.state.clients[client][name]) for name, t in state.items())


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, Any]:
    return small_run(
        tmp_path,
        name="mixed",
        rounds=4,
        partition={"clients": 5},
        model=MODELS,
        heterogeneity={"rule": "blocks"},
        algorithm={"name": "local"},
        run={"checkpoint_every": 2},
    )


def test_a_run_is_summarised_exported_and_found_again(plain: dict[str, Any]) -> None:
    config = parse_config(plain, "test")
    folder = run_config(config)
    assert load_config(folder) == config
    assert read_summary(folder)["scopes"]["served"]["last"]["test"]["rows"] > 0.4
    models = load_file(export(folder) / "models.safetensors")
    assert models["client/00000/convs.0.lin.weight"].shape == (6, 8)
    assert models["client/00002/backbone.head.linears.0.weight"].shape == (8, 8)
    assert models["client/00003/backbone.head.linears.0.weight"].shape == (6, 8)
    assert len({name.split("/")[1] for name in models}) == 5
    for change in ({"rule": "round-robin"}, {"embedding": 5}):
        assert run_path(parse_config({**plain, "heterogeneity": change}, "test")) != folder


def test_a_resumed_run_has_the_same_numbers(plain: dict[str, Any], tmp_path: Path) -> None:
    whole = run_config(parse_config(plain, "test"))
    parts = {**plain, "run": {**plain["run"], "root": str(tmp_path / "parts"), "max_seconds": 1e-9}}
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            run_config(parse_config(parts, "test"), resume=True)
    again = run_config(parse_config(parts, "test"), resume=True)
    newest = Path("checkpoints") / "round-000004" / "state.safetensors"
    a, b = load_file(whole / newest), load_file(again / newest)
    assert a.keys() == b.keys()
    assert all(torch.equal(t, b[name]) for name, t in a.items())


@pytest.mark.parametrize("method", ["fedavg", "fedgta", "global"])
@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_methods_that_average_weights_refuse_a_list(
    method: str,
    dry: list[str],
    plain: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(plain))
    monkeypatch.setattr(sys, "argv", ["shoal", "run", str(path), f"algorithm.name={method}", *dry])
    with pytest.raises(SystemExit) as end:
        command()
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"shoal: model: {method} needs the same model at every client, found a list of gcn, gamlp")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.yaml"], "nothing was prepared"


def test_dry_run_and_report_name_every_model(
    plain: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(plain))
    for more, wanted in ((["--dry-run"], "parameters"), ([], "local on sbm")):
        monkeypatch.setattr(sys, "argv", ["shoal", "run", str(path), *more])
        with pytest.raises(SystemExit) as end:
            command()
        assert not end.value.code
        printed = capsys.readouterr().out
        assert wanted in printed
        assert all(model["name"] in printed for model in MODELS)


def test_a_wrong_option_in_a_list_names_its_model(plain: dict[str, Any]) -> None:
    plain["model"] = [{"name": "gcn"}, {"name": "sgc", "depth": 3}]
    with pytest.raises(ShoalError, match=r"^model\.1\.depth: sgc has no such option"):
        run_config(parse_config(plain, "test"))


def test_bfloat16_is_refused_for_coupled_models(start: Callable[..., Server]) -> None:
    with pytest.raises(ShoalError, match=r"engine\.precision: bfloat16 is for decoupled models, gcn is not"):
        start({"model.name": "gcn", "engine.precision": "bfloat16"})


@pytest.mark.parametrize("name", sorted(BACKBONES))
def test_without_memory_a_model_has_as_many_parameters(name: str) -> None:
    with torch.device("meta"):
        sketched = build(name, 5, 3, 2, 0.5, {}, embedding=7)
    assert all(p.is_meta for p in sketched.parameters())
    made = build(name, 5, 3, 2, 0.5, {}, embedding=7)
    assert [p.shape for p in sketched.parameters()] == [p.shape for p in made.parameters()]
    assert not any(p.is_meta for p in made.parameters())


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"name": "gcn", "hidden": 10**12}, r"model\.hidden: must be at most 16777216, found 1000000000000"),
        ({"name": "gcn", "layers": 10**9}, r"model\.layers: must be at most 1000, found 1000000000"),
        ({"name": "gcn", "fanouts": [10**12, 1]}, r"model\.fanouts: must be at most 16777216"),
        ({"name": "gcnii", "theta": float("nan")}, r"model\.theta: must be finite, found nan"),
        ({"name": "gin", "hidden": 2**24}, r"model: [0-9,]+ parameters take .* TiB in training, engine\.memory_limit"),
        ([{"name": "sgc"}, {"name": "gcn", "hidden": 10**12}], r"model\.1\.hidden: must be at most"),
    ],
)
def test_models_beyond_the_memory_are_refused_before_any_data_is_read(model: Any, message: str) -> None:
    plain = {"name": "x", "data": {"dataset": "digits"}, "algorithm": "local", "model": model}
    with pytest.raises(ShoalError, match=f"^{message}"):
        require_mixable(parse_config(plain, "test"), load(describe("local", {})))
