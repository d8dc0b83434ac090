"""Tensors by name in a file of safetensors."""

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors of any device as they are now, with the file modes that the user's umask says.

    Raises:
        OSError: It cannot be written; then a part of the file may be there.
        SafetensorError: The same.
    """
    # The library makes private files; an empty file has the modes of the umask.
    path.touch()
    mode = path.stat().st_mode
    # A tensor may be a view of shared memory; a file holds it once.
    save_file({name: t.detach().clone().contiguous() for name, t in tensors.items()}, path)
    path.chmod(mode)
