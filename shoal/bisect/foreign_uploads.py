"""Uploads of another program in place of a run: a folder with `round-N/client-I.npz`, arrays by names of entries."""

import re
from collections.abc import Mapping
from pathlib import Path
from zipfile import BadZipFile

import torch
from torch import Tensor

from shoal.bisect.causes import Finding
from shoal.bisect.differences import UPLOAD, compare, name_layer
from shoal.bisect.sides import Side
from shoal.bisect.tracing import Trace, trace_round
from shoal.storage.errors import ShoalError
from shoal.storage.files.bounded_npy import NOT_READ, open_npz, reason

ROUND, CLIENT = re.compile(r"round-0*(\d{1,18})"), re.compile(r"client-0*(\d{1,18})\.npz")
# Uploads alone do not tell what a client received from what it made of it.
CAUSE = "download, training or upload"


def list_uploads(folder: Path) -> dict[int, dict[int, Path]]:
    """Lists the files of uploads in a folder, by round and client; empty: the folder has none."""
    uploads: dict[int, dict[int, Path]] = {}
    for place in sorted(folder.iterdir()) if folder.is_dir() else ():
        if place.is_dir() and (number := ROUND.fullmatch(place.name)):
            files = {int(m[1]): file for file in sorted(place.iterdir()) if (m := CLIENT.fullmatch(file.name))}
            if files:
                uploads[int(number[1])] = files
    return uploads


class ForeignUploads:
    """The comparison of a run with uploads of another program.

    Attributes:
        visits: Visits of clients that were made again.
        rounds: Rounds of which both have uploads, ascending.
    """

    def __init__(self, side: Side, uploads: Mapping[int, Mapping[int, Path]], tolerance: float) -> None:
        """Takes a run and uploads. Raises ShoalError: they have no round of the run."""
        self._side, self._uploads, self._tolerance, self.visits = side, uploads, tolerance, 0
        self.rounds = [number for number in sorted(uploads) if number <= side.rounds]
        if not self.rounds:
            raise ShoalError(side.past.path, f"has rounds 1 to {side.rounds}, and the uploads are of {min(uploads)} on")

    def find(self) -> Finding | None:
        """Halves the rounds; returns the first whose uploads differ, where all after one that differs do, too.

        Raises ShoalError: rounds of the run cannot be made again, or a file cannot be read.
        """
        first: Finding | None = None
        low, high = 0, len(self.rounds)
        while low < high:
            middle = (low + high) // 2
            finding = self._compare(self.rounds[middle])
            if finding is None:
                low = middle + 1
            else:
                first, high = finding, middle
        return first

    def _compare(self, number: int) -> Finding | None:
        """Compares the uploads of a round, which is made again."""
        past = self._side.trained_by(number)
        before = past.after(number - 1)
        program = self._side.program(number)
        if program is None:
            raise ShoalError(past.path, f"round {number} cannot be made again: {self._side.lost[-1]}")
        self.visits += past.trained * len(past.cohort(number))
        trace = trace_round(program, None if before is None else before.state)
        self.visits += trace.visits
        finding, clients = None, list[int]()
        for client, file in self._uploads[number].items():
            sent = _uploads_of(trace, client)
            if not sent:
                raise ShoalError(file, f"client {client} sent nothing in round {number} of {past.path}")
            for name, array in read_upload(file).items():
                if name not in sent:
                    raise ShoalError(file, name, f"the upload of the run has {', '.join(sent)}")
                phase, value = sent[name]
                both = value.is_floating_point() and array.is_floating_point()
                difference = compare(name, value.double() if both else value, array.double() if both else array)
                if difference is None or difference.relative <= self._tolerance:
                    continue
                clients = [*clients, *([client] if client not in clients else [])]
                if finding is None:
                    tensor = f"upload: {name_layer(name, value, difference.first, trace.layers)}"
                    finding = Finding(number, number, CAUSE, phase=phase, tensor=tensor, difference=difference)
        if finding is not None:
            finding.clients = clients
        return finding


def _uploads_of(trace: Trace, client: int) -> dict[str, tuple[str, Tensor]]:
    """Returns phase and tensor of each entry that a client sent, as the method made it."""
    return {
        point.name: (trace.phases[point.phase - 1], value)
        for point, value in trace.points.items()
        if (point.kind, point.client, point.step) == (UPLOAD, client, 0) and isinstance(value, Tensor)
    }


def read_upload(file: Path) -> dict[str, Tensor]:
    """Reads an upload by entry. Raises ShoalError: the file cannot be read."""
    try:
        with open_npz(file) as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.names}
    except (*NOT_READ, BadZipFile, KeyError, TypeError) as error:
        raise ShoalError(file, f"cannot be read ({reason(error)}); write it with numpy.savez") from None
