"""Short runs of everything that has numbers, and a digest of each: what a change that should alter nothing is held to.

`python tests/integration/golden_digests.py [NAMES]` prints what differs from `golden_digests.json`; with `--write` it
replaces the record of this kind of processor, in a commit that says why numbers changed. Records of other kinds lose
the runs that changed: these were not run there.
"""

import argparse
import hashlib
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.numpy import load_file

from shoal.engine.config.config import Config, parse_config
from shoal.engine.hosts.backend import Backend
from shoal.engine.messages.environment import environment
from shoal.engine.records.metrics import read_metrics
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run

GOLDEN = Path(__file__).with_suffix(".json")
# Of a line of metrics: what tells how long a round took and where, not what it computed.
# Digests of other files are of numbers that are compared themselves.
# Bytes of single clients are newer than the record, which has their sums.
NOT_NUMBERS = ("seconds", "memory", "hosts", "retries", "digests", "client_bytes")

DECOUPLED = {"name": "gamlp", "hidden": 8}
# Has a weight of more than 256 numbers, which compression sends in parts.
SENT_BY_PARTS = {"name": "gamlp", "hidden": 64}
COUPLED = {"name": "gcn", "hidden": 8, "head": "linear"}
SEVERAL = [COUPLED, {"name": "gamlp", "hidden": 12, "init": "own"}, {"name": "sage", "hidden": 8}]
MIXABLE = ("local", "lg_fedavg", "fedgen", "fedproto", "fedtgp", "feddistill", "fedpg", "class_means")
METHODS = (*MIXABLE, "global", "fedavg", "fedgta")
# FedAvg with something beside it.
AVERAGING = ("fedprox", "fedopt", "scaffold", "feddc", "moon", "fpl", "fedproc", "fednh", "fedproto_averaged")
# Of graphs, for nodes alone.
OF_ONE_GRAPH = ("adafgl", "fedgl", "fedgl_fedgta", "fedgl_moon", "fedgl_feddc", "fgssl", "fedpub")
# The same, for models that read the graph.
OF_MENDED_GRAPHS = ("fedsage_plus", "fedsage_plus_fedgta", "fedsage_plus_moon", "fedsage_plus_feddc")
# Whose copilots have embeddings as wide as the clients' own models.
COPILOTS = ("fml", "fedkd", "fedgkc")
FGGP = {"name": "fggp", "hidden": 8, "knn_every": 2}
# Divides clusters in rounds 2 to 4.
GCFL_PLUS = {"name": "gcfl_plus", "eps1": 9.0, "eps2": 0.0, "window": 1, "warmup": 1}
# That train clients of small graphs, too; those lie beside the one graph.
OF_GRAPHS = (
    "local", "global", "fedavg", "lg_fedavg", "fedproto", "fedtgp", "feddistill", "fml", "fedkd", *AVERAGING, "fedgen",
    "fedpg",
)  # fmt: skip
SMALL_GRAPHS, SEVERAL_LABELS, OF_KINDS, OF_NODES = "small-graphs", "several-labels", "of-kinds", "of-kinds-of-nodes"
FEW, MOST = {"participation": {"ratio": 0.34}}, {"participation": {"ratio": 0.67}}

Keys = dict[str, Any]


def write_graph(folder: Path) -> Path:
    """180 nodes in six clients; client 5 has no training node, client 4 no test node, class 3 is rare.

    Beside the folder the same graph with sparse features, as an .npz file.
    """
    rng = np.random.default_rng(11)
    clients, each = 6, 30
    nodes = clients * each
    assignment = np.repeat(np.arange(clients), each)
    y = np.where(rng.random(nodes) < 0.6, assignment % 3, rng.integers(3, size=nodes))
    y[[7, 67, 127]] = 3
    split = np.tile(np.repeat([1, 2, 3], each // 3), clients).astype(np.int8)
    split[(assignment == 5) & (split == 1)] = 0
    split[(assignment == 4) & (split == 3)] = 2
    x = np.eye(4, 5)[y] + 0.7 * rng.standard_normal((nodes, 5))
    source, target = rng.integers(nodes, size=(2, 900))
    alike = (y[source] == y[target]) & (source % each > 1) & (target % each > 1)
    ring = np.arange(nodes)[np.arange(nodes) % each > 2]
    edges = np.concatenate([np.stack([source, target])[:, alike], np.stack([ring, ring - 1])], axis=1)
    folder.mkdir()
    arrays = {"edge_index": edges, "x": x.astype(np.float32), "y": y, "split": split, "assignment": assignment}
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    few = np.where(np.abs(arrays["x"]) > 0.7, arrays["x"], 0)
    np.savez(folder.with_suffix(".npz"), **{**arrays, "x": few})
    several = np.eye(4, dtype=np.float32)[y]
    several[::7, 1], several[:: each + 3] = np.nan, np.nan
    # Items without a label are in no part.
    parts = np.where(np.isnan(several).all(1), 0, split).astype(np.int8)
    np.savez(folder.with_name(f"{SEVERAL_LABELS}.npz"), **{**arrays, "y": several, "split": parts})
    # Every edge is of one of three kinds, or of two at once, each way.
    kinds = np.eye(3, dtype=np.float32)[rng.integers(3, size=(2, edges.shape[1]))].max(0)
    first = np.unique(edges[0] * nodes + edges[1], return_index=True)[1]
    of_kinds = {**arrays, "edge_index": edges[:, first], "edge_attr": kinds[first]}
    np.savez(folder.with_name(f"{OF_KINDS}.npz"), **of_kinds)
    names = [f"x[{k}]" for k in range(of_kinds["x"].shape[1])] + ["kind even", "kind odd"]
    kind_of_nodes = np.eye(2, dtype=np.float32)[np.arange(len(of_kinds["x"])) % 2]
    of_kinds |= {"x": np.concatenate([of_kinds["x"], kind_of_nodes], axis=1), "vocabulary": np.array(names)}
    np.savez(folder.with_name(f"{OF_NODES}.npz"), **of_kinds)
    _write_small_graphs(folder.with_name(SMALL_GRAPHS))
    return folder


def _write_small_graphs(folder: Path) -> None:
    """60 rings and stars in six clients; the first is one node, client 5 has no training graph."""
    rng = np.random.default_rng(12)
    count = 60
    sizes = rng.integers(3, 12, size=count)
    sizes[0] = 1
    first, y = np.concatenate([[0], np.cumsum(sizes)]), rng.integers(3, size=count)
    edges = [
        (first[g] + i, first[g] + (0 if y[g] else (i + 1) % sizes[g])) for g in range(count) for i in range(sizes[g])
    ]
    graph, assignment = np.repeat(np.arange(count), sizes), np.arange(count) % 6
    split = np.tile([1, 1, 2, 3, 3], (6, 2)).T.ravel().astype(np.int8)
    split[(assignment == 5) & (split == 1)] = 0
    x = (np.eye(3, 5)[y][graph] + rng.standard_normal((len(graph), 5))).astype(np.float32)
    arrays = {"edge_index": np.array(edges).T, "x": x, "y": y, "split": split, "assignment": assignment, "graph": graph}
    folder.mkdir()
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


def matrix() -> dict[str, Keys]:
    """The changes of every run, by its name."""
    runs: dict[str, Keys] = {}
    for method in METHODS:
        for model in (DECOUPLED, COUPLED):
            runs[f"{method} {model['name']}"] = {"algorithm": {"name": method}, "model": model}
        if method != "global":
            runs[f"{method} participation 0.3"] = {"algorithm": {"name": method}, **FEW}
    for method in MIXABLE:
        runs[f"{method} several models"] = {"algorithm": {"name": method}, "model": SEVERAL}
    for name in COPILOTS:
        method = {"name": name, "copilot": COUPLED}
        runs[f"{name} participation 0.3"] = {"algorithm": method, **FEW}
        runs[f"{name} several models"] = {"algorithm": method, "model": SEVERAL}
    extractor = {**COUPLED, "norm": "batch", "layers": 3, "head": "conv"}
    runs["fggp gcn"] = {"algorithm": FGGP, "model": extractor}
    runs["fggp gamlp"] = {"algorithm": {"name": "fggp", "gkic": "off", "cluster": "kmeans", "vote": "class_avg"}}
    for name, options in {
        "participation 0.3": {},
        "neighbours": {"gkic": "knn_only", "head_mode": "personal", "bank": "ring", "vote": "softmax_sum"},
        "generated": {"gkic": "gen_only", "similarity": "max", "draw": "gumbel", "contrast_form": "literal"},
    }.items():
        runs[f"fggp {name}"] = {"algorithm": {**FGGP, **options}, "model": extractor, **FEW}
    fitting = {**FGGP, "gkic": "fitting"}
    runs["fggp several models"] = {"algorithm": fitting, "model": [*SEVERAL, {"name": "gin", "hidden": 8}], **MOST}
    for name, model in product((*OF_ONE_GRAPH, *AVERAGING), (DECOUPLED, COUPLED)):
        runs[f"{name} {model['name']}"] = {"algorithm": {"name": name}, "model": model, **MOST}
    for name in OF_MENDED_GRAPHS:
        method = {"name": name, "generator_rounds": 2, "hidden": 8}
        runs[f"{name} gcn"] = {"algorithm": method, "model": COUPLED, **MOST}
    for options in (
        {"name": "fedtad", "nodes": 14, "server_epochs": 2}, {"name": "s2fgl", "aligned": 0.8, "vectors": 2},
        {"name": "fedspray", "threshold": 0.3}, {"name": "fedlog", "nodes": 3, "pre_epochs": 2},
        {"name": "fedgm", "steps": 8, "server_epochs": 5},
        {"name": "feddep", "hidden": 6, "encoder_epochs": 4, "generator_epochs": 8, "neighbours": 2},
    ):  # fmt: skip
        runs[f"{options['name']} gcn"] = {"algorithm": options, "model": COUPLED, **MOST}
    runs["fediih disengcn"] = {"algorithm": {"name": "fediih"}, "model": {"name": "disengcn", "hidden": 8}, **MOST}
    half = {"propagation": {"hops": 2, "dtype": "float16"}, "data": {"dtype": "float16"}}
    for method in ("local", "fedavg", "fedgta"):
        runs[f"{method} stacked"] = {"algorithm": {"name": method}, "engine": {"trainer": "batched"}}
        runs[f"{method} float16"] = {"algorithm": {"name": method}, **half}
    for name, options in {
        "eps 0.9, last moments": {"name": "fedgta", "eps": 0.9, "moment_steps": "last", "moments": "central"},
        "cold start": {"name": "fedgta", "confidence": "normalized", "cold_start": "init"},
        "every second sketch": {"name": "fedgta", "sketch_every": 2},
        "attention": {"name": "fedpg", "alignment": "prototype", "attention": "node"},
        "contrast": {"name": "fedpg", "server_loss": "contrast", "noise": 0.2, "hops": 1},
        "own targets": {"name": "fedpg", "targets": "own", "pseudo_centres": 0.8},
        "noise": {"name": "class_means", "noise": 0.5, "at_least": 1, "weight": 3.0},
        "uniform": {"name": "fedavg", "weight": "uniform"},
        "momentum": {"name": "fedopt", "optimizer": "momentum", "eta": 0.5, "weight": "uniform"},
        "as published": {"name": "fpl", "cluster_from": 1},
    }.items():
        runs[f"{options['name']} {name}"] = {"algorithm": options, **MOST}
    for model in ("sgc", "mlp", "sign", "s2gc", "gbp", "transformer"):
        runs[f"fedavg {model}"] = {"model": {"name": model, "hidden": 8}}
    for model in ("sage", "gin", "gat", "gcnii"):
        runs[f"fedavg {model}"] = {"model": {"name": model, "hidden": 8, "head": "linear"}}
    for model in ("gcn", "sage", "gin", "gat", "gcnii"):
        runs[f"fedavg {model} conv head"] = {"model": {"name": model, "hidden": 8, "layers": 2, "head": "conv"}}
    apart = {"name": "gin", "hidden": 8, "layers": 3, "head": "conv"}
    runs["lg_fedavg gin conv head"] = {"algorithm": {"name": "lg_fedavg"}, "model": apart, **MOST}
    jumping = {**COUPLED, "layers": 4, "jumping": "max"}
    runs["fedavg gcn jumping"] = {"model": jumping}
    runs["fedavg autograd"] = {"model": COUPLED, "engine": {"trainer": "autograd"}}
    for model in (COUPLED, DECOUPLED):
        runs[f"fedavg sparse {model['name']}"] = {"model": model, "data": {"layout": "sparse"}}
        runs[f"gcfl_plus {model['name']}"] = {"algorithm": GCFL_PLUS, "model": model}
    masked = {"sparsity": {"features": 0.3, "edges": 0.4, "labels": 0.3, "seed": 1}}
    for name, model in (("fedgta", DECOUPLED), ("fedavg", COUPLED), ("global", COUPLED)):
        of_method = {"algorithm": {"name": name}, "model": model}
        runs[f"{name} sparsity"] = {**of_method, "data": masked}
        if name != "global":
            runs[f"{name} inductive {model['name']}"] = {**of_method, "data": {"inductive": True}, **MOST}
    noise = {"features": 0.5, "masked": 0.2, "labels": [0.0, 0.6], "edges_removed": 0.2, "edges_added": [0.1, 0.3]}
    for name, model in (("fedavg", DECOUPLED), ("global", COUPLED)):
        runs[f"{name} data with noise"] = {"algorithm": {"name": name}, "model": model, "data": {"noise": noise}}
    runs["fedavg batches, sgd"] = {
        "train": {"epochs": 2, "batch_size": 4, "optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "opt_state": "reset"}
    }
    drawn, batches = {**COUPLED, "fanouts": [2, 3]}, {"epochs": 2, "batch_size": 4}
    runs["fedproto fanouts"] = {"algorithm": {"name": "fedproto"}, "model": drawn, "train": batches}
    runs["gcfl_plus away"] = {"algorithm": {**GCFL_PLUS, "share": "all"}, **MOST}
    runs["target regression gcn"] = {"target": "regression", "model": COUPLED, **MOST}
    runs["target regression at clients"] = {
        "target": {"kind": "regression", "scale": "client"},
        "algorithm": {"name": "moon"},
    }
    kinds = {"data": {"path": OF_KINDS}}
    runs["edge features gine"] = {**kinds, "model": {"name": "gine", "hidden": 8}, **MOST}
    runs["edge features gat drawn"] = {
        **kinds, "model": {"name": "gat", "hidden": 8, "heads": 2, "fanouts": [2, 3]}, "train": batches,
    }  # fmt: skip
    runs["edge features transformer"] = {
        "data": {"path": OF_KINDS, "inductive": True, **masked}, "model": {"name": "transformer", "hidden": 8},
    }  # fmt: skip
    runs["edge kinds rgcn"] = {**kinds, "model": {"name": "rgcn", "hidden": 8}, "algorithm": {"name": "scaffold"}}
    nodes = {"data": {"path": OF_NODES}}
    runs["kinds of nodes hgt"] = {**nodes, "model": {"name": "hgt", "hidden": 8, "heads": 2}, **MOST}
    paths = [["odd", "even", "odd"], ["odd", "odd"]]
    runs["meta-paths han"] = {
        **nodes, "model": {"name": "han", "hidden": 8, "heads": 2, "metapaths": paths},
        "algorithm": {"name": "scaffold"},
    }  # fmt: skip
    runs["hops a relation sign"] = {**nodes, "model": {"name": "sign", "hidden": 8}, "propagation": {"relations": True}}
    runs["target multilabel gcn"] = {"target": "multilabel", "model": COUPLED, "algorithm": {"name": "scaffold"}}
    runs["target clustering gcn"] = {"target": "clustering", "model": COUPLED, **MOST}
    runs["target clustering in batches"] = {
        "target": "clustering",
        "model": {"name": "sgc", "layers": 2, "hidden": 8},
        "train": {"epochs": 2, "batch_size": 4},
        "algorithm": {"name": "scaffold"},
    }
    runs |= {f"graphs {name}": {"task": "graph", **changes} for name, changes in _runs_of_graphs()}
    runs |= {name: {"model": SENT_BY_PARTS, "train": {"epochs": 1}, **changes} for name, changes in _runs_of_features()}
    return runs | _runs_of_pairs()


def _runs_of_features() -> Iterator[tuple[str, Keys]]:
    """Yields runs of what acts in a round beside the method, alone and two at a time."""
    top, small = {"communication": {"upload": "topk", "ratio": 0.1}}, {"communication": {"upload": "int8"}}
    flips, noisy = {"attack": {"kind": "sign_flip", "share": 0.34}}, {"attack": {"kind": "gaussian", "share": 0.34}}
    masks = {"secure": {"kind": "masks"}}
    yield "uploads topk", top
    yield "uploads topk without feedback", {"communication": {**top["communication"], "error_feedback": False}}
    yield "uploads int8", {**small, **MOST}
    yield "attack backdoor", {"attack": {"kind": "backdoor", "share": 0.34}, "propagation": {"rows": "all"}}
    yield "attack label_flip", {"attack": {"kind": "label_flip", "share": 0.34}}
    yield "attack scaled, int8, norm_bound", {
        "attack": {"kind": "scaled", "share": 0.34}, "aggregation": {"kind": "norm_bound"}, **small
    }  # fmt: skip
    yield "attack gaussian, norm_bound", {**noisy, "aggregation": {"kind": "norm_bound", "bound": 0.5}}
    yield "attack sign_flip, masks", {**flips, **masks}
    for kind in ("median", "trimmed", "krum", "multi_krum", "geometric_median", "fltrust"):
        share = {} if kind in ("median", "geometric_median", "fltrust") else {"share": 0.16}
        yield f"attack sign_flip, {kind}", {**flips, "aggregation": {"kind": kind, **share}}
    yield "masks", {**masks, **MOST}
    yield "masks, dropout, fedopt", {**masks, "participation": {"dropout": 0.3}, "algorithm": {"name": "fedopt"}}
    yield "homomorphic", {"secure": {"kind": "homomorphic"}}
    yield "privacy client", {"privacy": {"unit": "client", "noise": 0.3}, **MOST}
    yield "privacy client, scaffold", {"privacy": {"unit": "client", "noise": 0.3}, "algorithm": {"name": "scaffold"}}
    yield "privacy client, adaptive clip", {"privacy": {"unit": "client", "noise": 0.3, "quantile": 0.5}}
    yield "privacy at client", {"privacy": {"unit": "client", "noise": 0.3, "where": "client"}}
    yield "privacy client, poisson", {
        "privacy": {"unit": "client", "noise": 0.3}, "participation": {"ratio": 0.5, "draw": "poisson"}
    }  # fmt: skip
    yield (
        "privacy client, banded",
        {
            "privacy": {"unit": "client", "noise": 0.3, "mechanism": "banded"},
            "participation": {"ratio": 0.5, "draw": "cyclic"},
        },
    )
    yield "privacy client, masks", {"privacy": {"unit": "client", "noise": 0.3}, **masks}
    yield "privacy node", {
        "privacy": {"unit": "node", "noise": 0.5, "delta": 1e-3}, "propagation": {"max_degree": 4},
        "model": {**SENT_BY_PARTS, "name": "sgc"},
    }  # fmt: skip
    timed = {"devices": {"kind": "phones", "network": "consumer", "seed": 3}}
    for name, keys in {
        "fedasync": {"concurrency": 4}, "fedbuff": {"concurrency": 4, "buffer": 2}, "tiers": {"tiers": 2},
    }.items():  # fmt: skip
        yield f"schedule {name}", {"schedule": {"name": name, **keys}, **timed}
    # In these rounds clients drop out, are late, and come when enough have come.
    ends = {"deadline": 0.1, "over_selection": 1.7, "dropout": 0.3, "ratio": 0.5}
    weibull = {"kind": "weibull", "period": 8, "share": 0.8}
    yield "availability, deadline", {"participation": {**ends, "availability": weibull}, **timed}
    yield "availability periodic", {"participation": {"availability": {"kind": "periodic", "period": 3}, "ratio": 0.5}}
    for name in ("loss", "oort", "power_of_choice"):
        yield f"selection {name}", {"participation": {"ratio": 0.5, "selection": name}}
    yield "newcomers", {"data": {"newcomers": 0.34}, **MOST}
    yield "newcomers fedproto", {"data": {"newcomers": 0.34}, "algorithm": {"name": "fedproto"}}
    for name, model in (("hops", SENT_BY_PARTS), ("one_hop", COUPLED), ("two_hop", COUPLED)):
        yield f"cross edges {name}", {"data": {"cross_edges": name}, "model": model}
    yield "cross edges hidden", {"data": {"cross_edges": "hops", "cross_hidden": True, "cross_share": 0.5}, **masks}


def _runs_of_graphs() -> Iterator[tuple[str, Keys]]:
    """Of small graphs, which are predicted."""
    yield "gcfl_plus gcn", {"algorithm": GCFL_PLUS, "model": COUPLED}
    yield "target clustering gin", {"target": "clustering", "model": {"name": "gin", "hidden": 8}}
    yield "target regression gin", {"target": "regression", "model": {"name": "gin", "hidden": 8}}
    yield "fedavg prompted", {"model": {**COUPLED, "prompt": "gpf_plus"}}
    yield "fedavg frozen", {"model": {**COUPLED, "prompt": "gpf_plus", "frozen": True}}
    batches = {"train": {"epochs": 2, "batch_size": 3}}
    star = {"algorithm": {"name": "fedstar"}, "model": {"name": "star", "hidden": 8}, **batches}
    split = {"name": "transformer", "hidden": 8, "prompt": {"name": "vpg", "nodes": 0.7}}
    both_ways = ("round_accumulate", "per_client_avg")
    for away, changes, ways in (("", {}, both_ways), ("away ", MOST, (*both_ways, "frozen", "per_batch_seq"))):
        yield f"fedstar {away}star", {**star, **changes}
        for gnn in ways:
            method = {"name": "fedgpl", "gnn": gnn, "noise": "paper"}
            yield f"fedgpl {away}{gnn}", {"algorithm": method, "model": split, **batches, **changes}
    for name, model in product(OF_GRAPHS, (DECOUPLED, COUPLED)):
        method = {"name": name, "copilot": COUPLED} if name in COPILOTS else {"name": name}
        yield f"{name} {model['name']}", {"algorithm": method, "model": model}
    yield "fggp gin", {"algorithm": FGGP, "model": {"name": "gin", "hidden": 8}, **batches, **MOST}
    for readout, name in {"sum": "gin", "max": "sage", "attention": "gat"}.items():
        yield f"fedavg {readout} {name}", {"model": {"name": name, "hidden": 8, "readout": readout}, **batches, **MOST}


def _runs_of_pairs() -> dict[str, Keys]:
    """Of the one graph, whose edges are predicted."""
    data = {"split": "stratified", "fractions": [0.4, 0.3, 0.3]}
    common: Keys = {"task": "edge", "data": data, "train": {"epochs": 2, "batch_size": 8}}
    return {
        "edges fedavg gcn": {**common, "model": COUPLED},
        "edges fedproto gamlp": {**common, "algorithm": {"name": "fedproto"}},
        "edges fedavg sage": {**common, **MOST, "model": {"name": "sage", "hidden": 8}},
        "edges global gcn": {**common, "algorithm": {"name": "global"}, "model": COUPLED},
    }


def config_of(name: str, changes: Mapping[str, Any], graph: Path, **more: Any) -> Config:
    """The config of a run, with its files beside the graph; `more` are keys of sections, as in `engine__hosts`."""
    plain: dict[str, Any] = {
        "name": "".join(c if c.isalnum() else "-" for c in name),
        "rounds": 4,
        "data": {"dataset": "files", "path": str(graph), "split": "public"},
        "partition": {"method": "file", "clients": 6},
        "propagation": {"hops": 2},
        "model": DECOUPLED,
        "train": {"epochs": 2},
        "algorithm": {"name": "fedavg"},
        "evaluation": {"every": 2},
        "engine": {"backend": "local"},
        "resources": {"cpus_per_host": 0.5},
        "run": {"root": str(graph.parent / "runs"), "checkpoint_every": 2, "tensorboard": False},
    }
    for section, values in changes.items():
        merge = isinstance(values, dict) and section not in ("model", "algorithm")
        plain[section] = {**plain.get(section, {}), **values} if merge else values
    for key, value in more.items():
        section, _, last = key.partition("__")
        plain[section] = {**plain[section], last: value}
    layout = plain["data"].get("layout", "dense")
    if layout == "sparse":
        plain["data"]["path"] = str(graph.with_suffix(".npz"))
    task = plain.get("task", "node")
    if task == "graph":
        plain["data"]["path"] = str(graph.with_name(SMALL_GRAPHS))
    of_kinds = plain["data"]["path"] if plain["data"]["path"] in (OF_KINDS, OF_NODES) else ""
    if of_kinds:
        plain["data"]["path"] = str(graph.with_name(f"{of_kinds}.npz"))
    if plain.get("target") == "multilabel":
        plain["data"]["path"] = str(graph.with_name(f"{SEVERAL_LABELS}.npz"))
    kind = "masked" if "sparsity" in plain["data"] else plain["data"].get("dtype", "float32")
    kind += f"-{target}" if isinstance(target := plain.get("target", ""), str) else "-numbers"
    kind += "-noise" if "noise" in plain["data"] else ""
    kind += f"-{of_kinds.removeprefix('of-')}" if of_kinds else ""
    plain["data"]["store"] = str(graph.parent / f"store-of-{task}s-{kind}-{layout}")
    return parse_config(plain, name)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """What a run's rounds report, but for how long they took and where."""
    return [{k: v for k, v in line.items() if k not in NOT_NUMBERS} for line in read_metrics(folder)]


def digest_of(folder: Path) -> dict[str, Any]:
    """Digest of a finished run: models and predictions that it exports, and everything its rounds report.

    Beside the digest, which holds on one kind of processor, a loss and a norm that hold on any.
    """
    exported = export(folder)
    models = load_file(exported / "models.safetensors")
    with pa.OSFile(str(exported / "predictions.arrow")) as file:
        predictions = pa.ipc.open_file(file).get_batch(0)
    lines = lines_of(folder)
    if "kind: homomorphic" in (folder / "config.yaml").read_text():
        # Ciphertexts are drawn by their library without a seed, and pressed: their sizes vary by a thousandth.
        lines = [{key: value for key, value in line.items() if key not in ("bytes_up", "scalars_up")} for line in lines]
    sha = hashlib.sha256()
    for name in sorted(models):
        sha.update(name.encode() + models[name].tobytes())
    for name in predictions.schema.names:
        column = predictions.column(name)
        if name == "part":
            # The digests know parts by their numbers, 0 for none.
            column = pa.array(column.indices.fill_null(-1).to_numpy() + 1, pa.int8())
        if pa.types.is_fixed_size_list(column.type):
            column = column.flatten()
        sha.update(name.encode() + column.to_numpy().tobytes())
    sha.update(json.dumps(lines, sort_keys=True).encode())
    norm = math.sqrt(sum(float(np.square(w.astype(np.float64)).sum()) for w in models.values()))
    return {"sha256": sha.hexdigest(), "loss": lines[-1]["loss"], "norm": norm}


def execute(name: str, graph: Path, backend: Backend | None = None, **more: Any) -> dict[str, Any]:
    """Runs one of the matrix, and gives its digest."""
    return digest_of(run(config_of(name, matrix()[name], graph, **more), backend=backend))


def here() -> dict[str, Any]:
    """What the digests of this machine depend on."""
    # Not Shoal itself, whose changes these digests are there to notice.
    of_run = {key: value for key, value in environment("cpu").items() if key not in ("python", "shoal")}
    return {**of_run, "instructions": torch.backends.cpu.get_cpu_capability(), "processor": _processor()}


def _processor() -> str:
    """What tells processors of one name apart: family, model, and a digest of what they can do; empty if not known."""
    if not (known := Path("/proc/cpuinfo")).exists():
        return ""
    found = dict(line.split(":", 1) for line in known.read_text().split("\n\n")[0].splitlines() if ":" in line)
    told = {name.strip(): value.strip() for name, value in found.items()}
    can = hashlib.sha256(told.get("flags", "").encode()).hexdigest()[:8]
    return f"{told.get('cpu family')} {told.get('model')} {can}"


def records() -> list[dict[str, Any]]:
    """Returns the records in the repository, the newest first: `environment`, and the digests of `runs` by name."""
    return json.loads(GOLDEN.read_text())


def record_here() -> dict[str, Any] | None:
    """Returns the record of this kind of machine, if there is one."""
    return next((record for record in records() if record["environment"] == here()), None)


def write(digests: dict[str, dict[str, Any]]) -> None:
    """Puts digests of this machine in front; drops from other records the runs that changed since this one's last."""
    before = record_here()
    others = [record for record in records() if record["environment"] != here()]
    for record in others if before else ():
        kept = {name: run for name, run in record["runs"].items() if digests.get(name) == before["runs"].get(name)}
        record["runs"] = kept
    GOLDEN.write_text(json.dumps([{"environment": here(), "runs": digests}, *others], indent=1) + "\n")


def main() -> None:
    """Compares, or with `--write` replaces, the digests of this machine in the repository."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("names", nargs="*", default=["*"], help="of runs to compare, or patterns as 'fedpg*'; all")
    parser.add_argument("--write", action="store_true", help="make all runs, and replace the record of this machine")
    args = parser.parse_args()
    names = [name for name in matrix() if args.write or any(fnmatchcase(name, pattern) for pattern in args.names)]
    record = record_here()
    if record is None and not args.write:
        sys.exit(f"no record of this machine, {here()}; --write adds one")
    if not names:
        sys.exit(f"no run is called {' or '.join(args.names)}; there are {', '.join(matrix())}")
    with tempfile.TemporaryDirectory() as folder:
        graph = write_graph(Path(folder) / "graph")
        digests = {name: execute(name, graph) for name in names}
    if record is None or args.write:
        return write(digests)
    recorded = record["runs"]
    changed = [name for name in digests if digests[name] != recorded.get(name)]
    print("\n".join(f"{name}: {recorded.get(name)} -> {digests[name]}" for name in changed) or "all digests are equal")
    return sys.exit(bool(changed))


if __name__ == "__main__":
    main()
