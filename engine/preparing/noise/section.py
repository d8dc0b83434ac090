"""The keys `data.noise`: by how much features, labels and edges of every client are disturbed."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from shoal.engine.sections.rules import Rule, one_of
from shoal.engine.sections.section import Section, StoreChange
from shoal.storage.options.split import SplitOptions
from shoal.storage.options.types import CLOSED, Number, Seed

# A feature whose noise is so many times as wide as itself tells nothing, and float32 holds it.
MOST_DEVIATIONS = 1000.0


def _ascending(strengths: tuple[float, float]) -> tuple[float, float]:
    if strengths[0] > strengths[1]:
        raise ValueError("expected two numbers, the lower one first")
    return strengths


Share = Annotated[Number, Field(ge=0, le=1)]
Shares = Share | Annotated[tuple[Share, Share], AfterValidator(_ascending)]
Deviation = Annotated[Number, Field(ge=0, le=MOST_DEVIATIONS)]
Deviations = Deviation | Annotated[tuple[Deviation, Deviation], AfterValidator(_ascending)]


@dataclass(frozen=True, config=CLOSED)
class Noise:
    """Noise in the data of clients: a number for all, or `[low, high]`, spread evenly over clients in a drawn order.

    Attributes:
        features: Standard deviation of nearly normal noise of every feature, in that feature's over all nodes.
        masked: Probability with which a value of a feature is set to zero.
        labels: Share of a client's training items, rounded down, whose label is another class, drawn uniformly.
        edges_removed: Probability with which an edge inside a client is removed.
        edges_added: New edges inside a client, as a share of its edges, rounded down; with `task: graph` inside graphs.
        seed: Of all kinds, and of which client has which strength.
    """

    features: Deviations = 0.0
    masked: Shares = 0.0
    labels: Shares = 0.0
    edges_removed: Shares = 0.0
    edges_added: Shares = 0.0
    seed: Seed = 0

    @property
    def of_shards(self) -> dict[str, Any]:
        """Options that change shards, and the seed; empty if none is above 0."""
        named = {name: getattr(self, name) for name in ("features", "masked", "edges_removed", "edges_added")}
        # A manifest in JSON has lists.
        plain = {name: list(v) if isinstance(v, tuple) else v for name, v in named.items() if most_of(v)}
        return {**plain, "seed": self.seed} if plain else {}

    @property
    def of_split(self) -> str:
        """Suffix of the name of a split whose training labels have noise."""
        if not most_of(self.labels):
            return ""
        low, high = ends_of(self.labels)
        share = f"{100 * low:.15g}" + (f"to{100 * high:.15g}" if high > low else "")
        return f"-noise{share}-seed{self.seed}"

    @property
    def is_on(self) -> bool:
        """Whether any client has noise."""
        return bool(self.of_shards or self.of_split)

    def __str__(self) -> str:
        """Describes the noise, in heads of runs and in messages."""
        return describe({**self.of_shards, "labels": self.labels, "seed": self.seed}) or "none"


@dataclass(frozen=True, config=CLOSED)
class NoiseOptions(SplitOptions):
    """The noise in the data of a run.

    Attributes:
        noise: Noise of features, training labels and edges, of one strength, or of another at every client.
    """

    noise: Noise = Noise()

    @property
    def split_name(self) -> str:
        """Names the folder of the split inside a store; other labels have another one."""
        return super().split_name + self.noise.of_split


def ends_of(strength: Any) -> tuple[float, float]:
    """Returns the least and the largest strength."""
    return (strength[0], strength[1]) if isinstance(strength, list | tuple) else (strength, strength)


def most_of(strength: Any) -> float:
    """Returns the largest strength."""
    return ends_of(strength)[1]


def describe(options: Mapping[str, Any]) -> str:
    """Describes the kinds that are not 0, such as `0 to 40 % of training labels (seed 0)`; empty: none is."""
    texts = {
        "masked": "% of features masked",
        "labels": "% of training labels",
        "edges_removed": "% of edges removed",
        "edges_added": "% of edges added",
    }
    parts = []
    if most_of(options.get("features", 0)):
        parts.append(f"features by {_numbers(options['features'], 1)} of their deviations")
    parts += [f"{_numbers(options[name], 100)} {text}" for name, text in texts.items() if most_of(options.get(name, 0))]
    return f"{', '.join(parts)} (seed {options['seed']})" if parts else ""


def _numbers(strength: Any, scale: float) -> str:
    low, high = ends_of(strength)
    return f"{scale * high:g}" if low == high else f"{scale * low:g} to {scale * high:g}"


def describe_run(config: Any, parameters: Sequence[int], rounds: int) -> dict[str, str]:
    """Returns which noise the data of clients have."""
    return {"noise": str(config.data.noise)}


def _describe_store(made: Mapping[str, Any]) -> dict[str, str]:
    text = describe(made.get("noise", {}))
    return {"noise": text} if text else {}


def _identify(config: Any) -> dict[str, Any]:
    made = config.data.noise.of_shards
    return {"noise": made} if made else {}


def _owned(config: Any) -> bool:
    return bool(config.partition.overlap == 1)


FEATURES, LABELS = "data.noise.features", "data.noise.labels"
EDGES = ("data.noise.edges_removed", "data.noise.edges_added")
NOISE = Section[Any](
    "data",
    None,
    switch="noise",
    off=Noise(),
    on=lambda config: config.data.noise.is_on,
    adds={"data": NoiseOptions},
    called="noise",
    rules=(
        Rule(("data.noise.seed",), "data.noise", "with a strength above 0", lambda c: c.data.noise.is_on),
        one_of(FEATURES, "data.layout", "auto", "dense"),
        one_of(" ".join((LABELS, *EDGES)), "task", "node", "graph"),
        # Noise is a client's, and a node would have that of one of its clients in the whole graph.
        Rule((FEATURES, "data.noise.masked", LABELS, *EDGES), "partition.overlap", "1", _owned),
        Rule(
            (LABELS,), "target", "classification", lambda c: c.target.kind == "classification", beside="target",
        ),
        *(one_of(key, "data.cross_edges", "drop")._replace(beside="cross_edges") for key in EDGES),
        Rule(EDGES, "data.features", "that are not made of edges", lambda c: not c.data.features.from_edges),
    ),
    checks_data="shoal.engine.preparing.noise.noise:require_two_classes",
    says="shoal.engine.preparing.noise.section:describe_run",
    store_change=StoreChange(
        _identify,
        "shoal.engine.preparing.noise.noise:make_noise",
        _describe_store,
        fills=lambda config: most_of(config.data.noise.features) > 0,
    ),
)  # fmt: skip
