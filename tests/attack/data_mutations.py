"""Wrong data sets without end: small graphs in every layout that is read, with arrays or bytes changed at random."""

import io
import json
import os
import random
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from attack import line_of
from shoal.engine.config.config import parse_config
from shoal.engine.preparing.prepare import prepare
from shoal.engine.schedules.availability.availability import read_trace
from shoal.partition.methods.options import PartitionOptions
from shoal.partition.partitioning import partition
from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.options.split import read_split_file

NODES, FEATURES, CLASSES, CLIENTS = 24, 5, 3, 3
HUGE = (2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1)
# One of so many is prepared to its end, which takes longer than all else.
PREPARED = 8
TYPES = "i1 u1 >i4 <u8 >i8 f2 f4 >f4 f8 c8 ? U3 S2 O M8[s] V4 i1,f4"
Layout = Callable[[dict[str, np.ndarray], random.Random], dict[str, bytes]]


@dataclass(frozen=True)
class Case:
    """A data set on disk: contents by path below the data root, None for a folder, `pipe` for a pipe.

    `layout`, a key of `LAYOUTS`, is how the files are read; a sound one may be `prepared` to its end.
    """

    files: dict[str, bytes | None]
    layout: str
    prepared: bool


def sound(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A sound graph with weights, a split, an assignment and a trace."""
    ring = np.arange(NODES)
    more = rng.integers(NODES, size=(2, 40))
    edge_index = np.concatenate([np.stack([ring, np.roll(ring, 1)]), more], axis=1)
    return {
        "edge_index": edge_index,
        "edge_weight": (1 + edge_index.sum(0) % 5) / 2,
        "x": rng.standard_normal((NODES, FEATURES)).astype(np.float32),
        "y": ring % CLASSES,
        "split": np.tile([1, 1, 2, 3], NODES // 4).astype(np.int8),
        "assignment": ring // (NODES // CLIENTS),
        "trace": rng.integers(2, size=(4, CLIENTS)),
    }


def cases(seed: int) -> Iterator[Case]:
    """Cases without end; the same for the same seed."""
    rng, draw = random.Random(seed), np.random.default_rng(seed)
    while True:
        layout = rng.choice(sorted(LAYOUTS))
        arrays = sound(draw)
        for _ in range(rng.choice((0, 1, 1, 2))):
            name = rng.choice(sorted(arrays))
            arrays[name] = _changed(arrays[name], rng)
        files: dict[str, Any] = dict(LAYOUTS[layout](arrays, rng))
        if rng.random() < 0.6:
            name = rng.choice(sorted(files))
            files[name] = _damaged(files[name], rng, files)
        yield Case(files, layout, rng.randrange(PREPARED) == 0)


def attack(seed: int) -> str | None:
    """Reads one data set: the line that refuses it, None if it is accepted."""
    case = next(cases(seed))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, content in case.files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.mkdir()
            elif content == b"pipe":
                os.mkfifo(path)
            else:
                path.write_bytes(content)
        return line_of(lambda: _look_at(Path(folder), case))


def _look_at(root: Path, case: Case) -> None:
    """Reads, partitions and sometimes prepares a data set."""
    if case.layout == "trace":
        trace = read_trace(str(root / "trace.npy"), CLIENTS)
        assert (trace.dtype, trace.shape[1]) == (np.bool_, CLIENTS)
        return
    name = "files" if case.layout in ("npz", "folder", "sparse", "split", "partition") else case.layout
    path = str(root / "mine.npz") if case.layout == "npz" else str(root / "mine")
    graph = load(DataSource(name, root=str(root), path=path if name == "files" else None))
    assert graph.y.shape == (graph.nodes,)
    assert graph.classes <= 1024
    assert graph.x.shape[0] == graph.nodes
    assert not len(graph.indices) or 0 <= graph.indices.min() <= graph.indices.max() < graph.nodes
    method, file, split = "random", None, "per_client"
    if case.layout == "split":
        split = "file"
        assert len(read_split_file(str(root / "split.npy")))
    if case.layout == "partition":
        method, file = "file", str(root / "partition.npy")
    assignment = partition(graph, PartitionOptions(method, CLIENTS, file=file))
    assert len(assignment) == graph.nodes
    if case.prepared or case.layout == "split":
        data = {"dataset": name, "root": str(root), "store": str(root / "store"), "split": split}
        data |= {"path": path} if name == "files" else {}
        data |= {"split_file": str(root / "split.npy")} if split == "file" else {}
        chosen = {"method": method, "clients": CLIENTS, "file": file}
        plain = {"name": "x", "data": data, "partition": chosen, "propagation": {"hops": 1}, "algorithm": "local"}
        prepare(parse_config(plain, "x.yaml"))


def _npy(array: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, np.asarray(array), allow_pickle=True)
    return content.getvalue()


def _npz(arrays: dict[str, Any], rng: random.Random) -> bytes:
    content = io.BytesIO()
    (np.savez_compressed if rng.random() < 0.5 else np.savez)(content, **arrays)
    return content.getvalue()


def _one_changed(arrays: dict[str, np.ndarray], rng: random.Random, chance: float) -> dict[str, np.ndarray]:
    """The same arrays, of which perhaps one is another."""
    if rng.random() >= chance:
        return arrays
    name = rng.choice(sorted(arrays))
    return arrays | {name: _changed(arrays[name], rng)}


def _received(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in arrays.items() if name != "trace"}


def _as_npz(arrays: dict[str, np.ndarray], rng: random.Random) -> dict[str, bytes]:
    return {"mine.npz": _npz(_received(arrays), rng)}


def _as_folder(arrays: dict[str, np.ndarray], rng: random.Random) -> dict[str, bytes]:
    return {f"mine/{name}.npy": _npy(array) for name, array in _received(arrays).items()}


def _as_sparse(arrays: dict[str, np.ndarray], rng: random.Random) -> dict[str, bytes]:
    files = _as_folder(arrays, rng)
    del files["mine/x.npy"]
    return files | {"mine/x.npz": _sparse(arrays["x"], rng)}


def _sparse(x: np.ndarray, rng: random.Random) -> bytes:
    try:
        matrix = sp.coo_array(np.asarray(x, dtype=np.float64).reshape(len(x), -1))
    except (TypeError, ValueError):
        matrix = sp.coo_array(np.eye(3))
    content = io.BytesIO()
    sp.save_npz(content, matrix.asformat(rng.choice(("csr", "csc", "coo", "bsr", "dia"))))
    with np.load(io.BytesIO(content.getvalue())) as file:
        return _npz(_one_changed(dict(file), rng, 0.7), rng)


def _with(name: str, array: str) -> Layout:
    """The graph as a folder, and an array in a file of its own."""

    def layout(arrays: dict[str, np.ndarray], rng: random.Random) -> dict[str, bytes]:
        files = {f"mine/{key}.npy": _npy(value) for key, value in sound(np.random.default_rng(0)).items()}
        return files | {f"{name}.npy": _npy(arrays[array])}

    return layout


def _as_computers(arrays: dict[str, np.ndarray], rng: random.Random) -> dict[str, bytes]:
    x = sp.csr_array((np.random.default_rng(0).random((NODES, FEATURES)) < 0.5).astype(np.float32))
    ring = np.arange(NODES)
    pieces = {
        "adj_indptr": np.arange(NODES + 1), "adj_indices": np.roll(ring, 1), "attr_data": x.data,
        "attr_indices": x.indices, "attr_indptr": x.indptr, "attr_shape": np.array(x.shape), "labels": arrays["y"],
    }  # fmt: skip
    changed = _npz(_one_changed(pieces, rng, 0.7), rng)
    return {"amazon/Computers/raw/amazon_electronics_computers.npz": changed}


def _as_reddit(arrays: dict[str, np.ndarray], rng: random.Random) -> dict[str, bytes]:
    adjacency = np.roll(np.eye(NODES), 1, axis=0)
    data = {"feature": arrays["x"], "label": arrays["y"], "node_types": arrays["split"]}
    folder = "reddit/raw"
    return {f"{folder}/reddit_data.npz": _npz(data, rng), f"{folder}/reddit_graph.npz": _sparse(adjacency, rng)}


def _as_flickr(arrays: dict[str, np.ndarray], rng: random.Random) -> dict[str, bytes]:
    edges = _one_changed({"indptr": np.arange(NODES + 1), "indices": np.roll(np.arange(NODES), 1)}, rng, 0.4)
    labels = {str(node): node % CLASSES for node in range(NODES)}
    roles: dict[str, Any] = {"tr": list(range(8)), "va": list(range(8, 12)), "te": list(range(12, NODES))}
    wrong: list[Any] = [-1, NODES, 10**12, 1.5, "x", None, [1], True]
    if rng.random() < 0.4:
        labels[str(rng.choice([*range(NODES), -1, 10**6, "x"]))] = rng.choice(wrong)
    if rng.random() < 0.4:
        roles["tr"] = rng.choice([None, 3, {}, [rng.choice(wrong)]])
    folder = "flickr/raw"
    return {
        f"{folder}/adj_full.npz": _npz(edges, rng),
        f"{folder}/feats.npy": _npy(arrays["x"]),
        f"{folder}/class_map.json": json.dumps(labels).encode(),
        f"{folder}/role.json": json.dumps(roles).encode(),
    }


def _as_planetoid(arrays: dict[str, np.ndarray], rng: random.Random) -> dict[str, bytes]:
    parts = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
    return {f"planetoid/Cora/raw/ind.cora.{part}": rng.randbytes(30) for part in parts}


LAYOUTS: dict[str, Layout] = {
    "npz": _as_npz,
    "folder": _as_folder,
    "sparse": _as_sparse,
    "split": _with("split", "split"),
    "partition": _with("partition", "assignment"),
    "trace": lambda arrays, rng: {"trace.npy": _npy(arrays["trace"])},
    "computers": _as_computers,
    "reddit": _as_reddit,
    "flickr": _as_flickr,
    "cora": _as_planetoid,
}


def _changed(array: np.ndarray, rng: random.Random) -> np.ndarray:
    """An array of other values, another type or another shape."""
    way = rng.randrange(12)
    array = np.array(array)
    at = tuple(rng.randrange(axis) for axis in array.shape) if array.size else None
    if way < 4 and at is not None and array.dtype.kind in "iuf":
        if array.dtype.kind in "iu" and rng.random() < 0.8:
            array = array.astype(np.int64)
            array[at] = rng.choice((-1, -2, 0, 1, 4, NODES, 1000, 5000, *HUGE, -(2**63)))
        else:
            array = array.astype(np.float64)
            array[at] = rng.choice((np.nan, np.inf, -np.inf, 1e300, 0.5, -1.0, 1e10))
        return array
    if way < 7:
        try:
            with np.errstate(invalid="ignore", over="ignore"):
                return array.astype(rng.choice(TYPES.split()))
        except (TypeError, ValueError, RuntimeError, OverflowError):
            return np.array([None] * 3, dtype=object)
    if way == 7:
        return np.asfortranarray(array)
    if way == 8:
        return array[..., None] if rng.random() < 0.5 else array[None]
    if way == 9:
        return array.ravel()[: rng.randrange(array.size + 1)]
    if way == 10:
        return array.ravel()[0] if array.size else array
    return np.concatenate([array, array]) if array.ndim else array


def _damaged(content: bytes, rng: random.Random, files: dict[str, Any]) -> bytes | None:
    """Other bytes in the place of a file's; None is a folder."""
    way = rng.randrange(12)
    at = rng.randrange(max(len(content), 1))
    changed = bytearray(content)
    if way < 3 and content:
        changed[at] ^= 1 << rng.randrange(8)
    elif way == 3 and content:
        # Headers lie in the beginning.
        changed[rng.randrange(min(len(content), 200))] ^= 1 << rng.randrange(8)
    elif way == 4:
        del changed[at:]
    elif way == 5:
        changed[at:at] = rng.randbytes(rng.randint(1, 40))
    elif way == 6:
        return rng.choice((None, b"pipe", b"", b"\x93NUMPY", b"PK\3\4", b"<html>", b"[" * 100_000, b"\0" * 300))
    elif way == 7:
        return rng.choice([other for other in files.values() if other is not None])
    elif way == 8:
        return _announcing(rng)
    elif way == 9 and content.startswith(b"PK"):
        return _bomb(content, rng)
    elif content.startswith(b"\x93NUMPY"):
        return _lying(content, rng)
    return bytes(changed)


def _announcing(rng: random.Random) -> bytes:
    """A header without its array."""
    shape = rng.choice(((2**40,), (2, 2**40), (2**31, 2**31), (-1,), (0, 2**62), (2**63,), ((1,) * 40), (NODES,), ()))
    described = rng.choice(("<i8", "<f4", "|O", "|V0", "<U0", "|V1000000", ">c16", [("a", "<i8")]))
    text = repr({"descr": described, "fortran_order": rng.random() < 0.3, "shape": shape})
    text = rng.choice((text, text, text.replace("}", ""), "(" * 3000, "[" * 9000 + "]" * 9000, text + " " * 20000))
    return b"\x93NUMPY\1\0" + (len(text) % 65536).to_bytes(2, "little") + text.encode() + b"\0" * 8


def _lying(content: bytes, rng: random.Random) -> bytes:
    """An array whose header announces another shape."""
    length = int.from_bytes(content[8:10], "little")
    header = content[10 : 10 + length].decode("latin1")
    wrong = rng.choice(("(%d,)", "(2, %d)", "(%d, 3)", "(%d, 1)")) % rng.choice((0, 1, NODES + 1, *HUGE))
    changed = header[: header.index("'shape'")] + f"'shape': {wrong}, }}"
    changed = changed[: length - 1].ljust(length - 1) + "\n"
    return content[:10] + changed.encode("latin1") + content[10 + length :]


def _bomb(content: bytes, rng: random.Random) -> bytes:
    """An archive with a member that lies about its shape, or is 64 MiB of zeros; perhaps with a gigabyte announced."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as changed:
        names = archive.namelist()
        chosen = rng.choice(names)
        for name in names:
            data = archive.read(name)
            if name == chosen:
                data = _lying(data, rng) if rng.random() < 0.5 else data[:128] + bytes(1 << 26)
            changed.writestr(name, data)
    result = bytearray(made.getvalue())
    if rng.random() < 0.5:
        # The size of the last member in the directory.
        directory = result.rfind(b"PK\1\2")
        result[directory + 24 : directory + 28] = (2**30).to_bytes(4, "little")
    return bytes(result)
