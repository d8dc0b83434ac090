"""Checkpoints: a state as safetensors and JSON, written atomically, the newest few kept."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from engine.rounds.state import FederationState
from storage.arrow_file import checksum
from storage.errors import ShoalError

FORMAT = 2
TENSORS, PLAIN = "state.safetensors", "state.json"


def _folder(root: Path, number: int) -> Path:
    return root / f"round-{number:06d}"


def save(root: Path, state: FederationState, environment: dict[str, Any], keep: int) -> Path:
    """Writes a state under `root` and removes all but the newest `keep` checkpoints.

    Raises:
        ShoalError: The disk is full; older checkpoints are kept.
    """
    folder = _folder(root, state.round)
    unfinished = folder.with_name(folder.name + ".unfinished")
    tensors, plain = state.to_tensors()
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        # A tensor may be a view of shared memory; a file holds it once, contiguous.
        save_file({name: t.detach().clone().contiguous() for name, t in tensors.items()}, unfinished / TENSORS)
        record = {
            "format": FORMAT,
            "sha256": checksum(unfinished / TENSORS),
            "environment": environment,
            "state": plain,
        }
        (unfinished / PLAIN).write_text(json.dumps(record))
        for name in (TENSORS, PLAIN):
            with (unfinished / name).open("rb") as f:
                os.fsync(f.fileno())
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(unfinished, folder)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise ShoalError(
            f"{folder}: the checkpoint cannot be written ({error}); free space and use --resume"
        ) from error
    for old in _checkpoints(root)[keep:]:
        shutil.rmtree(old)
    return folder


def _checkpoints(root: Path) -> list[Path]:
    """Finished checkpoints, newest first."""
    return sorted((p for p in root.glob("round-*") if p.suffix != ".unfinished"), reverse=True)


def load_newest(root: Path) -> tuple[FederationState, dict[str, Any], list[str]] | None:
    """The newest sound checkpoint with its environment, and a line for every damaged one; None if there is none."""
    complaints: list[str] = []
    for folder in _checkpoints(root):
        try:
            record = json.loads((folder / PLAIN).read_text())
            if record["format"] != FORMAT:
                raise ValueError(f"format {record['format']}")
            if checksum(folder / TENSORS) != record["sha256"]:
                raise ValueError("checksum does not match")
            state = FederationState.from_tensors(_unmapped(folder / TENSORS), record["state"])
            return state, record["environment"], complaints
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            complaints.append(f"{folder}: damaged checkpoint ({error}); the one before it is used")
    return None


def _unmapped(path: Path) -> dict[str, torch.Tensor]:
    # Old checkpoints are deleted while their values may still be in use.
    return {name: t.clone() for name, t in load_file(path).items()}
