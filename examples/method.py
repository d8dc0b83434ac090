"""A user's method: `algorithm: method.py:TrimmedMean` beside this file."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

import shoal


@dataclass(frozen=True)
class TrimmedMean(shoal.Algorithm):
    """FedAvg by the trimmed mean of every parameter (Yin et al., ICML 2018), which a few bad clients cannot move.

    Attributes:
        trim: Share of the clients that is left out at either end, below a half.
    """

    trim: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.trim < 0.5:
            raise ValueError(f"trim must be at least 0 and below 0.5, found {self.trim}")

    def setup(self, ctx: shoal.Context) -> dict[str, Tensor]:
        return {"w": ctx.initial}

    def round(
        self, server: dict[str, Tensor], ctx: shoal.Context, cohort: Sequence[int]
    ) -> Generator[shoal.Ask, shoal.Replies, None]:
        got = yield shoal.Ask("train", {"w": shoal.Reduce.STACK}, shared={"w": server["w"]})
        w_BP = got["w"].sort(dim=0).values
        cut = int(self.trim * len(w_BP))
        server["w"] = w_BP[cut : len(w_BP) - cut].mean(0)

    def global_model(self, server: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"w": server["w"]}

    def upload(self, client: shoal.Client, received: Any, phase: str) -> shoal.Upload:
        return shoal.Upload({"w": client.model.w})
