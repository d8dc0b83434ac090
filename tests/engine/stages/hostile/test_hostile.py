"""Rounds with hostile clients against rounds written out."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.needs import needs
from support.plain_fedavg import by_trust, sgd_step
from support.stages import pass_through, phase_of
from torch import Tensor

from shoal.algorithms.protocol import Ask, Reduce, Upload
from shoal.algorithms.rng import key
from shoal.engine.config.config import Config
from shoal.engine.rounds.sampling import evaluation_cell
from shoal.engine.rounds.server import Server
from shoal.engine.runs.dry_run import expected
from shoal.engine.runs.plan import RunPlan
from shoal.engine.stages.hostile.hostile import Hostile, hostile_clients
from shoal.engine.stages.hostile.section import AttackOptions
from shoal.storage.shards.view import Cache

Start = Callable[..., Server]
LR, ROOT_CLIENT = 0.5, 1
# Softmax regression on the features, by one step of plain SGD a round.
PLAIN = {"model.name": "sgc", "propagation.hops": 0, "train.optimizer": "sgd", "train.lr": LR, "train.epochs": 1}
PLAIN |= {"train.dropout": 0.0, "train.weight_decay": 0.0, "algorithm.weight": "train"}
OWN = """
def Shifted(change, scale, rng):
    return change + scale

def Short(change, scale, rng):
    return change[1:]

def Two(change, scale):
    return change
"""


def tensors(server: Server) -> dict[str, Tensor]:
    return server.state.to_tensors()[0]


def require_same(one: Server, other: Server) -> None:
    mine, others = tensors(one), tensors(other)
    assert mine.keys() == others.keys()
    assert all(torch.equal(t, others[name]) for name, t in mine.items())


def test_hostile_clients_are_drawn_by_the_seed_alone() -> None:
    options = AttackOptions(kind="scaled", share=0.3)
    found = [hostile_clients(options, 50, seed) for seed in range(200)]
    assert {len(one) for one in found} == {15}
    assert found == [hostile_clients(options, 50, seed) for seed in range(200)]
    assert len(set(found)) == 200
    # Each client is one of them in three of ten seeds: five standard errors of 200 draws.
    share = np.bincount(np.concatenate([sorted(one) for one in found]), minlength=50) / 200
    assert np.abs(share - 0.3).max() < 5 * (0.3 * 0.7 / 200) ** 0.5
    with refused("attack.share", says="0.3 of 3 clients is less than one"):
        hostile_clients(options, 3, 0)


def drawn(seed: int, number: int, client: int, size: int) -> np.ndarray:
    """What a client of a seed draws for its attack in a round, for the entry w."""
    generator = torch.Generator().manual_seed(key(seed, number, client, "attack/train/w"))
    return torch.randn(size, generator=generator).numpy()


@pytest.mark.parametrize("kind", ["label_flip", "sign_flip", "gaussian", "scaled", "own"])
@pytest.mark.parametrize(
    "defence", ["mean", *(pytest.param(kind, marks=needs("robust")) for kind in ("median", "norm_bound", "fltrust"))]
)
def test_rounds_of_fedavg_with_hostile_clients(start: Start, tmp_path: Path, kind: str, defence: str) -> None:
    (tmp_path / "own.py").write_text(OWN)
    name = f"{tmp_path / 'own.py'}:Shifted" if kind == "own" else kind
    keys = {"attack.kind": name, "attack.share": 0.4, "participation.count": 4}
    keys |= {} if defence == "mean" else {"aggregation.kind": defence}
    keys |= {} if kind == "label_flip" else {"attack.scale": 3.0}
    keys |= {"aggregation.bound": 0.05} if defence == "norm_bound" else {}
    # All clients take part, and one that trains and is not hostile is trusted.
    keys |= {"aggregation.root": ROOT_CLIENT, "participation.count": 6} if defence == "fltrust" else {}
    server = start({**PLAIN, **keys})
    hostile = hostile_clients(AttackOptions(kind="scaled", share=0.4), 6, server.job.seed)
    assert len(hostile) == 2
    assert ROOT_CLIENT not in hostile
    w, attacked, clipped = server.state.server["w"].numpy().copy(), 0, 0
    for number in (1, 2, 3):
        rows, sizes = [], []
        for client in server.cohort(number):
            mine = client in hostile
            after, size = sgd_step(server, client, w, LR, flipped=mine and kind == "label_flip")
            if not size:
                continue
            change = (after - w).astype(np.float64)
            attacked += mine
            if mine:
                noise = drawn(server.job.seed, number, client, len(w)) * np.sqrt((change**2).mean())
                change = {
                    "label_flip": change, "sign_flip": -3 * change, "gaussian": 3 * noise, "scaled": 3 * change,
                    "own": change + 3,
                }[kind]  # fmt: skip
            if defence == "norm_bound" and (norm := np.sqrt((change**2).sum())) > 0.05:
                change, clipped = change * 0.05 / norm, clipped + 1
            rows.append(w + change)
            sizes.append(size)
        if defence == "fltrust":
            reduced = w + by_trust(np.stack(rows) - w, ROOT_CLIENT)
        else:
            reduced = np.median(rows, axis=0) if defence == "median" else np.average(rows, axis=0, weights=sizes)
        w = reduced.astype(np.float32)
        server.round()
        np.testing.assert_allclose(server.state.server["w"], w, rtol=0, atol=5e-6)
    assert attacked
    assert clipped or defence != "norm_bound"


def test_labels_are_flipped_for_training_alone(start: Start) -> None:
    server = start({**PLAIN, "attack.kind": "label_flip"})
    job, store = server.job, server.job.open_store()
    for client in range(5):
        view, flipped = (job.view(store, client, Cache(0), flipped=flips) for flips in (False, True))
        classes, label = view.classes, view.label.clone()
        label[view.train] = classes - 1 - label[view.train]
        assert torch.equal(flipped.label, label)
        assert torch.equal(flipped.train_label, label[view.train])
        flipped.watch()
        assert flipped.written() is None


@needs("robust")
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedproto"])
def test_nobody_hostile_and_no_robust_reduction_are_the_plain_run(start: Start, method: str) -> None:
    """So is a norm that no change reaches."""
    keys: dict[str, Any] = {"algorithm.name": method, "participation.ratio": 0.5}
    others = [{"attack.kind": "none", "aggregation.kind": "mean"}]
    others += [{"aggregation.kind": "norm_bound", "aggregation.bound": 1e9}]
    plain, *same = (start({**keys, **more}) for more in ({}, *others))
    for _ in range(3):
        lines = [server.round() for server in (plain, *same)]
        assert len({line["bytes_up"] for line in lines}) == 1
    for server in same:
        require_same(server, plain)


@needs("robust")
def test_norms_are_of_a_whole_message() -> None:
    """Rows without weight do not count, nor does what is no mean; what was not received is its own change."""
    from shoal.engine.stages.robust.robust import NormBound
    from shoal.engine.stages.robust.section import AggregationOptions

    stage = NormBound(AggregationOptions(kind="norm_bound", bound=1.0), "Mine")
    entries = {"w": torch.tensor([4.0, 1.0]), "p": torch.tensor([[4.0], [float("nan")]]), "k": torch.tensor([9.0])}
    upload = Upload(entries, {"p": torch.tensor([[2.0], [0.0]]), "w": 5.0})
    up = {"w": Reduce.MEAN, "p": Reduce.MEAN, "k": Reduce.STACK}
    cell = replace(evaluation_cell(1, [0], {}, {}), phase="train", up=up)
    found, _ = pass_through(stage, upload, cell, {"w": torch.tensor([1.0, 1.0]), "p": torch.ones(3)})
    # Changes are 3, 0 and 4 of a norm of 5.
    assert torch.allclose(found.entries["w"], torch.tensor([1.6, 1.0]))
    assert found.entries["p"][0].item() == pytest.approx(0.8)
    assert found.entries["k"] is entries["k"]
    assert found.weight is upload.weight


def test_attacks_on_uploads_need_a_mean(start: Start) -> None:
    """An attack changes the means that there are."""
    flips, attack = (
        Hostile(replace(start({"algorithm.name": "fedgta"}).job, stages={"attack": AttackOptions(kind, share=0.5)}))
        for kind in ("label_flip", "sign_flip")
    )
    attack.before(phase_of(Ask("train", {"w": Reduce.MEAN, "proto": Reduce.STACK})))
    with refused(
        "attack.kind", says="sign_flip changes means, and 'w' of FedGTA is mixed; take attack.kind=label_flip"
    ):
        attack.before(phase_of(Ask("train", {"w": Reduce.MIX})))
    flips.before(phase_of(Ask("train", {"w": Reduce.MIX})))
    assert not flips.whole


@needs("robust")
def test_method_without_means_is_refused(start: Start) -> None:
    for keys, key_of in (
        ({"aggregation.kind": "median"}, "aggregation.kind"),
        ({"attack.kind": "scaled"}, "attack.kind"),
    ):
        with refused(key_of, says="'w' of FedGTA is mixed"):
            start({"algorithm.name": "fedgta", **keys}).round()


@needs("robust")
def test_wrong_attacks_and_small_cohorts_are_refused_before_data_is_read(
    make_config: Callable[..., Config], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    for name, says in (("Two", "cannot be called as Two(change, scale, rng)"), ("Nobody", "")):
        with refused(says=says):
            RunPlan.of(make_config(attack__kind=f"{tmp_path / 'own.py'}:{name}"))
    with refused("attack.share", says="0.1 of 5 clients is less than one"):
        RunPlan.of(make_config(attack__kind="scaled", attack__share=0.1))
    (number,) = hostile_clients(AttackOptions(kind="scaled"), 5, 0)
    for root, says in ((number, "is hostile with this seed; trust another one"), (5, "is none of 0 to 4")):
        with refused("aggregation.root", says=says):
            RunPlan.of(make_config(attack__kind="scaled", aggregation__kind="fltrust", aggregation__root=root))
    with refused("aggregation.kind", says="fltrust trusts client 0 in every round; take participation.ratio=1"):
        RunPlan.of(make_config(aggregation__kind="fltrust", participation__count=2))
    with refused("aggregation.kind", says="bulyan against 1 hostile of 5 clients needs 7 in a round"):
        RunPlan.of(make_config(aggregation__kind="bulyan"))
    with refused("aggregation.kind", says="krum against 1 hostile of 2 clients needs 5 in a round"):
        RunPlan.of(make_config(aggregation__kind="krum", participation__count=2))


def test_function_that_gives_another_shape_is_refused(start: Start, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    with refused(says="expected a tensor of shape"):
        start({**PLAIN, "attack.kind": f"{tmp_path / 'own.py'}:Short", "attack.share": 1.0}).round()


@needs("robust")
def test_dry_run_names_hostile_clients_and_counts_all_uploads_of_a_round(make_config: Callable[..., Config]) -> None:
    def memory(**keys: Any) -> str:
        return shown(**keys)["memory"]

    def shown(**keys: Any) -> dict[str, str]:
        return expected(RunPlan.of(make_config(engine__backend="local", **keys))).rows

    (number,) = hostile_clients(AttackOptions(kind="scaled"), 5, 0)
    assert shown(attack__kind="scaled")["attack"] == f"1 of 5 clients, by scaled (scale 10): {number}"
    assert "attack" not in shown()

    plain, bounded, rows = memory(), memory(aggregation__kind="norm_bound"), memory(aggregation__kind="median")
    state, more = plain.split(" of client state in the end, ")
    assert bounded == plain
    # All five clients are in a round, and keep two moments each: uploads are half as much.
    assert rows.startswith(f"{state} of client state in the end, ")
    peak, peak_rows = (float(text.split(" in the end, ")[1].split()[0]) for text in (plain, rows))
    assert peak_rows == pytest.approx(1.25 * peak, abs=0.2)
    assert more.endswith(rows.split(" in a round ")[1])
