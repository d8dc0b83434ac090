"""The keys `data.newcomers` and `evaluation.newcomer_epochs`: clients that come after training."""

from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from shoal.engine.sections.rules import Rule, one_of
from shoal.engine.sections.section import Section
from shoal.storage.options.types import CLOSED, Number, Positive

# Newcomers have these scopes: what they are given, and after their local training.
GIVEN, TRAINED = "newcomers", "newcomers_trained"
KEY = "data.newcomers"


@dataclass(frozen=True, config=CLOSED)
class NewcomersOptions:
    """The clients that come after training.

    Attributes:
        newcomers: Share of all clients that never take part, rounded down, drawn by `seed`; what the method gives to
            such a client is scored as `newcomers`, and after its local training as `newcomers_trained`.
    """

    newcomers: Annotated[Number, Field(ge=0, lt=1)] = 0.0


@dataclass(frozen=True, config=CLOSED)
class NewcomerEpochs:
    """The local training of newcomers.

    Attributes:
        newcomer_epochs: Epochs of local training of newcomers (`data.newcomers`); null: those of `train.epochs`.
    """

    newcomer_epochs: Positive | None = None


NEWCOMERS = Section[Any](
    "data",
    None,
    switch="newcomers",
    off=0.0,
    adds={"data": NewcomersOptions, "evaluation": NewcomerEpochs},
    rules=(
        Rule((KEY,), "algorithm.name", "with several clients", lambda c: c.algorithm.name != "global"),
        # Others would know nodes of a newcomer.
        Rule((KEY,), "partition.overlap", "1", lambda c: c.partition.overlap == 1),
        Rule((KEY,), "schedule.name", "synchronous", lambda c: c.schedule.synchronous),
        one_of(KEY, "data.cross_edges", "drop")._replace(beside="cross_edges"),
        Rule(("evaluation.newcomer_epochs",), KEY, "above 0", lambda c: c.data.newcomers > 0),
    ),
    checks_method="shoal.engine.newcomers.newcomers:require_method",
    on_hosts="shoal.engine.newcomers.newcomers:epochs_of",
    absent="shoal.engine.newcomers.newcomers:leave_out",
    says="shoal.engine.newcomers.newcomers:describe_run",
    evaluates="shoal.engine.newcomers.newcomers:make_evaluation",
    scopes=(GIVEN, TRAINED),
    called="newcomers",
)
