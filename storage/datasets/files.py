"""A graph of the user's own: one .npz file, or a folder of .npy files whose features stay on disk."""

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from storage.datasets.source import DataSource, reading
from storage.errors import ShoalError
from storage.graph import TEST, UNASSIGNED, Graph, clean_edges

REQUIRED = ("edge_index", "x", "y")
OPTIONAL = ("split", "assignment")
ADVICE = "write it again with numpy.save or numpy.savez, without objects"


def load_files(name: str, options: DataSource) -> Graph:
    """The graph at `options.path`.

    An .npz file holds the arrays `edge_index [2, E]` (integers, one or both directions), `x [N, F]`, `y [N]`
    and, if there are, `split [N]` (0 none, 1 train, 2 val, 3 test) and `assignment [N]` (client of every
    node). A folder holds each as .npy, or x as `x.npz` from `scipy.sparse.save_npz`; its x.npy is
    memory-mapped. Features other than float16 and float32 become float32. A node without a label has y -1,
    or NaN where y is of a float type.

    Raises:
        ShoalError: One line with the file, for anything missing, damaged, of a wrong shape or out of range.
    """
    arrays, where = _read(location(options))
    x = _features(arrays["x"], where["x"])
    nodes = x.shape[0]
    y = _labels(arrays["y"], nodes, where["y"])
    split, assignment = arrays.get("split"), arrays.get("assignment")
    if split is not None:
        split = _whole(split, nodes, (UNASSIGNED, TEST), where["split"]).astype(np.int8)
    if assignment is not None:
        assignment = _whole(assignment, nodes, (0, 2**31 - 1), where["assignment"]).astype(np.int32)
    indptr, indices, cleaning = clean_edges(arrays["edge_index"], nodes, where["edge_index"])
    return Graph(name, indptr, indices, x, y, int(y.max()) + 1, split, assignment, cleaning)


def location(options: DataSource) -> Path:
    """Absolute path of the user's file or folder.

    Raises:
        ShoalError: `data.path` is not set.
    """
    if not options.path:
        raise ShoalError("data.path: not set; dataset 'files' needs an .npz file or a folder of .npy files")
    return Path(options.path).expanduser().resolve()


def parts(path: Path) -> dict[str, Path]:
    """File of every array, by the array's name; those of an .npz file all lie in the file itself.

    Raises:
        ShoalError: A file is missing, or features are there twice.
    """
    if path.is_dir():
        files = {array: path / f"{array}.npy" for array in REQUIRED + OPTIONAL}
        sparse = path / "x.npz"
        if sparse.is_file():
            if files["x"].is_file():
                raise ShoalError(f"{sparse}: features are also in {files['x'].name}; keep one of the two")
            files["x"] = sparse
        for array in REQUIRED:
            if not files[array].is_file():
                raise ShoalError(f"{files[array]}: not found; needed: edge_index.npy, x.npy or x.npz, y.npy")
        return {array: file for array, file in files.items() if file.is_file()}
    if not path.is_file():
        raise ShoalError(f"{path}: not found; data.path must be an .npz file or a folder of .npy files")
    return dict.fromkeys(REQUIRED, path)


def fingerprint(options: DataSource) -> dict[str, Any]:
    """Path, and size in bytes and time of change in ns of every file that would be read.

    Raises:
        ShoalError: A file is missing.
    """
    path = location(options)
    stats = {file.name: file.stat() for file in parts(path).values()}
    files = {name: {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns} for name, stat in stats.items()}
    return {"path": str(path), "files": files}


def _read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Arrays by name, and what an error calls them."""
    files = parts(path)
    arrays: dict[str, Any] = {}
    if path.is_dir():
        for array, file in files.items():
            with reading(file, ADVICE):
                if file.suffix == ".npz":
                    arrays[array] = _csr(file)
                else:
                    arrays[array] = np.load(file, mmap_mode="r", allow_pickle=False)
        return arrays, {array: str(file) for array, file in files.items()}
    with reading(path, ADVICE):
        archive = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("one array, not an .npz archive of named arrays")
        with archive:
            arrays = {array: archive[array] for array in REQUIRED + OPTIONAL if array in archive.files}
    for array in REQUIRED:
        if array not in arrays:
            raise ShoalError(f"{path}: no array {array}; it needs {', '.join(REQUIRED)}")
    return arrays, {array: f"{path} ({array})" for array in arrays}


def _csr(file: Path) -> sp.csr_array:
    x = sp.csr_array(sp.load_npz(file))
    x.check_format(full_check=True)
    x.sum_duplicates()
    return x


def _features(x: Any, where: str) -> Any:
    if x.ndim != 2 or x.shape[1] == 0 or x.dtype.kind not in "fiub":
        raise ShoalError(f"{where}: features must be numbers [N, F], found {x.dtype} {list(x.shape)}")
    if x.dtype == np.float32 or (x.dtype == np.float16 and not sp.issparse(x)):
        return x
    # what is too large for float32 becomes infinity, and is refused as such
    with np.errstate(over="ignore"):
        return x.astype(np.float32)


def _labels(y: np.ndarray, nodes: int, where: str) -> np.ndarray:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 2:
        raise ShoalError(f"{where}: multi-label y {list(y.shape)} is not supported; give one class a node")
    if y.dtype.kind == "f":
        y = np.where(np.isnan(y), -1, y)
    labels = _whole(y, nodes, (-1, 2**31 - 1), where).astype(np.int64)
    if not (labels >= 0).any():
        raise ShoalError(f"{where}: no node has a label; there is nothing to learn")
    return labels


def _whole(values: np.ndarray, nodes: int, bounds: tuple[int, int], where: str) -> np.ndarray:
    """`values` if they are whole numbers within `bounds`, one a node."""
    low, high = bounds
    if values.shape != (nodes,):
        raise ShoalError(f"{where}: shape {list(values.shape)}, but x has {nodes} rows; one value a node")
    if values.dtype.kind not in "iubf":
        raise ShoalError(f"{where}: values must be integers, found {values.dtype}")
    for fault, rule in (
        (values != np.floor(values) if values.dtype.kind == "f" else None, "an integer"),
        ((values < low) | (values > high), f"in {low}..{high}"),
    ):
        if fault is not None and fault.any():
            row = int(fault.argmax())
            raise ShoalError(f"{where}: row {row} is {values[row]}, not {rule}")
    return values
