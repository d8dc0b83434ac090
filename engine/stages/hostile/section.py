"""The section `attack`: hostile clients."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from shoal.engine.sections.rules import OWN, acts_on_uploads, one_of
from shoal.engine.sections.section import Section
from shoal.engine.sections.words import word_or_own
from shoal.storage.options.types import CLOSED, Count, Name, Number, Positive, WithShortForm

# Test nodes of other classes are taken for the target at these rates, with the trigger of a backdoor and without.
BACKDOOR = ("backdoor", "untriggered")


@dataclass(frozen=True, config=CLOSED)
class AttackOptions(WithShortForm):
    """The hostile clients, the same in all rounds; see `shoal.engine.stages.hostile`. A kind alone stands for the
    section.

    Attributes:
        kind: No attack (`none`); training labels y become C - 1 - y (`label_flip`); some training nodes get a trigger
            and the label `target` (`backdoor`, see `shoal.storage.shards.trigger`); or the change of each mean entry
            from what the client received becomes `scale` times its opposite (`sign_flip`), noise of `scale` times its
            root mean square (`gaussian`), `scale` times itself (`scaled`), or what `my_file.py:Own` makes of it.
        share: Share of all clients that are hostile, rounded down.
        scale: See `kind`.
        target: The class of a backdoor.
        poison: Share of the training nodes of a hostile client that a backdoor takes, rounded down to one or more.
        nodes: How many nodes it attaches to each.
    """

    kind: Annotated[Name, word_or_own("none", "label_flip", "backdoor", "sign_flip", "gaussian", "scaled")] = "none"
    share: Annotated[Number, Field(gt=0, le=1)] = 0.2
    scale: Annotated[Number, Field(gt=0)] = 10.0
    target: Count = 0
    poison: Annotated[Number, Field(gt=0, le=1)] = 0.2
    nodes: Annotated[Positive, Field(le=100)] = 3


HOSTILE = Section(
    "attack",
    AttackOptions,
    switch="kind",
    off="none",
    rules=(
        *acts_on_uploads("attack.kind"),
        one_of("attack.share", "attack.kind", "label_flip", "backdoor", "sign_flip", "gaussian", "scaled", OWN),
        one_of("attack.target attack.poison attack.nodes", "attack.kind", "backdoor"),
        one_of("attack.scale", "attack.kind", "sign_flip", "gaussian", "scaled", OWN),
        one_of("data.newcomers", "attack.kind", "none")._replace(beside="newcomers"),
    ),
    stages=((10, "shoal.engine.stages.hostile.hostile:make"),),
    own="kind",
    checks="shoal.engine.stages.hostile.hostile:require_possible",
    checks_data="shoal.engine.stages.hostile.hostile:require_target",
    says="shoal.engine.stages.hostile.hostile:describe_run",
    metrics=BACKDOOR,
    scores=lambda options: options.kind == "backdoor",
)
