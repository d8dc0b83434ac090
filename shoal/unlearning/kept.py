"""The file of a run with scores of removals, and the models of exact ones: an interrupted command goes on with them."""

import json
import re
from collections.abc import Mapping
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from shoal.engine.messages.environment import environment
from shoal.engine.records.run_folder import UNLEARNED, UNLEARNED_MODELS, read_summary
from shoal.engine.records.tensors import read_tensors, write_tensors
from shoal.engine.screen.progress import say
from shoal.past.rewind import PastRun
from shoal.storage.files.atomic import cannot_write, replacing
from shoal.storage.files.checksummed_json import sealed, unsealed
from shoal.storage.files.digest import text_digest
from shoal.storage.files.names import place_in
from shoal.storage.files.reading import read_bytes
from shoal.unlearning.removal import Removal
from shoal.unlearning.retraining import MODEL_ENTRY


class Kept:
    """The scores of removals, a sealed line each; they hold for one content, machine and software."""

    def __init__(self, past: PastRun) -> None:
        """Reads the file; lines that are damaged or of other numbers are dropped, which is said."""
        self.path, self._run = past.path / UNLEARNED, past.path
        self._head = {"run": past.path.name, "environment": environment(past.plan.device)}
        self._head |= {"inputs": dict(read_summary(past.path)["inputs"])}
        self._of: dict[tuple[str, str], dict[str, Any]] = {}
        self._read()

    def get(self, removal: Removal, method: str) -> dict[str, Any] | None:
        """Returns the scores of a method on a removal; None: they are not kept."""
        return self._of.get((removal.digits, method))

    def append(self, removal: Removal, method: str, scores: Mapping[str, Any]) -> None:
        """Writes scores. Raises ShoalError: the file cannot be written."""
        self._of[removal.digits, method] = dict(scores)
        plain = {"removed": removal.name, "digits": removal.digits, "method": method, "scores": scores}
        try:
            # A line is one write, so that an end leaves whole ones.
            with self.path.open("ab", buffering=0) as file:
                head = [] if file.tell() else [sealed(self._head)]
                file.write("".join(f"{text}\n" for text in (*head, sealed(plain))).encode())
        except OSError as error:
            raise cannot_write(self.path, error) from None

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

    def _read(self) -> None:
        try:
            lines = read_bytes(self.path).splitlines()
        except FileNotFoundError:
            return
        good, other = list[bytes](), False
        for line in lines:
            try:
                plain = unsealed(line)
                if not good:
                    other = plain != json.loads(json.dumps(self._head))
                    if other:
                        break
                else:
                    self._of[plain["digits"], plain["method"]] = plain["scores"]
            except (ValueError, KeyError, TypeError):
                if not good:
                    break
                continue
            good.append(line)
        if len(good) == len(lines):
            return
        why = "other content, software or machine" if other else "damaged"
        say(f"{self.path.name}: {len(lines) - len(good)} of {len(lines)} lines are dropped ({why}), and made again")
        with replacing(self.path) as unfinished:
            unfinished.write_bytes(b"".join(line + b"\n" for line in good))


def _file(removal: Removal) -> str:
    """Names the file of an exact model; a long list of nodes is in its digits."""
    short = re.sub(r"[^a-z0-9]+", "-", removal.name)[:40].strip("-")
    return f"{short}-{text_digest(removal.digits)[:8]}.safetensors"
