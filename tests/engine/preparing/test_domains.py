"""A federation of several graphs: clients within each, and beside them every graph whole for its evaluation."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from shoal.engine.config.config import Config, parse_config
from shoal.engine.preparing.checks import read_graph
from shoal.engine.preparing.identity import sources, store_path
from shoal.engine.preparing.prepare import prepare
from shoal.engine.runs.dry_run import show_plan
from shoal.engine.runs.verify import verify_folder
from shoal.storage.errors import ShoalError
from shoal.storage.store.split import to_codes
from shoal.storage.store.store import DOMAINS, Store
from shoal.storage.store.verify import unnamed_files

SIZES = {"north": 30, "south": 21}


def write(folder: Path, name: str, nodes: int, **arrays: Any) -> str:
    rng = np.random.default_rng(nodes)
    found = {
        "edge_index": np.stack([np.arange(nodes), rng.integers(nodes, size=nodes)]),
        "x": rng.standard_normal((nodes, 4)),
        "y": rng.integers(3, size=nodes),
        **arrays,
    }
    file = folder / f"{name}.npz"
    np.savez(file, **found)
    return str(file)


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Config]:
    """Gives a config of two graphs of your own, of which chunks of the first third are clients."""
    paths = [write(tmp_path, name, nodes) for name, nodes in SIZES.items()]

    def make(clients: Any = (2, 1), partition: Any = None, **data: Any) -> Config:
        plain = {
            "name": "two",
            "data": {
                "dataset": ["files", "files"],
                "path": paths,
                "root": str(tmp_path),
                "fractions": [0.4, 0.3, 0.3],
                **data,
            },
            "partition": partition or {"method": "index", "clients": list(clients), "chunks": 3},
            "propagation": {"hops": 1},
            "algorithm": "fedavg",
            "engine": {"backend": "local"},
        }
        return parse_config(plain, "two.yaml")

    return make


def assert_holds(store: Store, client: int, nodes: Sequence[int] | np.ndarray, config: Config) -> None:
    """A shard has these nodes of the joined graph, with features, labels and the edges among them."""
    graph, shard = read_graph(config), store.shard(client)
    assert sorted(shard.node.tolist()) == sorted(nodes)
    np.testing.assert_array_equal(shard.x, graph.x[shard.node])
    np.testing.assert_array_equal(shard.label, graph.y[shard.node])
    whole = sp.csr_array((np.ones(graph.entries), graph.indices, graph.indptr), shape=(graph.nodes,) * 2)
    own = sp.csr_array((np.ones(shard.entries), shard.indices, shard.indptr), shape=(shard.nodes,) * 2)
    assert (whole[shard.node][:, shard.node] != own).nnz == 0


def test_clients_lie_within_a_graph_and_graphs_beside_them(make: Callable[..., Config]) -> None:
    config = make()
    store = prepare(config)
    records = [(d.name, d.nodes, d.clients) for d in store.manifest.domains]
    assert records == [("north", 30, [0, 2]), ("south", 21, [2, 1])]
    assert [[client in d for client in range(3)] for d in store.manifest.domains] == [
        [True, True, False],
        [False] * 2 + [True],
    ]
    for client, nodes in enumerate((range(10), range(10, 20), range(30, 37))):
        assert_holds(store, client, nodes, config)
    whole = store.domain_graphs()
    assert_holds(whole, 0, range(30), config)
    assert_holds(whole, 1, range(30, 51), config)
    assert whole.manifest.hops.keys() == store.manifest.hops.keys()
    assert whole.manifest.domains == []


def test_a_graph_is_split_as_its_clients_are_and_the_rest_by_the_same_shares(make: Callable[..., Config]) -> None:
    config = make(split="per_client")
    store = prepare(config)
    name = config.data.split_name
    code = np.zeros(51, dtype=np.int8)
    for client in range(3):
        shard = store.shard(client)
        code[shard.node] = to_codes(store.split(name, client), shard.nodes)
    whole = store.domain_graphs()
    held = np.concatenate([np.arange(20), np.arange(30, 37)])
    for domain, free in enumerate((10, 14)):
        shard = whole.shard(domain)
        found = to_codes(whole.split(name, domain), shard.nodes)
        mine = np.isin(shard.node, held)
        np.testing.assert_array_equal(found[mine], code[shard.node[mine]])
        parts = np.bincount(found[~mine], minlength=4)
        assert parts[:3].tolist() == [0, int(0.4 * free), int(0.3 * free)]
        assert parts.sum() == free
    # The parts of the rest are drawn: they are not the first ones by number.
    last = np.argsort(whole.shard(0).node)[20:]
    assert sorted(to_codes(whole.split(name, 0), 30)[last]) != to_codes(whole.split(name, 0), 30)[last].tolist()


@pytest.mark.parametrize("kind", ["file", "public"])
def test_a_given_split_holds_for_nodes_that_nobody_has(make: Callable[..., Config], tmp_path: Path, kind: str) -> None:
    given = np.random.default_rng(1).integers(4, size=51).astype(np.int8)
    given[0] = 1
    if kind == "file":
        np.save(tmp_path / "split.npy", given)
        config = make(split="file", split_file=str(tmp_path / "split.npy"))
    else:
        parts = np.split(given, [30])
        paths = [write(tmp_path, name, n, split=part) for (name, n), part in zip(SIZES.items(), parts)]
        config = make(split="public", path=paths)
    whole = prepare(config).domain_graphs()
    for domain in range(2):
        shard = whole.shard(domain)
        found = to_codes(whole.split(config.data.split_name, domain), shard.nodes)
        np.testing.assert_array_equal(found, given[shard.node])


def test_a_second_prepare_makes_nothing_and_mends_a_graph(make: Callable[..., Config]) -> None:
    config = make()
    path = prepare(config).path
    files = {p: p.stat().st_mtime_ns for p in path.rglob("*.arrow")}
    lost = path / DOMAINS / "clients" / "00001.arrow"
    content = lost.read_bytes()
    lost.unlink()
    prepare(config)
    assert lost.read_bytes() == content
    assert {p: p.stat().st_mtime_ns for p in files if p != lost} == {p: t for p, t in files.items() if p != lost}


def test_whole_graphs_are_made_for_runs_that_are_scored_on_them(make: Callable[..., Config]) -> None:
    scored = make()
    unscored = parse_config({**scored.plain(), "evaluation": {"domains": False}}, "two.yaml")
    path = prepare(unscored).path
    assert not (path / DOMAINS).exists()
    files = {p: p.stat().st_mtime_ns for p in path.rglob("*.arrow")}
    assert prepare(scored).domain_graphs().manifest.clients
    assert {p: p.stat().st_mtime_ns for p in files} == files


def test_verify_reads_the_graphs_too(make: Callable[..., Config]) -> None:
    store = prepare(make())
    assert unnamed_files(store) == []
    verify_folder(store.path)
    damaged = store.path / DOMAINS / "splits" / make().data.split_name / "00000.arrow"
    content = bytearray(damaged.read_bytes())
    content[-20] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(ShoalError, match=f"^{re.escape(str(damaged))}"):
        verify_folder(store.path)


def test_a_store_is_known_by_the_content_of_its_graphs(make: Callable[..., Config], tmp_path: Path) -> None:
    config = make()
    path = store_path(config)
    assert path.name.startswith("north+south-index3-")
    assert store_path(make(clients=(1, 2))) != path
    assert store_path(make(partition={"method": "index", "clients": [2, 1], "chunks": 4})) != path
    turned = make(path=[config.data.path[1], config.data.path[0]])
    assert store_path(turned) != path
    moved = tmp_path / "else"
    moved.mkdir()
    again = make(path=[write(moved, name, nodes) for name, nodes in SIZES.items()])
    assert store_path(again) == path


def test_a_dry_run_speaks_of_all_graphs(make: Callable[..., Config], capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(make())
    assert "3 of 3 clients a round" in capsys.readouterr().out
    prepare(make())
    show_plan(make())
    assert "ready" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"clients": (2, 1, 1)}, r"partition\.clients: data\.dataset has 2 graphs; give a list of 2 numbers, found 3"),
        ({"partition": {"clients": 3}}, r"partition\.clients: .* a list of 2 numbers, found one number, 3"),
        ({"clients": (2, 0)}, r"partition\.domains\.1: Input should be greater than or equal to 1, found 0"),
        ({"partition": {"clients": ["a", 2]}}, r"partition: clients must be a number, or a list of one"),
        ({"partition": {"clients": 4, "domains": [2, 1]}}, r"partition: clients is 4, those of the domains are 3"),
        ({"dataset": "files", "path": "x.npz"}, r"partition\.clients: a list is for a list of datasets; files is one"),
        ({"dataset": ["files"]}, r"data\.dataset: Tuple should have at least 2 items"),
        ({"dataset": ["files", 3]}, r"data\.dataset\.1: Input should be a valid string, found 3"),
    ],
)  # fmt: skip
def test_a_config_says_how_many_clients_each_graph_has(
    make: Callable[..., Config], change: dict[str, Any], line: str
) -> None:
    with pytest.raises(ShoalError, match=f"^two.yaml: {line}"):
        make(**change)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"path": None}, r"data\.path: data\.dataset has 2 graphs of your own \(files\), found 0 paths"),
        ({"dataset": ["files", "digits"]}, r"data\.path: .* has 1 graphs .* found 2 paths"),
        ({"dataset": ["digits", "Digits"], "path": None}, r"data\.dataset: 'digits' is there twice"),
        ({"dataset": ["digits", "corra"], "path": None}, r"data\.dataset: unknown dataset 'corra'"),
    ],
)
def test_graphs_that_cannot_be_are_refused(make: Callable[..., Config], change: dict[str, Any], line: str) -> None:
    with pytest.raises(ShoalError, match=f"^{line}"):
        prepare(make(**change))


def test_more_clients_than_nodes_are_refused_ahead(make: Callable[..., Config]) -> None:
    config = make(dataset=["digits", "sbm"], path=None, partition={"method": "random", "clients": [2000, 2]})
    with pytest.raises(ShoalError, match=r"partition\.clients is 2000, but dataset 'digits' has 1797 nodes"):
        prepare(config)


def test_features_of_other_widths_are_refused(make: Callable[..., Config], tmp_path: Path) -> None:
    paths = [write(tmp_path, "north", 30), write(tmp_path, "wide", 21, x=np.ones((21, 5)))]
    with pytest.raises(ShoalError, match="found widths north 4, wide 5"):
        prepare(make(path=paths))


def test_vocabularies_join_the_columns(make: Callable[..., Config], tmp_path: Path) -> None:
    words = np.array(["a", "b", "c", "d"]), np.array(["c", "d", "e", "f"])
    paths = [write(tmp_path, name, n, vocabulary=own) for (name, n), own in zip(SIZES.items(), words)]
    store = prepare(make(path=paths, layout="dense"))
    assert store.manifest.features == 6
    south = np.load(paths[1])["x"].astype(np.float32)
    shard = store.shard(2)
    np.testing.assert_array_equal(np.asarray(shard.x), np.pad(south, ((0, 0), (2, 0)))[shard.node - 30])


def test_one_path_and_a_published_graph(make: Callable[..., Config]) -> None:
    config = make(dataset=["digits", "files"], path=make().data.path[0])
    assert [source.name for source in sources(config)] == ["digits", "north"]
