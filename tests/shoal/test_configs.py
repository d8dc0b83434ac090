"""Values that a program gives for keys: what a config can have is taken, all else is one line with its key."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.needs import needs

import shoal

BASE: dict[str, Any] = {"name": "odd", "data": {"dataset": "sbm"}, "algorithm": "fedavg"}
DEEP: dict[str, Any] = {}
DEEP["a"] = DEEP


@dataclass
class Half:
    """Has an `item` that fails."""

    lr: float = 0.1

    def item(self) -> float:
        """Fails."""
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("key", "value", "plain"),
    [
        ("participation.without", np.array([1, 2]), (1, 2)),
        ("participation.without", torch.tensor([1, 2]), (1, 2)),
        ("participation.without", [np.int64(1), torch.tensor(2)], (1, 2)),
        ("train.lr", np.float32(0.5), 0.5),
        ("train.lr", torch.tensor(0.5, requires_grad=True), 0.5),
        ("train.lr", np.array(0.5), 0.5),
        ("data.fractions", np.array([0.5, 0.25, 0.25]), (0.5, 0.25, 0.25)),
        ("data.inductive", np.bool_(True), True),
        ("name", np.str_("mine"), "mine"),
        ("train", Half(0.25), 0.25),
    ],
)
def test_numbers_and_arrays_are_taken(key: str, value: Any, plain: Any) -> None:
    config: Any = shoal.load_config(BASE, **{key: value})
    for name in ("train.lr" if key == "train" else key).split("."):
        config = getattr(config, name)
    assert config == plain


@pytest.mark.parametrize(
    "key", ["train.lr", "data.options", "model", "callbacks", "participation.without", "train.schedule"]
)
@pytest.mark.parametrize(
    "value",
    [
        torch.empty(3, device="meta"),
        torch.empty((), device="meta"),
        torch.eye(3).to_sparse(),
        np.array([object()], dtype=object),
        object(),
        {1, 2},
        b"abc",
        1j,
        len,
        np,
        (number for number in range(3)),
        ValueError("x"),
        dict,
        DEEP,
        {"lr": torch.empty(2, device="meta")},
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_no_config_can_have_is_refused_with_its_key(key: str, value: Any) -> None:
    places = [shoal.load_config, lambda source, **keys: shoal.load_config({**source, **keys})]
    for load in places if "." not in key else places[:1]:
        with pytest.raises(shoal.ShoalError) as error:
            load(BASE, **{key: value})
        assert error.value.places[0].startswith(key)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [np.array([0.1, 0.2]), np.ones((2, 2)), torch.ones(3), [0.1]])
def test_arrays_for_a_number_are_values_of_a_wrong_type(value: Any) -> None:
    with refused("config", "train.lr", says="expected a number"):
        shoal.load_config(BASE, **{"train.lr": value})


def test_a_text_that_no_file_can_keep_is_refused() -> None:
    with refused("config", says="is not in UTF-8"):
        shoal.load_config(BASE, **{"train.schedule": "\ud800"})


@pytest.mark.parametrize("source", [None, 3, [1], object(), np.ones(3), b"x"])
def test_a_source_that_is_none_is_refused(source: Any) -> None:
    with refused("config", says="expected a file, a run folder, a dict or a Config"):
        shoal.load_config(source)


@needs("hostile")
def test_an_axis_of_kinds_with_their_options(tmp_path: Path) -> None:
    config = {**BASE, "rounds": 1, "run": {"root": str(tmp_path)}, "engine": {"backend": "local"}}
    config["data"] = {"dataset": "sbm", "options": {"nodes": 120, "features": 8}}
    axes = {"attack": ["none", {"kind": "sign_flip", "share": 0.4}]}
    sweep = shoal.sweep({**config, "partition": "metis"}, axes)
    assert [(run.config.attack.kind, run.config.attack.share) for run in sweep.runs] == [
        ("none", 0.2),
        ("sign_flip", 0.4),
    ]
