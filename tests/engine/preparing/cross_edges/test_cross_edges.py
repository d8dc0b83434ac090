"""Edges between clients, and hops over them, against a dense computation in float64 on the whole graph."""

import signal
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from integration.runs import ROUNDS, assert_same_numbers
from support.errors import refused
from support.forked import start
from support.shards import flip
from typer.testing import CliRunner

from shoal.cli.cli import app
from shoal.engine.config.config import Config, parse_config
from shoal.engine.config.sizes import size
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.checks import read_graph
from shoal.engine.preparing.cross_edges import cross_edges
from shoal.engine.preparing.cross_edges.cross_edges import exchange_bytes
from shoal.engine.preparing.prepare import prepare
from shoal.engine.runs.dry_run import expected
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import run
from shoal.storage.errors import ShoalError
from shoal.storage.graph.edges.cross_edges import boundaries, cross_hop
from shoal.storage.options.propagation import CrossEdges, propagation_of
from shoal.storage.store.store import Store, boundary_path
from shoal.storage.store.verify import unnamed_files, verify

Make = Callable[..., Config]
NODES = 400


def adjacency(config: Config) -> np.ndarray:
    """The whole graph, bool `[N, N]`."""
    graph = read_graph(config)
    found = np.zeros((NODES, NODES), dtype=bool)
    found[np.repeat(np.arange(NODES), np.diff(graph.indptr)), graph.indices] = True
    return found


def of_nodes(store: Store, name: str) -> list[np.ndarray]:
    """Features and hops of all nodes, by global number."""
    clients = [(store.shard(client), store.hops(name, client)) for client in range(store.clients)]
    order = np.argsort(np.concatenate([shard.node for shard, _ in clients]))
    columns = zip(*([shard.x, *hops] for shard, hops in clients))
    return [np.concatenate(column)[order] for column in columns]


def cross(store: Store, name: str) -> np.ndarray:
    """Which edges between clients a choice keeps, from row to column, bool `[N, N]`."""
    found = np.zeros((NODES, NODES), dtype=bool)
    nodes = [store.shard(client).node for client in range(store.clients)]
    for client in range(store.clients):
        edges = store.boundary(name, client)
        theirs = np.array([nodes[c][row] for c, row in zip(edges.client, edges.other)], dtype=np.int64)
        found[nodes[client][edges.row], theirs] = True
    return found


def one_hop(edges: np.ndarray, x: np.ndarray, r: float) -> np.ndarray:
    with_loops = edges.astype(np.float64) + np.eye(len(edges))
    degree = with_loops.sum(1)
    return np.diag(degree ** (r - 1)) @ with_loops @ np.diag(degree**-r) @ x.astype(np.float64)


def assert_rounded(found: np.ndarray, exact: np.ndarray) -> None:
    """Rounded once: only halves between two numbers may go either way, by the order of a sum in float64."""
    expected = exact.astype(found.dtype)
    np.testing.assert_allclose(found, expected, rtol=np.finfo(found.dtype).eps, atol=1e-9)
    assert (found == expected).mean() > 0.99


@pytest.mark.parametrize(("edges", "model", "hops"), [("hops", "sgc", 2), ("one_hop", "gcn", 1)])
def test_hops_weigh_edges(
    configure: Any, weighted: dict[str, Any], tmp_path: Path, edges: str, model: str, hops: int
) -> None:
    places = {**weighted, "data.store": str(tmp_path / "store")}
    config = configure({**places, "data.cross_edges": edges, "model.name": model, "propagation.hops": hops})
    store, name = prepare(config), config.kernel().name
    source, target = np.load(Path(weighted["data.path"]) / "edge_index.npy")
    x = np.load(Path(weighted["data.path"]) / "x.npy")
    whole = np.zeros((len(x), len(x)), dtype=np.float32)
    whole[source, target] = whole[target, source] = np.load(Path(weighted["data.path"]) / "edge_weight.npy")
    np.fill_diagonal(whole, 0)
    own = np.load(store.path / "assignment.npy")
    for client in range(store.clients):
        boundary, node = store.boundary(config.kernel().cross.name, client), store.shard(client).node
        assert boundary.weight is not None
        found = np.zeros_like(whole)
        others = [store.shard(c).node[row] for c, row in zip(boundary.client, boundary.other)]
        found[node[boundary.row], others] = boundary.weight
        np.testing.assert_array_equal(found, np.where((own[:, None] == client) & (own != client), whole, 0))
    before, *all_hops = of_nodes(store, name)
    assert len(all_hops) == hops
    for hop in all_hops:
        assert_rounded(hop, one_hop(whole, before, 0.5))
        before = hop
    assert (verify(store), unnamed_files(store)) == ([], [])
    exchanged = exchange_bytes(store, config.kernel())
    sums = store.manifest.boundaries[config.kernel().cross.name].counts[:, 1].sum()
    assert exchanged == 8 * hops * x.shape[1] * sums


@pytest.mark.parametrize("several", [1, 2])
@pytest.mark.parametrize(("dtype", "r"), [("float32", 0.5), ("float16", 0.0)])
def test_hops_are_those_of_the_whole_graph(
    make_config: Make, monkeypatch: pytest.MonkeyPatch, several: int, dtype: str, r: float
) -> None:
    monkeypatch.setattr("shoal.storage.store.client_table.MOST_IN_A_PACK", several)
    config = make_config(data__cross_edges="hops", propagation__dtype=dtype, propagation__r=r)
    store, whole = prepare(config), adjacency(config)
    name = config.kernel().name
    assert propagation_of(name) == config.kernel()
    x, *hops = of_nodes(store, name)
    for before, hop in zip([x, *hops], hops):
        assert_rounded(hop, one_hop(whole, before, r))
    own = np.load(store.path / "assignment.npy")
    cut = whole & (own[:, None] != own)
    assert cut.any()
    np.testing.assert_array_equal(cross(store, config.kernel().cross.name), cut)
    counts = store.manifest.boundaries[config.kernel().cross.name].counts
    sums = np.stack([cut[:, own == client].sum(1) for client in range(5)], axis=1)
    label = read_graph(config).y
    same = cut & (label[:, None] == label)
    expected = [
        [
            cut[own == c].sum(),
            (sums[own == c] > 0).sum(),
            (sums[own == c] == 1).sum(),
            cut[own == c].sum(),
            same[own == c].sum(),
        ]
        for c in range(5)
    ]
    np.testing.assert_array_equal(counts, expected)
    assert (verify(store), unnamed_files(store)) == ([], [])
    mine = whole & (own[:, None] == own)
    for found, edges in zip(cross_edges.class_pairs(store, config.kernel().cross.name), (mine, cut)):
        pairs = [[edges[np.ix_(label == a, label == b)].sum() for b in range(len(found))] for a in range(len(found))]
        np.testing.assert_array_equal(found, pairs)
    # Hops along clients' own edges stay what they were.
    plain = prepare(make_config(propagation__dtype=dtype, propagation__r=r))
    assert set(plain.manifest.hops) == {name, name.partition("-cross")[0]}


def test_a_share_of_the_edges_and_sums_over_too_few(make_config: Make) -> None:
    def shown(store: Store) -> str:
        return " ".join(CliRunner().invoke(app, ["inspect", str(store.path)]).output.replace("│", " ").split())

    def kept(**keys: Any) -> tuple[np.ndarray, np.ndarray, Store, str]:
        config = make_config(data__cross_edges="hops", **{f"data__cross_{key}": value for key, value in keys.items()})
        store, kernel = prepare(config), config.kernel()
        edges = cross(store, kernel.cross.name)
        own = np.load(store.path / "assignment.npy")
        inside = adjacency(config) & (own[:, None] == own)
        x, *hops = of_nodes(store, kernel.name)
        assert_rounded(hops[0], one_hop(inside | edges, x, 0.5))
        return edges, own, store, kernel.name

    all_of_them, own, whole, _ = kept()
    assert f"{all_of_them.sum() // 2:,} undirected" in shown(whole)
    few, more = (kept(share=share)[0] for share in (0.3, 0.7))
    for edges, share in ((few, 0.3), (more, 0.7)):
        assert (edges == edges.T).all()
        assert not (edges & ~all_of_them).any()
        assert abs(edges.sum() / all_of_them.sum() - share) < 0.1
    assert not (few & ~more).any()
    assert (kept(share=0.3, seed=1)[0] != few).any()
    none, _, without, _ = kept(min_neighbours=NODES)
    assert not none.any()
    assert "none is kept: hops run over clients' own edges" in shown(without)
    two, _, some, _ = kept(min_neighbours=2)
    assert (two != two.T).any()
    assert f"{two.sum():,} directed" in shown(some)
    sums = np.stack([all_of_them[:, own == client].sum(1) for client in range(5)], axis=1)
    np.testing.assert_array_equal(two, all_of_them & (sums[:, own] >= 2))
    # Where a client reads the sum over all others, their neighbours are counted together.
    hidden, _, in_all, _ = kept(min_neighbours=2, hidden=True)
    np.testing.assert_array_equal(hidden, all_of_them & (sums.sum(1, keepdims=True) >= 2))
    record = in_all.manifest.boundaries["share1.0-seed0-min2-hidden"]
    counted = [int((hidden.any(1) & (own == client)).sum()) for client in range(5)]
    assert record.counts[:, 1].tolist() == counted
    assert not record.counts[:, 2].any()
    assert hidden.sum() > two.sum()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 30), st.integers(1, 5), st.floats(0, 1), st.booleans())
def test_any_graph_and_any_clients(seed: int, nodes: int, clients: int, r: float, weighted: bool) -> None:
    """Clients without nodes, nodes without a client and isolated nodes among them; in float64 to rounding."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((nodes, nodes)) < rng.random(), 1)
    edges, own = upper | upper.T, rng.integers(-1, clients, nodes).astype(np.int32)
    drawn = np.triu(rng.uniform(0.05, 4, edges.shape) if weighted else np.ones(edges.shape)).astype(np.float32)
    weights = edges * (drawn + drawn.T)
    csr = np.concatenate([[0], edges.sum(1).cumsum()]), np.nonzero(edges)[1].astype(np.int32)
    entries = weights[edges] if weighted else None
    members = [np.flatnonzero(own == client) for client in range(clients)]
    row_of = np.full(nodes, -1, dtype=np.int32)
    for each in members:
        row_of[each] = np.arange(len(each))
    cut = np.array([edges[own == client].sum() for client in range(clients)])
    asked = list(range(clients))
    found = list(boundaries((*csr, entries), own, row_of, cut, asked, CrossEdges()))
    seen = (weights * ((own >= 0) & (own >= 0)[:, None])).astype(np.float64)
    degree = 1.0 + seen.sum(1)
    x = rng.standard_normal((nodes, 3)).astype(np.float32)
    expected = (degree ** (r - 1))[:, None] * ((seen + np.eye(nodes)) @ ((degree**-r)[:, None] * x))
    for client, boundary in enumerate(found):
        mine = members[client]
        theirs = np.array([members[c][row] for c, row in zip(boundary.client, boundary.other)], dtype=np.int64)
        of_own = edges[np.ix_(mine, mine)]
        own_csr = np.concatenate([[0], of_own.sum(1).cumsum()]).astype(np.int32), np.nonzero(of_own)[1].astype(np.int32)
        pointer, place = np.searchsorted(boundary.row, np.arange(len(mine) + 1)), len(mine) + np.arange(len(theirs))
        both = np.concatenate([mine, theirs])
        scalings = degree[both] ** -r, degree[mine] ** (r - 1)
        of_edges = (weights[np.ix_(mine, mine)][of_own], boundary.weight) if weighted else (None, None)
        hop, peak = cross_hop(own_csr, (pointer, place), x[both], scalings, "float64", of_edges)
        np.testing.assert_allclose(hop, expected[mine], rtol=1e-12, atol=1e-12)
        assert peak == np.abs(hop).max(initial=0)


def test_an_interrupted_exchange_goes_on(make_config: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = make_config(data__cross_edges="hops")
    whole = prepare(replace_store(config, tmp_path / "other"))
    plain, calls, failed = cross_edges.write_hop, list[int](), list[int]()

    def interrupted(given: Any, clients: Any) -> Any:
        calls.append(given[1])
        if calls[-1] == 2 and not failed:
            failed.append(2)
            raise OSError("cut off")
        yield from plain(given, clients)

    monkeypatch.setattr(cross_edges, "write_hop", interrupted)
    with pytest.raises(OSError, match="cut off"):
        prepare(config)
    del calls[:]
    store = prepare(config)
    assert set(calls) == {2}
    assert store.manifest.hops == whole.manifest.hops
    assert store.manifest.boundaries == whole.manifest.boundaries
    assert not list(store.path.rglob("*scratch*"))


# A prepare that kills itself after some results of one function: with a hop, of those of that hop.
KILLED = """
import os, signal, sys
from shoal.cli.main import main
from shoal.engine.preparing.cross_edges import cross_edges

name, hop, left = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
plain = getattr(cross_edges, name)

def killed(given, several):
    global left
    for found in plain(given, several):
        left -= hop < 0 or given[1] == hop
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        yield found

setattr(cross_edges, name, killed)
sys.argv[1:] = ["prepare", sys.argv[4]]
main()
"""


@pytest.mark.slow
def test_a_prepare_killed_in_each_exchange_makes_the_same_files(plain: Any, tmp_path: Path) -> None:
    """SIGKILL among edges between clients, features, each hop's sums, and the files of hops; each time it goes on."""
    values = plain(data__cross_edges="hops", propagation__hops=2, data__store=str(tmp_path / "killed"))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    kills = [("write_boundaries", -1, 1), *(("write_hop", hop, 3) for hop in range(3)), ("write_cross_hops", -1, 1)]
    for name, hop, left in kills:
        process = start(KILLED, name, hop, left, tmp_path / "config.yaml", printed=tmp_path / "printed")
        process.join(60)
        assert process.exitcode == -signal.SIGKILL, (tmp_path / "printed").read_text()
        unfinished = {path.name for path in (tmp_path / "killed").rglob("unfinished-*.npy")}
        assert unfinished == ({f"unfinished-hop{hop}.npy"} if hop >= 0 else set())
    config = parse_config(values, "test")
    stores = prepare(config), prepare(replace_store(config, tmp_path / "calm"))
    files = [{path.relative_to(s.path): path.read_bytes() for path in s.path.rglob("*.arrow")} for s in stores]
    assert {path.parts[0] for path in files[0]} >= {"boundaries", "hops"}
    assert files[0] == files[1]
    assert not list(stores[0].path.rglob("*scratch*"))
    assert (verify(stores[0]), unnamed_files(stores[0])) == ([], [])


@pytest.mark.slow
@pytest.mark.parametrize(("edges", "model"), [("hops", "sgc"), ("two_hop", "gcn")])
def test_two_hosts_give_the_bits_of_one_process(
    configure: Any, weighted: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, edges: str, model: str
) -> None:
    """The exchange as tasks of Ray, and rounds on what it made, by weights of edges."""
    monkeypatch.setattr("shoal.engine.preparing.prepare.TO_START", 0)
    folders, files = [], []
    for name, engine in (("here", {}), ("there", {"engine.backend": "ray", "engine.hosts": 2})):
        keys = {"data.store": str(tmp_path / name), "run.root": str(tmp_path / f"{name}-runs"), **engine}
        config = configure({**weighted, "data.cross_edges": edges, "model.name": model, **keys})
        folders.append(run(config.model_copy(update={"rounds": ROUNDS})))
        paths = sorted((tmp_path / name).rglob("*.arrow"))
        files.append({str(path.relative_to(tmp_path / name)): path.read_bytes() for path in paths})
    assert {Path(path).parts[0] for path in files[0]} >= {"boundaries", "hops"}
    assert files[0] == files[1]
    assert_same_numbers(*folders)


def replace_store(config: Config, path: Path) -> Config:
    return config.model_copy(update={"data": replace(config.data, store=str(path))})


def test_damaged_edges_are_found(make_config: Make) -> None:
    config = make_config(data__cross_edges="hops")
    store, name = prepare(config), config.kernel().cross.name
    path = store.path / boundary_path(name, range(5))
    flip(path, path.stat().st_size // 2)
    assert verify(store)
    with refused(path, "client 2", says="checksum does not match"):
        [Store(store.path).boundary(name, client) for client in range(5)]


def test_one_step_of_fedavg_is_one_of_centralised_training(make_config: Make, start: Any) -> None:
    """With the hops of the whole graph, weights by training nodes, and one step of plain SGD over all of them."""
    keys = {"data.cross_edges": "hops", "model.name": "sgc", "train.epochs": 1, "train.optimizer": "sgd"}
    keys |= {"train.lr": 0.5, "train.weight_decay": 0.0, "data.store": str(make_config().data.store)}
    ends = []
    for method, edges in (("fedavg", "hops"), ("global", "drop")):
        server = start({**keys, "data.cross_edges": edges, "algorithm.name": method})
        for _ in range(3):
            server.round()
        ends.append(server.state.server["w"] if method == "fedavg" else server.state.clients[0]["model.w"])
    np.testing.assert_allclose(*ends, rtol=2e-5, atol=2e-6)


def test_inspect_shows_the_clients_and_classes_of_cut_edges(make_config: Make) -> None:
    config = make_config(data__cross_edges="hops")
    store, whole = prepare(config), adjacency(config)
    own, label = np.load(store.path / "assignment.npy"), read_graph(config).y
    inside, same = own[:, None] == own, label[:, None] == label
    lost = [100 * (whole & ~inside)[own == client].sum() / whole[own == client].sum() for client in range(5)]
    worst = int(np.argmax(lost))
    result = CliRunner().invoke(app, ["inspect", str(store.path), "--edges"])
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.replace("│", " ").split())
    assert f"of the edges of hops {lost[worst]:.1f} % of client {worst}'s" in text
    of_one = [100 * (whole & which & same).sum() / (whole & which).sum() for which in (~inside, inside)]
    assert f"of one class {of_one[0]:.2f} {of_one[1]:.2f}" in text
    joined = {
        (a, b): 200 * (whole & ~inside)[np.ix_(label == a, label == b)].sum() / (whole & ~inside).sum()
        for a, b in combinations(range(label.max() + 1), 2)
    }
    (a, b), share = max(joined.items(), key=lambda pair: pair[1])
    assert f"{a} and {b} {share:.2f}" in text
    plain = prepare(make_config(data__store=str(store.path.with_name("plain"))))
    refusal = CliRunner().invoke(app, ["inspect", str(plain.path), "--edges"])
    assert isinstance(refusal.exception, ShoalError)
    assert refusal.exception.places == ("--edges",)


def test_dry_run_counts_the_scratch_files(make_config: Make) -> None:
    config = make_config(data__cross_edges="hops")
    features, hops = read_graph(config).features, config.propagation.hops
    scratch = f"{size(4 * NODES * (features * (hops + 1) + 1))} beside it while hops run"
    assert scratch in expected(RunPlan.of(config)).rows["disk"]
    prepare(make_config())
    assert scratch in expected(RunPlan.of(config)).rows["disk"]
    prepare(config)
    assert "beside it" not in expected(RunPlan.of(config)).rows["disk"]


def test_what_cannot_be_is_refused(make_config: Make) -> None:
    config = make_config(data__cross_edges="hops")
    store = prepare(config)
    assert make_job(config, store, "test").propagation == config.kernel().name
    with refused(store.path, says="no edges between clients 'share1.0-seed3-min1'"):
        store.boundary("share1.0-seed3-min1", 0)
