"""Rounds as TensorBoard events."""

from dataclasses import dataclass, field
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from shoal.engine.callbacks.callback import Callback, Line, Running
from shoal.engine.config.sections import DOMAINS
from shoal.engine.records.outputs import TENSORBOARD
from shoal.engine.records.summary import metrics_in, weighting_of


@dataclass
class TensorBoard(Callback):
    """Writes the scalars of every round under `<run>/tensorboard`, and the keys of the run for its tab of them."""

    _writer: EventFileWriter | None = field(default=None, init=False, repr=False)

    def start(self, run: Running) -> None:
        """Begins a file of events; the first one gets the rounds so far."""
        if self._writer is None:
            earlier = () if (run.path / TENSORBOARD).exists() else run.lines
            plain = {key: v if isinstance(v, bool | int | float | str) else str(v) for key, v in run.keys.items()}
            self._writer = EventFileWriter(str(run.path / TENSORBOARD))
            self._writer.add_event(Event(step=0, summary=hparams_pb(plain, trial_id=run.path.name)))
            for line in earlier:
                self.after_round(run, line)

    def after_round(self, run: Running, line: Line) -> None:
        """Writes a round."""
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in _scalars(line).items()]
        assert self._writer is not None
        self._writer.add_event(Event(step=line["round"], summary=Summary(value=values)))

    def end(self, run: Running, summary: Line | None) -> None:
        """Flushes the file."""
        if self._writer is not None:
            self._writer.close()


def _scalars(line: Line) -> dict[str, float]:
    """Returns the numbers of a round that are shown."""
    scalars = {
        "bytes/up": line["bytes_up"],
        "bytes/down": line["bytes_down"],
        "seconds/round": line["seconds"]["round"],
    }
    if line["loss"] is not None:
        scalars["loss"] = line["loss"]
    for scope, parts in line.get("scopes", {}).items():
        for part, numbers in parts.items():
            if (accuracy := numbers.get(weighting_of(scope))) is not None:
                scalars[f"accuracy_{part}/{scope}"] = accuracy
            for metric in metrics_in(numbers):
                if (value := numbers[metric][weighting_of(scope)]) is not None:
                    scalars[f"{metric}_{part}/{scope}"] = value
            if scope == DOMAINS:
                scalars |= _of_domains(part, numbers)
    return scalars


def _of_domains(part: str, numbers: dict[str, Any]) -> dict[str, float]:
    """Returns further numbers of domains: means of macro-F1, balanced accuracy, AUC, and accuracy on every domain."""
    means = {f"{rate}_{part}/{DOMAINS}": numbers[rate] for rate in ("f1_clients", "balanced", "auc")}
    named = {f"accuracy_{part}/{DOMAINS}/{name}": rates["accuracy"] for name, rates in numbers[DOMAINS].items()}
    return {tag: value for tag, value in {**means, **named}.items() if value is not None}
