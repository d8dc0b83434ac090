"""The study `baselines` of `accuracy.py`: what the papers' tables compare with, beside Local, Global, FedAvg and ours.

Ten clients by Louvain and by METIS, GCN and GAMLP, where a method takes them. A GCN has two layers of message passing,
as the public peer's (`--reference`) has: methods that read an embedding read the hidden layer's. Options are the
defaults of the methods' publications, FedProx's mu the peer's.
"""

from pathlib import Path
from typing import Any

FAULTS = Path(__file__).parent / "peer_faults.py"
METHODS: dict[str, dict[str, Any]] = {
    "fedprox": {"name": "fedprox", "mu": 0.001},
    "scaffold": {"name": "scaffold"},
    "moon": {"name": "moon"},
    "moon, all nodes": {"name": "moon", "rows": "all"},
    "feddc": {"name": "feddc"},
    "fedopt": {"name": "fedopt"},
    "fedpub": {"name": "fedpub"},
    "gcfl+": {"name": "gcfl_plus"},
    "fgssl": {"name": "fgssl"},
    "fedgl": {"name": "fedgl"},
    "fedgl with fedgta": {"name": "fedgl_fedgta"},
    "adafgl": {"name": "adafgl"},
    "fedsage": {"name": "fedavg"},
    "fedsage+": {"name": "fedsage_plus"},
    "fedsage+ with fedgta": {"name": "fedsage_plus_fedgta"},
    "fpl": {"name": "fpl"},
    "fedproc": {"name": "fedproc"},
    "fednh": {"name": "fednh"},
    # To be held against the peer's: its faults are there.
    "scaffold, as the peer": {"name": f"{FAULTS}:PeerSCAFFOLD"},
    "feddc, as the peer": {"name": f"{FAULTS}:PeerFedDC"},
    "fedproto, as the peer": {"name": f"{FAULTS}:PeerFedProto"},
    "fedtgp, as the peer": {"name": f"{FAULTS}:PeerFedTGP"},
}
NAMES = ("local", "global", "fedavg", *METHODS, "fedgta", "fedproto", "fedtgp", "fedpg", "class means (ours)")
# For backbones that pass messages.
COUPLED = ("fedsage", "fedsage+", "fedsage+ with fedgta")
# FedSage is FedAvg of GraphSAGE.
MODEL_OF: dict[str, dict[str, Any]] = {"fedsage": {"name": "sage"}}
# The papers' and the peer's form, the same for all.
MODELS: dict[str, dict[str, Any]] = {"gcn": {"head": "conv"}}
