"""Accuracies of our methods on real graphs, beside the papers' and a public peer's.

    python benchmarks/accuracy.py [averages|baselines|sgd|prototypes|mixed|distillation|ablation|domains|graphs|prompts]
        [--quick] [--reference DIR] [--only cora-louvain …] [--seeds 5] [--selection-seeds 2] [--rounds 100]
        [--runs runs/accuracy] [--precision float32|tf32|bfloat16]

`averages`: Local, FedAvg, FedGTA and Global on Cora, PubMed and the digits, ten clients by Louvain and by METIS, GAMLP
and SGC. `prototypes`: Local, FedAvg, FedGTA, FedProto, FedTGP and FedPG on Cora, PubMed and Computers, GAMLP and GCN,
with FedPG's self control (a client's own prototypes only) and class means, our own baseline. `mixed`: the methods that
send no weights, on clients of GCN, GIN, GraphSAGE, SGC and GCNII in equal blocks, ten and twenty clients by Louvain.
`distillation`: FedGKC and what its paper compares with, class means and FedPG beside them, in both of its scenarios
(`configs/papers/fedgkc`), 5, 10 and 20 clients by Louvain; `ablation`: FedGKC without its parts and as its paper writes
them. These two show the plain mean over clients, as the paper does, all others the mean weighted by nodes. `domains`:
FGGP, its parts and what it is compared with, on Twitch and citation archives, see `domain_studies.py`. `graphs`:
clients of many small graphs, see `graph_studies.py`. `baselines`: all that averages models beside those, see
`baselines.py`; `sgd`: what wants plain SGD, as it is written, see `sgd_studies.py`. `prompts`: FedGPL, its parts and
other prompts, see `prompt_studies.py`.

With `--reference`, ten clients of Cora, PubMed and Computers use the partitions and splits of that folder, on which the
peer's accuracies were measured. FedGTA's threshold is chosen by the mean validation accuracy of its served models over
the first `--selection-seeds` seeds, and so is the learning rate of `sgd`; nothing else is chosen, and test accuracies
play no part. Every run is a run folder under `--runs`; finished ones are not run again.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import baselines
import distillation_studies
import domain_studies
import graph_studies
import prompt_studies
import sgd_studies
from distillation_studies import SCENARIOS, scenario_keys
from figures import print_figures, spread, target
from paper_figures import PAPER
from rich.console import Console
from rich.table import Table

from shoal.engine.config.config import parse_config
from shoal.engine.records.metrics import METRICS
from shoal.engine.records.run_folder import read_summary, run_path
from shoal.engine.runs.run import run

EPS = (0.3, 0.5, 0.7, 0.9)
MIXED = ("gcn", "gin", "sage", "sgc", "gcnii")
HOPS = {"gamlp": 3}
METHODS: dict[str, dict[str, Any]] = {
    "local": {"name": "local"},
    "fedavg": {"name": "fedavg"},
    "fedgta": {"name": "fedgta"},
    "global": {"name": "global"},
    "fedproto": {"name": "fedproto"},
    "fedtgp": {"name": "fedtgp"},
    "fedpg": {"name": "fedpg"},
    "fedpg, own only": {"name": "fedpg", "targets": "own"},
    "class means (ours)": {"name": "class_means"},
    **baselines.METHODS,
    **distillation_studies.METHODS,
    **distillation_studies.ABLATION,
}
# What the peer calls its closest backbones: A²X behind one linear layer, and behind an MLP.
PEER_BACKBONE = {"sgc": ("sgc_true",), "gamlp": ("dec", "gcn"), "gcn": ("gcn",)}
# The same method on the same partition; the others differ by design.
CLOSE_TO_PEER = ("local", "fedavg", "global", "fedprox", "moon, all nodes")
PEER_METHOD = {
    "local": "isolate",
    "global": "central_full",
    "gcfl+": "gcfl_plus",
    "moon, all nodes": "moon",
    "scaffold, as the peer": "scaffold",
    "feddc, as the peer": "feddc",
    "fedproto, as the peer": "fedproto",
    "fedtgp, as the peer": "fedtgp",
}


@dataclass(frozen=True)
class Study:
    """What is compared on which settings."""

    datasets: tuple[str, ...]
    partitions: tuple[str, ...]
    backbones: tuple[str, ...]
    clients: tuple[int, ...]
    methods: tuple[str, ...]
    weighting: str = "nodes"


PROTOTYPES = ("fedproto", "fedtgp", "fedpg", "fedpg, own only", "class means (ours)")
CUTS = ("louvain", "metis")
STUDIES = {
    "averages": Study(("digits", "cora", "pubmed"), CUTS, ("gamlp", "sgc"), (10,),
                      ("local", "fedavg", "fedgta", "global")),
    "baselines": Study(("cora", "pubmed", "computers", "physics"), CUTS, ("gcn", "gamlp"), (10,), baselines.NAMES),
    "sgd": Study(("cora", "pubmed", "computers"), CUTS, ("gcn",), (10,), tuple(sgd_studies.METHODS)),
    "prototypes": Study(("cora", "pubmed", "computers"), CUTS, ("gamlp", "gcn"), (10,),
                        ("local", "fedavg", "fedgta", *PROTOTYPES)),
    "mixed": Study(("cora", "pubmed", "computers"), ("louvain",), ("mixed",), (10, 20), ("local", *PROTOTYPES)),
    "distillation": Study(distillation_studies.DATASETS, ("louvain",), SCENARIOS, distillation_studies.CLIENTS,
                          tuple(distillation_studies.METHODS), "clients"),
    "ablation": Study(("cora", "pubmed"), ("louvain",), SCENARIOS[:1], distillation_studies.CLIENTS,
                      tuple(distillation_studies.ABLATION), "clients"),
}  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """One graph, cut into clients one way, with one backbone."""

    dataset: str
    method: str
    backbone: str
    clients: int

    @property
    def name(self) -> str:
        return f"{self.dataset}-{self.method}{'' if self.clients == 10 else self.clients}"


def settings(study: Study, only: list[str]) -> Iterator[Setting]:
    """All settings of a study, or those whose `dataset-method` or `dataset-method-backbone` is asked for."""
    of_study = product(study.datasets, study.partitions, study.clients, study.backbones)
    known = [Setting(dataset, method, backbone, clients) for dataset, method, clients, backbone in of_study]
    asked = [{setting.name, f"{setting.name}-{setting.backbone}"} for setting in known]
    if wrong := set(only).difference(*asked):
        raise SystemExit(
            f"--only {wrong.pop()}: the study has no such setting; it has {', '.join(sorted(set().union(*asked)))}"
        )
    for setting, names in zip(known, asked):
        if not only or names & set(only):
            yield setting


def config_of(
    setting: Setting, algorithm: dict[str, Any], seed: int, args: argparse.Namespace, **model: Any
) -> dict[str, Any]:
    """The config of one run, as plain values; `model` is what differs in the setting's model."""
    plain: dict[str, Any] = {
        "name": f"{setting.name}-{setting.backbone}-{algorithm['name'].rpartition(':')[2]}",
        "seed": seed,
        "rounds": args.rounds,
        "data": {"dataset": setting.dataset},
        "partition": {"method": setting.method, "clients": setting.clients},
        "propagation": {"hops": HOPS.get(setting.backbone, 2)},
        "model": {"name": setting.backbone},
        "algorithm": algorithm,
        "evaluation": {"every": 2},
        "engine": {"backend": "local", "precision": args.precision},
        "run": {"root": args.runs, "checkpoint_every": args.rounds, "tensorboard": False},
    }
    if args.study in ("baselines", "sgd"):
        plain["model"] |= baselines.MODELS.get(setting.backbone, {}) | model
    if setting.backbone == "mixed":
        plain["model"] = [{"name": name} for name in MIXED]
        plain["heterogeneity"] = {"rule": "blocks", "embedding": 64}
    if setting.backbone in SCENARIOS:
        plain |= scenario_keys(setting.backbone)
    if setting.dataset == "digits" and setting.method == "louvain":
        plain["partition"]["resolution"] = 4.0
    folder = reference_folder(setting, args)
    if folder is not None:
        plain["partition"].update(method="file", file=str(folder / "assignment.npy"))
        plain["data"].update(split="file", split_file=str(folder / "split.npy"))
    return plain


def reference_folder(setting: Setting, args: argparse.Namespace) -> Path | None:
    """The peer's partition of a setting, if there is one."""
    names = {"cora": "Cora", "pubmed": "PubMed", "computers": "Computers", "physics": "Physics"}
    if args.reference is None or setting.dataset not in names or setting.clients != 10:
        return None
    return Path(args.reference) / f"{names[setting.dataset]}-{setting.method}10"


def finish(
    setting: Setting, algorithm: dict[str, Any], seed: int, args: argparse.Namespace, **model: Any
) -> dict[str, Any]:
    """Runs what is not finished yet, and returns the summary."""
    return finish_plain(config_of(setting, algorithm, seed, args, **model))


def finish_plain(plain: dict[str, Any]) -> dict[str, Any]:
    """The same of a config as plain values."""
    config = parse_config(plain, "benchmark")
    path = run_path(config)
    return read_summary(run(config, resume=(path / METRICS).exists()))


def best(summary: dict[str, Any], scope: str, part: str = "test", weighting: str = "nodes") -> float:
    """Accuracy in % at the scope's best validation round."""
    return 100 * summary["scopes"][scope]["best"][part][weighting]


def choose_eps(setting: Setting, args: argparse.Namespace) -> tuple[float, dict[str, float]]:
    """The threshold with the highest mean validation accuracy of the served models."""
    seeds = range(min(args.selection_seeds, args.seeds))
    scores = {
        eps: mean(best(finish(setting, {"name": "fedgta", "eps": eps}, s, args), "served", "val") for s in seeds)
        for eps in EPS
    }
    return max(scores, key=lambda eps: scores[eps]), {f"{eps:g}": score for eps, score in scores.items()}


def peer_of(setting: Setting, method: str, args: argparse.Namespace) -> tuple[float, float | None] | None:
    """The peer's accuracies before and after the download, mean over its seeds; of baselines by the same model only."""
    if reference_folder(setting, args) is None or (args.study == "baselines" and setting.backbone == "gamlp"):
        return None
    runs = json.loads((Path(args.reference) / "reference.json").read_text())["runs"]
    for backbone in PEER_BACKBONE.get(setting.backbone, ()):
        same = [r for r in runs if (r["dataset"].lower(), r["partition"], r["algorithm"], r["backbone"])
                == (setting.dataset, setting.method, PEER_METHOD.get(method, method), backbone)]  # fmt: skip
        if same:
            post = [100 * r["post_best_val_test"] for r in same if r.get("post_best_val_test") is not None]
            return mean(100 * r["best_val_test"] for r in same), mean(post) if post else None
    return None


def paper_of(setting: Setting, method: str) -> float | None:
    """What a method's paper found in a setting."""
    if setting.backbone in SCENARIOS:
        return distillation_studies.paper(setting.backbone, setting.dataset, setting.clients, method)
    return PAPER.get((setting.dataset, setting.method, setting.backbone), {}).get(method)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", choices=[*STUDIES, "domains", "graphs", "prompts"], default="averages")
    parser.add_argument("--quick", action="store_true", help="the first graph, one seed, 20 rounds: within a minute")
    parser.add_argument("--reference", help="folder with the peer's partitions and accuracies")
    parser.add_argument("--only", nargs="*", default=[], help="settings such as cora-louvain, cora-louvain-gcn")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--selection-seeds", type=int, default=2, help="seeds that choose thresholds and rates")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--runs", default="runs/accuracy")
    parser.add_argument("--precision", default="float32", help="engine.precision")
    parser.add_argument("--methods", nargs="*", default=[], help="some of the study alone, such as fggp")
    args = parser.parse_args()
    if args.study == "domains":
        if args.quick:
            args.only, args.seeds, args.rounds, args.methods = ["twitch-index10"], 1, 10, ["fedavg", "fggp"]
        domain_studies.study(args, finish_plain)
        return
    if args.study == "graphs":
        if args.quick:
            args.only, args.seeds, args.rounds, args.methods = ["proteins-uniform-gin"], 1, 10, ["local", "fedavg"]
        graph_studies.study(args, finish_plain)
        return
    if args.study == "prompts":
        if args.quick:
            args.only, args.seeds, args.rounds, args.methods = ["cora-clean"], 1, 5, ["fedgpl, one step a round"]
        prompt_studies.study(args, finish_plain)
        return
    study = STUDIES[args.study]
    if args.quick:
        args.only, args.seeds, args.rounds = [f"{study.datasets[0]}-louvain"], 1, 20
    if args.study == "sgd":
        known = ((each.name, partial(config_of, each, args=args)) for each in settings(study, args.only))
        sgd_studies.study(args, finish_plain, known)
        return
    table = Table(title="test accuracy in % at the best validation round, mean ± std over seeds")
    for column in (
        "setting",
        "method",
        "trained",
        "served",
        "trained, last round",
        "paper",
        "peer before / after download",
    ):
        table.add_column(column, no_wrap=True)
    figures: dict[str, Any] = {}
    targets: dict[str, dict[str, Any]] = {}
    for setting in settings(study, args.only):
        label = f"{setting.name} {setting.backbone}"
        for method in study.methods:
            if (args.methods and method not in args.methods) or (
                setting.backbone == "gamlp" and method in baselines.COUPLED
            ):
                continue
            algorithm, name = METHODS[method], method
            if method == "fedgta":
                eps, scores = choose_eps(setting, args)
                figures[f"{label} eps"] = {"chosen": eps, "validation": scores}
                algorithm, name = {**algorithm, "eps": eps}, f"fedgta (eps {eps:g})"
            model = baselines.MODEL_OF.get(method, {})
            summaries = [finish(setting, algorithm, seed, args, **model) for seed in range(args.seeds)]
            trained = [best(s, "trained", weighting=study.weighting) for s in summaries]
            served = [best(s, "served", weighting=study.weighting) for s in summaries]
            last = [100 * s["scopes"]["trained"]["last"]["test"][study.weighting] for s in summaries]
            paper = paper_of(setting, method)
            peer = peer_of(setting, method, args)
            after = "-" if peer is None or peer[1] is None else f"{peer[1]:.2f}"
            table.add_row(
                label, name, spread(trained, 2), spread(served, 2), spread(last, 2), f"{paper:.1f}" if paper else "-",
                "-" if peer is None else f"{peer[0]:.2f} / {after}",
            )  # fmt: skip
            figures[f"{label} {method}"] = {"trained": trained, "served": served, "last": last}
            if peer is not None and setting.backbone in ("sgc", "gcn") and method in CLOSE_TO_PEER:
                targets[f"{label} {method}: distance to the peer"] = target(abs(mean(trained) - peer[0]), 1.5, True)
    Console(width=160).print(table)
    print_figures(figures, targets)


if __name__ == "__main__":
    main()
