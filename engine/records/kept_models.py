"""Models of earlier rounds in checkpoints: each is written once, into a file that later checkpoints link.

A client that missed rounds holds the model of an earlier one. Such a model never changes. So a file of models is named
after its content and never written again; it goes with the last checkpoint that has it. A file of which less than half
is still needed is not linked, and the rest of it is written anew: files have at most twice the bytes of the models.
"""

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from shoal.engine.records.tensors import read_tensors, write_tensors
from shoal.storage.files.digest import digest

if TYPE_CHECKING:
    from torch import Tensor

    from shoal.algorithms.protocol import Tree

# The name of a tensor begins so; the digest of its model and its own name follow.
MODEL = "model/"
FILE = re.compile(r"models-([0-9a-f]{32})\.safetensors")
# Models of at least `LEAST` bytes have a file to themselves; smaller ones share files of at most `MOST` bytes.
LEAST, MOST = 2**24, 2**26


def files_of_models(folders: Collection[Path]) -> dict[Path, dict[str, int]]:
    """Finds files of models in folders of checkpoints, one of each content, with bytes by digest of a model."""
    by_name: dict[str, Path] = {}
    for folder in folders:
        with suppress(OSError):
            by_name |= {name: folder / name for name in os.listdir(folder) if FILE.fullmatch(name)}
    # A file that is damaged holds nothing.
    with_models = {path: _models_in(path) for path in by_name.values()}
    return {path: models for path, models in with_models.items() if models}


def _models_in(path: Path) -> dict[str, int]:
    """Reads the bytes of the models in a file, by digest, from its header; none if the file cannot be read."""
    sizes: Counter[str] = Counter()
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(min(length, path.stat().st_size)))
        for name, entry in header.items():
            if name.startswith(MODEL):
                first, end = entry["data_offsets"]
                sizes[name.split("/")[1]] += end - first
    return dict(sizes)


def write_models(
    folder: Path, models: "Mapping[str, Tree]", needed: Collection[str], earlier: Mapping[Path, Mapping[str, int]]
) -> "tuple[dict[str, str], Tree]":
    """Provides a new checkpoint with the models that it needs: links those of `earlier` files, and writes others.

    Args:
        models: Models by digest, at least those of `needed` that no earlier file has.

    Returns:
        Digests of the files by name, and tensors that are too few for a file.

    Raises:
        OSError: A file cannot be linked or written, or an earlier one cannot be read.
    """
    files: dict[str, str] = {}
    missing = set(needed)
    elsewhere: dict[str, Path] = {}
    for path, sizes in sorted(earlier.items(), key=lambda item: (-sum(item[1].values()), item[0].name)):
        used = sum(size for name, size in sizes.items() if name in missing)
        elsewhere |= dict.fromkeys(missing & sizes.keys(), path)
        if used >= LEAST and 2 * used >= sum(sizes.values()):
            _link(path, folder / path.name)
            files[path.name] = path.name.removeprefix("models-").removesuffix(".safetensors")
            missing -= sizes.keys()
    size, part = 0, dict[str, "Tree"]()
    for name in sorted(missing):
        tree = models[name] if name in models else _read_model(elsewhere[name], name)
        nbytes = sum(t.nbytes for t in tree.values())
        if size >= LEAST and size + nbytes > MOST:
            files |= _write(folder, part)
            size, part = 0, {}
        part[name], size = tree, size + nbytes
    if size >= LEAST:
        return files | _write(folder, part), {}
    return files, dict(_name_tensors(part))


def _name_tensors(models: "Mapping[str, Tree]") -> "Iterator[tuple[str, Tensor]]":
    for content, tree in models.items():
        for name, t in tree.items():
            yield f"{MODEL}{content}/{name}", t


def _write(folder: Path, models: "Mapping[str, Tree]") -> dict[str, str]:
    """Writes a file of models; returns its digest by its name."""
    unnamed = folder / "models.part"
    write_tensors(unnamed, dict(_name_tensors(models)))
    content = digest(unnamed)
    unnamed.rename(folder / f"models-{content}.safetensors")
    return {f"models-{content}.safetensors": content}


def _read_model(path: Path, model: str) -> "Tree":
    """Reads a model of a file. Raises OSError: the file cannot be read."""
    begin = f"{MODEL}{model}/"
    try:
        return {name.removeprefix(begin): t for name, t in read_tensors(path).items() if name.startswith(begin)}
    except SafetensorError as error:
        raise OSError(str(error)) from error


def _link(path: Path, new: Path) -> None:
    """Links a file, or copies it where the disk has no links."""
    try:
        os.link(path, new)
    except OSError:
        shutil.copyfile(path, new)
