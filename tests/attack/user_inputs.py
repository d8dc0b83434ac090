"""A small graph as people write it, in many ways; each is read as what it means, or refused in one line.

Of every way the right values are known: what is accepted with others is a silent change of numbers.
"""

import gzip
import math
import random
import tempfile
import warnings
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch_geometric.data import Data

from attack import line_of
from shoal.storage.adapters import from_networkx, from_pyg
from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.graph.graph import Graph

NODES, FEATURES = 24, 3
OTHERS, SOUND = "silently other numbers", "refused though sound"
EDGES = np.stack([np.arange(NODES), np.roll(np.arange(NODES), 1)])
BOTH = np.concatenate([EDGES, EDGES[::-1]], axis=1)
X = np.round(np.random.default_rng(0).normal(size=(NODES, FEATURES)), 3).astype(np.float32)
MISSING_TEXTS = ("", "NaN", "nan", "NA", "null", "None", "-1", "  ")


def written(columns: dict[str, list[Any]], separator: str) -> str:
    """A table as text, None as an empty cell."""
    rows = [separator.join(columns)]
    cells = [["" if cell is None else str(cell) for cell in column] for column in columns.values()]
    return "\n".join([*rows, *(separator.join(row) for row in zip(*cells))]) + "\n"


def read(folder: Path) -> Graph:
    """The graph of a folder of files."""
    return load(DataSource("files", root=str(folder), path=str(folder)))


def spelled(rng: random.Random, classes: int) -> list[Any]:
    """What the classes are called, in the order that their numbers get."""
    way = rng.randrange(6)
    if way < 3:
        first = (0, 1, rng.randrange(1000))[way]
        return list(range(first, first + classes))
    if way == 3:
        return sorted(rng.sample(range(10 ** rng.randint(2, 9)), classes))
    if way == 4:
        return [2**53 + number for number in range(classes)]
    return sorted(rng.sample(["0110", "110", "007", "7", "1e2", "100", "a", "b", "B", "c d", "é", "<x>"], classes))


def labels(seed: int) -> str | None:
    """Labels of many spellings, some missing: the same classes by every way in."""
    rng = random.Random(seed)
    classes = rng.randint(2, 5)
    truth = [*range(classes), *rng.choices(range(classes), k=NODES - classes)]
    missing = set(rng.sample(range(classes, NODES), rng.choice((0, 0, 3, 8))))
    names = spelled(rng, classes)
    texts = isinstance(names[0], str)
    way = rng.choice(("csv", "parquet", "networkx", "texts", *(() if texts else ("pyg", "npy", "floats"))))
    if way == "floats" and names[-1] >= 2**53:
        way = "npy"
    values: list[Any] = [None if node in missing else names[truth[node]] for node in range(NODES)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seen: list[Graph] = []

        def look() -> None:
            seen.append(label_graph(folder, values, way, rng))

        line = line_of(look)
    if line is not None:
        raise AssertionError(f"{SOUND}: {way} {names}: {line}")
    y = seen[0].y
    expected = np.array([-1 if node in missing else truth[node] for node in range(NODES)])
    if not texts and names[-1] - names[0] >= classes:
        # Numbers with gaps are counted as they first occur.
        place = {number: at for at, number in enumerate(dict.fromkeys(expected[expected >= 0].tolist()))}
        expected = np.array([place.get(number, -1) for number in expected.tolist()])
    if seen[0].classes != classes or (y != expected).any():
        raise AssertionError(f"{OTHERS}: {way} {names}: {seen[0].classes} classes, {y.tolist()}")
    return None


def label_graph(folder: Path, values: list[Any], way: str, rng: random.Random) -> Graph:
    """The graph with labels, None where there is none, given in one way."""
    texts = isinstance(next(value for value in values if value is not None), str)
    gap = rng.choice(MISSING_TEXTS)
    as_text = [gap if value is None else str(value) for value in values]
    if way == "networkx":
        graph = nx.Graph()
        none = rng.choice((None, math.nan, gap if texts else -1))
        labelled = [none if value is None else value for value in values]
        graph.add_nodes_from((i, {"x": X[i].tolist(), "label": label}) for i, label in enumerate(labelled))
        graph.add_edges_from(EDGES.T.tolist())
        return from_networkx(graph, x="x")
    if way == "pyg":
        y = torch.tensor([-1 if value is None else value for value in values])
        return from_pyg(Data(x=torch.tensor(X), edge_index=torch.tensor(BOTH), y=y))
    features = {f"f{j}": X[:, j].tolist() for j in range(FEATURES)}
    if way == "csv":
        (folder / "nodes.csv").write_text(
            written({"id": list(range(NODES)), "label": as_text, **features}, ","), encoding="utf-8"
        )
        (folder / "edges.csv").write_text(written({"source": EDGES[0].tolist(), "target": EDGES[1].tolist()}, ","))
        return read(folder)
    if way == "parquet":
        column = pa.array(values if rng.random() < 0.5 else as_text)
        pq.write_table(pa.table({"id": range(NODES), "label": column, **features}), folder / "nodes.parquet")
        pq.write_table(pa.table({"source": EDGES[0], "target": EDGES[1]}), folder / "edges.parquet")
        return read(folder)
    if way == "texts":
        y = np.array(as_text)
    elif way == "floats":
        y = np.array([math.nan if value is None else value for value in values], dtype=np.float64)
    else:
        y = np.array([-1 if value is None else value for value in values], dtype=np.int64)
        if rng.random() < 0.3:
            y = y.reshape(-1, 1)
    for key, array in {"edge_index": EDGES, "x": X, "y": y}.items():
        np.save(folder / f"{key}.npy", array)
    return read(folder)


# A column of a table, and what it may become: "feature" of these values, "used" for its meaning, or "refused".
ROWS = list(range(NODES))
TRAPS: dict[str, tuple[list[Any], str]] = {
    "": (ROWS, "refused"),
    "Unnamed: 0": (ROWS, "refused"),
    "__index_level_0__": (ROWS, "refused"),
    "split": (["train", "val", "test"] * (NODES // 3), "used"),
    "client": ([row % 3 for row in ROWS], "used"),
    "train_mask": ([row % 2 == 0 for row in ROWS], "refused"),
    "test_mask": ([int(row % 2 == 0) for row in ROWS], "refused"),
    "country": (["fr", "de"] * (NODES // 2), "refused"),
    "born": (["2001-02-03"] * NODES, "refused"),
    "is_admin": ([row % 2 == 0 for row in ROWS], "feature"),
    "is_old": (["true" if row % 3 else "false" for row in ROWS], "feature"),
    "age": ([row * 1.5 for row in ROWS], "feature"),
    "count": ([row % 7 for row in ROWS], "feature"),
    "f0": ([1.0] * NODES, "refused"),
    "gap": ([None, *range(1, NODES)], "refused"),
    "price": (["1,5"] * NODES, "refused"),
}


def columns(seed: int) -> str | None:
    """A table of nodes with a column more: a feature of its values, used, or refused."""
    rng = random.Random(seed)
    trap = rng.choice(sorted(TRAPS))
    values, meaning = TRAPS[trap]
    parquet = trap not in ("f0", "is_old") and rng.random() < 0.3
    separator = rng.choice(",\t;")
    if trap == "price" and separator == ",":
        separator = ";"
    more: dict[str, list[Any]] = {f"f{j}": X[:, j].tolist() for j in range(FEATURES)}
    plain: list[tuple[str, list[Any]]] = [("id", ROWS), ("label", [row % 2 for row in ROWS]), *more.items()]
    at = rng.randrange(len(plain) + 1)
    table = [*plain[:at], (trap, values), *plain[at:]]
    kept = [(key, column) for key, column in table if key in more or (key == trap and meaning == "feature")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        edges = {"source": EDGES[0].tolist(), "target": EDGES[1].tolist()}
        if parquet:
            pq.write_table(pa.table(dict(table)), folder / "nodes.parquet")
            pq.write_table(pa.table(edges), folder / "edges.parquet")
        else:
            head = separator.join(key for key, _ in table)
            body = written({str(number): column for number, (_, column) in enumerate(table)}, separator)
            text = head + body[body.index("\n") :]
            content = text.replace("\n", rng.choice(("\n", "\r\n"))).encode(rng.choice(("utf-8", "utf-8-sig")))
            packed = rng.random() < 0.2
            (folder / f"nodes.csv{'.gz' * packed}").write_bytes(gzip.compress(content) if packed else content)
            (folder / "edges.csv").write_text(written(edges, separator))
        seen: list[Graph] = []
        line = line_of(lambda: seen.append(read(folder)))
    if line is not None:
        if meaning == "feature":
            raise AssertionError(f"{SOUND}: column {trap!r}: {line}")
        if trap and trap not in line:
            raise AssertionError(f"column {trap!r} is not named: {line}")
        return line
    truth = np.array([[float(value) if not isinstance(value, str) else value == "true" for value in column]
                      for _, column in kept], dtype=np.float32).T  # fmt: skip
    if seen[0].x.shape != truth.shape or not np.allclose(np.asarray(seen[0].x), truth, atol=1e-3):
        raise AssertionError(f"{OTHERS}: column {trap!r}: x {seen[0].x.shape}")
    if trap == "client" and (seen[0].assignment is None or seen[0].assignment.tolist() != values):
        raise AssertionError(f"{OTHERS}: the clients are not read")
    if trap == "split" and (seen[0].split is None or seen[0].split.tolist() != [1, 2, 3] * (NODES // 3)):
        raise AssertionError(f"{OTHERS}: the split is not read")
    return None


def attributes(seed: int) -> str | None:
    """PyG's `Data` with an attribute more: read as what it means, named in a warning, or refused by name."""
    rng = random.Random(seed)
    entries = BOTH.shape[1]
    weight = torch.rand(entries // 2, generator=torch.Generator().manual_seed(seed)).add(0.5).repeat(2)
    found: dict[str, Any] = {
        "edge_attr": rng.choice((weight, weight[:, None], torch.rand(entries, 4))),
        "weight": weight,
        "edge_weight": weight,
        "edge_type": torch.arange(entries) % 3,
        "edge_time": torch.arange(entries),
        "node_type": torch.arange(NODES) % 2,
        "train_idx": torch.arange(9),
        "train_mask": torch.arange(NODES) < 9,
        "pos": torch.rand(NODES, 3),
    }
    key = rng.choice(sorted(found))
    data = Data(x=torch.tensor(X), edge_index=torch.tensor(BOTH), y=torch.arange(NODES) % 2, **{key: found[key]})
    seen: list[Graph] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        line = line_of(lambda: seen.append(from_pyg(data)))
    said = line if line is not None else " ".join(str(one.message) for one in caught)
    if key in said:
        return line
    graph = seen[0]
    if key in ("edge_attr", "weight", "edge_weight"):
        kept = graph.edge_weight if graph.edge_attr is None else graph.edge_attr
        right = kept is not None and np.isclose(kept.sum(), float(found[key].sum()), rtol=1e-5)
    elif key in ("train_idx", "train_mask"):
        right = graph.split is not None and (graph.split == 1).tolist() == [node < 9 for node in range(NODES)]
    else:
        right = False
    if not right:
        raise AssertionError(f"{OTHERS}: {key} is lost without a word")
    return None


def weights(seed: int) -> str | None:
    """Weights of both directions that differ in the last bits, or in truth: accepted as equal, or refused."""
    rng = np.random.default_rng(seed)
    one = (10 ** rng.uniform(-6, 6, NODES)).astype(np.float32)
    other = one.copy()
    differ = bool(rng.random() < 0.5)
    if differ:
        other[rng.integers(NODES)] *= np.float32(1 + 10 ** rng.uniform(-4, 1))
    else:
        other = np.nextafter(other, np.where(rng.random(NODES) < 0.5, 0, np.inf).astype(np.float32))
    weight = torch.tensor(np.concatenate([one, other]))
    data = Data(x=torch.tensor(X), edge_index=torch.tensor(BOTH), y=torch.arange(NODES) % 2, edge_weight=weight)
    seen: list[Graph] = []
    line = line_of(lambda: seen.append(from_pyg(data)))
    if differ != (line is not None):
        raise AssertionError(f"{OTHERS}: weights that {'differ' if differ else 'are equal'}: {line}")
    if line is None:
        dense = np.zeros((NODES, NODES), dtype=np.float32)
        assert seen[0].edge_weight is not None
        dense[np.repeat(np.arange(NODES), np.diff(seen[0].indptr)), seen[0].indices] = seen[0].edge_weight
        if (dense != dense.T).any():
            raise AssertionError(f"{OTHERS}: weights of two directions stay different")
    return line
