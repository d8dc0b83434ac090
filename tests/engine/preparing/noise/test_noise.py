"""Noise in stores, against plain NumPy and SplitMix64 in Python's integers; and what training sees of it."""

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from support.errors import refused
from support.fixtures import Configure
from support.needs import has_keys, needs
from support.shards import adjacency, dense
from support.small_runs import run_small, small_run
from support.user_graph import sparse_features, user_graph

from shoal.engine.config.config import Config, parse_config
from shoal.engine.preparing.identity import identity, store_path
from shoal.engine.preparing.noise.noise import deviations, draw_pairs, spread
from shoal.engine.preparing.prepare import prepare
from shoal.engine.runs.dry_run import show_plan
from shoal.engine.runs.export import export
from shoal.engine.screen.tables import console, show_store
from shoal.storage.store.store import Store
from shoal.storage.store.verify import verify

NODES, CLIENTS = 240, 4
MASK = 2**64 - 1


@pytest.fixture
def make(make_config: Configure, tmp_path: Path) -> Configure:
    """A config of a graph of 240 nodes on four clients, in the folder that its name is made of."""
    x = np.random.default_rng(5).standard_normal((NODES, 6)).astype(np.float32) * np.array([1, 5, 0.1, 2, 0, 3]) + 4
    path = user_graph(tmp_path, NODES, x=x.astype(np.float32))
    np.save(tmp_path / "client.npy", np.arange(NODES) * 7 % CLIENTS)
    own = {"data__dataset": "files", "data__path": path, "data__options": {}, "data__store": None}
    partition = {"partition__method": "file", "partition__file": str(tmp_path / "client.npy")}
    common = {**own, **partition, "partition__clients": CLIENTS, "engine__backend": "local"}
    return lambda **changes: make_config(**{**common, **changes})


def with_noise(make: Configure, **noise: Any) -> Config:
    return make(data__noise=noise)


def edges_of(store: Store, client: int) -> set[tuple[int, int]]:
    """Undirected edges of a client by global ids, which it has both ways."""
    shard = store.shard(client)
    a, b = (shard.node[rows] for rows in adjacency(shard).nonzero())
    pairs = set(zip(a.tolist(), b.tolist(), strict=True))
    assert pairs == {(v, u) for u, v in pairs}
    return {(u, v) for u, v in pairs if u < v}


def features_of(store: Store) -> np.ndarray:
    found = np.full((store.manifest.nodes, store.manifest.features), np.nan, dtype=np.float32)
    for shard in map(store.shard, range(store.clients)):
        found[shard.node] = dense(shard.x)
    return found


def bits_at(key: int, position: int) -> int:
    """SplitMix64 at a position (Steele, Lea and Flood, 2014)."""
    z = (key + (position + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def key_of(seed: int, purpose: str) -> int:
    return bits_at(bits_at(seed, 0), int.from_bytes(purpose.encode().ljust(8, b"\0")[:8], "little"))


def unit_normal(key: int, position: int) -> float:
    words = [bits_at(key, 2 * position), bits_at(key, 2 * position + 1)]
    uniform = [word >> shift & 0xFFFF for word in words for shift in (0, 16, 32, 48)]
    return (sum(uniform) - 8 * 65535 / 2) / (8 * (2**32 - 1) / 12) ** 0.5


def strengths(low: float, high: float, seed: int, kind: int) -> list[float]:
    drawn = [bits_at(key_of(seed, "order"), kind * 2**32 + client) for client in range(CLIENTS)]
    return [low + (high - low) * sorted(drawn).index(bits) / (CLIENTS - 1) for bits in drawn]


def test_features_get_noise_in_their_own_deviations(make: Configure) -> None:
    before, store = prepare(make()), prepare(with_noise(make, features=[0.2, 2.0], seed=3))
    x, noisy = features_of(before), features_of(store)
    deviation = x.astype(np.float64).std(0)
    of_client = strengths(0.2, 2.0, 3, 0)
    key = key_of(3, "noise-x")
    for client in range(CLIENTS):
        node = store.shard(client).node
        expected = [
            [unit_normal(key, int(v) * 6 + f) * of_client[client] * deviation[f] for f in range(6)] for v in node
        ]
        np.testing.assert_allclose(noisy[node] - x[node], expected, atol=2e-5 * deviation.max())
    assert (noisy[:, 4] == x[:, 4]).all()
    whole = prepare(with_noise(make, features=[0.2, 2.0], seed=3), centralized=True)
    np.testing.assert_array_equal(features_of(whole), noisy)
    assert verify(store) == verify(whole) == []


def test_what_is_added_is_nearly_normal(make: Configure) -> None:
    from scipy.stats import kstest

    x, noisy = features_of(prepare(make())), features_of(prepare(with_noise(make, features=1.0)))
    scaled = ((noisy - x) / np.where(x.std(0) > 0, x.std(0), 1))[:, [0, 1, 2, 3, 5]].ravel()
    assert kstest(scaled, "norm").pvalue > 0.01
    assert abs(np.corrcoef(scaled[:-1], scaled[1:])[0, 1]) < 0.1


@pytest.mark.parametrize("kind", ["array", "map", "sparse"])
def test_deviations_are_those_of_numpy(tmp_path: Path, kind: str) -> None:
    import scipy.sparse as sp

    x = (sparse_features(500, 7, 0.3) * [1, 2, 3, 4, 5, 0, 7]).astype(np.float32)
    x[:, 3] += 0 if kind == "sparse" else 1e4
    np.save(tmp_path / "x.npy", x)
    given = {"array": x, "map": np.load(tmp_path / "x.npy", mmap_mode="r"), "sparse": sp.csr_array(x)}[kind]
    np.testing.assert_allclose(deviations(given), x.astype(np.float64).std(0), rtol=1e-5)


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_features_are_masked_by_client(make: Configure, tmp_path: Path, layout: str) -> None:
    path = user_graph(tmp_path, NODES, name="words", x=sparse_features(NODES, 30, 0.3))
    own = {"data__path": path, "data__layout": layout}
    config = make(**own, data__noise={"masked": [0.0, 0.6]})
    before, store, whole = prepare(make(**own)), prepare(config), prepare(config, centralized=True)
    x, left = features_of(before), features_of(store)
    assert ((left == x) | (left == 0)).all()
    np.testing.assert_array_equal(features_of(whole), left)
    for client, strength in enumerate(strengths(0.0, 0.6, 0, 1)):
        node = store.shard(client).node
        lost = 1 - np.count_nonzero(left[node]) / np.count_nonzero(x[node])
        assert lost == pytest.approx(strength, abs=0.08)
    assert verify(store) == verify(whole) == []


def test_edges_are_removed_and_added_inside_clients(make: Configure) -> None:
    config = with_noise(make, edges_removed=[0.1, 0.7], edges_added=[0.2, 0.5], seed=1)
    before, store, whole = prepare(make()), prepare(config), prepare(config, centralized=True)
    inside: set[tuple[int, int]] = set()
    for client in range(CLIENTS):
        old, new = edges_of(before, client), edges_of(store, client)
        added = new - old
        assert len(added) == int(strengths(0.2, 0.5, 1, 4)[client] * len(old) + 1e-9) > 0
        removed = 1 - len(new & old) / len(old)
        assert removed == pytest.approx(strengths(0.1, 0.7, 1, 3)[client], abs=0.15)
        inside |= new
    owner = {int(v): client for client in range(CLIENTS) for v in store.shard(client).node}
    clean = edges_of(prepare(make(), centralized=True), 0)
    across = {(u, v) for u, v in clean if owner[u] != owner[v]}
    assert edges_of(whole, 0) == inside | across
    assert verify(store) == verify(whole) == []


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4), share=st.floats(0, 1), seed=st.integers(0, 50))
def test_pairs_are_free_different_and_of_one_graph(sizes: list[int], share: float, seed: int) -> None:
    graph = np.repeat(np.arange(len(sizes)), sizes)
    every = [(i, j) for i, j in combinations(range(len(graph)), 2) if graph[i] == graph[j]]
    rng = np.random.default_rng(seed)
    edges = [pair for pair in every if rng.random() < 0.5]
    pairs = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    a, b = draw_pairs(len(graph), pairs, graph, share, rng)
    drawn = list(zip(a.tolist(), b.tolist(), strict=True))
    assert len(set(drawn)) == len(drawn) == min(int(share * len(edges) + 1e-9), len(every) - len(edges))
    assert set(drawn) <= set(every) - set(edges)


def test_any_free_pair_is_added_with_the_same_chance() -> None:
    from scipy.stats import chisquare

    pairs = np.array([[0, 1, 2, 0], [1, 2, 3, 4]])
    counts: dict[tuple[int, int], int] = {}
    for seed in range(6000):
        a, b = draw_pairs(6, pairs, None, 0.5, np.random.default_rng([seed, 1]))
        for pair in zip(a.tolist(), b.tolist(), strict=True):
            counts[pair] = counts.get(pair, 0) + 1
    assert len(counts) == 15 - 4
    assert chisquare(list(counts.values())).pvalue > 0.01


def test_a_large_graph_has_pairs_everywhere() -> None:
    nodes = 3_000_000
    edges = np.stack([np.arange(nodes - 1), np.arange(1, nodes)])[:, :20_000]
    a, b = draw_pairs(nodes, edges, None, 1.0, np.random.default_rng(0))
    assert len(a) == 20_000
    assert ((a < b) & (b < nodes) & (a >= 0)).all()
    assert a.mean() == pytest.approx(nodes / 3, rel=0.03)
    assert b.mean() == pytest.approx(2 * nodes / 3, rel=0.03)


def test_training_labels_alone_are_flipped(make: Configure) -> None:
    config = with_noise(make, labels=[0.1, 0.8], seed=2)
    before, store, whole = prepare(make()), prepare(config), prepare(config, centralized=True)
    assert store.path == before.path
    name, plain = config.data.split_name, make().data.split_name
    assert name == f"{plain}-noise10to80-seed2"
    seen: dict[int, int] = {}
    for client, strength in enumerate(strengths(0.1, 0.8, 2, 2)):
        shard, split = store.shard(client), store.split(name, client)
        trained, _, _ = store.data(name, None, client)
        for part in ("train", "val", "test"):
            np.testing.assert_array_equal(getattr(split, part), getattr(store.split(plain, client), part))
        differs = trained.label != shard.label
        assert set(np.flatnonzero(differs)) <= set(split.train.tolist())
        assert differs.sum() == int(strength * len(split.train) + 1e-9) > 0
        assert ((trained.label >= 0) & (trained.label < 3)).all()
        seen |= dict(zip(shard.node[split.train].tolist(), trained.label[split.train].tolist(), strict=True))
    of_whole, rows, _ = whole.data(name, None, 0)
    assert dict(zip(of_whole.node[rows.train].tolist(), of_whole.label[rows.train].tolist(), strict=True)) == seen
    rest = np.setdiff1d(np.arange(NODES), rows.train)
    np.testing.assert_array_equal(of_whole.label[rest], whole.shard(0).label[rest])
    assert verify(store) == verify(whole) == []


def test_other_classes_have_the_same_chance(make: Configure, tmp_path: Path) -> None:
    from scipy.stats import chisquare

    y = np.zeros(NODES, dtype=np.int64)
    y[:10] = np.arange(10) % 5
    path = user_graph(tmp_path, NODES, name="zeros", y=y)
    config = make(data__path=path, data__split="per_client", data__fractions=(0.9, 0.0, 0.1), data__noise={"labels": 1})
    store = prepare(config)
    labels = np.concatenate([store.split(config.data.split_name, client).train_label for client in range(CLIENTS)])
    counts = np.bincount(labels, minlength=5)
    assert counts[0] < 10
    assert chisquare(counts[1:]).pvalue > 0.01


def test_training_is_that_on_a_graph_with_these_labels(tmp_path: Path) -> None:
    """A run with noise has the bits of one whose data has the noisy labels; scores are those of the true ones."""
    rng = np.random.default_rng(0)
    y, client = rng.integers(3, size=NODES), np.arange(NODES) % CLIENTS
    np.save(tmp_path / "client.npy", client)
    np.save(tmp_path / "part.npy", np.arange(NODES) // CLIENTS % 3 + 1)
    data = {"dataset": "files", "options": {}, "split": "file", "split_file": str(tmp_path / "part.npy")}
    partition = {"method": "file", "file": str(tmp_path / "client.npy"), "clients": CLIENTS}

    def run_on(name: str, y: np.ndarray, model: str, **noise: Any) -> tuple[Path, Config]:
        path = user_graph(tmp_path, NODES, name=name, y=y)
        changes = {"data": {**data, "path": path, **noise}, "partition": partition, "model": {"name": model}}
        return run_small(tmp_path, **changes), parse_config(small_run(tmp_path, **changes), "x")

    for model in ("sgc", "gcn"):
        run, config = run_on("true", y, model, noise={"labels": [0.2, 0.9]})
        store, seen = Store(store_path(config)), y.copy()
        for number in range(CLIENTS):
            split = store.split(config.data.split_name, number)
            seen[store.shard(number).node[split.train]] = split.train_label
        assert (seen != y).sum() > 20
        other, _ = run_on("noisy", seen, model)
        lines, others = (
            [json.loads(line) for line in (r / "metrics.jsonl").read_text().splitlines()] for r in (run, other)
        )
        for line, same in zip(lines, others, strict=True):
            assert line["loss"] == same["loss"]
            assert line["scopes"] == same["scopes"]
        models = [load_file(export(r) / "models.safetensors") for r in (run, other)]
        assert models[0].keys() == models[1].keys()
        for key in models[0]:
            np.testing.assert_array_equal(models[0][key], models[1][key])


def test_replaced_test_labels_leave_noise_and_training_as_they_are(tmp_path: Path) -> None:
    np.save(tmp_path / "client.npy", np.arange(NODES) % CLIENTS)
    np.save(tmp_path / "part.npy", part := np.arange(NODES) // CLIENTS % 3 + 1)
    y = np.random.default_rng(0).integers(3, size=NODES)
    exported = []
    for name, labels in (("true", y), ("other", np.where(part == 1, y, (y + 1) % 3))):
        data = {"dataset": "files", "options": {}, "path": user_graph(tmp_path, NODES, name=name, y=labels)}
        data |= {"split": "file", "split_file": str(tmp_path / "part.npy"), "noise": {"labels": 0.5, "features": 1.0}}
        partition = {"method": "file", "file": str(tmp_path / "client.npy"), "clients": CLIENTS}
        exported.append(load_file(export(run_small(tmp_path, data=data, partition=partition)) / "models.safetensors"))
    for key in exported[0]:
        np.testing.assert_array_equal(exported[0][key], exported[1][key])


def test_training_nodes_alone_have_the_same_noise(make: Configure) -> None:
    noise = {"labels": 0.5, "features": 0.7, "edges_added": 0.5}
    config = make(data__inductive=True, data__noise=noise)
    store = prepare(config)
    training = store.training(config.data.split_name)
    for client in range(CLIENTS):
        shard, split, _ = store.data(config.data.split_name, None, client)
        seen, _, _ = training.data(config.data.split_name, None, client)
        row = {int(v): r for r, v in enumerate(shard.node)}
        rows = [row[int(v)] for v in seen.node]
        assert sorted(rows) == split.train.tolist()
        np.testing.assert_array_equal(seen.label, shard.label[rows])
        np.testing.assert_array_equal(dense(seen.x), dense(shard.x)[rows])
        np.testing.assert_array_equal(adjacency(seen).toarray(), adjacency(shard).toarray()[np.ix_(rows, rows)])


def test_graphs_get_edges_inside_themselves_and_labels_of_graphs(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "task": "graph",
        "data": {"dataset": "sbm-graphs", "options": {"graphs": 80, "features": 4}, "split": "per_client"},
        "partition": {"method": "random"},
        "model": {"name": "gin", "hidden": 4},
    }
    plain = parse_config(small_run(tmp_path, **changes), "plain")
    changes["data"] |= {"noise": {"edges_added": 0.5, "labels": 0.4}}
    noisy = parse_config(small_run(tmp_path, **changes), "noisy")
    before, store = prepare(plain), prepare(noisy)
    for client in range(CLIENTS):
        old, new = edges_of(before, client), edges_of(store, client)
        shard, split, _ = store.data(noisy.data.split_name, None, client)
        graph = dict(zip(shard.node.tolist(), shard.graph.tolist(), strict=True))
        assert old < new
        assert len(new) == len(old) + int(0.5 * len(old))
        assert all(graph[u] == graph[v] for u, v in new)
        differs = np.flatnonzero(shard.item_label != store.shard(client).item_label)
        assert set(differs) <= set(split.train.tolist())
        assert len(differs) == int(0.4 * len(split.train) + 1e-9)
    assert verify(store) == []
    assert run_small(tmp_path, **changes).exists()


def test_domains_have_the_noise_of_the_clients_of_their_nodes(tmp_path: Path) -> None:
    """Nodes that no client holds have none; those that train keep their labels."""
    paths = [user_graph(tmp_path, 90, name=name, seed=seed) for seed, name in enumerate(("one", "two"))]
    data = {"dataset": ["files", "files"], "path": paths, "options": {}, "split": "per_client"}
    partition = {"method": "index", "clients": [2, 2], "chunks": 3}
    noise = {"labels": 1.0, "features": [0.5, 1.0], "edges_added": 0.5}
    clean, noisy = (
        parse_config(small_run(tmp_path, data={**data, "noise": each}, partition=partition), "x")
        for each in ({}, noise)
    )
    before, store = prepare(clean).domain_graphs(), prepare(noisy)
    domains, clients = store.domain_graphs(), [store.shard(client) for client in range(4)]
    held = np.concatenate([shard.node for shard in clients])
    assert len(held) == 120
    x, name = features_of(store), noisy.data.split_name
    for domain in range(2):
        shard, split, _ = domains.data(name, None, domain)
        of_clients = np.isin(shard.node, held)
        np.testing.assert_array_equal(dense(shard.x)[of_clients], x[shard.node[of_clients]])
        np.testing.assert_array_equal(dense(shard.x)[~of_clients], features_of(before)[shard.node[~of_clients]])
        differs = shard.label != domains.shard(domain).label
        trains = np.zeros(shard.nodes, dtype=bool)
        trains[split.train] = True
        np.testing.assert_array_equal(differs, trains & of_clients)
        added = edges_of(domains, domain) - edges_of(before, domain)
        assert {v for pair in added for v in pair} <= set(held.tolist())
    assert verify(domains) == verify(store) == []


def test_strengths_are_spread_evenly_and_kinds_apart() -> None:
    orders = set()
    for kind in ("features", "masked", "labels", "edges_removed", "edges_added"):
        drawn = spread((0.1, 0.5), 9, 4, kind)
        np.testing.assert_allclose(np.sort(drawn), np.linspace(0.1, 0.5, 9))
        orders.add(tuple(drawn.tolist()))
    assert len(orders) == 5
    assert (spread(0.3, 9, 4, "labels") == 0.3).all()
    assert spread((0.1, 0.5), 1, 0, "labels").tolist() == [0.1]


def test_other_noise_is_another_store(make: Configure, tmp_path: Path) -> None:
    several: list[dict[str, Any]] = [{}, {"features": 1}, {"features": [0, 1]}, {"masked": 0.5}, {"edges_added": 0.5}]
    several += [{"edges_removed": 0.5}, {"edges_removed": 0.5, "seed": 1}]
    assert len({store_path(with_noise(make, **each)) for each in several}) == len(several)
    plain = make()
    assert store_path(with_noise(make, labels=0.5)) == store_path(plain)
    assert with_noise(make, labels=0.5).data.split_name != with_noise(make, labels=0.4).data.split_name
    assert set(identity(plain)) == {"dataset", "partition"}
    place = {"data__store": str(tmp_path / "store")}
    prepare(make(**place, data__noise={"masked": [0.1, 0.5]}))
    prepare(make(**place, data__noise={"masked": [0.1, 0.5]}))
    with refused(tmp_path / "store", says="noise.masked"):
        prepare(make(**place, data__noise={"masked": 0.5}))


def test_noise_is_said(make: Configure, capsys: pytest.CaptureFixture[str]) -> None:
    config = with_noise(make, features=[0, 0.5], labels=0.25, seed=7)
    with console.capture() as before:
        show_plan(config)
    assert "features by 0 to 0.5 of their deviations, 25 % of training labels (seed 7)" in before.get()
    capsys.readouterr()
    store = prepare(config)
    assert "noise: features by 0 to 0.5 of their deviations (seed 7)" in "".join(capsys.readouterr())
    assert store.manifest.layout == "dense"
    with console.capture() as after:
        show_store(store.path, store.manifest)
    assert "features by 0 to 0.5 of their deviations (seed 7)" in after.get()


def test_features_with_noise_are_dense(make: Configure, tmp_path: Path) -> None:
    path = user_graph(tmp_path, NODES, name="words", x=sparse_features(NODES, 30, 0.05))
    assert prepare(make(data__path=path)).manifest.layout == "sparse"
    assert prepare(make(data__path=path, data__noise={"features": 0.1})).manifest.layout == "dense"
    assert prepare(make(data__path=path, data__noise={"masked": 0.1})).manifest.layout == "sparse"


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("data.noise.seed", {"data__noise": {"seed": 1}}),
        ("data.noise.labels", {"data__noise": {"labels": 1.5}}),
        ("data.noise.labels", {"data__noise": {"labels": [0.5, 0.1]}}),
        ("data.noise.labels", {"data__noise": {"labels": [0.5]}}),
        ("data.noise.features", {"data__noise": {"features": float("nan")}}),
        ("data.noise.features", {"data__noise": {"features": 1e6}}),
        ("data.noise.features", {"data__noise": {"features": 1}, "data__layout": "sparse"}),
        ("data.noise.edges_removed", {"data__noise": {"edges_removed": 0.1}, "data__features": "degree"}),
    ],
)
def test_noise_that_cannot_be_is_refused(make: Configure, key: str, changes: dict[str, Any]) -> None:
    with refused(key):
        make(**changes)


@pytest.mark.parametrize("kind", ["labels", "edges_added", "edges_removed"])
def test_edges_as_items_have_no_noise(tmp_path: Path, kind: str) -> None:
    with refused(f"data.noise.{kind}"):
        parse_config(small_run(tmp_path, task="edge", data={"noise": {kind: 0.1}}), "x")


@needs("targets")
@pytest.mark.parametrize("target", ["regression", "multilabel", "clustering"])
def test_labels_that_are_no_classes_have_no_noise(tmp_path: Path, target: str) -> None:
    with refused("data.noise.labels", says=f"found {target}"):
        parse_config(small_run(tmp_path, target=target, data={"noise": {"labels": 0.1}}), "x")


@pytest.mark.parametrize("changes", [{"task": "edge"}, {"privacy": {"unit": "client", "noise": 1.0, "clip": 1.0}}])
def test_features_get_noise_in_any_task(tmp_path: Path, changes: dict[str, Any]) -> None:
    if not has_keys(*changes):
        pytest.skip("the checkout is without the key")
    clean, noisy = ({**changes, "data": data} for data in ({}, {"noise": {"features": [0.5, 1.0]}}))
    assert run_small(tmp_path, **noisy) != run_small(tmp_path, **clean)
    stores = [Store(store_path(parse_config(small_run(tmp_path, **each), "x"))) for each in (clean, noisy)]
    x, with_noise = map(features_of, stores)
    assert 0.4 < ((with_noise - x) / x.std(0)).std() < 1.1


def test_added_edges_need_edges_without_weights_and_features(make: Configure, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    edges = np.array(list(combinations(range(40), 2))).T
    path = user_graph(tmp_path, NODES, name="bonds", edge_index=edges, edge_attr=rng.random((edges.shape[1], 2)))
    with refused("data.noise.edges_added", says="data.edge_features"):
        prepare(make(data__path=path, data__noise={"edges_added": 0.1}))
    store = prepare(make(data__path=path, data__noise={"edges_removed": 0.5}))
    assert store.shard(0).edge_attr is not None
    assert verify(store) == []
    dropped = make(data__path=path, data__edge_features="drop", data__noise={"edges_added": 0.1})
    assert verify(prepare(dropped)) == []


def test_labels_of_one_class_have_no_other(make: Configure, tmp_path: Path) -> None:
    path = user_graph(tmp_path, NODES, name="one", y=np.zeros(NODES, dtype=np.int64))
    with refused("data.noise.labels"):
        prepare(make(data__path=path, data__noise={"labels": 0.1}))


def test_a_command_sweeps_noise(tmp_path: Path, shoal: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    from support.small_runs import small_config

    shoal("sweep", small_config(tmp_path), "data.noise.labels=0.1,[0.0,0.5]", "--no-report")
    out = capsys.readouterr().out
    assert "0.1" in out
    assert "[0.0, 0.5]" in out or "[0.0,0.5]" in out
