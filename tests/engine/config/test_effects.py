"""A key that what else is chosen leaves without an effect is refused; the line names both keys."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.errors import refused
from support.needs import has, has_keys, has_schedules, needs
from support.small_runs import small_run
from without import FEATURES

from shoal.engine.config.config import config_from, load_config
from shoal.engine.config.config_text import with_seal
from shoal.engine.config.effects import RULES
from shoal.engine.runs.run import run

TWO = [{"name": "gcn"}, {"name": "sgc"}]
# Keys with what makes them idle, and after that with what gives them an effect.
CASES: list[tuple[str, Any, str, Any, Any]] = [
    ("data.path", "mine", "data.dataset", "digits", "Files"),
    ("data.overlay", "own", "data.store", "s3://bucket/store", "store"),
    ("data.cache", "cache", "data.store", "store", "s3://bucket/store"),
    ("data.cache_limit", "1GiB", "data.store", None, "gs://bucket/store"),
    ("data.name", "mine", "data.dataset", "sbm", "files"),
    ("data.split_seed", 1, "data.split", "public", "per_client"),
    ("data.fractions", [0.3, 0.3, 0.4], "data.split", "file", "stratified"),
    ("data.split_file", "s.npy", "data.split", "public", "file"),
    ("data.features.width", 8, "data.features.kind", "one-hot", "degree"),
    ("data.features.seed", 1, "data.features.kind", "spectral", "random"),
    ("data.sparsity.seed", 1, "data.sparsity.edges", 0.0, 0.5),
    ("data.noise.seed", 1, "data.noise.labels", 0.0, 0.5),
    ("data.noise.features", 0.5, "data.layout", "sparse", "dense"),
    ("data.noise.labels", 0.5, "task", "edge", "node"),
    ("data.noise.edges_removed", 0.5, "task", "edge", "node"),
    ("data.noise.edges_added", 0.5, "task", "edge", "node"),
    *(
        (f"data.noise.{kind}", 0.5, "partition.overlap", 2, 1)
        for kind in ("features", "masked", "labels", "edges_removed", "edges_added")
    ),
    ("propagation.relations", True, "model", {"name": "sgc"}, {"name": "sign"}),
    ("data.inductive", True, "task", "edge", "node"),
    ("partition.seed", 1, "partition.method", "index", "mine.py:Mine"),
    ("partition.resolution", 2.0, "partition.method", "metis", "louvain"),
    ("partition.balance", "labelled", "partition.method", "metis", "louvain"),
    ("partition.imbalance", 1.2, "partition.method", "louvain", "kaminpar"),
    ("partition.file", "p.npy", "partition.method", "metis", "file"),
    ("partition.chunks", 20, "partition.method", "random", "index"),
    ("partition.alpha", 0.1, "partition.method", "random", "dirichlet"),
    ("partition.skew", 0.5, "partition.method", "random", "features"),
    ("partition.zipf", 1.0, "partition.method", "metis", "random"),
    ("partition.options", {"a": 1}, "partition.method", "random", "mine.py:Mine"),
    ("partition.drawn", 0.4, "partition.overlap", 1, 2),
    ("partition.overlap", 2, "task", "edge", "node"),
    ("partition.overlap", 2, "data.dataset", ["digits", "cora"], "sbm"),
    ("partition.overlap", 2, "data.sparsity.labels", 0.5, 0.0),
    ("propagation.r", 0.0, "propagation.hops", 0, 1),
    ("propagation.r", 0.0, "model", {"name": "gcn"}, TWO),
    ("propagation.max_degree", 3, "propagation.hops", 0, 1),
    ("propagation.max_degree", 3, "model", {"name": "gcn"}, TWO),
    ("propagation.dtype", "float16", "propagation.hops", 0, 1),
    ("propagation.keep", "none", "propagation.hops", 0, 1),
    ("data.cross_share", 0.5, "data.cross_edges", "drop", "hops"),
    ("data.cross_seed", 1, "data.cross_edges", "drop", "hops"),
    ("data.cross_min_neighbours", 2, "data.cross_edges", "drop", "hops"),
    ("data.cross_hidden", True, "data.cross_edges", "drop", "hops"),
    ("data.cross_edges", "hops", "propagation.hops", 0, 1),
    ("data.cross_edges", "hops", "model", {"name": "gcn"}, TWO),
    ("data.cross_edges", "hops", "algorithm", "global", "fedavg"),
    ("data.cross_edges", "hops", "data.dataset", ["digits", "cora"], "sbm"),
    ("data.cross_edges", "hops", "data.inductive", True, False),
    ("data.cross_edges", "hops", "data.sparsity.edges", 0.5, 0.0),
    ("data.cross_edges", "hops", "partition.overlap", 2, 1),
    ("data.cross_edges", "hops", "task", "edge", "node"),
    ("data.cross_edges", "hops", "propagation.keep", "none", "all"),
    ("data.cross_edges", "hops", "propagation.max_degree", 3, None),
    ("heterogeneity.rule", "blocks", "model", {"name": "gcn"}, TWO),
    ("heterogeneity.seed", 1, "heterogeneity.rule", "blocks", "random"),
    ("heterogeneity.clients", [0] * 10, "heterogeneity.rule", "random", "explicit"),
    ("train.momentum", 0.9, "train.optimizer", "adam", "sgd"),
    ("participation.ratio", 0.5, "algorithm", "global", "fedavg"),
    ("participation.trace", "t.npy", "algorithm", "global", "fedavg"),
    ("participation.count", 2, "algorithm", "global", "fedavg"),
    ("participation.without", [2], "algorithm", "global", "fedavg"),
    ("participation.ratio", 0.5, "participation.count", 2, None),
    ("participation.draw", "poisson", "participation.selection", "loss", "random"),
    ("participation.draw", "poisson", "algorithm", "global", "fedavg"),
    ("participation.draw", "cyclic", "participation.selection", "oort", "random"),
    ("participation.draw", "cyclic", "schedule.name", "fedbuff", "synchronous"),
    ("participation.at_least", 2, "participation.trace", None, "t.npy"),
    ("data.newcomers", 0.2, "algorithm", "global", "fedavg"),
    ("data.newcomers", 0.2, "data.cross_edges", "hops", "drop"),
    ("data.newcomers", 0.2, "partition.overlap", 2, 1),
    ("data.newcomers", 0.2, "attack.kind", "label_flip", "none"),
    ("evaluation.newcomer_epochs", 2, "data.newcomers", 0.0, 0.2),
    ("participation.availability.kind", "weibull", "participation.trace", "t.npy", None),
    ("participation.availability.kind", "weibull", "algorithm", "global", "fedavg"),
    ("participation.availability.period", 8, "participation.availability.kind", "s.csv", "periodic"),
    ("participation.availability.share", 0.3, "participation.availability.kind", "always", "weibull"),
    ("participation.availability.shape", 0.5, "participation.availability.kind", "periodic", "weibull"),
    *[("devices.kind", "phones", "devices.network", None, "consumer")][: has("availability")],
    *(
        (key, value, "schedule.name", "mine.py:Mine", "fedbuff")
        for key, value in (("devices.kind", "hospital"), ("devices.network", "none"), ("devices.seed", 1))
    ),
    ("participation.selection", "loss", "algorithm", "global", "fedavg"),
    ("participation.dropout", 0.1, "algorithm", "global", "fedavg"),
    ("participation.candidates", 9, "participation.selection", "loss", "power_of_choice"),
    ("evaluation.clients", "cohort", "algorithm", "global", "fedavg"),
    ("evaluation.last", "sample", "evaluation.clients", "all", "cohort"),
    ("communication.upload", "int8", "algorithm", "local", "fedavg"),
    ("stages", [{"name": "mine.py:Mine"}], "algorithm", "local", "fedavg"),
    ("stages", [{"name": "mine.py:Mine"}], "schedule.name", "fedbuff", "synchronous"),
    ("stages", [{"name": "mine.py:Mine"}], "data.newcomers", 0.5, 0.0),
    ("target.scale", "client", "target.kind", "multilabel", "regression"),
    ("target.kind", "regression", "task", "edge", "graph"),
    ("target.kind", "clustering", "task", "edge", "node"),
    ("target.scale", "client", "target.kind", "clustering", "regression"),
    ("attack.kind", "scaled", "target.kind", "regression", "classification"),
    ("data.newcomers", 0.2, "target.kind", "multilabel", "classification"),
    ("communication.ratio", 0.1, "communication.upload", "int8", "topk"),
    ("communication.error_feedback", False, "communication.upload", "none", "int8"),
    ("attack.kind", "scaled", "algorithm", "local", "fedavg"),
    ("attack.share", 0.1, "attack.kind", "none", "label_flip"),
    ("attack.scale", 2.0, "attack.kind", "label_flip", "mine.py:Own"),
    ("attack.target", 1, "attack.kind", "label_flip", "backdoor"),
    ("attack.poison", 0.5, "attack.kind", "scaled", "backdoor"),
    ("attack.nodes", 1, "attack.kind", "none", "backdoor"),
    ("aggregation.kind", "median", "algorithm", "global", "fedavg"),
    ("aggregation.share", 0.1, "aggregation.kind", "median", "bulyan"),
    ("aggregation.root", 1, "aggregation.kind", "median", "fltrust"),
    ("aggregation.bound", 2.0, "aggregation.kind", "krum", "norm_bound"),
    *(
        (key, value, "schedule.name", "fedbuff", "synchronous")
        for key, value in [
            ("participation.ratio", 0.5),
            ("participation.dropout", 0.1),
            ("communication.upload", "int8"),
            ("attack.kind", "scaled"),
            ("aggregation.kind", "median"),
            ("engine.on_client_error", "skip"),
        ]
    ),
    ("schedule.name", "fedasync", "algorithm", "fedgta", "fedprox"),
    ("schedule.name", "fedbuff", "algorithm", "moon", "mine.py:Mine"),
    *(
        (key, value, "schedule.name", "synchronous", "fedasync")
        for key, value in [
            ("schedule.concurrency", 3),
            ("schedule.staleness", "constant"),
            ("schedule.a", 1.0),
            ("schedule.mixing", 0.5),
        ]
    ),
    ("participation.count", 3, "schedule.name", "fedasync", "tiers"),
    ("participation.selection", "loss", "schedule.name", "tiers", "synchronous"),
    ("privacy.unit", "client", "schedule.name", "tiers", "synchronous"),
    ("schedule.tiers", 3, "schedule.name", "fedbuff", "tiers"),
    ("schedule.staleness", "constant", "schedule.name", "tiers", "fedbuff"),
    ("schedule.mixing", 0.5, "schedule.name", "fedbuff", "fedasync"),
    ("schedule.buffer", 3, "schedule.name", "fedasync", "fedbuff"),
    ("privacy.unit", "client", "algorithm", "local", "fedavg"),
    ("privacy.unit", "client", "data.cross_edges", "hops", "drop"),
    ("privacy.unit", "node", "partition.overlap", 2, 1),
    ("privacy.quantile", 0.5, "privacy.unit", "node", "client"),
    *[
        (f"privacy.{key}", value, "privacy.unit", "none", "client")
        for key, value in (("clip", 2.0), ("noise", 1.0), ("epsilon", 1.0), ("delta", 1e-3))
    ],
    ("privacy.where", "client", "privacy.unit", "node", "client"),
    ("secure.kind", "masks", "algorithm", "local", "fedavg"),
    ("secure.kind", "masks", "data.cross_edges", "hops", "drop"),
    ("secure.kind", "masks", "aggregation.kind", "median", "mean"),
    ("secure.threshold", 0.7, "secure.kind", "none", "masks"),
    ("secure.kind", "homomorphic", "data.cross_edges", "hops", "drop"),
    ("communication.upload", "int8", "secure.kind", "masks", "none"),
    ("data.newcomers", 0.2, "secure.kind", "masks", "none"),
    ("run.keep_digests", True, "secure.kind", "masks", "none"),
    ("evaluation.domains", False, "data.dataset", "sbm", ["digits", "cora"]),
    ("engine.hosts", 3, "engine.backend", "local", "ray"),
    ("ray.address", "auto", "engine.backend", "local", "ray"),
    ("ray.runtime_env", {"env_vars": {"A": 1}}, "engine.backend", "local", "ray"),
]
CASES = [case for case in CASES if has_keys(case[0], case[2]) and has_schedules(*case[1:])]


# Of keys that need devices and their network, or the network devices: these are given.
FLEET = {"devices__kind": "phones", "devices__network": "consumer"}


def with_keys(**values: Any) -> dict[str, Any]:
    """Plain values of a config; keys have `__` for the dot."""
    plain: dict[str, Any] = {"name": "x", "data": {"dataset": "sbm"}, "algorithm": "fedavg"}
    if isinstance(values.get("data__dataset"), list):
        values["partition__clients"] = [5, 5]
    if str(values.get("heterogeneity__rule", "round-robin")) != "round-robin":
        values = {"model": TWO, **values}
    for key, value in values.items():
        *sections, last = key.split("__")
        place = plain
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return plain


@pytest.mark.parametrize(("key", "value", "other", "without", "for_it"), CASES)
def test_a_key_without_effect_is_refused(key: str, value: Any, other: str, without: Any, for_it: Any) -> None:
    one, two = key.replace(".", "__"), other.replace(".", "__")
    named = {
        "data.sparsity.edges": "data.sparsity",
        "data.noise.labels": "data.noise",
        "algorithm": "algorithm.name",
    }.get(other, other)
    with refused("config", key, says=f"is for {named} "):
        config_from(with_keys(**{two: without, one: value}))
    config_from(with_keys(**{two: for_it, one: value}))
    # Without the key either may be chosen.
    config_from(with_keys(**{two: without}))


@needs("cross_edges")
@pytest.mark.parametrize(
    ("edges", "other", "wrong", "right"),
    [
        ("one_hop", "model", {"name": "gat"}, {"name": "sage"}),
        ("one_hop", "model", [{"name": "gcn"}, {"name": "sage"}], {"name": "gcn", "hidden": 8}),
        ("two_hop", "model", {"name": "sage"}, {"name": "gcn"}),
        ("one_hop", "model", {"name": "gcn", "fanouts": [2, 2]}, {"name": "gcn", "fanouts": None}),
        ("two_hop", "algorithm", "fggp", "scaffold"),
        ("one_hop", "propagation.rows", "labelled", "all"),
        ("hops", "model", {"name": "gcn"}, {"name": "sgc"}),
    ],
)
def test_layers_that_cannot_read_edges_between_clients_are_refused(
    edges: str, other: str, wrong: Any, right: Any
) -> None:
    section = other.replace(".", "__")
    base = {"model": {"name": "gcn"}, "data__cross_edges": edges, "data__cross_share": 0.5}
    with refused("config", "data.cross_edges", says="is for "):
        config_from(with_keys(**{**base, section: wrong}))
    assert config_from(with_keys(**{**base, section: right})).kernel().boundaries == "share0.5-seed0-min1"


@needs("availability")
@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("participation", "deadline", 9.0),
        ("participation", "over_selection", 1.5),
        ("devices", "seed", 1),
        ("devices", "network", "consumer"),
    ],
)
def test_keys_of_the_clock_need_devices_and_a_network(section: str, key: str, value: Any) -> None:
    with refused("config", f"{section}.{key}", says="is for devices.kind given, "):
        config_from(with_keys(**{f"{section}__{key}": value}))
    config_from(with_keys(**{**FLEET, f"{section}__{key}": value}))


def test_an_end_without_evaluation_is_for_a_last_round_that_is_evaluated_as_the_last_alone() -> None:
    keys = {"evaluation__last": "none", "evaluation__every": 5}
    with refused("config", "evaluation.last", says="is for evaluation.clients "):
        config_from(with_keys(**keys, rounds=100))
    config_from(with_keys(**keys, rounds=101))


@needs("privacy")
def test_banded_noise_is_for_clients_by_turns() -> None:
    keys = {"privacy__unit": "client", "participation__draw": "cyclic", "privacy__mechanism": "banded"}
    config_from(with_keys(**keys, privacy__bands=2))
    for other, without, key in (
        ("privacy.unit", "node", "privacy.mechanism"),
        ("participation.draw", "poisson", "privacy.mechanism"),
        ("privacy.where", "client", "privacy.mechanism"),
        ("privacy.mechanism", "gaussian", "privacy.bands"),
    ):
        with refused("config", key, says=f"is for {other} "):
            config_from(with_keys(**{**keys, "privacy__bands": 2, other.replace(".", "__"): without}))


@needs("cross_edges", "asynchronous")
def test_a_schedule_of_layers_that_read_edges_between_clients_is_refused() -> None:
    base = {"model": {"name": "gcn"}, "schedule": "fedbuff"}
    with refused("config", "schedule.name", says="is for data.cross_edges drop or hops, found one_hop"):
        config_from(with_keys(**base, data__cross_edges="one_hop"))
    # A form of weights has its numbers.
    for form, known in (("constant", ()), ("polynomial", ("a",)), ("hinge", ("a", "b"))):
        for key in ("a", "b"):
            keys = {"schedule": {"name": "fedbuff", "staleness": form, key: 3}}
            if key in known:
                assert getattr(config_from(with_keys(**keys)).schedule, key) == 3
            else:
                with refused("config", f"schedule.{key}", says="is for schedule.staleness "):
                    config_from(with_keys(**keys))


@needs("cross_edges")
def test_no_hops_are_needed_where_layers_read_sums() -> None:
    config = config_from(with_keys(model="gcn", data__cross_edges="one_hop", propagation__hops=0))
    assert (config.kernel().hops, config.kernel().first_layer) == (1, "gcn")


@needs(*FEATURES)
def test_every_rule_has_a_case() -> None:
    of_clock = {*(f"participation.{key}" for key in ("deadline", "over_selection")), "schedule.b"}
    of_noise = {"privacy.mechanism", "privacy.bands"}
    assert {key for rule in RULES for key in rule.keys} - {case[0] for case in CASES} == of_clock | of_noise


def test_all_idle_keys_of_one_cause_are_named() -> None:
    says = "is for engine.backend ray, found local; change that, or leave it at its default, auto, and so ray.address"
    with refused("config", "engine.hosts", says=says):
        config_from(with_keys(engine__backend="local", ray__address="auto", engine__hosts=4))
    # There is one.
    config_from(with_keys(engine__backend="local", engine__hosts=1))


def test_a_run_keeps_the_keys_that_it_had(tmp_path: Path) -> None:
    folder = run(config_from(small_run(tmp_path, rounds=1)))
    file = folder / "config.yaml"
    plain = yaml.safe_load(file.read_text())
    plain["partition"]["alpha"] = 0.1
    file.write_text(with_seal(yaml.safe_dump(plain)))
    assert load_config(folder).partition.alpha == load_config(folder, ["rounds=2"]).partition.alpha == 0.1
    with refused(str(file), "partition.alpha", says="is for partition.method dirichlet, found random"):
        load_config(folder, ["partition.method=random"])
    with refused("command line", "partition.chunks", says="is for partition.method index, found metis"):
        load_config(folder, ["partition.chunks=9"])


def test_what_an_override_leaves_idle_is_left_out_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    plain = with_keys(partition__resolution=2.0, engine__hosts=4, participation__ratio=0.5)
    file.write_text(yaml.safe_dump(plain))
    found = load_config(file, ["partition={method: metis, clients: 3}", "engine.backend=local"])
    assert (found.partition.resolution, found.partition.clients, found.engine.hosts) == (1.0, 3, "auto")
    assert (
        "partition.resolution is for partition.method louvain, found metis; it is left out" in capsys.readouterr().err
    )
    with refused("command line", "partition.resolution"):
        load_config(file, ["partition.method=metis", "partition.resolution=3.0"])
    # In a sweep over methods the others have it.
    swept = {"varied": frozenset({"algorithm", "partition.method"})}
    rows = ["algorithm=global", "participation.ratio=0.3", "partition.method=random"]
    assert load_config(file, rows, **swept).participation.ratio == 1.0
    with refused("command line", "participation.ratio"):
        load_config(file, rows)
