"""Which backbone clients train."""

from typing import Literal

from storage.option_types import FilePath, Named

# Beyond these nothing is computed, so that a number of parameters can be: it stays below 2^63.
WIDEST, MOST_LAYERS = 2**24, 1000


class ModelChoice(Named):
    """The section `model` of a config, or an entry of it where it is a list.

    Attributes:
        name: Key of `BACKBONES`.
        init: `shared`: clients of this model start equal; `own`: each with its own parameters.
        pretrained: safetensors of the parameters that its GNN starts from, `own` or not, as `shoal pretrain` makes it;
            all others are drawn.
        options: All other keys: the backbone's keyword-only parameters.
    """

    name: str = "gamlp"
    init: Literal["shared", "own"] = "shared"
    pretrained: FilePath | None = None
