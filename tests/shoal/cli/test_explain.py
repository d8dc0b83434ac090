"""What `shoal explain` says is true of a config: examples are accepted and change their key, defaults are those."""

from typing import Any

import pytest
import yaml
from support.errors import refused

from shoal.algorithms.methods.registry.names import METHODS
from shoal.algorithms.models.names import BACKBONES
from shoal.cli.explain import ABOUT_SCORES, explanation
from shoal.engine.config.config import Config, config_from
from shoal.engine.config.key_reference import config_keys, example_of, sections

PLAIN = {"name": "a", "data": {"dataset": "ogbn-arxiv"}, "algorithm": "fedavg"}
KEYS = {key.name: key for key in config_keys()}


def value_of(config: Config, key: str) -> Any:
    found: Any = config.plain()
    for part in key.split("."):
        found = found[part]
    return found


def test_examples_are_accepted_and_change_their_key() -> None:
    """Of nearly all keys; what stands as the default is the default."""
    usual = config_from(PLAIN)
    found = {name: example_of(key) for name, key in KEYS.items()}
    assert sum(words is not None for words in found.values()) > 0.7 * len(KEYS)
    for name, words in found.items():
        if KEYS[name].default and name not in ("data.root", "run.root"):
            assert value_of(usual, name) == yaml.safe_load(KEYS[name].default), name
        if words:
            values = {word.partition("=")[0]: yaml.safe_load(word.partition("=")[2]) for word in words.split()}
            assert value_of(config_from(PLAIN, values), name) != value_of(usual, name), words


@pytest.mark.parametrize(
    ("asked", "lines"),
    [
        (
            "participation.ratio",
            [
                "participation.ratio: number above 0 and at most 1; default 1.0",
                "    Share of all clients, rounded down to one or more.",
                "    Only for algorithm.name with several clients; and for participation.count null; and for",
                "    schedule.name synchronous, tiers, my_file.py:Name.",
                "    Example: shoal run CONFIG participation.ratio=0.5",
            ],
        ),
        ("lr", ["train.lr: number above 0; default 0.01"]),
        ("train.lr=0.1", ["train.lr: number above 0; default 0.01"]),
        ("train.momentum", ["    Example: shoal run CONFIG train.optimizer=sgd train.momentum=0.5"]),
        ("algorithm.mu", ["    fedprox: number at least 0; default 0.01"]),
        ("model.heads", ["    gat, han, hgt: whole number; default 8", "    transformer: whole number; default 1"]),
        ("data.options.scale", ["data.options.scale: number; default 1.0"]),
        ("scores", [ABOUT_SCORES.replace("`", "").splitlines()[0]]),
        ("algorithm", ["algorithm: name, or mapping with name; no default"]),
        (
            "tu:MUTAG",
            ["data.options.node_attributes (false): Take the measured attributes of nodes beside their labels,"],
        ),
        ("pyg:KarateClub", ["    data.options are arguments of the class; root is a folder below the data root."]),
        (
            "ogb:arxiv",
            ["data.options.feature_dtype (null): How features of an OGB graph are kept on disk, float32 or"],
        ),
        (None, ["evaluation: every, clients, last, domains, metrics, newcomer_epochs."]),
    ],
)
def test_lines_of_an_explanation(asked: str | None, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert not set(lines) - set(explanation(asked))


def test_every_name_is_explained() -> None:
    for name in (*METHODS, *BACKBONES, *sections()):
        assert all(len(line) <= 100 for line in explanation(name)), name


@pytest.mark.parametrize(
    ("asked", "says"),
    [("ray.adress", "did you mean 'ray.address'"), ("training.lr", "did you mean train.lr"), ("xyz", "lists all")],
)
def test_unknown_name_is_refused(asked: str, says: str) -> None:
    with refused(asked, says=says):
        explanation(asked)
