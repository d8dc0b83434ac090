"""What every method needs beside its name in a small run."""

from typing import Any

from support.fixtures import Keys

GCN = {"name": "gcn", "hidden": 8, "head": "linear"}
DISENTANGLED = {"name": "disengcn", "hidden": 8}
CONV = {"name": "gcn", "hidden": 8, "norm": "batch", "head": "conv"}
SAGE = {"name": "sage", "hidden": 8}
GEN = {"server_steps": 3, "server_batch": 8}
FGGP = {"hidden": 6, "knn_every": 2}
FEDGM = {"steps": 6, "server_epochs": 3}
FEDDEP = {"hidden": 6, "clusters": 3, "encoder_epochs": 3, "generator_epochs": 8, "degree": 3.0, "neighbours": 2}
NODE_ONLY = {"fedgta", "fedgkc", "fedpub", "fgssl", "adafgl", "class_means", "fedgcn"}
MENDED = ("fedsage_plus", "fedsage_plus_fedgta", "fedsage_plus_moon", "fedsage_plus_feddc")
LABELLING = ("fedgl", "fedgl_fedgta", "fedgl_moon", "fedgl_feddc")
NODE_ONLY |= {*MENDED, *LABELLING, "fedtad", "s2fgl", "fedspray", "fediih", "fedlog", "fedgm", "feddep"}
GRAPH_ONLY = {"fedstar", "fedgpl"}
# Options and model; a GCN alone where a method is not named.
NEEDS: dict[str, tuple[Keys, Any]] = {
    **dict.fromkeys(("fml", "fedkd", "fedgkc"), ({"copilot": GCN}, GCN)),
    **dict.fromkeys(MENDED, ({"generator_rounds": 1, "hidden": 6}, SAGE)),
    **dict.fromkeys(LABELLING, ({"threshold": 0.0}, GCN)),
    "fedgcn": ({"hops": 0}, GCN),
    "fedgen": (GEN, GCN),
    "fedtad": ({"nodes": 12, "noise": 3}, GCN),
    "adafgl": ({"shared_rounds": 1, "hidden": 6}, GCN),
    "fggp": (FGGP, CONV),
    "fediih": ({}, DISENTANGLED),
    "fedlog": ({"nodes": 2, "pre_epochs": 1}, GCN),
    "fedgm": (FEDGM, GCN),
    "feddep": (FEDDEP, SAGE),
    "fedstar": ({}, {"name": "star", "hidden": 8}),
    "fedgpl": ({}, {"name": "gcn", "hidden": 8, "prompt": {"name": "vpg"}}),
}
