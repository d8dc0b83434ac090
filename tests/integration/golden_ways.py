"""How each golden run is made by default: in one process, on two hosts, after a kill or resumed. Other ways are slow.

Each way has a file of tests, so that workers share them.
"""

from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from integration.golden_digests import execute, matrix, record_here

Digest = dict[str, Any]
SPLIT = "graphs fedgpl away "
# Every kind of request (reductions, downloads of single clients, no training, products of uploads), of evaluation, of
# task, and of cells.
ON_HOSTS = (
    "fedsage_plus gcn", "fedgta stacked", f"{SPLIT}frozen", "edges fedavg gcn", "fml several models",
    "fedavg inductive gcn", "fedpg attention", "fggp participation 0.3", "adafgl gcn",
    "uploads int8", "attack scaled, int8, norm_bound", "masks", "privacy at client", "privacy node",
    "availability periodic", "newcomers fedproto", "cross edges one_hop", "target multilabel gcn",
    "target clustering gcn",
)  # fmt: skip
# A round of many messages, and rounds that end before all uploads have come.
KILLED = (f"{SPLIT}per_client_avg", "schedule fedbuff")
# What a method, or what acts beside it, would keep outside its state is lost.
RESUMED = (
    "fedavg participation 0.3", "fedgta participation 0.3", "fedtgp gamlp", "fedgkc several models",
    "target regression gcn", "target clustering in batches",
    "graphs fedavg max sage", "edges fedavg sage",
    "fggp several models", "graphs fggp gin", "gcfl_plus gamlp", "fedpub gcn", "fedgl gcn", "fgssl gcn",
    "adafgl gamlp", "graphs fedstar star", f"{SPLIT}round_accumulate",
    "uploads topk", "attack sign_flip, masks", "privacy client, adaptive clip", "privacy client, banded",
    "schedule fedasync", "schedule tiers", "availability, deadline", "selection oort", "newcomers",
)  # fmt: skip
KILLED_TOO = ("uploads topk", "privacy client, adaptive clip", "attack sign_flip, masks")
RESUMED_TOO = ("fedpg attention", "fggp participation 0.3", "fedsage_plus gcn", "schedule fedbuff")
OTHERWISE = {*ON_HOSTS, *KILLED, *RESUMED}
# Methods that run with both models take turns: each model is there with half of them, the other run is slow.
BOTH = [name.removesuffix(" gcn") for name in matrix() if name.endswith(" gcn") and f"{name[:-4]} gamlp" in matrix()]
IN_TURN = {f"{name} {('gamlp', 'gcn')[place % 2]}" for place, name in enumerate(BOTH)} - OTHERWISE
IN_PROCESS = tuple(name for name in matrix() if name not in OTHERWISE | IN_TURN)


def cases(by_default: Collection[str], slow: Collection[str]) -> Iterator[Any]:
    """Yields names of runs for `parametrize`; those that another way has by default are slow."""
    yield from by_default
    yield from (pytest.param(name, marks=pytest.mark.slow) for name in slow if name not in by_default)


@cache
def expected_digest(name: str, graph: Path) -> Digest:
    """Returns the record of this kind of machine or, where it has none, the digest of a run in this process."""
    here = record_here()
    return here["runs"][name] if here and name in here["runs"] else execute(name, graph)
