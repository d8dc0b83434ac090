"""Twitch's published layout: a made-up graph read back, the published counts, and files that say something else."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.errors import refused

from shoal.storage.datasets.readers.twitch import FEATURES, paths
from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource

TARGET = "id,days,mature,views,partner,new_id\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four people: 0-1, 1-2 and 2-0 are friends; person 3 has neither friends nor features."""
    edges, features, target = (tmp_path / path for path in paths("twitch-pt"))
    edges.parent.mkdir(parents=True)
    edges.write_text("from,to\n0,1\n1,2\n2,0\n")
    features.write_text(json.dumps({"2": [5, 5, 3169], "0": [1], "1": []}))
    # Not in the order of new_id, and one of them twice.
    rows = ["77,1,True,9,False,2", "76,1,False,9,False,0", "75,1,True,9,False,1", "76,1,False,9,False,0"]
    target.write_text(TARGET + "\n".join([*rows, "70,1,False,9,False,3"]) + "\n")
    return tmp_path


def test_what_is_written_is_read(root: Path) -> None:
    graph = load(DataSource("twitch-pt", root=str(root)))
    expected = np.zeros((4, FEATURES))
    expected[2, [5, 3169]] = expected[0, 1] = 1
    np.testing.assert_array_equal(graph.x.toarray(), expected)
    assert graph.y.tolist() == [0, 1, 1, 0]
    assert graph.indptr.tolist() == [0, 2, 4, 6, 6]
    assert graph.indices.tolist() == [1, 2, 0, 2, 0, 1]


@pytest.mark.parametrize(
    ("part", "text", "says"),
    [
        (2, TARGET + "1,1,True,9,False,1\n", "the 1 ids do not count from 0"),
        (2, TARGET + "1,1,True,9,False,0\n1,1,False,9,False,0\n", "new_id 0 has two labels"),
        (2, TARGET + "1,1,perhaps,9,False,0\n", "KeyError: 'perhaps'"),
        (1, '{"9": [1]}', "names a node beyond the 4"),
        (1, '{"0": [3170]}', "names a feature beyond the 3170"),
        (1, "{", "JSONDecodeError"),
        (0, "from,to\n0\n", "cannot be read"),
    ],
)
def test_a_file_of_something_else_is_named(root: Path, part: int, text: str, says: str) -> None:
    file = root / paths("twitch-pt")[part]
    file.write_text(text)
    with refused(file, says=says):
        load(DataSource("twitch-pt", root=str(root)))


@pytest.mark.parametrize(
    ("name", "nodes", "edges", "true"),
    [
        ("twitch-de", 9498, 153138, 5742),
        ("twitch-en", 7126, 35324, 3888),
        ("twitch-es", 4648, 59382, 1360),
        ("twitch-fr", 6549, 112666, 2414),
        ("twitch-pt", 1912, 31299, 661),
        ("twitch-ru", 4385, 37304, 1075),
        ("twitch-tw", 2772, 63462, 1088),
    ],
)
def test_published_counts(published_root: Callable[[str], str], name: str, nodes: int, edges: int, true: int) -> None:
    root = published_root(str(paths(name)[0]))
    graph = load(DataSource(name, root=root))
    assert (graph.nodes, graph.entries, graph.features, int(graph.y.sum())) == (nodes, 2 * edges, FEATURES, true)
    listed = json.loads(Path(root, paths(name)[1]).read_text())
    for node in range(0, nodes, 97):
        columns = graph.x.indices[graph.x.indptr[node] : graph.x.indptr[node + 1]]
        assert columns.tolist() == sorted(set(listed[str(node)]))
