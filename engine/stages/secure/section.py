"""The section `secure`: sums of which the server reads the total alone."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from shoal.engine.sections.rules import Rule, acts_on_uploads, one_of
from shoal.engine.sections.section import Section
from shoal.storage.options.types import CLOSED, Number, WithShortForm


@dataclass(frozen=True, config=CLOSED)
class SecureOptions(WithShortForm):
    """The options of secure aggregation, simulated; see `shoal.engine.stages.secure`. A kind alone stands for the
    section.

    Attributes:
        kind: `none`, or how only the sum of a cohort is read: by `masks`, or by `homomorphic` encryption.
        threshold: Share of the clients drawn that must answer, at least two; with fewer the round is skipped.
    """

    kind: Literal["none", "masks", "homomorphic"] = "none"
    threshold: Annotated[Number, Field(gt=0, le=1)] = 0.5


SECURE = Section(
    "secure",
    SecureOptions,
    switch="kind",
    off="none",
    rules=(
        *acts_on_uploads("secure.kind"),
        one_of("secure.threshold", "secure.kind", "masks", "homomorphic"),
        Rule(
            ("secure.kind",),
            "data.cross_edges",
            "drop, or data.cross_hidden true",
            lambda c: c.data.cross_edges == "drop" or c.data.cross_hidden,
            beside="cross_edges",
        ),
        one_of("secure.kind", "aggregation.kind", "mean")._replace(beside="aggregation"),
        one_of("communication.upload", "secure.kind", "none")._replace(beside="communication"),
        one_of("data.newcomers", "secure.kind", "none")._replace(beside="newcomers"),
        one_of("run.keep_digests", "secure.kind", "none")._replace(beside="digests"),
    ),
    stages=((60, "shoal.engine.stages.secure.hidden_sums:make"),),
    skipped="shoal.engine.stages.secure.answers:why_skipped",
    checks="shoal.engine.stages.secure.hidden_sums:require_possible",
    facts="shoal.engine.stages.secure.answers:describe_skipped",
    says="shoal.engine.stages.secure.answers:describe_run",
    more="shoal privacy {run}",
)
