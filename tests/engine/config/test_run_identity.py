"""Which keys change numbers: the names of run folders are made from these, and a resume may not change them."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.engine.config.config import parse_config
from shoal.engine.config.run_identity import changes_numbers, fingerprint_of, flatten, identity_keys

PLAIN: dict[str, Any] = {"name": "keys", "data": {"dataset": "sbm"}, "algorithm": {"name": "fedavg"}}
VALUES = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2))
NAMES = st.text("abc", min_size=1, max_size=3)
TREES = st.recursive(
    st.dictionaries(NAMES, VALUES, min_size=1, max_size=3),
    lambda inner: st.dictionaries(NAMES, st.one_of(VALUES, inner), min_size=1, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    "key",
    [
        "seed", "rounds", "data.dataset", "data.path", "data.split_seed", "partition.clients", "model.hidden",
        "model.0.name", "train.lr", "algorithm.name", "participation.trace", "evaluation.every", "evaluation.domains",
        "engine.cell_size", "engine.device", "engine.trainer", "engine.precision", "engine.threads",
        "resources.server_gpus", "names", "data.rooted", "engines", "runs.root",
    ],
)  # fmt: skip
def test_these_change_numbers(key: str) -> None:
    assert changes_numbers(key)


@pytest.mark.parametrize(
    "key",
    [
        "name", "data.root", "data.store", "ray.address", "run.root", "run.keep", "run.max_seconds", "engine.backend",
        "engine.hosts", "engine.retries", "engine.memory_limit", "engine.cell_timeout", "engine.on_client_error",
        "engine.verify",
        "resources.cpus_per_host", "resources.gpus_per_host", "resources.server_cpus",
    ],
)  # fmt: skip
def test_these_change_none(key: str) -> None:
    assert not changes_numbers(key)


@given(TREES)
def test_dotted_keys_lead_to_the_values(tree: dict[str, Any]) -> None:
    flat = flatten(tree)
    leaves = 0
    stack: list[Any] = [tree]
    while stack:
        for value in stack.pop().values():
            if isinstance(value, dict) and value:
                stack.append(value)
            else:
                leaves += 1
    assert len(flat) == leaves
    for key, value in flat.items():
        found: Any = tree
        for name in key.split("."):
            found = found[name]
        assert found == value


def test_an_empty_section_is_a_value() -> None:
    assert flatten({"a": {}, "b": {"c": {}}}) == {"a": {}, "b.c": {}}


def test_a_key_that_came_later_counts_only_where_it_says_something() -> None:
    default, served = (
        identity_keys(parse_config({**PLAIN, "resources": {"server_gpus": share}}, "test").plain())
        for share in (0.0, 0.25)
    )
    assert "resources.server_gpus" not in default
    assert served == {**default, "resources.server_gpus": 0.25}
    assert default["train.lr"] == 0.01
    without = identity_keys(parse_config({**PLAIN, "evaluation": {"domains": False}}, "test").plain())
    assert "evaluation.domains" not in default
    assert without == {**default, "evaluation.domains": False}
    by_area = identity_keys(parse_config({**PLAIN, "evaluation": {"metric": "roc_auc"}}, "test").plain())
    assert "evaluation.metric" not in default
    assert by_area == {**default, "evaluation.metric": "roc_auc"}
    started = identity_keys(parse_config({**PLAIN, "model": {"pretrained": "/gnn"}}, "test").plain())
    assert "model.pretrained" not in default
    assert started == {**default, "model.pretrained": "/gnn"}
    masked = identity_keys(
        parse_config({**PLAIN, "data": {"dataset": "sbm", "sparsity": {"edges": 0.5}}}, "test").plain()
    )
    assert not any(key.startswith("data.sparsity") for key in default)
    assert masked == {**default, "data.sparsity.edges": 0.5}
    inductive = identity_keys(parse_config({**PLAIN, "data": {"dataset": "sbm", "inductive": True}}, "test").plain())
    assert "data.inductive" not in default
    assert inductive == {**default, "data.inductive": True}
    dropped = identity_keys(parse_config({**PLAIN, "data": {"dataset": "sbm", "edge_weights": "drop"}}, "test").plain())
    assert "data.edge_weights" not in default
    assert dropped == {**default, "data.edge_weights": "drop"}
    scheduled = identity_keys(
        parse_config({**PLAIN, "train": {"schedule": {"name": "StepLR", "step_size": 2}}}, "test").plain()
    )
    assert "train.schedule" not in default
    assert scheduled == {**default, "train.schedule.name": "StepLR", "train.schedule.step_size": 2}
    called = ["csv", {"name": "early_stopping", "patience": 3}, "wandb"]
    ended = identity_keys(parse_config({**PLAIN, "callbacks": called}, "test").plain())
    assert ended == {**default, "callbacks.0.name": "early_stopping", "callbacks.0.patience": 3}
    assert not any(key.startswith(("ray", "run.", "data.root")) for key in default)


def test_the_digits_follow_from_the_values_in_any_order() -> None:
    values = {"b": [1, 2], "a": None}
    text = '{"a": null, "b": [1, 2]}'
    assert json.loads(text) == values
    expected = hashlib.sha256(text.encode()).hexdigest()[:8]
    assert fingerprint_of(values) == fingerprint_of(dict(reversed(values.items()))) == expected
    assert fingerprint_of({**values, "a": 0}) != expected
