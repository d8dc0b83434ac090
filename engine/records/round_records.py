"""What a method records of evaluated rounds for a report: matrices of mixing, prototypes."""

import re
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file

from algorithms.protocol import Tree
from engine.records.tensors_file import write_tensors
from storage.atomic import replacing
from storage.errors import ShoalError

RECORDS = "records"


def write_records(run: Path, number: int, records: Tree) -> None:
    """Writes what was recorded of a round.

    Raises:
        ShoalError: The file cannot be written.
    """
    with replacing(run / RECORDS / f"round-{number:06d}.safetensors") as unfinished:
        write_tensors(unfinished, records)


def recorded_rounds(run: Path) -> list[int]:
    """Rounds with records, ascending."""
    folder = run / RECORDS
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name[6:-12]) for name in names if re.fullmatch(r"round-\d{6,18}\.safetensors", name))


def read_records(run: Path, number: int) -> Tree:
    """What was recorded of a round: `mixing` float32 `[B, B]`, weights of the uploads of column clients for row
    clients, and `prototypes` float32 `[P, H]` with `prototype_client` and `prototype_class` int64 `[P]`, if there are.

    Raises:
        ShoalError: The file is damaged.
    """
    path = run / RECORDS / f"round-{number:06d}.safetensors"
    try:
        found: Tree = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ShoalError(f"{path}: cannot be read ({error}); remove it, and the report is without that round") from None
    return found
