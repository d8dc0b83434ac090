"""The section `aggregation`: how means are reduced."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from shoal.engine.sections.rules import acts_on_uploads, one_of
from shoal.engine.sections.section import Section
from shoal.storage.options.types import CLOSED, Count, Number, WithShortForm

# These reductions are told how many clients may be hostile.
BY_SHARE = ("trimmed", "krum", "multi_krum", "bulyan")


@dataclass(frozen=True, config=CLOSED)
class AggregationOptions(WithShortForm):
    """The reduction of means of uploads; see `shoal.engine.stages.robust`. A kind alone stands for the section.

    Attributes:
        kind: The weighted mean (`mean`), of changes of bounded norm (`norm_bound`), or a robust reduction in which
            each client counts once: `median`, `trimmed`, `krum`, `multi_krum`, `bulyan`, `geometric_median`, or
            `fltrust`, by likeness to the change of `root`.
        share: Share of the clients of a round that may be hostile, rounded up, for `trimmed` and Krum's kin.
        bound: Largest l2 norm of the change of a message.
        root: The client that `fltrust` trusts, of which the server has the data.
    """

    kind: Literal[
        "mean", "median", "trimmed", "krum", "multi_krum", "bulyan", "geometric_median", "norm_bound", "fltrust"
    ] = "mean"
    share: Annotated[Number, Field(ge=0, lt=0.5)] = 0.2
    bound: Annotated[Number, Field(gt=0)] = 1.0
    root: Count = 0


ROBUST = Section(
    "aggregation",
    AggregationOptions,
    switch="kind",
    off="mean",
    rules=(
        *acts_on_uploads("aggregation.kind"),
        one_of("aggregation.share", "aggregation.kind", *BY_SHARE),
        one_of("aggregation.bound", "aggregation.kind", "norm_bound"),
        one_of("aggregation.root", "aggregation.kind", "fltrust"),
    ),
    stages=((50, "shoal.engine.stages.robust.robust:make"),),
    checks="shoal.engine.stages.robust.robust:require_possible",
    says="shoal.engine.stages.robust.robust:describe_run",
    # All uploads of a round are in memory at once.
    copies=lambda options: (0, int(options.kind != "norm_bound")),
)
