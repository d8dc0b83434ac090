"""The file of a run with scores of removals, and the models of exact ones: an interrupted command goes on with them."""

import re
from collections.abc import Mapping
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from shoal.engine.records.run_folder import UNLEARNED, UNLEARNED_MODELS
from shoal.engine.records.tensors import read_tensors, write_tensors
from shoal.past.kept_lines import KeptLines
from shoal.past.rewind import PastRun
from shoal.storage.files.atomic import cannot_write, replacing
from shoal.storage.files.digest import text_digest
from shoal.storage.files.names import place_in
from shoal.unlearning.removal import Removal
from shoal.unlearning.retraining import MODEL_ENTRY


class Kept:
    """The scores of removals, and the models of exact ones, that a run keeps."""

    def __init__(self, past: PastRun) -> None:
        """Reads the file; see `KeptLines`."""
        self._run = past.path
        self._of: dict[tuple[str, str], dict[str, Any]] = {}
        self._lines = KeptLines(past, UNLEARNED, self._take)

    def get(self, removal: Removal, method: str) -> dict[str, Any] | None:
        """Returns the scores of a method on a removal; None: they are not kept."""
        return self._of.get((removal.digits, method))

    def append(self, removal: Removal, method: str, scores: Mapping[str, Any]) -> None:
        """Writes scores. Raises ShoalError: the file cannot be written."""
        self._of[removal.digits, method] = dict(scores)
        self._lines.append({"removed": removal.name, "digits": removal.digits, "method": method, "scores": scores})

    def read_model(self, removal: Removal) -> Tensor | None:
        """Returns the parameters `[P]` of an exact removal; None: they are not kept, or cannot be read."""
        try:
            tensors = read_tensors(place_in(self._run, UNLEARNED_MODELS, _file(removal)))
            return tensors[MODEL_ENTRY]
        except (OSError, SafetensorError, KeyError):
            return None

    def write_model(self, removal: Removal, w: Tensor, named: Mapping[str, Tensor]) -> None:
        """Writes an exact model: parameters by name, and all of them `[P]`. Raises ShoalError: it cannot be written."""
        path = place_in(self._run, UNLEARNED_MODELS, _file(removal))
        try:
            path.parent.mkdir(exist_ok=True)
            with replacing(path) as unfinished:
                write_tensors(unfinished, {**named, MODEL_ENTRY: w})
        except OSError as error:
            raise cannot_write(path, error) from None

    def place_of(self, removal: Removal) -> str:
        """Returns the path of an exact model below the run."""
        return f"{UNLEARNED_MODELS}/{_file(removal)}"

    def _take(self, line: Mapping[str, Any]) -> None:
        self._of[line["digits"], line["method"]] = line["scores"]


def _file(removal: Removal) -> str:
    """Names the file of an exact model; a long list of nodes is in its digits."""
    short = re.sub(r"[^a-z0-9]+", "-", removal.name)[:40].strip("-")
    return f"{short}-{text_digest(removal.digits)[:8]}.safetensors"
