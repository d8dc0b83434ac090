"""A federation of several graphs: clients within each, and beside them every graph whole for its evaluation."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.errors import refused
from support.fixtures import Configure
from support.shards import assert_holds, flip, times
from support.user_graph import user_graph

from shoal.engine.config.config import Config, parse_config
from shoal.engine.preparing.checks import read_graph
from shoal.engine.preparing.identity import store_path
from shoal.engine.preparing.prepare import prepare
from shoal.engine.runs.verify import verify_folder
from shoal.storage.shards.split import to_codes
from shoal.storage.store.store import DOMAINS
from shoal.storage.store.verify import unnamed_files

SIZES = {"north": 30, "south": 21}


@pytest.fixture
def make(tmp_path: Path) -> Configure:
    """Gives a config of two graphs of your own, of which chunks of the first third are clients."""
    paths = [user_graph(tmp_path, nodes, name) for name, nodes in SIZES.items()]
    data = {"dataset": ["files", "files"], "path": paths, "root": str(tmp_path), "fractions": [0.4, 0.3, 0.3]}

    def make(clients: Any = (2, 1), partition: Any = None, **changes: Any) -> Config:
        plain = {
            "name": "two",
            "data": {**data, **changes},
            "partition": partition or {"method": "index", "clients": list(clients), "chunks": 3},
            "propagation": {"hops": 1},
            "algorithm": "fedavg",
            "engine": {"backend": "local"},
        }
        return parse_config(plain, "two.yaml")

    return make


def test_clients_lie_within_a_graph_and_graphs_beside_them(make: Configure) -> None:
    config = make()
    store, graph = prepare(config), read_graph(config)
    records = [(d.name, d.nodes, d.clients) for d in store.manifest.domains]
    assert records == [("north", 30, [0, 2]), ("south", 21, [2, 1])]
    assert [[client for client in range(3) if client in d] for d in store.manifest.domains] == [[0, 1], [2]]
    for client, nodes in enumerate((range(10), range(10, 20), range(30, 37))):
        assert_holds(store, client, nodes, graph)
    whole = store.domain_graphs()
    assert_holds(whole, 0, range(30), graph)
    assert_holds(whole, 1, range(30, 51), graph)
    assert whole.manifest.hops.keys() == store.manifest.hops.keys()
    assert whole.manifest.domains == []


def test_a_graph_is_split_as_its_clients_are_and_the_rest_by_the_same_shares(make: Configure) -> None:
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
def test_a_given_split_holds_for_nodes_that_nobody_has(make: Configure, tmp_path: Path, kind: str) -> None:
    given = np.random.default_rng(1).integers(4, size=51).astype(np.int8)
    given[0] = 1
    np.save(tmp_path / "split.npy", given)
    paths = [user_graph(tmp_path, n, name, split=p) for (name, n), p in zip(SIZES.items(), np.split(given, [30]))]
    file = {"split_file": str(tmp_path / "split.npy")} if kind == "file" else {}
    config = make(split=kind, path=paths, fractions=[0.2, 0.4, 0.4], **file)
    whole = prepare(config).domain_graphs()
    for domain in range(2):
        shard = whole.shard(domain)
        found = to_codes(whole.split(config.data.split_name, domain), shard.nodes)
        np.testing.assert_array_equal(found, given[shard.node])


def test_a_lost_graph_is_made_again_and_nothing_else(make: Configure) -> None:
    path = prepare(make()).path
    files = times(path, "*.arrow")
    lost = path / DOMAINS / "clients" / "00001.arrow"
    content = lost.read_bytes()
    lost.unlink()
    prepare(make())
    assert lost.read_bytes() == content
    other = {str(lost.relative_to(path)): 0}
    assert {**times(path, "*.arrow"), **other} == {**files, **other}


def test_whole_graphs_are_made_for_runs_that_are_scored_on_them(make: Configure) -> None:
    scored = make()
    path = prepare(parse_config({**scored.plain(), "evaluation": {"domains": False}}, "two.yaml")).path
    assert not (path / DOMAINS).exists()
    files = times(path, "*.arrow")
    store = prepare(scored)
    assert store.domain_graphs().manifest.clients
    assert files.items() <= times(path, "*.arrow").items()
    assert unnamed_files(store) == []
    verify_folder(path)
    damaged = path / DOMAINS / "splits" / scored.data.split_name / "00000.arrow"
    flip(damaged, -20)
    with refused(says=str(damaged)):
        verify_folder(path)


def test_a_store_is_known_by_the_content_of_its_graphs(make: Configure, tmp_path: Path) -> None:
    path = store_path(make())
    assert path.name.startswith("north+south-index3-")
    assert store_path(make(clients=(1, 2))) != path
    assert store_path(make(partition={"method": "index", "clients": [2, 1], "chunks": 4})) != path
    assert store_path(make(path=list(make().data.path[::-1]))) != path
    (tmp_path / "else").mkdir()
    assert store_path(make(path=[user_graph(tmp_path / "else", nodes, name) for name, nodes in SIZES.items()])) == path


@pytest.mark.parametrize(
    ("change", "places", "says"),
    [
        ({"clients": (2, 1, 1)}, ["partition.clients"], "give a list of 2 numbers, found 3"),
        ({"partition": {"clients": 3}}, ["partition.clients"], "a list of 2 numbers, found one number, 3"),
        ({"clients": (2, 0)}, ["partition.domains.1"], ""),
        ({"partition": {"clients": ["a", 2]}}, ["partition"], "clients must be a number, or a list of one"),
        ({"partition": {"clients": 4, "domains": [2, 1]}}, ["partition"], "clients is 4, those of the domains are 3"),
        ({"dataset": "files", "path": "x.npz"}, ["partition.clients"], "a list is for a list of datasets"),
        ({"dataset": ["files"]}, ["data.dataset"], "at least 2 values"),
        ({"dataset": ["files", 3]}, ["data.dataset.1"], ""),
        ({"path": None}, ["data.path"], "has 2 graphs of your own (files), found 0 paths"),
        ({"dataset": ["files", "digits"]}, ["data.path"], "has 1 graphs"),
        ({"dataset": ["digits", "Digits"], "path": None}, ["data.dataset"], "'digits' is there twice"),
        ({"dataset": ["digits", "corra"], "path": None}, ["data.dataset"], "unknown dataset 'corra'"),
        (
            {"dataset": ["digits", "sbm"], "path": None, "partition": {"method": "random", "clients": [2000, 2]}},
            [],
            "partition.clients is 2000, but dataset 'digits' has 1797 nodes",
        ),
    ],
)
def test_impossible_domains_are_refused(make: Configure, change: dict[str, Any], places: list[str], says: str) -> None:
    with refused(*places, says=says):
        prepare(make(**change))


def test_graphs_of_two_widths_are_refused(make: Configure, tmp_path: Path) -> None:
    paths = [user_graph(tmp_path, 30, "north"), user_graph(tmp_path, 21, "wide", x=np.ones((21, 5)))]
    with refused(says="found widths north 4, wide 5"):
        prepare(make(path=paths))
