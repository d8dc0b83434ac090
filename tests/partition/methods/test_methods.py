"""METIS in its own process, Louvain and its packing, methods that take labels, numbers or a file; the workspace."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import networkit
import numpy as np
import psutil
import pymetis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import refused

from shoal.partition.methods.by_label import by_random
from shoal.partition.methods.cover import NO_CLIENT, fill_empty
from shoal.partition.methods.from_file import by_index
from shoal.partition.methods.louvain import Capacity, by_louvain, communities, cut, pack
from shoal.partition.methods.metis import _in_own_process, by_metis, part_graph
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.methods.workspace import Workspace
from shoal.partition.partitioning import partition
from shoal.partition.quality import quality


def test_cuts_far_fewer_edges_of_cora_than_chance_in_balanced_parts(cora):
    metis = quality(cora, by_metis(cora, PartitionOptions("metis", 10)), 10)
    chance = quality(cora, by_random(cora, PartitionOptions("random", 10)), 10)
    assert metis.cut_fraction < 0.15
    assert chance.cut_fraction > 0.85
    assert metis.balance <= 1.05


def test_without_edges_parts_are_even_blocks(make_graph):
    assert by_metis(make_graph(7, []), PartitionOptions("metis", 3)).tolist() == [0, 0, 0, 1, 1, 2, 2]


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_no_tiny_graph_leaves_a_client_empty(draw_graph, data):
    graph = draw_graph(data, 12, 30, least=2)
    clients = data.draw(st.integers(1, graph.nodes))
    assert set(by_metis(graph, PartitionOptions("metis", clients)).tolist()) == set(range(clients))


BUSY = """
import time
import numpy as np
from shoal.partition.methods.metis import _in_own_process
print("ready", flush=True)
_in_own_process(lambda: time.sleep(600), 3)
"""


def ring(nodes: int) -> pymetis.CSRAdjacency:
    ids = np.arange(nodes)
    neighbours = np.sort(np.stack([(ids - 1) % nodes, (ids + 1) % nodes], 1), 1)
    return pymetis.CSRAdjacency(np.arange(nodes + 1) * 2, neighbours.ravel())


def test_is_what_metis_gives() -> None:
    options = PartitionOptions("metis", 7, seed=3, imbalance=1.1)
    theirs = pymetis.part_graph(7, ring(500), recursive=False, options=pymetis.Options(seed=4, ufactor=100))
    ours = part_graph(ring(500), options)
    assert (ours.tolist(), ours.dtype) == (list(theirs[1]), np.int32)


def test_a_failure_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> np.ndarray:
        raise MemoryError

    with refused("partition", says="METIS failed"):
        _in_own_process(fail, 3)
    assert "MemoryError" in capfd.readouterr().err
    with refused("partition", says="METIS was ended by SIGKILL"):
        _in_own_process(lambda: os.kill(os.getpid(), signal.SIGKILL), 3)  # type: ignore[arg-type, return-value]


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    deadline = time.monotonic() + 20
    while not (children := psutil.Process(process.pid).children()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(0.2)
    process.kill()
    process.wait()
    assert not psutil.wait_procs(children, timeout=10)[1]


def test_cliques_are_communities(make_graph):
    cliques = [(a + o, b + o) for o in (0, 6, 12) for a in range(6) for b in range(a)]
    graph = make_graph(18, [*cliques, (0, 6), (6, 12)])
    found = communities(graph, 1.0, 3)
    assert sorted(np.bincount(found).tolist()) == [6, 6, 6]
    assert all(len(set(found[o : o + 6].tolist())) == 1 for o in (0, 6, 12))


def test_clients_of_cora_keep_most_edges_and_stay_near_the_mean(cora):
    coarse, fine = (len(np.unique(communities(cora, r, 0))) for r in (1.0, 8.0))
    assert fine > coarse
    result = quality(cora, by_louvain(cora, PartitionOptions("louvain", 10)), 10)
    assert result.cut_fraction < 0.3
    # The cap is 270 and the margin 20; the peer's packing of its own communities gives 250 to 289.
    assert 230 <= result.nodes_min <= result.nodes_max < 290


def test_the_number_of_threads_is_given_back_even_after_a_failure(make_graph, monkeypatch):
    during = []

    def observed(*args, **kwargs):
        during.append(networkit.getMaxNumberOfThreads())
        raise MemoryError

    monkeypatch.setattr(networkit.community, "PLM", observed)
    before = networkit.getMaxNumberOfThreads()
    networkit.setNumberOfThreads(2)
    try:
        with pytest.raises(MemoryError):
            communities(make_graph(3, [(0, 1)]), 1.0, 0)
        assert during == [1]
        assert networkit.getMaxNumberOfThreads() == 2
    finally:
        networkit.setNumberOfThreads(before)


def blocks(*sizes):
    return np.repeat(np.arange(len(sizes)), sizes)


@pytest.mark.parametrize(
    ("load", "clients", "cap", "delta", "chunk"),
    [(2708, 10, 270, 20, 250), (600, 10, 60, 20, 40), (599, 10, 59, 5, 54), (35, 10, 3, 1, 2), (3, 10, 1, 1, 1)],
)
def test_capacity(load, clients, cap, delta, chunk):
    capacity = Capacity.of(load, clients)
    assert (capacity.cap, capacity.delta, capacity.chunk) == (cap, delta, chunk)


def test_chunks_are_consecutive_in_node_order():
    communities = np.array([5, 2, 5, 2, 5, 5, 2, 5])
    # Community 2 is nodes 1, 3, 6; community 5 is nodes 0, 2, 4, 5, 7.
    assert cut(communities, np.ones(8, dtype=np.int64), 2, 2).tolist() == [2, 0, 2, 0, 3, 3, 1, 4]
    # By label: nodes without one stay with the label before them.
    load = np.array([0, 1, 0, 1, 1, 0, 0, 0, 0])
    assert cut(np.repeat([0, 1], [6, 3]), load, 1, 2).tolist() == [0, 0, 0, 1, 2, 2, 3, 3, 4]


@pytest.mark.parametrize(
    ("sizes", "clients", "pieces", "of"),
    [
        # cap 100, chunks of 80: six of them, one a client, and three of 40, since 80 + 40 is not below 120.
        ((200, 200, 160, 40), 6, [80, 80, 40, 80, 80, 40, 80, 80, 40], [0, 1, 0, 2, 3, 1, 4, 5, 2]),
        # cap 100, below 120: 70 -> 0; 60 -> 1; 50 -> 1, which leaves with 110; 45 -> 2 although 0 has room;
        # 40 -> 2; 35 would bring 2 to 120, so the cycle goes on to 0.
        ((70, 60, 50, 45, 40, 35), 3, [70, 60, 50, 45, 40, 35], [0, 1, 1, 2, 2, 0]),
    ],
    ids=["what fits nowhere goes to the least loaded", "next-fit stays where it was and full clients leave"],
)
def test_packed_by_hand(sizes, clients, pieces, of):
    np.testing.assert_array_equal(pack(blocks(*sizes), clients), np.repeat(of, pieces))


def test_clients_that_would_stay_empty_share_what_is_left():
    # cap 60: next-fit would give 76 = 4 * 19 nodes to each of four clients and none to the fifth.
    assert np.bincount(pack(blocks(*[19] * 16), 5)).tolist() == [76, 57, 57, 57, 57]


def test_labelled_nodes_are_spread_and_the_rest_evens_out_nodes():
    # Nodes 0-5 hold three labels: three groups of two nodes. The others have none: cut by nodes into threes.
    communities = blocks(6, 3, 3)
    labelled = np.isin(np.arange(12), [0, 2, 4])
    assert pack(communities, 3, labelled).tolist() == [0, 0, 1, 1, 2, 2, 0, 0, 0, 1, 1, 1]


@st.composite
def cases(draw):
    clients = draw(st.integers(1, 40))
    sizes = draw(st.lists(st.integers(1, draw(st.sampled_from([3, 30, 300]))), min_size=1, max_size=120))
    nodes = max(sum(sizes), clients)
    communities = np.resize(np.repeat(np.arange(len(sizes)), sizes), nodes)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    labelled = rng.random(nodes) < draw(st.sampled_from([0.0, 0.02, 0.5, 1.0]))
    return rng.permutation(communities), clients, labelled


@given(cases())
def test_every_client_has_a_node_a_label_if_there_are_enough_and_not_too_many(case):
    communities, clients, labelled = case
    assignment = pack(communities, clients, None if labelled.all() else labelled)
    assert assignment.shape == communities.shape
    labels = np.bincount(assignment[labelled], minlength=clients)
    assert np.bincount(assignment, minlength=clients).min() >= 1
    if labelled.sum() >= clients:
        assert labels.min() >= 1
    capacity = Capacity.of(int(labelled.sum()), clients)
    assert labels.max() <= capacity.cap + capacity.chunk


@given(cases())
def test_a_group_is_a_run_of_one_community(case):
    communities, clients, _ = case
    chunk = Capacity.of(len(communities), clients).chunk
    group = cut(communities, np.ones(len(communities), dtype=np.int64), chunk, chunk)
    for community in np.unique(communities):
        mine = group[communities == community]
        assert (np.diff(mine) >= 0).all()
        assert np.unique(mine, return_counts=True)[1][:-1].tolist() == [chunk] * ((len(mine) - 1) // chunk)
        assert not np.isin(group[communities != community], mine).any()


@pytest.fixture
def graph(make_graph):
    return make_graph(6, [(0, 1), (2, 3)])


def saved(folder, array):
    file = folder / "assignment.npy"
    np.save(file, array)
    return str(file)


def load(graph, file, clients=3):
    return partition(graph, PartitionOptions("file", clients, file=file))


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64, np.uint64])
def test_any_integers_are_read(graph, tmp_path, dtype):
    assignment = load(graph, saved(tmp_path, np.array([2, 0, 1, 1, 0, 2], dtype=dtype)))
    assert (assignment.tolist(), assignment.dtype) == ([2, 0, 1, 1, 0, 2], np.int32)


def test_without_a_file_the_dataset_gives_its_own(graph, make_graph):
    given = np.array([2, 0, 1, 1, 0, 2], dtype=np.int32)
    own = make_graph(6, [], assignment=given)
    np.testing.assert_array_equal(load(own, None), given)
    with refused("assignment of dataset 'small'", says="clients must be 0 to 1 (partition.clients is 2), found 2"):
        load(own, None, clients=2)
    with refused("assignment of dataset 'small'", says="found 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 2 more"):
        load(make_graph(15, [], assignment=np.arange(15, dtype=np.int32)), None)
    with refused(says="dataset 'small' has no assignment of its own"):
        load(graph, None)


@pytest.mark.parametrize(
    ("array", "clients", "says"),
    [
        ([0, 1, 2, 0, 1, 3], 3, "found 3"),
        ([0, 1, 2, 0, -1, 2**40], 3, f"found -1, {2**40}"),
        ([0, 1, 0, 0, 1, 0], 4, "no node for 2, 3 of the 4 clients"),
        ([0, 1, 2, 0, 1], 3, "must be integers of shape [6], found int64 [5]"),
        ([[0, 1, 2, 0, 1, 2]], 3, "found int64 [1, 6]"),
        ([0.0, 1.0, 2.0, 0.0, 1.0, 2.0], 3, "found float64 [6]"),
    ],
)
def test_an_array_that_is_no_assignment(graph, tmp_path, array, clients, says):
    file = saved(tmp_path, np.array(array))
    with refused(file, says=says):
        load(graph, file, clients)


@pytest.mark.parametrize("content", [None, b"", b"0,1,2\n", "objects", "npz"])
def test_a_file_that_is_no_array(graph, tmp_path, content):
    file = tmp_path / "assignment.npy"
    if content == "objects":
        np.save(file, np.array([None] * 6), allow_pickle=True)
    elif content == "npz":
        with file.open("wb") as stream:
            np.savez(stream, a=np.arange(6))
    elif content is not None:
        file.write_bytes(content)
    with refused(str(file), says="save the assignment alone"):
        load(graph, str(file))


def test_pieces_are_consecutive_and_the_first_ones_are_larger(make_graph):
    assignment = by_index(make_graph(11, []), PartitionOptions("index", 4))
    assert (assignment.tolist(), assignment.dtype) == ([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3], np.int32)
    # Nodes of further chunks belong to nobody.
    assignment = partition(make_graph(11, []), PartitionOptions("index", 2, chunks=4))
    assert assignment.tolist() == [0, 0, 0, 1, 1, 1, *[NO_CLIENT] * 5]


@pytest.mark.parametrize(("clients", "chunks"), [(4, 3), (4, 12)])
def test_chunks_must_be_between_clients_and_nodes(make_graph, clients, chunks):
    with refused("partition.chunks"):
        by_index(make_graph(11, []), PartitionOptions("index", clients, chunks=chunks))


def test_shares_of_a_class_are_those_drawn(make_graph):
    """The same generator, in the order that is written down: a permutation and the shares of a class, one by one."""
    y = [-1] * 5 + [0] * 40 + [1] * 7 + [2] * 100
    graph = make_graph(152, [], y, classes=3)
    assignment = partition(graph, PartitionOptions("dirichlet", 4, seed=3, alpha=0.7))
    rng = np.random.default_rng(3)
    expected = np.empty(152, dtype=np.int64)
    for place, item in enumerate(rng.permutation(5)):
        expected[item] = place % 4
    for label, (first, size) in enumerate([(5, 40), (45, 7), (52, 100)]):
        items = first + rng.permutation(size)
        shares = rng.dirichlet([0.7] * 4)
        begin = 0
        for client in range(4):
            end = size if client == 3 else round(sum(shares[: client + 1]) * size)
            expected[items[begin:end]] = client
            begin = end
        assert (graph.y[items] == label).all()
    np.testing.assert_array_equal(assignment, expected)


@pytest.mark.parametrize("alpha", [1e-3, 1.0])
def test_no_client_is_empty(make_graph, alpha):
    graph = make_graph(30, [], np.arange(30) % 2, classes=2)
    assignment = partition(graph, PartitionOptions("dirichlet", 30, alpha=alpha))
    assert sorted(assignment.tolist()) == list(range(30))


def test_sizes_differ_by_at_most_one(make_graph):
    sizes = np.bincount(by_random(make_graph(23, []), PartitionOptions("random", 5)))
    assert sizes.tolist() == [5, 5, 5, 4, 4]


def test_empty_clients_take_the_last_nodes_of_the_largest():
    # Client 1 has four nodes, then three; client 0 has three all along, and is the first of equals.
    given = np.array([0, 1, 1, 0, 1, 1, 0], dtype=np.int32)
    filled = fill_empty(given, 4)
    assert filled.tolist() == [0, 1, 1, 0, 1, 2, 3]
    assert given.tolist() == [0, 1, 1, 0, 1, 1, 0]


@pytest.mark.parametrize("fails", [False, True])
def test_the_folder_is_removed(tmp_path, fails):
    try:
        with Workspace(tmp_path).scratch() as folder:
            (folder / "file").write_text("x")
            assert folder.parent == tmp_path
            if fails:
                raise ValueError
    except ValueError:
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    missing = Workspace(tmp_path / "missing").scratch()
    with refused(tmp_path / "missing"):
        missing.__enter__()


def test_a_full_disk_is_one_line(tmp_path):
    def fill():
        with Workspace(tmp_path).scratch() as folder:
            (folder / "full").symlink_to("/dev/full")
            (folder / "full").write_bytes(b"x" * 100_000)

    with refused(tmp_path, says="No space left on device"):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_cleared(tmp_path):
    killed = Workspace(tmp_path).scratch()
    (killed.__enter__() / "edges").write_text("x")
    (tmp_path / "assignment.npy").write_text("x")
    Workspace(tmp_path).clear()
    assert list(tmp_path.iterdir()) == [tmp_path / "assignment.npy"]
    Workspace().clear()
