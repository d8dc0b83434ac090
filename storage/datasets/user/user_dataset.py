"""A dataset of the user's own."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.storage.datasets.sources.source import DatasetSpec, DataSource, data_root
from shoal.storage.datasets.user.unread import require_read
from shoal.storage.errors import GraphGone, ShoalError
from shoal.storage.files.digest import input_digest
from shoal.storage.graph.from_arrays import OPTIONAL, REQUIRED
from shoal.storage.graph.graph import Graph
from shoal.storage.options.types import checked, quoted
from shoal.storage.suggestions import did_you_mean
from shoal.storage.user_code.user_code import UserCode, read_user_code

KEY = "data.dataset"
NAMES = (*REQUIRED, *OPTIONAL, "train_mask", "val_mask", "test_mask")


class Dataset(ABC):
    """Base class of a user's dataset: `data.dataset: my_file.py:Mine`.

        class Rings(shoal.Dataset):
            def __init__(self, *, nodes: int = 100):
                self.nodes = nodes

            def load(self, root):
                ring = np.arange(self.nodes)
                edges = np.stack([ring, (ring + 1) % self.nodes])
                return {"edge_index": edges, "x": np.eye(self.nodes, dtype="float32"), "y": ring % 2}

    Keyword-only parameters of the constructor, each with a type and a default, are the keys of `data.options`.
    """

    @abstractmethod
    def load(self, root: Path) -> Any:
        """Loads the graph: a mapping of arrays or tensors, or an object with these attributes, as PyG's `Data`.

        `edge_index` integers `[2, E]` (one or both directions), `x` numbers `[N, F]`, `y` numbers or names `[N]` (-1,
        NaN or "": no label; with `task: edge` y may be missing), and if there are `train_mask`, `val_mask` and
        `test_mask`, truth values `[N]`, or `split` `[N]` (0 none, 1 train, 2 val, 3 test), `assignment` `[N]` (the
        client of every node), `edge_weight` `[E]` (a positive number for every edge), `edge_attr` `[E, D]` (numbers of
        every edge, which `edge_names` `[D]`, texts, say, and of which the first `edge_kinds` are kinds), `ids` `[N]`
        (what the nodes are called, integers or texts),
        and `graph` `[N]` (the graph of every node, where these are many small graphs; labels and split are then those
        of graphs). `root` is `data.root`, or the folder of published files.
        """

    def files(self, root: Path) -> Sequence[Path]:
        """Lists the files that `load` reads: when their content changes it is another dataset. By default none."""
        return ()


def load_user_dataset(name: str, options: DataSource) -> Graph:
    """Loads the graph of the user's class, `my_file.py:Name`; a ShoalError names the line, or the array and the row."""
    code = read_user_code(KEY, name)
    made = _make(code, options)
    with code.at_work(KEY):
        loaded = made.load(data_root(options.root))
    dropped = ["edge_weight"] if options.edge_weights == "drop" else []
    dropped += ["edge_attr", "edge_names", "edge_kinds"] if options.edge_features == "drop" else []
    if isinstance(loaded, Graph):
        nothing: dict[str, Any] = {name: 0 if name == "edge_kinds" else None for name in dropped}
        return replace(loaded, **nothing)
    given = loaded
    if not isinstance(loaded, Mapping):
        given = {name: getattr(loaded, name, None) for name in NAMES}
        attributes = loaded.keys() if callable(getattr(loaded, "keys", None)) else getattr(loaded, "__dict__", ())
        others = {name: f"{code.place}: {name}" for name in attributes if not name.startswith("_")}
        require_read(others, (*NAMES, *dropped), lambda name: "leave it out of what load gives")
    if unknown := next((name for name in given if name not in NAMES), None):
        raise code.fault(KEY, f"load gives {unknown!r}, which is none of {', '.join(NAMES)}")
    # It imports torch, which other datasets do not need.
    from shoal.storage.datasets.user.incoming import graph_of

    values = {name: given.get(name) for name in NAMES if name not in dropped}
    return graph_of(options.name, values, {name: f"{code.place}: {name}" for name in NAMES}, target=options.target)


def user_content(options: DataSource) -> dict[str, Any]:
    """Identifies the dataset: its code, its options, and the content of the files that it names."""
    code, files = _files(options)
    if files and not any(file.exists() for file in files):
        if options.noted is None:
            raise GraphGone(files[0], "not found; files() of the dataset names it")
        contents = dict(options.noted)
    else:
        names = [file.name for file in files]
        contents = {file.name if names.count(file.name) == 1 else str(file): input_digest(file) for file in files}
    return {"dataset": options.name, "code": code.identity, "options": dict(options.user_options), "files": contents}


def digest_files(options: DataSource) -> dict[str, str]:
    """Digests the files that the dataset names, by their paths; empty where none of them is left."""
    _, files = _files(options)
    return {str(file): input_digest(file) for file in files} if any(file.exists() for file in files) else {}


def _files(options: DataSource) -> tuple[UserCode, list[Path]]:
    """Returns the code of the dataset, and the files that it names."""
    code = read_user_code(KEY, options.dataset)
    made = _make(code, options)
    with code.at_work(KEY):
        return code, [Path(file) for file in made.files(data_root(options.root))]


def _make(code: UserCode, options: DataSource) -> Dataset:
    cls = code.load()
    if not isinstance(cls, type) or not issubclass(cls, Dataset):
        raise code.fault(KEY, f"{getattr(cls, '__name__', cls)} is no dataset; derive it from shoal.Dataset")
    hints = {
        name: parameter.annotation
        for name, parameter in inspect.signature(cls).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    values = checked_options(options.user_options, hints, cls.__name__)
    with code.at_work(KEY):
        return cls(**values)


def checked_options(options: Mapping[str, Any], known: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """Converts `data.options` to the types that `known` has for the keys; refuses others."""
    values = {}
    for key, value in options.items():
        if key not in known:
            has = ", ".join(known) or "no option"
            raise ShoalError(f"data.options.{key}", f"{did_you_mean(key, known)}unknown; {owner} has {has}")
        try:
            values[key] = checked(known[key], value)
        except ValueError as error:
            raise ShoalError(f"data.options.{key}", f"{error}, found {quoted(value)}") from None
    return values


USER_DATASET = DatasetSpec("", load_user_dataset, task=None, content=user_content, weighted=True)
