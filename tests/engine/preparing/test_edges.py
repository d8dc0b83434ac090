"""A graph of nodes becomes a store whose items are pairs: no shard, no hop has an edge that is held out."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.errors import refused
from support.fixtures import Configure
from support.shards import dense_hops
from support.small_pairs import COMPLETE, NO_EDGES, OF_CLIENT, ONE_EDGE, SHARES, Pair, edges_of, pairs_by_id, visible

from shoal.engine.config.config import Config
from shoal.engine.preparing.identity import identity, store_path
from shoal.engine.preparing.prepare import prepare
from shoal.engine.runs.verify import verify_folder
from shoal.engine.screen.tables import show_store
from shoal.storage.graph.pairs import EDGE, NO_EDGE
from shoal.storage.options.split_codes import TEST, TRAIN, VAL
from shoal.storage.shards.split import to_codes
from shoal.storage.store.store import WHOLE, Store

Items = dict[Pair, tuple[int, int]]
HOPS = "r0.5-k2-float32"


@pytest.fixture
def make(configure: Configure, edge_task: dict[str, Any], tmp_path: Path) -> Configure:
    def make(**keys: Any) -> Config:
        plain = {name.replace("__", "."): value for name, value in keys.items()}
        return configure({**edge_task, "data.store": None, "data.root": str(tmp_path), **plain})

    return make


def folder_of(config: Config) -> Path:
    return Path(str(config.data.path))


def items_of(store: Store, *clients: int) -> Items:
    shards = [store.shard(client) for client in clients or range(store.clients)]
    return {pair: what for shard in shards for pair, what in pairs_by_id(shard.node, shard.pairs).items()}


def hidden(items: Items) -> set[Pair]:
    return {pair for pair, (label, part) in items.items() if label == EDGE and part != TRAIN}


def test_every_edge_of_a_client_has_its_part(make: Configure) -> None:
    config = make()
    store = prepare(config)
    assignment = np.load(folder_of(config) / "assignment.npy")
    for client in range(store.clients):
        shard, record, items = store.shard(client), store.manifest.clients[client], items_of(store, client)
        edges = edges_of(folder_of(config), client)
        assert {pair for pair, (label, _) in items.items() if label == EDGE} == edges
        others = {pair for pair, (label, _) in items.items() if label == NO_EDGE}
        mine = [int(node) for node in np.flatnonzero(assignment == client)]
        assert others <= set(combinations(mine, 2)) - edges
        train, val = (int(share * len(edges) + 1e-9) for share in SHARES[:2])
        counts = [sum(items[pair][1] == code for pair in edges) for code in (TRAIN, VAL, TEST)]
        assert counts == [train, val, len(edges) - train - val]
        if client != COMPLETE:
            assert [sum(items[p][1] == code for p in others) for code in (TRAIN, VAL, TEST)] == counts
        assert visible(store, client) == edges - hidden(items)
        assert shard.pairs is not None
        code = to_codes(store.split(config.data.split_name, client), shard.items)
        assert code.tolist() == shard.pairs.part.tolist()
        assert (record.items, record.labelled) == (len(items), len(items))
        assert record.classes == [len(others), len(edges)]
    manifest = store.manifest
    by_client = {client: manifest.clients[client].classes for client in (COMPLETE, NO_EDGES, ONE_EDGE)}
    assert by_client == {COMPLETE: [0, 15], NO_EDGES: [0, 0], ONE_EDGE: [1, 1]}
    assert manifest.pairs == sum(client.items for client in manifest.clients)
    assert (manifest.task, manifest.item_name, manifest.classes) == ("edge", "pair", 2)


def test_hops_are_those_of_the_training_edges_alone(make: Configure) -> None:
    """By dense products; no other edge of a client may be changed, or even told, from its hops."""
    config = make(model__name="sgc")
    store = prepare(config)
    x = np.load(folder_of(config) / "x.npy")
    for client in range(store.clients):
        node = store.shard(client).node
        place = {int(number): row for row, number in enumerate(node)}
        edges = np.zeros((len(node), len(node)))
        for (a, b), what in items_of(store, client).items():
            if what == (EDGE, TRAIN):
                edges[place[a], place[b]] = edges[place[b], place[a]] = 1
        for found, hop in zip(store.hops(HOPS, client), dense_hops(edges, x[node])):
            np.testing.assert_allclose(found, hop, atol=1e-6)


def test_the_whole_graph_has_the_pairs_of_all_clients_and_hides_the_same_edges(make: Configure) -> None:
    config = make()
    whole, clients = prepare(config, centralized=True), prepare(config)
    assert whole.path.name == WHOLE
    wanted, every = items_of(clients), edges_of(folder_of(config))
    assert items_of(whole) == wanted
    assert hidden(wanted)
    assert visible(whole, 0) == every - hidden(wanted)
    assert not every <= set(wanted)
    shard = whole.shard(0)
    assert to_codes(whole.split(config.data.split_name, 0), shard.items).tolist() == shard.pairs.part.tolist()
    assert whole.manifest.pairs == clients.manifest.pairs
    verify_folder(clients.path)


@pytest.mark.usefixtures("unpacked")
def test_pairs_of_a_client_hang_on_no_other(make: Configure, tmp_path: Path) -> None:
    """Clients 0 and 1 alone, and the others put together, leave both as they were."""
    config = make()
    np.save(tmp_path / "fewer.npy", np.minimum(np.load(folder_of(config) / "assignment.npy"), 2))
    fewer = make(partition__file=str(tmp_path / "fewer.npy"), partition__clients=3)
    one, other, again = (prepare(each) for each in (config, fewer, make(data__split_seed=1)))
    for client in range(2):
        first, second, third = (store.path / f"clients/0000{client}.arrow" for store in (one, other, again))
        assert first.read_bytes() == second.read_bytes() != third.read_bytes()


def test_stores_of_nodes_and_of_other_shares_have_other_folders(make: Configure) -> None:
    configs = [make(), make(data__split_seed=1), make(data__fractions=[0.5, 0.2, 0.3]), make(task="node")]
    assert len({store_path(config) for config in configs}) == 4
    assert identity(configs[0])["edges"] == "stratified-40-30-30-seed0"
    # As it was before there were edge tasks.
    assert set(identity(configs[3])) == {"dataset", "partition"}
    of_nodes, other = (make(task="node", data__split_seed=seed) for seed in (0, 1))
    assert store_path(of_nodes) == store_path(other)
    store = prepare(of_nodes)
    assert "pairs" not in (store.path / "manifest.json").read_text()
    assert visible(store, COMPLETE) == edges_of(folder_of(of_nodes), COMPLETE)


@pytest.mark.parametrize("changed", [{"task": "node"}, {"data__split_seed": 1}])
def test_a_store_of_other_items_is_refused(make: Configure, tmp_path: Path, changed: dict[str, Any]) -> None:
    place = {"data__store": str(tmp_path / "store")}
    prepare(make(**place))
    with refused(tmp_path / "store", says="made from another dataset or partition: edges "):
        prepare(make(**place, **changed))


def test_domains(make: Configure, edge_task: dict[str, Any], tmp_path: Path) -> None:
    """Of three pieces of the second graph one is nobody's: its edges are seen, and are no items."""
    paths = [tmp_path / "north", tmp_path / "south"]
    for path in paths:
        path.mkdir()
        for file in Path(edge_task["data.path"]).glob("*.npy"):
            np.save(path / file.name, np.load(file))
    partition = {"partition__method": "index", "partition__clients": [3, 2], "partition__chunks": 3}
    store = prepare(make(data__dataset=["files", "files"], data__path=list(map(str, paths)), **partition))
    domains = store.domain_graphs()
    for number, clients in enumerate([range(3), range(3, 5)]):
        wanted = items_of(store, *clients)
        assert items_of(domains, number) == wanted
        every = {(a + 45 * number, b + 45 * number) for a, b in edges_of(paths[number])}
        assert visible(domains, number) == every - hidden(wanted)
    assert len(store.manifest.domains) == 2
    verify_folder(store.path)


@pytest.mark.parametrize(
    ("changed", "places", "says"),
    [
        ({"data__split": "per_client"}, ["data.split"], "per_client divides nodes"),
        ({"data__split": "public", "data__fractions": [0.2, 0.4, 0.4]}, ["data.split"], "public divides nodes"),
        ({"propagation__rows": "labelled"}, ["propagation.rows"], "with task edge set all"),
        ({"data__dataset": "nci1", "data__path": None}, ["task"], "'nci1' are those of graphs; set graph"),
        ({"partition__clients": 50, "partition__method": "random"}, [], "'files' has 45 nodes: choose from 1 to 45"),
        *(({"data__sparsity": {name: 0.5}}, ["data.sparsity"], "") for name in ("features", "edges", "labels")),
    ],
)
def test_impossible_pairs_are_refused(make: Configure, changed: dict[str, Any], places: list[str], says: str) -> None:
    with refused(*places, says=says):
        prepare(make(**changed))


def test_prepare_and_inspect_speak_of_pairs(make: Configure, capsys: pytest.CaptureFixture[str]) -> None:
    store = prepare(make())
    assert "test pairs" in " ".join(capsys.readouterr().err.split())
    show_store(store.path, store.manifest)
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"{store.manifest.pairs} pairs, {sum(OF_CLIENT)} nodes" in shown
    assert f"{store.manifest.pairs} labelled pairs, 0 to" in shown
    assert "for training, those held out not counted" in shown
