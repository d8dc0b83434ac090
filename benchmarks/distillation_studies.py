"""Studies of `accuracy.py` with two models a client: what is compared, and what FedGKC's paper found."""

from pathlib import Path
from typing import Any

import yaml

CONFIGS = Path(__file__).resolve().parent.parent / "configs/papers/fedgkc"
SCENARIOS = ("architectures", "scales")
DATASETS = ("cora", "pubmed", "computers", "physics")
CLIENTS = (5, 10, 20)

# The same in both.
COPILOT = yaml.safe_load((CONFIGS / "architectures.yaml").read_text())["algorithm"]["copilot"]
PLAIN = {"mutual": "scores", "beta": 0.0, "self_distillation": False}
METHODS: dict[str, dict[str, Any]] = {
    "local": {"name": "local"},
    "lg-fedavg": {"name": "lg_fedavg"},
    "fml": {"name": "fml", "copilot": COPILOT},
    "fedkd": {"name": "fedkd", "copilot": COPILOT},
    "feddistill": {"name": "feddistill"},
    "fedproto": {"name": "fedproto"},
    "fedtgp": {"name": "fedtgp"},
    "fedpg": {"name": "fedpg"},
    "class means (ours)": {"name": "class_means"},
    "fedgkc": {"name": "fedgkc", "copilot": COPILOT},
}
# Rows of the paper's Table V, then one part less each, then the forms that the paper writes.
PARTS: dict[str, dict[str, Any]] = {
    "fedgkc": {},
    "neither part": {**PLAIN, "weights": "size"},
    "distillation alone": {"weights": "size"},
    "KAMA alone": PLAIN,
    "without self distillation": {"self_distillation": False},
    "without neighbourhood": {"mutual": "scores"},
    "without self and neighbourhood": {"self_distillation": False, "mutual": "scores"},
    "without mutual (nothing sent)": {"mutual": "none"},
    "sums over neighbours": {"neigh_norm": "sum"},
    "raw distances": {"self_mse": "raw", "self_detach": False},
    "as written": {"form": "paper"},
    "clarity: margin_mean": {"clarity": "margin_mean"},
}
ABLATION: dict[str, dict[str, Any]] = {
    "local": {"name": "local"},
    **{row: {"name": "fedgkc", "copilot": COPILOT, **options} for row, options in PARTS.items()},
}
# Tables II and III at 5, 10 and 20 clients; of the others the mean over the three.
FEDGKC = {
    ("architectures", "cora"): (81.42, 80.71, 75.38),
    ("architectures", "pubmed"): (85.54, 83.48, 82.42),
    ("architectures", "physics"): (94.41, 93.65, 92.66),
    ("architectures", "computers"): (88.17, 86.80, 85.84),
    ("scales", "cora"): (80.05, 80.25, 74.31),
    ("scales", "pubmed"): (85.25, 83.94, 81.61),
    ("scales", "physics"): (94.62, 94.18, 93.54),
    ("scales", "computers"): (87.69, 86.51, 85.50),
}
# Table II at 10 clients, corrected: Cora, PubMed, Physics, Computers.
TEN_CLIENTS = {
    "lg-fedavg": (78.11, 82.74, 93.79, 85.99),
    "fedproto": (77.75, 82.77, 92.54, 75.55),
    "fml": (79.90, 83.05, 92.58, 83.08),
    "fedkd": (78.64, 83.21, 92.81, 83.69),
    "fedtgp": (78.47, 83.36, 93.12, 73.76),
}
OF_TEN = ("cora", "pubmed", "physics", "computers")


def paper(scenario: str, dataset: str, clients: int, method: str) -> float | None:
    """What the paper's tables have; None: nothing."""
    if method == "fedgkc":
        return FEDGKC[scenario, dataset][CLIENTS.index(clients)]
    if scenario == "architectures" and clients == 10 and method in TEN_CLIENTS:
        return TEN_CLIENTS[method][OF_TEN.index(dataset)]
    return None


def scenario_keys(scenario: str) -> dict[str, Any]:
    """The sections of a scenario's config that say what clients train."""
    plain = yaml.safe_load((CONFIGS / f"{scenario}.yaml").read_text())
    return {name: plain[name] for name in ("model", "heterogeneity", "train", "propagation")}
