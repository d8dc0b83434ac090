"""A graph of the user's own: an .npz file, a folder of .npy files whose features stay on disk, or one of tables."""

import json
import os
import shutil
import zipfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from shoal.storage.datasets.sources.derived import SYNTHETIC, mark_synthetic, synthetic_identity
from shoal.storage.datasets.sources.source import NGRAMS, DatasetSpec, DataSource, reading
from shoal.storage.datasets.user.table_files import EDGES, KINDS, NODES, parts_of, table_of
from shoal.storage.datasets.user.unread import PLACES, require_read
from shoal.storage.errors import GraphGone, ShoalError
from shoal.storage.files.atomic import cannot_write, replacing
from shoal.storage.files.bounded_npy import load_npy, matrix_of, open_npz
from shoal.storage.files.digest import input_digest, text_digest
from shoal.storage.graph.from_arrays import OPTIONAL, REQUIRED, graph_from_arrays, no_label
from shoal.storage.graph.graph import Graph, require_edges
from shoal.storage.options.target_names import CLASSIFICATION

# Masks are arrays of other libraries; here one array says the parts.
OF_ARRAYS = {**PLACES, "parts": "split"}
NO_NPZ = (
    "is no .npz file; data.path is one, or a folder of .npy arrays (edge_index, x, y) or of tables (edges.csv, "
    "nodes.csv, or .parquet); shoal.save_graph(shoal.from_pyg(data), folder) writes one of a PyG Data"
)
ADVICE = "write it again with numpy.save or numpy.savez, without objects"


def load_files(name: str, options: DataSource) -> Graph:
    """Loads the graph at `options.path`.

    An .npz file holds the arrays `edge_index [2, E]` (integers, one or both directions), `x [N, F]`, `y [N]` (what
    `coded_labels` takes, or `clean_targets` where `options.target` is not of classes) and optionally `edge_weight [E]`
    (positive numbers), `edge_attr [E, D]` (features of edges, which `edge_names [D]` say), `split [N]` (0 none, 1
    train, 2 val, 3 test), `assignment [N]` (client of every node), `ids [N]` (integers or texts, what nodes are called)
    and `vocabulary [F]` (texts: what the columns of x stand for, by which several graphs are joined). With `graph [N]`
    (the graph of every node) it is many graphs, and y, split and assignment have one entry a graph. A folder holds each
    as .npy, or x as `x.npz` from `scipy.sparse.save_npz`; its x.npy is memory-mapped. A folder with a table `edges` is
    read by `read_tables`, a table of molecules by `read_molecules`. Where features are made (`options.made`) x may be
    missing, where labels are not read (`options.labels`) y; without both the nodes are those from 0 to the largest that
    an edge names. Features other than float16 and float32 become float32. A synthetic graph that `save_graph` wrote
    stays synthetic.
    """
    path = graph_at(options.path)
    made = options.made.made
    if options.text_columns and not (path.is_dir() and table_of(path, NODES)):
        raise ShoalError("data.options.text", f"texts are columns of a table {NODES}, and {path} has none")
    if is_table_of_molecules(path):
        arrays, where = _read_molecules(path, options)
    else:
        arrays, where = _read_arrays(path, made, options)
    if not options.labels and options.target != CLASSIFICATION:
        # What is missing everywhere is no target.
        for name_of_labels in ("y", "label_names"):
            arrays.pop(name_of_labels, None)
    if "x" not in arrays:
        if not made:
            raise ShoalError(where["x"], "no column is a feature; add some, or set data.features to what is made")
        # One column that takes no memory stands for what is made later.
        arrays["x"] = np.broadcast_to(np.zeros((1, 1), dtype=np.float32), (_nodes(arrays, where), 1))
        where["x"] = where["y"]
    if options.edge_weights == "drop":
        arrays.pop("edge_weight", None)
    if options.edge_features == "drop":
        for array in ("edge_attr", "edge_names", "edge_kinds"):
            arrays.pop(array, None)
    synthetic = synthetic_identity(path) is not None
    graph = graph_from_arrays(options.title or name, arrays, where, synthetic, own=True, target=options.target)
    if options.labels and not (graph.y >= 0).any():
        raise no_label(where["y"], graph.item_name)
    return graph


def save_graph(graph: Graph, folder: str | Path) -> Path:
    """Writes a graph as a folder for `data.path`, replacing any graph that is there, and gives its path.

    Every edge is written once, with features both ways; classes that no item has are kept by names. A half-written
    folder cannot be loaded, because edge_index.npy is written last; a ShoalError says that it cannot be written.
    """
    path = Path(folder).expanduser().resolve()
    source = np.repeat(np.arange(graph.nodes, dtype=np.int32), np.diff(graph.indptr))
    # Features may be others the other way round.
    once = (source < graph.indices) | (graph.edge_attr is not None)
    names = graph.label_names
    if names is None and graph.target is None and len(np.unique(graph.y[graph.y >= 0])) < graph.classes:
        names = tuple(str(number) for number in range(graph.classes))
    arrays: dict[str, Any] = {
        "edge_weight": None if graph.edge_weight is None else graph.edge_weight[once],
        "edge_attr": graph.edge_attr,
        "edge_names": None if graph.edge_names is None else np.array(graph.edge_names),
        "edge_kinds": np.array(graph.edge_kinds) if graph.edge_kinds else None,
        "x": graph.x if sp.issparse(graph.x) else graph.x[:],
        "split": graph.split,
        "assignment": graph.assignment,
        "vocabulary": graph.vocabulary,
        "graph": graph.graph_of,
        "label_names": None if names is None else np.array(names),
        "ids": None if graph.ids is None else np.array(graph.ids.to_pylist()),
        "y": graph.y if graph.target is None else graph.target,
        # The row of an entry receives what its column sends.
        "edge_index": np.stack([graph.indices[once], source[once]][:: 1 if graph.edge_features else -1]),
    }
    try:
        for name in (*(f"{array}.npy" for array in arrays), "x.npz", SYNTHETIC):
            (path / name).unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    if graph.synthetic:
        mark_synthetic(path, {"dataset": graph.name})
    for name, array in arrays.items():
        if array is None:
            continue
        file = path / f"{name}.{'npz' if sp.issparse(array) else 'npy'}"
        with replacing(file) as unfinished, unfinished.open("wb") as sink:
            sp.save_npz(sink, array) if sp.issparse(array) else np.save(sink, array)
    return path


def keep_graph(graph: Graph, folder: Path) -> Path:
    """Writes a graph in a folder below `folder`, once, however often it is given, and gives that one's path.

    The folder is named after the content, so that a path always leads to the same graph; raises as `save_graph`.
    """
    unfinished = save_graph(graph, folder / f"unfinished-{os.getpid()}")
    place = unfinished.with_name(f"graph-{text_digest(json.dumps(contents(unfinished)))[:8]}")
    try:
        if place.exists():
            shutil.rmtree(unfinished)
        else:
            unfinished.rename(place)
    except OSError as error:
        raise cannot_write(place, error) from error
    return place


def graph_at(path: str | None) -> Path:
    """Returns the absolute path of the user's file or folder; raises a ShoalError if `data.path` is not set."""
    if not path:
        raise ShoalError("data.path", "not set; dataset 'files' needs an .npz file or a folder of .npy files")
    return Path(path).expanduser().resolve()


def is_gone(path: Path) -> bool:
    """Whether nothing is left of a graph at a path: one of which a part is missing is damaged."""
    if not path.is_dir():
        return not path.exists()
    names = {f"{array}.npy" for array in (*REQUIRED, *OPTIONAL)} | {"x.npz"}
    return not any(file.name in names or file.stem in (EDGES, NODES) for file in path.iterdir())


def parts(path: Path, features_made: bool = False, labels: bool = True) -> dict[str, Path]:
    """Finds the file of every array, by its name; all arrays of an .npz are in one file, those of tables in two.

    A ShoalError says that one is missing, but for features that are made and `labels` that are not read, or there
    twice.
    """
    if path.is_file():
        if path.name.endswith(KINDS):
            raise ShoalError(path, f"is one table; data.path is the folder of {EDGES} and {NODES}, {path.parent}")
        # torch.save writes an archive, too.
        if path.suffix in (".pt", ".pth") or not (path.suffix == ".npz" or zipfile.is_zipfile(path)):
            raise ShoalError(path, NO_NPZ)
        return dict.fromkeys(REQUIRED, path)
    if not path.is_dir():
        raise GraphGone(path, "not found; data.path must be an .npz file or a folder of .npy files or tables")
    if (edges := table_of(path, EDGES)) is not None:
        nodes = table_of(path, NODES)
        if nodes is None and (labels or not features_made):
            missing = f"there is {edges.name}, but no {NODES}.csv or {NODES}.parquet"
            raise ShoalError(path, f"{missing}; only with task edge and data.features made it may be missing")
        return {"edge_index": edges} if nodes is None else {"edge_index": edges, "x": nodes, "y": nodes}
    files = {array: path / f"{array}.npy" for array in REQUIRED + OPTIONAL}
    sparse = path / "x.npz"
    if sparse.is_file():
        if files["x"].is_file():
            raise ShoalError(sparse, f"features are also in {files['x'].name}; keep one of the two")
        files["x"] = sparse
    for array in REQUIRED:
        if not files[array].is_file() and array in _required_arrays(features_made, labels):
            gone = GraphGone if is_gone(path) else ShoalError
            raise gone(files[array], "not found; needed: edge_index.npy, x.npy or x.npz, y.npy")
    return {array: file for array, file in files.items() if file.is_file()}


def _required_arrays(features_made: bool, labels: bool) -> tuple[str, ...]:
    """Lists the arrays that must be there."""
    return tuple(name for name in REQUIRED if not (features_made and name == "x") and (labels or name != "y"))


def _nodes(arrays: dict[str, Any], where: dict[str, str]) -> int:
    """Counts the nodes of a graph without features."""
    items = arrays.get("graph", arrays.get("y"))
    if items is not None:
        return len(items) if items.ndim else 0
    require_edges(arrays["edge_index"], where["edge_index"])
    return int(arrays["edge_index"].max(initial=-1)) + 1


def contents(path: Path, features_made: bool = False, labels: bool = True) -> dict[str, str]:
    """Digests every file that would be read, by its name in a folder; equal files are equal graphs anywhere."""
    if is_table_of_molecules(path):
        return {path.name: input_digest(path)}
    if not path.is_dir():
        digests = {"npz": input_digest(parts(path)["x"])}
        with reading(path, ADVICE), open_npz(path) as npz:
            # Stores from before there were weights of edges lack them.
            return digests | ({"edge_weight": "kept"} if "edge_weight" in npz.names else {})
    note = path / SYNTHETIC
    read = [*parts(path, features_made, labels).values(), *([note] if note.exists() else [])]
    # Each part of a table is a file.
    return {str(part.relative_to(path)): input_digest(part) for file in read for part in parts_of(file)}


def _read_arrays(path: Path, features_made: bool, options: DataSource) -> tuple[dict[str, Any], dict[str, str]]:
    """Reads arrays by name, and their names for error messages; features and labels may be missing if not needed."""
    labels = options.labels
    files = parts(path, features_made, labels)
    arrays: dict[str, Any] = {}
    if not path.is_dir():
        with reading(path, ADVICE), open_npz(path) as npz:
            arrays = {array: npz[array] for array in REQUIRED + OPTIONAL if array in npz.names}
            names = npz.names
        _require_no_other_array(path, names, warns=True)
        for array in _required_arrays(features_made, labels):
            if array not in arrays:
                raise ShoalError(path, f"no array {array}; it needs {', '.join(REQUIRED)}")
        return arrays, {array: f"{path} ({array})" for array in (*REQUIRED, *arrays)}
    _require_no_other_file(path, files, options.beside, warns=True)
    if files["edge_index"].suffix != ".npy":
        # Other graphs do without its readers.
        from shoal.storage.datasets.user.tables import read_tables

        of_edges, texts = options.edge_features == "keep", options.text_columns
        arrays = read_tables(files["edge_index"], files.get("y"), labels, options.target, texts, of_edges)
        if texts_of := arrays.pop("texts", None):
            from shoal.storage.datasets.user.texts import column_names, text_features

            names, arrays["x"] = arrays.get("vocabulary", ()), text_features(texts_of, arrays.get("x"), options)
            arrays["vocabulary"] = column_names(names, arrays["x"].shape[1])
        where = {array: str(files.get(array, files.get("y", path))) for array in REQUIRED + OPTIONAL}
        return arrays, {
            **where,
            "edge_weight": f"{files['edge_index']} (weight)",
            "edge_attr": str(files["edge_index"]),
            "y": f"{where['y']} (label)",
        }
    for array, file in files.items():
        if file.suffix != ".npz":
            with reading(file, ADVICE):
                arrays[array] = load_npy(file, mapped=True)
    if "x" in files and files["x"].suffix == ".npz":
        with reading(files["x"], ADVICE), open_npz(files["x"]) as npz:
            # A row pointer is made for all rows: as many as there are labels, or nodes of graphs.
            rows = arrays.get("graph", arrays.get("y"))
            arrays["x"] = matrix_of(npz, None if rows is None or not rows.ndim else len(rows)).tocsr()
            arrays["x"].sum_duplicates()
    return arrays, {
        "x": str(path / "x.npy"),
        "y": str(path / "y.npy"),
        **{array: str(file) for array, file in files.items()},
    }


def is_table_of_molecules(path: Path) -> bool:
    """Whether a path is a table with a column `smiles`."""
    if path.suffix.lower() not in (".csv", ".tsv"):
        return False
    from shoal.storage.datasets.user.molecules import is_molecules

    return is_molecules(path)


def _read_molecules(path: Path, options: DataSource) -> tuple[dict[str, Any], dict[str, str]]:
    """Reads a table of molecules, as `_read_arrays` reads others; their atoms have features of their own."""
    from shoal.storage.datasets.user.molecules import read_molecules

    if options.made.made or options.row_normalize:
        key = "data.features" if options.made.made else "data.row_normalize"
        raise ShoalError(key, "molecules have features of atoms; leave it out")
    arrays = read_molecules(path, options.target, options.invalid == "drop", options.edge_features == "keep")
    return arrays, {array: f"{path} ({array})" for array in (*REQUIRED, *arrays)}


def _require_no_other_array(path: Path, names: Collection[str], warns: bool = False) -> None:
    """Refuses arrays in an .npz file that have a meaning and are not read; `warns` names all others."""
    places_of = {array: f"{path} ({array})" for array in names}
    require_read(places_of, REQUIRED + OPTIONAL, lambda array: "leave it out", places=OF_ARRAYS, warns=warns)


def _require_no_other_file(folder: Path, files: dict[str, Path], beside: Collection[str], warns: bool = False) -> None:
    """Refuses arrays and tables in a folder in the same way: beside tables no array is read."""
    others = [file for file in sorted(folder.iterdir()) if file.suffix in (".npy", ".npz", ".csv", ".tsv", ".parquet")]
    expected = {*files.values(), *(Path(file).expanduser().resolve() for file in beside)}
    places_of = {file.stem: str(file) for file in others if file not in expected}
    edges = files["edge_index"]
    if edges.suffix != ".npy" and (array := next((name for name in REQUIRED + OPTIONAL if name in places_of), None)):
        raise ShoalError(Path(places_of[array]), f"tables are read alone; move it, or {edges.name}, away")
    require_read(places_of, (), lambda name: "move it to another folder", places=OF_ARRAYS, warns=warns)


def _content(options: DataSource) -> dict[str, Any]:
    path, made = graph_at(options.path), options.made.made
    gone = options.noted is not None and is_gone(path)
    files = dict(options.noted or {}) if gone else contents(path, made, options.labels)
    content: dict[str, Any] = {"files": files}
    if options.text_columns:
        from shoal.storage.datasets.user.texts import encoder_identity

        content |= {"text": list(options.text_columns), **encoder_identity(options)}
    elif options.encoder != NGRAMS:
        raise ShoalError("data.options.encoder", "is for columns of texts; name them in data.options.text")
    if options.text_width != DataSource.text_width and (not options.text_columns or options.encoder != NGRAMS):
        raise ShoalError("data.options.text_width", f"is for texts by {NGRAMS}; leave it out")
    if options.invalid != "refuse":
        if not gone and not is_table_of_molecules(path):
            raise ShoalError("data.options.invalid", f"is for a table of molecules, and {path} is none; leave it out")
        content["invalid"] = options.invalid
    if options.edge_features == "keep" and not gone and is_table_of_molecules(path):
        # Stores from before bonds had features lack them.
        content["bonds"] = "kept"
    if gone:
        return content
    if path.is_dir() and (nodes := table_of(path, NODES)) is not None:
        from shoal.storage.datasets.user.tables import has_kinds

        if has_kinds(nodes):
            # Stores from before took such a column for a feature.
            content["kinds"] = "read"
    # A graph is not read if its store is there already.
    if path.is_dir():
        _require_no_other_file(path, parts(path, made, options.labels), options.beside)
    elif not is_table_of_molecules(path):
        with reading(path, ADVICE), open_npz(path) as npz:
            names = npz.names
        _require_no_other_array(path, names)
    return content


DATASETS = (
    DatasetSpec(
        "files",
        load_files,
        task=None,
        content=_content,
        options=("text", "encoder", "text_width", "invalid"),
        weighted=True,
    ),
)
