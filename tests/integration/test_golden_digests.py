"""No number changes unnoticed: weights, predictions, scores and bytes of short runs against recorded digests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from integration.golden_digests import config_of, digest_of, execute, golden, here, matrix, write_graph
from integration.server_here import ServerHere

from shoal.engine.config.config import parse_config
from shoal.engine.runs.run import run

RECORDED = golden()
# Every method, and every model; of both kinds of models one with each method, and both with some; small graphs with
# methods whose uploads are of different kinds. The rest is slow.
ENDS = (" gcn", " fanouts", " batches, sgd", " star")
SPLIT = "graphs fedgpl away "
BOTH_KINDS = ("fedavg", "fedgta", "fedpg", "fggp", "edges fedproto")
SEVERAL_MODELS = ("fedgen", "fedproto", "fedpg", "fml", "fedkd", "fedgkc")
OF_GRAPHS = ("global", "fedavg", "fedproto", "fedpg", "gcfl_plus", "fedstar", "fedgpl")
ON_HOSTS = [
    name
    for name in matrix()
    if (name.endswith(ENDS) and (not name.startswith("graphs ") or name.split()[1] in OF_GRAPHS))
    or name.startswith(SPLIT)
    or name.removesuffix(" gamlp") in BOTH_KINDS
    or name.removesuffix(" several models") in SEVERAL_MODELS
    or name in ("fedavg mlp", "fedavg sign", "fedavg gin", "fedavg gat", "lg_fedavg gin conv head")
]
LATER_ON_HOSTS = [name for name in matrix() if name not in ON_HOSTS]
RESUMED = [
    "fedavg participation 0.3",
    "fedgta participation 0.3",
    "fedtgp gamlp",
    "fedpg attention",
    "fedgkc several models",
    "fggp participation 0.3",
    "graphs fedavg max sage",
    "graphs fedtgp gcn",
    "edges fedavg sage",
    "gcfl_plus gamlp",
    "fedpub gcn",
    "fedgl gcn",
    "fgssl gcn",
    "adafgl gamlp",
    "fedsage_plus gcn",
    "graphs fedstar star",
    *(name for name in matrix() if name.startswith(SPLIT)),
]


def assert_recorded(name: str, found: dict[str, object]) -> None:
    """Equal to the bit where the digests were made, and nearly so elsewhere."""
    expected = RECORDED["runs"][name]
    if here() == RECORDED["environment"]:
        assert found == expected, name
    else:
        for key in ("loss", "norm"):
            assert found[key] == pytest.approx(expected[key], rel=1e-2), (name, key)


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_graph(tmp_path_factory.mktemp("golden") / "graph")


@pytest.fixture(scope="module")
def in_process(graph: Path) -> dict[str, dict[str, object]]:
    return {name: execute(name, graph) for name in matrix()}


@pytest.fixture(scope="module")
def two_hosts(graph: Path) -> Iterator[ServerHere]:
    session = ServerHere(config_of("hosts", {}, graph, engine__backend="ray", engine__hosts=2))
    yield session
    session.close()


def test_the_matrix_is_whole() -> None:
    assert RECORDED["runs"].keys() == matrix().keys()
    assert len({run["sha256"] for run in RECORDED["runs"].values()}) == len(RECORDED["runs"])


def test_in_this_process(in_process: dict[str, dict[str, object]]) -> None:
    for name, found in in_process.items():
        assert_recorded(name, found)


@pytest.mark.parametrize(
    ("method", "model", "same"),
    [
        ("fedavg", "gcn", "fedavg gcn conv head"),
        ("fedavg", "sage", "fedavg sage conv head"),
        ("fedavg", "gat", "fedavg gat conv head"),
        ("fedavg", "gcnii", "fedavg gcnii"),
        ("fedproto", "gcn", "fedproto gcn"),
    ],
)
def test_models_end_as_in_their_papers_where_no_embedding_is_read(
    graph: Path, in_process: dict[str, dict[str, object]], method: str, model: str, same: str
) -> None:
    plain = {"algorithm": {"name": method}, "model": {"name": model, "hidden": 8}}
    config = config_of(same, plain, graph, run__root=str(graph.parent / "as-in-papers"))
    assert digest_of(run(config)) == in_process[same]


def test_every_method_is_on_two_hosts(graph: Path) -> None:
    everywhere = {config_of(name, matrix()[name], graph).algorithm.name for name in ON_HOSTS}
    assert everywhere == {config_of(name, keys, graph).algorithm.name for name, keys in matrix().items()}


@pytest.mark.parametrize(
    "names", [ON_HOSTS, pytest.param(LATER_ON_HOSTS, marks=pytest.mark.slow)], ids=["some", "rest"]
)
def test_on_two_hosts(
    graph: Path, two_hosts: ServerHere, in_process: dict[str, dict[str, object]], names: list[str]
) -> None:
    for name in names:
        root = str(graph.parent / "on-hosts")
        found = execute(name, graph, two_hosts, engine__backend="ray", engine__hosts=2, run__root=root)
        assert found == in_process[name], name


@pytest.mark.parametrize("name", RESUMED)
def test_stopped_and_resumed(graph: Path, name: str, in_process: dict[str, dict[str, object]]) -> None:
    root = str(graph.parent / "resumed")
    config = config_of(name, matrix()[name], graph, run__root=root)
    plain = config.plain()
    with pytest.raises(KeyboardInterrupt):
        run(parse_config({**plain, "run": {**plain["run"], "max_seconds": 1e-9}}, name))
    assert digest_of(run(config, resume=True)) == in_process[name]
