"""Many small graphs in one text, as the authors of DGCNN keep them in a .zip."""

import zipfile
from pathlib import Path

import numba
import numpy as np

from storage.bounded_npy import MOST_OF_A_BYTE, require_free
from storage.plain_file import open_plain

# Of a text: its bytes twice, and a number of eight for every two of them.
OF_A_BYTE = 6


def read_dgcnn_text(path: Path, member: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Edges int64 `[2, E]`, the graph of every node int64 `[N]`, and the label of every graph int64 `[G]`.

    The text is numbers: how many graphs; of each how many nodes, and its label; of each node a tag, which is left, how
    many neighbours, and these, counted from 0 in their graph. Source: Zhang et al., "An End-to-End Deep Learning
    Architecture for Graph Classification", AAAI 2018.

    Args:
        path: The .zip.
        member: The text in it.

    Raises:
        OSError: It cannot be opened.
        KeyError: It has no such text.
        ValueError: The text is not of this form.
        MemoryError: It is larger than the free memory.
        zipfile.BadZipFile: It is damaged.
    """
    with open_plain(path) as file, zipfile.ZipFile(file) as archive:
        found = archive.getinfo(member)
        if found.file_size > MOST_OF_A_BYTE * (found.compress_size + 1):
            raise ValueError(f"{member}: {found.file_size} bytes cannot come from {found.compress_size}")
        require_free(OF_A_BYTE * found.file_size)
        text = archive.read(member)
    if text.translate(None, b"-0123456789 \t\r\n"):
        raise ValueError(f"{member}: more than whole numbers")
    numbers = np.fromstring(text.decode(), dtype=np.int64, sep=" ")
    nodes, entries = _count(numbers)
    if nodes < 0:
        raise ValueError(f"{member}: ends before its last graph, or goes on after it")
    edges, graph = np.empty((2, entries), dtype=np.int64), np.empty(nodes, dtype=np.int64)
    y = np.empty(int(numbers[0]), dtype=np.int64)
    if not _fill(numbers, edges, graph, y):
        raise ValueError(f"{member}: a neighbour is no node of its graph")
    return edges, graph, y


@numba.njit(cache=True)
def _count(numbers: np.ndarray) -> tuple[int, int]:
    """Nodes and entries of all graphs; -1 if the numbers do not end with the last graph."""
    nodes, entries, at = 0, 0, 1
    if len(numbers) == 0 or numbers[0] < 0:
        return -1, 0
    for _ in range(numbers[0]):
        if at + 2 > len(numbers) or numbers[at] < 1:
            return -1, 0
        own, at = numbers[at], at + 2
        for _ in range(own):
            if at + 2 > len(numbers) or numbers[at + 1] < 0:
                return -1, 0
            entries += numbers[at + 1]
            at += 2 + numbers[at + 1]
        nodes += own
    return (nodes, entries) if at == len(numbers) else (-1, 0)


@numba.njit(cache=True)
def _fill(numbers: np.ndarray, edges: np.ndarray, graph: np.ndarray, y: np.ndarray) -> bool:
    """Writes what `_count` counted; False if an edge leaves its graph."""
    at, node, e = 1, 0, 0
    for number in range(len(y)):
        own, y[number], first, at = numbers[at], numbers[at + 1], node, at + 2
        for _ in range(own):
            for k in range(at + 2, at + 2 + numbers[at + 1]):
                if not 0 <= numbers[k] < own:
                    return False
                edges[0, e], edges[1, e] = node, first + numbers[k]
                e += 1
            graph[node] = number
            at += 2 + numbers[at + 1]
            node += 1
    return True
