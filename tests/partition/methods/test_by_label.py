import numpy as np
import pytest
from support.errors import refused

from shoal.partition.methods.by_label import by_random
from shoal.partition.methods.cover import NO_CLIENT, fill_empty
from shoal.partition.methods.from_file import by_index
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.partitioning import partition


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
    given = np.array([2, 0, 1, 1, 0, 2], dtype=dtype)
    assignment = load(graph, saved(tmp_path, given))
    assert assignment.dtype == np.int32
    assert assignment.tolist() == [2, 0, 1, 1, 0, 2]


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
    assert assignment.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]
    assert assignment.dtype == np.int32


def test_nodes_of_further_chunks_belong_to_nobody(make_graph):
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
