"""Rounds as TensorBoard events."""

from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter


class TensorBoard:
    """Writes the scalars of every round under `<run>/tensorboard`."""

    def __init__(self, run: Path) -> None:
        self._writer = EventFileWriter(str(run / "tensorboard"))

    def write(self, line: dict[str, Any]) -> None:
        """Writes one line of metrics."""
        scalars = {
            "bytes/up": line["bytes_up"],
            "bytes/down": line["bytes_down"],
            "seconds/round": line["seconds"]["round"],
        }
        if line["loss"] is not None:
            scalars["loss"] = line["loss"]
        for scope, parts in line.get("scopes", {}).items():
            for part, numbers in parts.items():
                scalars[f"accuracy_{part}/{scope}"] = numbers["nodes"]
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        self._writer.add_event(Event(step=line["round"], summary=Summary(value=values)))

    def close(self) -> None:
        """Flushes what was written."""
        self._writer.close()
