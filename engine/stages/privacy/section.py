"""The section `privacy`: differential privacy of clients, or of nodes."""

from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from shoal.engine.sections.rules import Rule, acts_on_uploads, one_of
from shoal.engine.sections.section import Section
from shoal.storage.options.types import CLOSED, Number, Positive


@dataclass(frozen=True, config=CLOSED)
class PrivacyOptions:
    """The options of differential privacy; see `shoal.engine.stages.privacy`, and of nodes `node_privacy` there.

    Attributes:
        unit: What is hidden: nothing (`none`), all data of one `client`, or one `node` with its edges.
        where: Where noise hides a client: at the `server`, on the sum of changes, or at each `client`, on its upload.
        clip: C, the largest l2 norm of the change of a message, or of a training node's gradient; null: any, without
            noise.
        noise: z, of which the noise on a sum of changes, or of gradients, has the deviation z C. Either this, or
            `epsilon`.
        epsilon: Of a client, or a node, after all rounds, for which the least noise is taken.
        delta: Beside epsilon; less than one over the number of clients, or of a client's nodes.
        quantile: Share of the clients of a round with a norm of at most the clip, to which the clip adapts from round
            to round; null: it stays. See `shoal.engine.stages.privacy.adaptive_clip`.
        mechanism: Noise of each round on its own (`gaussian`), or for groups of clients by turns such that later
            rounds take back a part of it (`banded`); see `shoal.engine.stages.privacy.banded`.
        bands: So many rounds share noise; null: as many as there are groups.
    """

    unit: Literal["none", "client", "node"] = "none"
    where: Literal["server", "client"] = "server"
    clip: Annotated[Number, Field(gt=0)] | None = 1.0
    noise: Annotated[Number, Field(ge=0)] | None = None
    epsilon: Annotated[Number, Field(gt=0)] | None = None
    delta: Annotated[Number, Field(gt=0, lt=1)] = 1e-5
    quantile: Annotated[Number, Field(ge=0, le=1)] | None = None
    mechanism: Literal["gaussian", "banded"] = "gaussian"
    bands: Positive | None = None


PRIVACY = Section(
    "privacy",
    PrivacyOptions,
    switch="unit",
    off="none",
    rules=(
        *acts_on_uploads("privacy.unit"),
        one_of("privacy.clip privacy.noise privacy.epsilon privacy.delta", "privacy.unit", "client", "node"),
        one_of("privacy.where", "privacy.unit", "client"),
        # Other clients read nodes of a client there.
        one_of("privacy.unit", "data.cross_edges", "drop")._replace(beside="cross_edges"),
        # A client's epsilon is that of a node which no other client holds.
        Rule(
            ("privacy.unit",),
            "partition.overlap",
            "1 where it is node",
            lambda c: c.privacy.unit != "node" or c.partition.overlap == 1,
        ),
        one_of("privacy.mechanism privacy.quantile", "privacy.unit", "client"),
        one_of("privacy.mechanism privacy.quantile", "privacy.where", "server"),
        # A client must not take part more often than noise has bands.
        one_of("privacy.mechanism", "participation.draw", "cyclic"),
        one_of("privacy.bands", "privacy.mechanism", "banded"),
    ),
    stages=(
        # They act before uploads are compressed, so that no size is of a client's weights.
        (20, "shoal.engine.stages.privacy.hidden_uploads:make"),
        (40, "shoal.engine.stages.privacy.hidden_clients:make"),
    ),
    on_hosts="shoal.engine.stages.privacy.privacy:options_on_hosts",
    checks="shoal.engine.stages.privacy.privacy:require_possible",
    checks_method="shoal.engine.stages.privacy.node_privacy:require_bounded",
    checks_sizes="shoal.engine.stages.privacy.node_privacy:require_small_delta",
    clipped_rows="shoal.engine.stages.privacy.node_privacy:clipped_rows_of",
    of_all_rounds=lambda options: (
        "" if options.epsilon is None else "the noise for privacy.epsilon is that of all rounds"
    ),
    epsilon="shoal.engine.stages.privacy.privacy:epsilon_of",
    bound="shoal.engine.stages.privacy.privacy:bound_of",
    says="shoal.engine.stages.privacy.privacy:describe_run",
    more="shoal privacy {run}",
)
