"""Errors name their places, and what may have been meant."""

import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from shoal.algorithms.methods.registry.names import METHODS
from shoal.algorithms.models.names import BACKBONES
from shoal.algorithms.models.names import OTHER_NAMES as OF_MODELS
from shoal.engine.config.config import parse_config
from shoal.storage.errors import ShoalError
from shoal.storage.options.dataset_names import DATASETS, OTHER_NAMES
from shoal.storage.suggestions import did_you_mean, did_you_mean_at, did_you_mean_name


def test_error_names_its_file_and_key_in_another_process_too() -> None:
    given = ShoalError(Path("a.yaml"), "data.path", "expected a folder, got 3", detail="a traceback")
    for error in (given, pickle.loads(pickle.dumps(given))):
        assert str(error) == error.line == "a.yaml: data.path: expected a folder, got 3"
        assert (error.file, error.key, error.detail) == (Path("a.yaml"), "data.path", "a traceback")


PLAIN = {"name": "wrong", "data": {"dataset": "sbm"}, "algorithm": {"name": "fedavg"}}


def test_the_most_alike_is_proposed() -> None:
    known = ("fedavg", "fedgta", "FedProx")
    assert did_you_mean("fedgat", known) == "did you mean 'fedgta'? "
    assert did_you_mean("FEDPROX1", known) == "did you mean 'FedProx'? "
    assert did_you_mean("dropout", ("head_dropout",)) == did_you_mean("split_ratio", ("split_file",)) == ""
    assert did_you_mean("scaffold", known) == did_you_mean("x", ()) == ""
    assert did_you_mean_at("lr", ("train.lr", "data.root", "lr.train")) == "did you mean 'train.lr'? "
    assert did_you_mean_at("seed", ("a.seed", "b.seed")) == "did you mean 'a.seed' or 'b.seed'? "


@pytest.mark.parametrize(
    ("meant", "wrong", "known", "also"),
    [
        ("cs", "coauthor-cs Coauthor-CS CoauthorCS CS-", DATASETS, OTHER_NAMES),
        ("computers", "Amazon-Computers amazon_electronics_computers Computer", DATASETS, OTHER_NAMES),
        ("ogbn-arxiv", "arxiv ogbn_arxiv ogbn-arxvi", DATASETS, OTHER_NAMES),
        ("cora", "Planetoid/Cora coraa croa", DATASETS, OTHER_NAMES),
        (
            None,
            "ogbl-collab ogbn-proteins ogbn-mag nci109 reddit2 imdb-multi wikics acmv8",
            DATASETS,
            OTHER_NAMES,
        ),
        (None, "amazon-products corafull cora-ml twitch-br arxiv-year reddit-binary coral-like", DATASETS, OTHER_NAMES),
        ("fedsage_plus", "FedSage+ fedsageplus", METHODS, {}),
        ("fedavg", "FedAvg fed-avg fedavgg", METHODS, {}),
        ("scaffold", "scafold scaffodl scaffolt", METHODS, {}),
        (None, "fedsage gcfl fedgat fedmd fedavgm fedproto2 fedbn fedgh", METHODS, {}),
        ("sage", "GraphSAGE saage", BACKBONES, OF_MODELS),
        (None, "gatv2 appnp graphsaint", BACKBONES, OF_MODELS),
    ],
)
def test_what_only_sounds_alike_is_not_meant(meant: str | None, wrong: str, known: Any, also: Any) -> None:
    says = "" if meant is None else f"did you mean {meant!r}? "
    for name in wrong.split():
        assert did_you_mean_name(name, known, also) == says, name


@pytest.mark.parametrize(
    ("keys", "meant"),
    [
        ({"trian": {}}, "train"),
        ({"train": {"rate": 1}}, None),
        ({"train": {"epoch": 1}}, "epochs"),
        ({"lr": 1}, "train.lr"),
        ({"train": {"cell_size": 1}}, "engine.cell_size"),
        ({"data": {"dataset": "sbm", "sparsity": {"feature": 1}}}, "features"),
        ({"train": {"learning_rate": 1}}, "train.lr"),
        ({"num_clients": 1}, "partition.clients"),
        ({"partition": {"num_clients": 1}}, "partition.clients"),
        ({"batchSize": 1}, "train.batch_size"),
        ({"method": "fedavg"}, "algorithm"),
    ],
)
def test_keys(keys: dict[str, object], meant: str | None) -> None:
    hint = "" if meant is None else re.escape(f"did you mean {meant!r}? ")
    with pytest.raises(ShoalError, match=f": {hint}unknown key; known here: "):
        parse_config({**PLAIN, **keys}, "x.yaml")
