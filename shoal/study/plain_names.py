"""Plain names of keys, values and scores in tables and figures; methods as their papers write them; user's labels."""

import math
from collections.abc import Mapping, Sequence

from shoal.algorithms.methods.registry.names import display_name
from shoal.algorithms.models.names import BACKBONES
from shoal.engine.config.sections import ACCURACY
from shoal.engine.records.summary import NODES, POOLED, name_with_unit
from shoal.storage.errors import ShoalError
from shoal.storage.suggestions import did_you_mean_name
from shoal.study.groups import Group

METHOD, MODEL = ("algorithm", "algorithm.name"), ("model", "model.name")
KEYS = {
    **dict.fromkeys(METHOD, "method"),
    **dict.fromkeys(MODEL, "model"),
    "data.options.nodes": "nodes",
    "data.options.scale": "graph scale",
    "participation.ratio": "participation rate",
    "participation.count": "clients a round",
    "schedule.name": "schedule",
    "partition.method": "partition",
    # These two are named with their unit: that of FedGPL is for a single row that is sent.
    "privacy.epsilon": "epsilon of the privacy unit",
    "algorithm.epsilon": "epsilon of a row",
    "train.lr": "learning rate",
    "train.epochs": "local epochs",
}
COUNTED = ("clients", "hosts", "nodes", "rounds")
MODELS = {
    "trained": "of locally trained models",
    "deployed": "of deployed models",
    "global": "of the global model",
    "domains": "on whole graphs",
    "newcomers": "of newcomers",
    "newcomers_trained": "of newcomers after local training",
}
MOMENTS = {"best": "at best validation", "final": "in the final round"}
SAMPLES = {"test": "test", "val": "validation"}


def key_names(keys: Sequence[str]) -> dict[str, str]:
    """Returns a plain name of each key, `partition.clients` as `clients`; keys that would share one keep their own."""
    named = {key: KEYS.get(key, key.rpartition(".")[2].replace("_", " ")) for key in keys}
    return {key: key if list(named.values()).count(name) > 1 else name for key, name in named.items()}


def value_names(key: str, values: Sequence[str]) -> dict[str, str]:
    """Returns methods and models as their papers write them, a user's by their class; other values as they are."""
    if key in METHOD:
        named = {value: display_name(value) for value in values}
    elif key in MODEL:
        named = {value: BACKBONES.get(value, value).rpartition(":")[2] for value in values}
    else:
        return {value: value for value in values}
    return {value: value if list(named.values()).count(name) > 1 else name for value, name in named.items()}


def with_value(name: str, value: str) -> str:
    """Returns the name of a key with a value, as `learning rate 0.1`; counted things as one says them: `1 host`."""
    if name in COUNTED and value.isdigit():
        return f"{value} {name.removesuffix('s') if value == '1' else name}"
    return f"{name} {value}"


def score_name(figure: str, figures: Mapping[str, float], *, short: bool = False) -> str:
    """Writes `deployed.best.test` as `test accuracy (%) of deployed models at best validation`, by `figures`' metric.

    Other figures keep their names. `short` leaves out whose model it is, and when.
    """
    scope, _, rest = figure.partition(".")
    moment, _, part = rest.partition(".")
    if scope not in MODELS or moment not in MOMENTS or part not in SAMPLES:
        return figure
    text = f"{SAMPLES[part]} {name_with_unit(_metric_of(figure, figures))}"
    return text if short else f"{text} {MODELS[scope]} {MOMENTS[moment]}"


def _metric_of(figure: str, figures: Mapping[str, float]) -> str:
    """Returns the metric of which a short figure is a mean; means of accuracy stand without a name of a metric."""
    value, means = figures.get(figure), (NODES, POOLED, "clients")
    if value in [figures.get(f"{figure}.{mean}", math.nan) for mean in means]:
        return ACCURACY
    others = dict.fromkeys(n.split(".")[3] for n in figures if n.startswith(f"{figure}.") and n.count(".") == 4)
    same = [name for name in others if value in [figures.get(f"{figure}.{name}.{mean}", math.nan) for mean in means]]
    return next(iter([*same, *others]), ACCURACY)


def label_pairs(labels: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Splits labels of the form `NAME=SHOWN`, as options have them, into pairs. Raises ShoalError: a form is wrong."""
    pairs = [label.rpartition("=") for label in labels]
    if wrong := next((label for label, pair in zip(labels, pairs) if not all(pair)), None):
        raise ShoalError(f"--label {wrong}: has the form NAME=SHOWN, as in mine.py:X=Ours")
    return tuple((name, name_metric) for name, _, name_metric in pairs)


class PlainNames:
    """The names of a table: the user's `labels`, else plain ones."""

    def __init__(self, groups: Sequence[Group], figures: Sequence[str], labels: Sequence[tuple[str, str]]) -> None:
        """Chooses the names of keys and figures. Raises ShoalError: nothing in the table has the name of a label."""
        keys = list(dict.fromkeys(key for group in groups for key in group.columns))
        values = {key: list(dict.fromkeys(g.columns[key] for g in groups if key in g.columns)) for key in keys}
        self._keys = key_names(keys)
        self._values = {key: value_names(key, of_key) for key, of_key in values.items()}
        self._labels = dict(labels)
        self._known = {name: value for group in groups for row in group.rows for name, value in row.figures.items()}
        there = {*keys, *figures, *(value for of_key in values.values() for value in of_key)}
        for name in self._labels:
            if name not in there:
                raise ShoalError(
                    f"--label {name}: {did_you_mean_name(name, there)}nothing in the table has this name; there are "
                    f"{', '.join(sorted(there))}"
                )

    def key(self, key: str) -> str:
        """Returns a head of a column."""
        return self._labels.get(key) or self._keys.get(key, key)

    def value(self, key: str, value: str) -> str:
        """Returns a value of a key in a cell or a head."""
        return self._labels.get(value) or self._values.get(key, {}).get(value, value)

    def figure(self, figure: str, *, short: bool = False) -> str:
        """Returns a figure in a title or, short, in a head."""
        return self._labels.get(figure) or score_name(figure, self._known, short=short)
