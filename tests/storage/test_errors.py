"""Errors name their places, and what may have been meant."""

import pickle
import re
from pathlib import Path

import pytest

from shoal.engine.config.config import parse_config
from shoal.storage.errors import ShoalError
from shoal.storage.suggestions import did_you_mean, did_you_mean_at


def test_error_names_its_file_and_key_in_another_process_too() -> None:
    given = ShoalError(Path("a.yaml"), "data.path", "expected a folder, got 3", detail="a traceback")
    for error in (given, pickle.loads(pickle.dumps(given))):
        assert str(error) == error.line == "a.yaml: data.path: expected a folder, got 3"
        assert (error.file, error.key, error.detail) == (Path("a.yaml"), "data.path", "a traceback")


PLAIN = {"name": "wrong", "data": {"dataset": "sbm"}, "algorithm": {"name": "fedavg"}}


def test_the_most_alike_is_proposed() -> None:
    known = ("fedavg", "fedgta", "FedProx")
    assert did_you_mean("fedgat", known) == "; did you mean 'fedgta'?"
    assert did_you_mean("FEDPROX1", known) == "; did you mean 'FedProx'?"
    assert did_you_mean("scaffold", known) == did_you_mean("x", ()) == ""
    assert did_you_mean_at("lr", ("train.lr", "data.root", "lr.train")) == "; did you mean 'train.lr'?"
    assert did_you_mean_at("seed", ("a.seed", "b.seed")) == "; did you mean 'a.seed' or 'b.seed'?"


@pytest.mark.parametrize(
    ("keys", "end"),
    [
        ({"trian": {}}, "run; did you mean 'train'?"),
        ({"train": {"learning_rat": 1}}, "schedule"),
        ({"train": {"epoch": 1}}, "schedule; did you mean 'epochs'?"),
        ({"lr": 1}, "run; did you mean 'train.lr'?"),
        ({"train": {"cell_size": 1}}, "schedule; did you mean 'engine.cell_size'?"),
        ({"data": {"dataset": "sbm", "sparsity": {"feature": 1}}}, "seed; did you mean 'features'?"),
    ],
)
def test_keys(keys: dict[str, object], end: str) -> None:
    with pytest.raises(ShoalError, match=f", {re.escape(end)}$"):
        parse_config({**PLAIN, **keys}, "x.yaml")
