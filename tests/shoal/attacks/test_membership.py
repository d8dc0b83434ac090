"""Attacks on models of finished runs against scikit-learn and probabilities of the export; what is refused."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from sklearn.metrics import roc_auc_score, roc_curve
from support.errors import refused
from support.fixtures import Configure, Refused
from support.needs import needs
from support.small_runs import run_small

from shoal.algorithms.rng import key
from shoal.attacks.membership import area, margin, membership, true_positives
from shoal.engine.records.outputs import PREDICTIONS
from shoal.engine.records.run_folder import CHECKPOINTS
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run


@pytest.mark.parametrize("ties", [False, True])
def test_area_and_true_positives(ties: bool) -> None:
    rng = np.random.default_rng(0)
    member, other = rng.normal(0.5, 1, 300), rng.normal(0, 1, 250)
    if ties:
        member, other = member.round(), other.round()
    truth, signal = np.repeat([1, 0], [300, 250]), np.concatenate([member, other])
    assert area(member, other) == pytest.approx(roc_auc_score(truth, signal))
    false, true, _ = roc_curve(truth, signal, drop_intermediate=False)
    assert true_positives(member, other) == pytest.approx(true[false <= 0.01].max())
    assert np.isnan(true_positives(member, other[:99]))


def test_margin_keeps_the_order_of_losses_where_probabilities_are_one() -> None:
    scores = torch.tensor([[50.0, 0.0, 0.0], [60.0, 0.0, 0.0], [1.0, 2.0, -torch.inf], [0.0, 0.0, -torch.inf]])
    found = margin(scores.double(), torch.tensor([0, 0, 1, 2]))
    assert found[0] < found[1]
    assert found[2].item() == pytest.approx(1.0)
    assert found[3] == -1e6


@pytest.mark.parametrize("method", ["local", "fedavg", "fedproto"])
def test_success_is_that_of_exported_probabilities(tmp_path: Path, method: str) -> None:
    folder = run_small(tmp_path, algorithm={"name": method})
    found = membership(folder)
    table = pa.ipc.open_file(str(export(folder, probabilities=True) / PREDICTIONS)).read_all()
    columns = {name: table[name].to_pylist() for name in ("client", "part", "label", "deployed_probability")}
    both: dict[str, list[float]] = {"train": [], "test": []}
    for client in range(4):
        signals, labels = {}, {}
        for part in ("train", "test"):
            rows = [k for k, at in enumerate(zip(columns["client"], columns["part"])) if at == (client, part)]
            labels[part] = np.array([columns["label"][k] for k in rows])
            signals[part] = np.array([columns["deployed_probability"][k][columns["label"][k]] for k in rows])
        number_C = np.minimum(*(np.bincount(of, minlength=3) for of in labels.values()))
        number = number_C.sum()
        rng, drawn = np.random.default_rng(key(0, client, "membership")), {}
        for part, of in labels.items():
            taken: list[int] = []
            for item in rng.permutation(len(of)):
                if sum(of[other] == of[item] for other in taken) < number_C[of[item]]:
                    taken.append(item)
            drawn[part] = signals[part][sorted(taken)]
        (mine,) = [each for each in found.clients if each.client == str(client)]
        assert mine.items == number
        auc = 100 * roc_auc_score(np.repeat([1, 0], number), np.concatenate(list(drawn.values())))
        assert mine.auc[0] == pytest.approx(auc, abs=0.2)
        for part, of in drawn.items():
            both[part] += of.tolist()
    everybody = len(both["train"])
    assert found.overall.items == everybody == sum(each.items for each in found.clients)
    auc = 100 * roc_auc_score(np.repeat([1, 0], everybody), both["train"] + both["test"])
    assert found.overall.auc[0] == pytest.approx(auc, abs=0.2)


def test_a_model_that_learned_nothing_is_at_chance_where_training_items_alone_are_balanced(tmp_path: Path) -> None:
    """As in published splits: 60 items a class to train on, of others 1,200, 240 and 60 to test."""
    rng, counts = np.random.default_rng(1), np.array([[60, 1200], [60, 240], [60, 60]])
    y = np.repeat(np.repeat(range(3), 2), counts.ravel())
    split = np.repeat(np.tile([1, 3], 3), counts.ravel()).astype(np.int8)
    x = (np.eye(3, 8)[y] + 0.3 * rng.standard_normal((len(y), 8))).astype(np.float32)
    order = rng.permutation(len(y))
    arrays = {"edge_index": rng.integers(len(y), size=(2, 3000)), "x": x[order], "y": y[order], "split": split[order]}
    (tmp_path / "graph").mkdir()
    for name, array in arrays.items():
        np.save(tmp_path / "graph" / f"{name}.npy", array)
    data = {"dataset": "files", "path": str(tmp_path / "graph"), "split": "public", "options": {}}
    train = {"optimizer": "sgd", "lr": 1e-12, "epochs": 1}
    for seed in range(3):
        keys = {"data": data, "train": train, "partition": {"clients": 2}, "seed": seed, "rounds": 1}
        found = membership(run_small(tmp_path / str(seed), model={"name": "mlp", "layers": 1}, **keys)).overall
        assert 150 <= found.items <= 180
        # Three deviations of the area of two samples of one distribution (Mann and Whitney, 1947).
        within = 300 * math.sqrt((2 * found.items + 1) / (12 * found.items**2))
        assert all(abs(auc - 50) < within for auc in found.auc)


def test_models_that_learned_noise_by_heart_are_told_apart(tmp_path: Path) -> None:
    data = {"options": {"nodes": 240, "features": 200, "classes": 3, "degree": 2.0, "signal": 0.0}}
    heart = {"train": {"epochs": 100, "lr": 0.1, "weight_decay": 0.0}, "algorithm": {"name": "local"}}
    folder = run_small(tmp_path, data=data, model={"name": "mlp", "layers": 1}, rounds=2, **heart)
    assert min(membership(folder).overall.auc) > 80


@needs("privacy")
def test_command_names_epsilon_and_writes_every_client(tmp_path: Path, printed: Refused) -> None:
    folder = run_small(tmp_path, privacy={"unit": "client", "noise": 30.0, "delta": 1e-3})
    said = printed("attack", folder, "--out", tmp_path / "found.csv")
    assert "of a client (all its data replaced), delta 0.001" in said
    lines = (tmp_path / "found.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["client", "all", "0", "1", "2", "3"]


def test_graphs_and_one_client(tmp_path: Path, configure: Configure, graph_task: dict[str, Any]) -> None:
    keys = {**graph_task, "run.root": str(tmp_path / "runs"), "run.tensorboard": False, "rounds": 1}
    found = membership(run(configure(keys)))
    assert 0 <= found.overall.auc[0] <= 100
    assert len(membership(run_small(tmp_path, partition={"clients": 1})).clients) == 1


def test_clients_that_never_trained_or_lack_a_part_are_left_out(tmp_path: Path, configure: Configure) -> None:
    keys = {"run.root": str(tmp_path / "runs"), "run.tensorboard": False, "rounds": 1}
    # Client 4 has no test node, client 5 none for training.
    assert [each.client for each in membership(run(configure(keys))).clients] == ["0", "1", "2", "3"]
    some = membership(run(configure({**keys, "participation.without": [1, 2]})))
    assert [each.client for each in some.clients] == ["0", "3"]
    with refused(says="no client that trained has training and test items of one class"):
        membership(run(configure({**keys, "participation.without": [0, 1, 2, 3]})))


def test_runs_without_a_checkpoint_are_refused(tmp_path: Path) -> None:
    folder = run_small(tmp_path / "whole")
    for checkpoint in sorted((folder / CHECKPOINTS).iterdir()):
        for file in sorted(checkpoint.rglob("*")):
            file.unlink()
        checkpoint.rmdir()
    with refused(says="no checkpoint of round"):
        membership(folder)
    with refused(says="so no run"):
        membership(tmp_path)
