"""Every key of a config is tried as a fork: what may change is right, and all others are refused in one line."""

import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.errors import refused
from support.needs import has, has_keys, needs
from support.small_runs import small_run

from shoal.cli.readers import read_run
from shoal.engine.config.config import Config, load_config, parse_config, usual
from shoal.engine.config.run_identity import changes_numbers, flatten
from shoal.engine.records.metrics import read_metrics
from shoal.engine.runs.plan import RunPlan
from shoal.engine.runs.run import run
from shoal.past.fork import begin, fork, list_changeable, may_change, plan_fork
from shoal.past.ledger import AVERAGED, HIDDEN_IN_A_SUM, ledger
from shoal.past.replay import replay
from shoal.past.rewind import PastRun
from shoal.storage.errors import ShoalError

# Uploads that are made again are compared with their digests.
pytestmark = needs("digests")
KEPT = {"checkpoint_every": 1, "keep": 9, "keep_digests": True}
STAGE = f"{Path(__file__).parents[2] / 'support' / 'plain_stage.py'}:Halved"


def by_key(text: str) -> dict[str, list[str]]:
    """Words of overrides, each by its key."""
    return {word.partition("=")[0]: [word] for word in text.split()}


# Another value for each key that may change, with what it is for.
RIGHT: dict[str, list[str]] = {
    **by_key("""
        rounds=5 train.epochs=1 train.lr=0.2 train.weight_decay=0.1 train.batch_size=4 train.dropout=0.1
        participation.ratio=0.5 participation.count=2 participation.trace=TRACE participation.without=[1]
        participation.dropout=0.3 communication.upload=int8 evaluation.every=2 evaluation.clients=2
        evaluation.domains=false engine.threads=2 engine.trainer=analytic engine.device=cpu engine.precision=bfloat16
        engine.cell_size=2 resources.server_gpus=0.5 callbacks=[csv]
    """),
    "stages": [f"stages=[{STAGE}]"],
    "algorithm.name": ["algorithm=fedprox"],
    "train.schedule": ["train.schedule={name: ExponentialLR, gamma: 0.5}"],
    "participation.draw": ["participation.draw=cyclic", "participation.ratio=0.5"],
    "participation.at_least": ["participation.at_least=2", "participation.availability=periodic"],
    "participation.availability.kind": ["participation.availability=weibull"],
    "participation.availability.period": ["participation.availability={kind: periodic, period: 2}"],
    "participation.availability.share": ["participation.availability={kind: periodic, share: 0.8}"],
    "participation.availability.shape": ["participation.availability={kind: weibull, shape: 2}"],
    "devices.kind": ["devices.kind=phones", "devices.network=consumer"],
    "devices.network": ["devices.kind=phones", "devices.network=institutions"],
    "devices.seed": ["participation.availability=weibull", "devices.seed=3"],
    "participation.deadline": [
        *("devices.kind=phones", "devices.network=consumer", "participation.deadline=1000"),
    ],
    "participation.over_selection": [
        *("devices.kind=phones", "devices.network=consumer", "participation.over_selection=1.5"),
        "participation.ratio=0.5",
    ],
    "participation.selection": ["participation.selection=oort", "participation.ratio=0.5"],
    "participation.candidates": [
        *("participation.selection=power_of_choice", "participation.candidates=3", "participation.ratio=0.5"),
    ],
    "communication.ratio": ["communication.upload=topk", "communication.ratio=0.1"],
    "communication.error_feedback": ["communication.upload=topk", "communication.error_feedback=false"],
    "attack.kind": ["attack={kind: label_flip, share: 0.5}"],
    "attack.share": ["attack={kind: gaussian, share: 0.3}"],
    "attack.scale": ["attack={kind: scaled, scale: 2, share: 0.5}"],
    "attack.target": ["attack={kind: backdoor, target: 1, share: 0.5}"],
    "attack.poison": ["attack={kind: backdoor, poison: 0.5, share: 0.5}"],
    "attack.nodes": ["attack={kind: backdoor, nodes: 2, share: 0.5}"],
    "aggregation.kind": ["aggregation=median"],
    "aggregation.share": ["aggregation={kind: trimmed, share: 0.3}"],
    "aggregation.bound": ["aggregation={kind: norm_bound, bound: 0.1}"],
    "aggregation.root": ["aggregation={kind: fltrust, root: 1}"],
    "evaluation.last": ["evaluation.clients=2", "evaluation.last=sample"],
}
# Without the device, with one domain, or for former runs alone.
OF_MACHINES = ("engine.precision", "engine.threads", "resources.server_gpus", "evaluation.domains")
# Another value for each key that cannot change; what it is for comes first.
WRONG: dict[str, list[str]] = {
    **by_key("""
        seed=1 task=edge data.dataset=cora data.split=per_client data.split_seed=3 data.fractions=[0.3,0.3,0.4]
        data.dtype=float16 data.layout=sparse data.row_normalize=true data.features.kind=degree
        data.sparsity.features=0.5 data.sparsity.edges=0.5 data.sparsity.labels=0.5 data.inductive=true
        data.noise.features=0.5 data.noise.masked=0.5 data.noise.labels=[0.0,0.5] data.noise.edges_removed=0.5
        data.noise.edges_added=0.5 data.edge_weights=drop data.edge_features=drop data.cross_edges=hops
        data.newcomers=0.25
        partition.method=random partition.clients=5 partition.overlap=2
        partition.seed=2 partition.imbalance=1.1 partition.domains=[a] propagation.hops=2 propagation.r=0
        propagation.dtype=float16 propagation.rows=train propagation.max_degree=2
        propagation.relations=true model.init=each model.pretrained=TRACE
        heterogeneity.rule=blocks heterogeneity.embedding=4 train.optimizer=sgd train.opt_state=reset
        evaluation.metrics=[f1]
    """),
    "data.path": ["data.dataset=files", "data.path=TRACE"],
    "data.split_file": ["data.split=file", "data.split_file=TRACE"],
    "data.options": ["data.options.nodes=130"],
    "data.features.width": ["data.features={kind: degree, width: 8}"],
    "data.features.seed": ["data.features={kind: random, seed: 2}"],
    "data.sparsity.seed": ["data.sparsity={labels: 0.5, seed: 3}"],
    "data.noise.seed": ["data.noise={labels: 0.5, seed: 3}"],
    "data.cross_share": ["data.cross_edges=hops", "data.cross_share=0.5"],
    "data.cross_seed": ["data.cross_edges=hops", "data.cross_seed=4"],
    "data.cross_min_neighbours": ["data.cross_edges=hops", "data.cross_min_neighbours=2"],
    "data.cross_hidden": ["data.cross_edges=hops", "data.cross_hidden=true"],
    "partition.resolution": ["partition.method=louvain", "partition.resolution=2"],
    "partition.balance": ["partition.method=louvain", "partition.balance=count"],
    "partition.file": ["partition.method=file", "partition.file=TRACE"],
    "partition.chunks": ["partition.method=index", "partition.chunks=2"],
    "partition.skew": ["partition.method=features", "partition.skew=0.5"],
    "partition.zipf": ["partition.method=random", "partition.zipf=1"],
    "partition.drawn": ["partition.overlap=2", "partition.drawn=0.4"],
    "partition.alpha": ["partition.method=dirichlet", "partition.alpha=2"],
    "partition.options": ["partition.options.a=2"],
    "model.name": ["model=mlp"],
    "model.frozen": ["model.frozen=true"],
    "heterogeneity.seed": ["heterogeneity={rule: random, seed: 2}"],
    "heterogeneity.clients": ["heterogeneity={rule: explicit, clients: [0,0,0,0]}"],
    "train.momentum": ["train.optimizer=sgd", "train.momentum=0.5"],
    "schedule.name": ["schedule=fedbuff"],
    "schedule.concurrency": ["schedule=fedbuff", "schedule.concurrency=2"],
    "schedule.buffer": ["schedule=fedbuff", "schedule.buffer=2"],
    "schedule.tiers": ["schedule=tiers", "schedule.tiers=2"],
    "schedule.staleness": ["schedule=fedasync", "schedule.staleness=constant"],
    "schedule.a": ["schedule=fedasync", "schedule.a=1"],
    "schedule.b": ["schedule={name: fedasync, staleness: hinge, b: 2}"],
    "schedule.mixing": ["schedule=fedasync", "schedule.mixing=0.5"],
    "privacy.unit": ["privacy.unit=client", "privacy.noise=30"],
    "privacy.where": ["privacy={unit: client, noise: 30, where: client}"],
    "privacy.clip": ["privacy={unit: client, noise: 30, clip: 2}"],
    "privacy.noise": ["privacy={unit: client, noise: 20}"],
    "privacy.epsilon": ["privacy={unit: client, epsilon: 5}"],
    "privacy.delta": ["privacy={unit: client, noise: 30, delta: 0.001}"],
    "privacy.quantile": ["privacy={unit: client, noise: 0.1, quantile: 0.5}"],
    "privacy.mechanism": ["privacy={unit: client, noise: 30, mechanism: banded}", "participation.draw=cyclic"],
    "privacy.bands": ["privacy={unit: client, noise: 30, mechanism: banded, bands: 1}", "participation.draw=cyclic"],
    "secure.kind": ["secure=masks"],
    "secure.threshold": ["secure={kind: masks, threshold: 0.9}"],
    "target.kind": ["target=regression", "target=clustering"],
    "target.scale": ["target={kind: regression, scale: client}"],
    "evaluation.newcomer_epochs": ["data.newcomers=0.25", "evaluation.newcomer_epochs=2"],
}
RIGHT, WRONG = ({key: words for key, words in table.items() if has_keys(key)} for table in (RIGHT, WRONG))


def small(folder: Path, **changes: Any) -> Config:
    kept = {"root": str(folder / "runs"), **KEPT, **changes.pop("run", {})}
    return parse_config(small_run(folder, **{"rounds": 4, **changes, "run": kept}), "a small run")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parent")
    np.save(folder / "trace.npy", np.ones((4, 4), dtype=np.int8))
    return run(small(folder, algorithm={"name": "fedavg"}))


def words_of(table: dict[str, list[str]], key: str, parent: Path) -> list[str]:
    return [word.replace("TRACE", str(parent.parents[1] / "trace.npy")) for word in table[key]]


def test_every_key_is_tried() -> None:
    keys = {key for key in flatten(usual().plain()) if changes_numbers(key) and has_keys(key)}
    assert RIGHT.keys() | WRONG.keys() == keys
    assert not RIGHT.keys() & WRONG.keys()
    assert {key for key in keys if may_change(key, usual())} == RIGHT.keys()
    # No entry of the list is without a key, for a section that is renamed would be lost in silence.
    changeable = [key for key in list_changeable(usual()) if has_keys(key)]
    assert all(any(f"{key}.".startswith(f"{right}.") for key in keys) for right in changeable)


def refuses(words: list[str], parent: Path) -> bool:
    """Whether this machine, or this graph, has no use for a key, so that a run from the start is refused, too."""
    try:
        run(load_config(parent, [*words[:-1], "name=other"]))
    except ShoalError:
        return True
    return False


@pytest.mark.exhaustive(20)
@pytest.mark.parametrize("key", RIGHT)
def test_a_key_that_may_change_parts_a_fork_from_its_round_on(whole: Path, key: str) -> None:
    words = [*words_of(RIGHT, key, whole), f"name={key}"]
    if key in OF_MACHINES:
        with pytest.raises(ShoalError) if refuses(words, whole) else nullcontext():
            fork(whole, 2, words)
        return
    found = fork(whole, 2, words)
    lines, before = read_metrics(found), read_metrics(whole)
    assert lines[:2] == before[:2]
    assert len(lines) == load_config(found).rounds
    assert flatten(load_config(found).plain()) != flatten(load_config(whole).plain())
    # Rounds are looked back at by the config that trained them.
    assert replay(found, 2, before[1]["cohort"][0]).equal
    sent = [(one.entry, one.shape) for one, _ in ledger(found, 1).sent]
    assert sent == [(one.entry, one.shape) for one, _ in ledger(whole, 1).sent]


@pytest.mark.exhaustive
@pytest.mark.parametrize("key", WRONG)
def test_a_key_that_cannot_change_is_refused_in_one_line(whole: Path, key: str) -> None:
    names = {path.name for path in whole.parent.iterdir()}
    with pytest.raises(ShoalError) as caught:
        fork(whole, 2, [*words_of(WRONG, key, whole), "name=none"])
    assert "\n" not in caught.value.line
    assert {path.name for path in whole.parent.iterdir()} == names


@needs("secure")
def test_secure_sums_and_schedules_are_refused_by_their_key(whole: Path) -> None:
    for word in ("secure=masks", "schedule=fedbuff", "schedule=fedasync", "schedule=tiers", "evaluation.metrics=[f1]"):
        key = word.partition("=")[0]
        key += {"secure": ".kind", "schedule": ".name"}.get(key, "")
        with refused(key, says="cannot change after a round"):
            fork(whole, 2, [word, "run.keep_digests=false"])


METHOD = """
from dataclasses import dataclass
import torch
from shoal.algorithms.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Wide(FedAvg):
    width: int = 2

    def setup(self, ctx):
        return {**super().setup(ctx), "extra": torch.zeros(self.width)}
"""


def test_an_option_that_changes_what_the_server_keeps_is_refused(tmp_path: Path) -> None:
    (tmp_path / "wide.py").write_text(METHOD)
    parent = run(small(tmp_path, algorithm={"name": f"{tmp_path / 'wide.py'}:Wide"}))
    with refused("algorithm.name", says="take a method of that state"):
        fork(parent, 2, ["algorithm.width=3"])
    assert len(read_metrics(fork(parent, 2, ["algorithm.width=2", "rounds=5"]))) == 5


@needs("privacy")
@pytest.mark.parametrize(
    ("private", "may"),
    [
        ({"unit": "client", "noise": 30.0}, {"rounds", "train.epochs", "train.batch_size"}),
        ({"unit": "client", "epsilon": 5.0}, {"train.epochs", "train.batch_size"}),
        ({"unit": "node", "noise": 30.0}, {"rounds"}),
        ({"unit": "node", "epsilon": 5.0}, set()),
    ],
)
def test_a_fork_keeps_all_that_epsilon_counts(tmp_path: Path, private: dict[str, Any], may: set[str]) -> None:
    config = small(tmp_path, privacy={**private, "delta": 1e-3})
    counted = {"rounds", "train.epochs", "train.batch_size", "algorithm", "participation", "communication", "attack"}
    assert {key for key in counted if may_change(key, config)} == may
    assert may_change("train.lr", config)


def of_old(parent: Path, number: int, *words: str) -> Path:
    """A fork whose keys were not compared, as earlier versions made some."""
    past, plan = PastRun(parent), RunPlan.of(load_config(parent, words))
    begin(past, plan, number)
    return run(plan, resume=True)


@needs("secure", "attacks")
def test_a_round_is_told_by_the_config_that_trained_it(whole: Path) -> None:
    found = of_old(whole, 2, "secure=masks", "run.keep_digests=false", "name=hiding")
    assert [says for number in (1, 2) for _, says in ledger(found, number).sent] == [AVERAGED] * 2
    assert [says for number in (3, 4) for _, says in ledger(found, number).sent] == [HIDDEN_IN_A_SUM] * 2
    assert ledger(found, 1).times.tolist() == [4] * 4
    # What was sent in the clear can be attacked, sums cannot.
    notes = ["".join(read_run("properties", {"round": n}, found).tables[0].notes) for n in (1, 4)]
    assert ["not seen" in note for note in notes] == [False, True]


def test_a_fork_of_a_fork_looks_back_at_each_parent(whole: Path) -> None:
    first = fork(whole, 2, ["train.lr=0.2", "rounds=5", "name=first", "run.keep=1"])
    second = fork(first, 3, ["train.lr=0.5", "name=second", "run.keep=1"])
    cohorts = [line["cohort"] for line in read_metrics(second)]
    # Of most rounds neither fork kept a checkpoint.
    for number in (1, 2, 3, 4, 5):
        assert replay(second, number, cohorts[number - 1][0]).equal, number


def test_a_fork_without_its_parent_says_which_rounds_it_lacks(tmp_path: Path) -> None:
    parent = run(small(tmp_path))
    found = fork(parent, 2, ["train.lr=0.2", "name=mine"])
    moved = tmp_path / "moved"
    parent.parent.rename(moved)
    found, parent = moved / found.name, moved / parent.name
    # Both were moved: the parent is beside its fork.
    assert replay(found, 1, 0).equal
    shutil.rmtree(parent)
    with refused(found, says="rounds 1 to 2 are of"):
        ledger(found, 1)
    if has("clock"):
        with refused(found, says="rounds 1 to 2 are of"):
            read_run("clock", {}, found)
    assert ledger(found, 4).times.tolist() == [4] * 4
    other = run(small(tmp_path, seed=1))
    shutil.move(other, parent)
    with pytest.raises(ShoalError):
        ledger(found, 1)


def clock_of(folder: Path, devices: str = "phones") -> Any:
    from shoal.clock.report import Asked, ClockedRun

    return ClockedRun.of(folder, Asked.of(devices, "consumer", None, None, 0)).clock


@needs("clock")
def test_a_clock_counts_each_round_by_its_own_config(whole: Path) -> None:
    found = fork(whole, 2, ["train.epochs=9", "name=longer"])
    whole_of = clock_of(whole)
    both, alone = clock_of(found), clock_of(run(load_config(whole, ["train.epochs=9", "name=alone"])))
    assert both.flops.tolist() == [*whole_of.flops[:2], *alone.flops[2:]]
    assert both.flops[2] > both.flops[1]
    assert both.visits_of.tolist() == whole_of.visits_of.tolist()
    # Rounds before devices decided are timed as any others.
    late = fork(whole, 2, [*RIGHT["participation.deadline"], "name=late"])
    assert clock_of(late).flops.tolist() == whole_of.flops.tolist()
    with refused(late):
        clock_of(late, "hospital")
    # And rounds that they decided stay so, whatever the fork says of later ones.
    again = fork(late, 3, ["participation.deadline=null", "name=again"])
    with refused(late):
        clock_of(again, "hospital")


IN_ROUNDS = "schedule={name: synchronous, buffer: 10, concurrency: 10}"


@needs("clock")
def test_a_clock_of_two_schedules_is_refused(tmp_path: Path) -> None:
    keys = {"schedule": {"name": "fedbuff", "buffer": 2, "concurrency": 2}}
    parent = run(small(tmp_path, run={"keep_digests": False}, **keys))
    found = fork(parent, 2, ["train.lr=0.2", "name=mine"])
    lines = read_metrics(found)
    took = np.diff([0.0, *(line["simulated"] for line in lines)])
    server = [line["seconds"]["aggregate"] for line in lines]
    assert clock_of(found).seconds == pytest.approx(took + server)
    with refused("schedule.buffer", says="cannot change after a round"):
        fork(parent, 2, ["schedule.buffer=1", "name=none"])
    both = of_old(parent, 2, IN_ROUNDS, "name=both")
    with refused(both, "schedule.name"):
        clock_of(both)


@needs("secure")
def test_changes_of_one_round_are_those_of_forks(whole: Path) -> None:
    with refused("secure.kind", says="cannot change after a round"):
        replay(whole, 2, 0, ["secure=masks", "run.keep_digests=false"])
    assert plan_fork(PastRun(whole), ["train.lr=0.3"], 2).config.train.lr == 0.3
