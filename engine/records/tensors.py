"""Tensors of a file: read, and written with the modes that a user's umask says."""

import errno
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

if TYPE_CHECKING:
    from torch import Tensor


def read_tensors(path: Path) -> "dict[str, Tensor]":
    """Reads the tensors of a file. Raises OSError or SafetensorError: it cannot be read."""
    # This module loads torch, which takes seconds, and a list of runs needs no tensor.
    from safetensors.torch import load_file

    return load_file(path)


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]") -> None:
    """Writes tensors of any device as they are now, with the file modes that the user's umask says.

    Raises OSError: it cannot be written; then a part of the file may be there.
    """
    from safetensors.torch import save_file

    # The library makes private files, so that the modes of the umask are taken from an empty file.
    path.touch()
    mode = path.stat().st_mode
    try:
        # A tensor may be a view of shared memory; a file holds it once.
        save_file({name: t.detach().clone().contiguous() for name, t in tensors.items()}, path)
    except SafetensorError as error:
        # The library gives the system's error in words alone, without its number.
        raise OSError(errno.EIO, " ".join(str(error).split())) from error
    path.chmod(mode)
