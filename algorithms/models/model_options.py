"""Options of the backbone that clients train."""

from typing import Any, Literal

from pydantic import model_validator

from shoal.storage.options.types import FilePath, Name, Named, absolute_user_path

# Beyond these nothing is computed, so that a number of parameters can be: it stays below 2^63.
WIDEST, MOST_LAYERS = 2**24, 1000


class ModelSpec(Named):
    """The section `model` of a config, or an entry of it where it is a list.

    Attributes:
        name: Key of `BACKBONES`, or `my_file.py:Name`.
        init: `shared`: clients of this model start equal; `own`: each with its own parameters.
        pretrained: safetensors of the parameters that its GNN starts from, `own` or not, as `shoal pretrain` makes it;
            all others are drawn.
        options: All other keys: the backbone's keyword-only parameters.
    """

    name: Name = "gamlp"
    init: Literal["shared", "own"] = "shared"
    pretrained: FilePath | None = None

    @model_validator(mode="before")
    @classmethod
    def _find_readout(cls, received: Any) -> Any:
        """Makes the path of a user's readout absolute."""
        if isinstance(received, dict) and "readout" in received:
            return {**received, "readout": absolute_user_path(received["readout"])}
        return received
