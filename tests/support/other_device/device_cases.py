"""Runs of every method, model and kind of item, for a second device."""

from typing import Any

from support.methods import FEDDEP, LABELLING, MENDED

# The second step has moments of the first, the second round what was kept from the first.
KEYS = {"rounds": 2, "train.epochs": 2, "train.dropout": 0.3, "participation.ratio": 0.7}
KEYS |= {"engine.cell_size": 4, "engine.trainer": "autograd"}
PROTOTYPE = {"algorithm.name": "fedpg", "algorithm.alignment": "prototype", "algorithm.noise": 0.1}
ATTENTION = {**PROTOTYPE, "algorithm.attention": "node"}
# Adam makes of roundings what it will where a gradient is next to nothing.
MOMENTUM = {"train.optimizer": "sgd", "train.lr": 0.1, "train.momentum": 0.9}
LINEAR = {"model.head": "linear"}
CROSS = {"data.cross_edges": "hops", "model.name": "sgc"}
EXTRACTOR = {"model.name": "gcn", "model.norm": "batch", "model.head": "conv"}
FGGP = {"algorithm.name": "fggp", "algorithm.hidden": 6, **EXTRACTOR}
GCFL_PLUS = {"algorithm.name": "gcfl_plus", "algorithm.eps1": 9.0, "algorithm.eps2": 0.0, "algorithm.window": 1}
GCFL_PLUS |= {"algorithm.warmup": 0}
FEDSAGE_PLUS = {"algorithm.name": "fedsage_plus", "algorithm.generator_rounds": 2, "algorithm.hidden": 6}
FEDSAGE_PLUS |= {"model.name": "sage", "rounds": 3}
AVERAGING = ("fedprox", "fedopt", "scaffold", "feddc", "moon", "fpl", "fedproc", "fednh", "fedproto_averaged")
PLAIN = ("fedgta", "fedproto", "fedtgp", "fedkd", *LABELLING, "fedpub", "feddistill")
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedavg, batched": {"engine.trainer": "batched"},
    "fedavg, batched, sgd": {"engine.trainer": "batched", **MOMENTUM},
    "fedavg, batches": {"train.batch_size": 4},
    "fedavg, sgd": MOMENTUM,
    "fedavg, analytic": {"engine.trainer": "analytic", "model.name": "mlp"},
    "fedavg, analytic, batches": {"engine.trainer": "analytic", "model.name": "mlp", "train.batch_size": 4},
    "fedavg, the path of a GPU": {"engine.trainer": "auto"},
    **{name: {"algorithm.name": name} for name in (*AVERAGING, *PLAIN)},
    **{f"{name}, coupled": {"algorithm.name": name, "model.name": "gcn"} for name in ("fedgl", "fgssl", "fedpub")},
    "fedopt, momentum": {"algorithm.name": "fedopt", "algorithm.optimizer": "momentum"},
    "fpl, as published": {"algorithm.name": "fpl", "algorithm.cluster_from": 1},
    "fedgta, batched": {"algorithm.name": "fedgta", "engine.trainer": "batched", "model.name": "mlp"},
    "fedgta, cross edges": {**CROSS, "algorithm.name": "fedgta", "algorithm.cross_edges": True},
    "moon, batched": {"algorithm.name": "moon", "engine.trainer": "batched"},
    "fpl, batched": {"algorithm": {"name": "fpl", "tau": 0.2}, "engine.trainer": "batched"},
    "fedproto, batched": {"algorithm.name": "fedproto", "engine.trainer": "batched", "model.name": "gcn"},
    "local": {"algorithm.name": "local", "model.init": "own"},
    "fml": {"algorithm.name": "fml", **MOMENTUM},
    "fml, alone": {"algorithm.name": "fml", "algorithm.alpha": 1.0, "model.name": "gcn", **MOMENTUM},
    "fedgkc": {"algorithm.name": "fedgkc", "algorithm.beta": 0.0, "algorithm.copilot": {"name": "sgc", "layers": 2}},
    "fedgkc, coupled": {"algorithm": {"name": "fedgkc", "copilot": {"name": "gin", "hidden": 8}}, "model.name": "gcn"},
    "fggp": {**FGGP, **MOMENTUM},
    "gcfl_plus": GCFL_PLUS,
    "gcfl_plus, all": {**GCFL_PLUS, "algorithm.share": "all", "model.name": "gcn"},
    # Two rounds alone, after the shared one.
    "adafgl": {"algorithm.name": "adafgl", "algorithm.hidden": 6, "algorithm.shared_rounds": 1, "rounds": 3},
    "adafgl, coupled": {
        "algorithm": {"name": "adafgl", "shared_rounds": 1, "cut": 0.0},
        "model.name": "gcn",
        **LINEAR,
        **MOMENTUM,
    },
    "fedsage_plus": FEDSAGE_PLUS,
    "fedsage_plus, few": {**FEDSAGE_PLUS, "algorithm.peers": 1, "algorithm.sampled_nodes": 3, "model.name": "gat"},
    **{name: {**FEDSAGE_PLUS, "algorithm.name": name} for name in MENDED[1:]},
    "fgssl": {"algorithm.name": "fgssl", "algorithm.anchors": 4},
    "fedtad": {"algorithm.name": "fedtad", "algorithm.nodes": 12, "model.name": "gcn"},
    "fediih": {"algorithm.name": "fediih", "model.name": "disengcn"},
    "fedspray": {"algorithm": {"name": "fedspray", "threshold": 0.3}, "model.name": "gcn", **MOMENTUM},
    "fedlog": {"algorithm": {"name": "fedlog", "nodes": 2, "pre_epochs": 1}, "model.name": "gcn", **LINEAR, **MOMENTUM},
    "fedgm": {
        "algorithm": {"name": "fedgm", "steps": 6, "server_epochs": 5},
        "model.name": "gcn",
        **LINEAR,
        **MOMENTUM,
    },
    "feddep": {"algorithm": {"name": "feddep", **FEDDEP}, "model.name": "sage", **MOMENTUM},
    "s2fgl": {"algorithm.name": "s2fgl", "algorithm.spectral": 0.0},
    "fggp, neighbours": {**FGGP, **MOMENTUM, "algorithm.gkic": "knn_only", "algorithm.head_mode": "personal"},
    "fggp, prototypes alone": {"algorithm.name": "fggp", "algorithm.gkic": "off", "algorithm.cluster": "dbscan"},
    "lg_fedavg, analytic": {"algorithm.name": "lg_fedavg", "model.name": "mlp", "engine.trainer": "analytic"},
    "fedgen": {"algorithm.name": "fedgen", "algorithm.server_steps": 5},
    "class_means": {"algorithm.name": "class_means", "algorithm.noise": 0.1},
    "fedpg, node": {"algorithm.name": "fedpg", "algorithm.pseudo_centres": 0.4},
    "fedpg, batched": {"algorithm.name": "fedpg", "engine.trainer": "batched", "model.name": "mlp"},
    "fedpg, own": {"algorithm.name": "fedpg", "algorithm.targets": "own"},
    "fedpg, prototype": PROTOTYPE,
    "fedpg, attention": ATTENTION,
}
SPLIT = {
    "model": {"name": "transformer", "hidden": 8, "prompt": {"name": "vpg", "candidates": 2}},
    "algorithm.name": "fedgpl",
    "train.batch_size": 2,
}
COUPLED = ("gcn", "sage", "gat", "gin", "gcnii", "transformer", "disengcn")
MODELS: dict[str, dict[str, Any]] = {
    "sgc": {"model": {"name": "sgc"}},
    "mlp": {"model.name": "mlp"},
    **{name: {"model.name": name} for name in ("sign", "s2gc", "gbp")},
    **{name: {"model.name": name} for name in COUPLED},
    **{f"{name}, conv head": {"model.name": name, "model.head": "conv"} for name in COUPLED[:-2]},
    **{f"{name}, neighbours drawn": {"model.name": name, "model.fanouts": [3, 2]} for name in COUPLED},
    "gcn, batches of drawn neighbours": {"model.name": "gcn", "model.fanouts": [3, 2], "train.batch_size": 4},
}
GRAPHS: dict[str, dict[str, Any]] = {
    "mean": {},
    "sum": {"model.name": "sage", "model.readout": "sum", "train.batch_size": 2},
    # Without a norm: normalised nodes may be alike but for rounding, which then says whose maximum it is.
    "max, batches": MOMENTUM
    | {"model.name": "gin", "model.norm": "none", "model.readout": "max", "train.batch_size": 2},
    "attention": {"model.name": "gat", "model.readout": "attention", "algorithm.name": "fedproto"},
    "hops, batches": {"model.name": "gamlp", "model.readout": "attention", "train.batch_size": 2, **MOMENTUM},
    "two encoders": {"model.name": "star", "algorithm.name": "fedstar", "train.batch_size": 2},
    "hops": {"model.name": "mlp", "model.readout": "max", "algorithm.name": "fedtgp"},
    "vpg": {"model": {"name": "transformer", "prompt": {"name": "vpg", "candidates": 2}}, "train.batch_size": 2},
    "all_in_one": {"model": {"name": "gcn", "prompt": "all_in_one"}},
    "gpf_plus": {"model": {"name": "gat", "prompt": "gpf_plus"}},
    "frozen": {"model": {"name": "gat", "prompt": "gpf_plus", "frozen": True}},
    "supt": {"model": {"name": "gcn", "prompt": {"name": "supt", "form": "hard"}}},
    "similar ones": {"model.name": "mlp", "algorithm.name": "fedpg", "algorithm.similar": 2},
    "similar ones, attention": {**ATTENTION, "model.readout": "attention", "algorithm.similar": 3},
    "fedgen": {"algorithm.name": "fedgen", "algorithm.server_steps": 5},
    "split": SPLIT,
    "split, one after another": {**SPLIT, "algorithm.gnn": "per_batch_seq", "algorithm.noise": "clipped"},
}
MIXED = {
    "model": [
        {"name": "gcn", "hidden": 8},
        {"name": "gat", "hidden": 8, "fanouts": [3, 2]},
        {"name": "gin", "hidden": 8},
        {"name": "sage", "hidden": 8, "fanouts": [-1, 2]},
        {"name": "gcnii", "hidden": 8},
        {"name": "gamlp", "hidden": 6},
    ],
    "heterogeneity.rule": "round-robin",
    "heterogeneity.embedding": 8,
}
# One model for all, or no steps on drawn neighbours.
NO_DRAWN = (
    "moon, batched", "fpl, batched", "fedproto, batched", "fedpg, batched",
    "fedgta", "fedgta, batched", "fedgta, cross edges", "fml", "fedkd", "fedgkc", "fedgkc, coupled",
    "fedopt, momentum", "fpl, as published",
    *AVERAGING, "fggp", "fggp, neighbours", "fggp, prototypes alone", "gcfl_plus", "gcfl_plus, all", "adafgl",
    "adafgl, coupled", "fedgl", "fedgl_fedgta", "fedgl_moon", "fedgl_feddc", "fedgl, coupled",
    "fgssl", "fgssl, coupled", "fedpub",
    "fedtad", "s2fgl", "fedspray", "fediih", "fedlog", "fedgm", "feddep", "fedpub, coupled", "fedsage_plus",
    "fedsage_plus, few",
    "fedsage_plus_fedgta", "fedsage_plus_moon", "fedsage_plus_feddc",
)  # fmt: skip
