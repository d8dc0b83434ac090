"""Centralised training: one party holds the whole graph."""

from dataclasses import dataclass
from typing import ClassVar

from algorithms.methods.local import Local


@dataclass(frozen=True)
class Global(Local):
    """The whole graph with all its edges as one client: the row "Global" of FedGTA's Table 3.

    Trains rounds x epochs on the union of the clients' training nodes, so that it bounds the same task.
    """

    whole_graph: ClassVar[bool] = True
    mixed_models: ClassVar[bool] = False
