import numpy as np
import pytest

from shoal.partition.methods.options import PartitionOptions
from shoal.partition.partitioning import partition
from shoal.storage.errors import ShoalError


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


def test_without_a_file_the_dataset_gives_its_own(make_graph):
    given = np.array([2, 0, 1, 1, 0, 2], dtype=np.int32)
    np.testing.assert_array_equal(load(make_graph(6, [], assignment=given), None), given)


def test_no_file_and_no_assignment(graph):
    with pytest.raises(ShoalError, match=r"^partition.file is not set and dataset 'small' has no assignment"):
        load(graph, None)


def test_own_assignment_for_another_number_of_clients(make_graph):
    graph = make_graph(6, [], assignment=np.array([2, 0, 1, 1, 0, 2], dtype=np.int32))
    with pytest.raises(ShoalError, match=r"^assignment of dataset 'small': clients must be 0 to 1 .* found 2$"):
        load(graph, None, clients=2)


@pytest.mark.parametrize(
    ("array", "clients", "says"),
    [
        ([0, 1, 2, 0, 1, 3], 3, r"clients must be 0 to 2 \(partition.clients is 3\), found 3$"),
        ([0, 1, 2, 0, -1, 2**40], 3, rf"found -1, {2**40}$"),
        ([0, 1, 0, 0, 1, 0], 4, r"no node for 2, 3 of the 4 clients"),
        ([0, 1, 2, 0, 1], 3, r"must be integers of shape \[6\], found int64 \[5\]$"),
        ([[0, 1, 2, 0, 1, 2]], 3, r"found int64 \[1, 6\]$"),
        ([0.0, 1.0, 2.0, 0.0, 1.0, 2.0], 3, r"found float64 \[6\]$"),
    ],
)
def test_an_array_that_is_no_assignment(graph, tmp_path, array, clients, says):
    file = saved(tmp_path, np.array(array))
    with pytest.raises(ShoalError, match=says) as error:
        load(graph, file, clients)
    assert str(error.value).startswith(f"{file}: ")
    assert "\n" not in str(error.value)


def test_only_the_first_ten_ids_are_listed(make_graph):
    graph = make_graph(15, [], assignment=np.arange(15, dtype=np.int32))
    with pytest.raises(ShoalError, match=r"found 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 2 more$"):
        load(graph, None)


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
    with pytest.raises(ShoalError) as error:
        load(graph, str(file))
    assert str(error.value).startswith(f"{file}: ")
    assert "\n" not in str(error.value)
