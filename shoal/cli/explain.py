"""The texts of `shoal explain`: on a key of a config, a section, a method or model, an option of these, and scores."""

import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from shoal.algorithms.methods.registry.names import METHODS
from shoal.algorithms.models.names import BACKBONES, OF_GRAPHS
from shoal.algorithms.train_options import SCHEDULES
from shoal.cli.names import (
    PARTITIONERS,
    class_of_method,
    class_of_model,
    describe_dataset,
    describe_method,
    describe_model,
    describe_partitioner,
    describe_published,
)
from shoal.engine.callbacks.calls import CALLBACKS
from shoal.engine.config.config import SHIPPED
from shoal.engine.config.faults import OTHER_NAMES
from shoal.engine.config.key_reference import (
    Key,
    arguments,
    attributes,
    config_keys,
    effects_of,
    example_of,
    in_yaml,
    keys_of,
    kind_of,
    sections,
)
from shoal.storage.errors import ShoalError
from shoal.storage.options.dataset_names import DATASETS, OGB, PYG, TU, require_dataset, usual_name
from shoal.storage.suggestions import did_you_mean, did_you_mean_name

SCORES, RECOMMENDED = "scores", "recommended"
# docs/scores.md has the same text.
ABOUT_SCORES = """\
A score is named by model, moment, part and mean: `deployed.best.test.nodes`.

- `trained`: the model of a client right after its last local training.
- `deployed`: the newest model of each client, stale ones too: of the round in which it took part last.
- `global`: the model of the server now. Personal methods, such as `local`, have none.
- `main`: what tables, figures and choices take: `deployed`, but `global` for methods with one model, as FedAvg, where
  some clients miss rounds. The old models that clients hold may turn a curve of `deployed` over participation round.
- `domains`: the model of the server on each whole graph, where `data.dataset` is a list.
- `newcomers`: what the method gives to clients that never take part (`data.newcomers`).
- `newcomers_trained`: that model after their own local training.
- `final`: after the last round.
- `best`: after the first round with the highest validation score of the same model.
- `val`, `test`: the items that are scored. Choose by `val`, report `test`.
- `nodes`: the mean over clients, weighted by the number of all their items. It is meant where no mean is named.
- `rows`: weighted by the number of scored items, which is the share of right answers among all of them.
- `clients`: the plain mean, in which every client counts the same.
"""
WORDS_OF_SCORES = (
    *("trained", "deployed", "main", "served", "domains", "newcomers", "newcomers_trained"),
    *("final", "last", "best", "test", "rows"),
)
# A key may have these names, or name a file of the user.
NAMES = {
    "algorithm": METHODS,
    "callbacks": CALLBACKS,
    "data.dataset": DATASETS,
    "model.name": (*BACKBONES, *OF_GRAPHS),
    "train.schedule": SCHEDULES,
}
# Every model has these options; the last two are of graph tasks.
OF_EVERY_MODEL = {
    "head_dropout": Key("model.head_dropout", "true", "Dropout before the classifier.", bool),
    "readout": Key("model.readout", "mean", "Pools the nodes of a graph (`task: graph`); or `my_file.py:Name`.", str),
    "prompt": Key("model.prompt", "none", "Changes graphs before the model reads them (`task: graph`).", str),
}
WIDEST = 100
# A search shows the meanings of so many keys.
MOST_FOUND = 12


def explanation(asked: str | None) -> list[str]:
    """Returns lines about a key or another name. Raises ShoalError: nothing has the name; names what was meant."""
    keys = {key.name: key for key in config_keys()}
    name = (asked or "").partition("=")[0].strip()
    name = usual_name("algorithm" if name == "algorithm.name" else name)
    if name.lower() in (*METHODS, *BACKBONES, *OF_GRAPHS, *DATASETS):
        name = name.lower()
    section, _, option = name.partition(".")
    if not name:
        return list(_overview(keys))
    if name == SCORES or (section not in sections() and section in WORDS_OF_SCORES):
        return [line for text in ABOUT_SCORES.splitlines() for line in _wrap(text.replace("`", ""), after=2)]
    if name in keys or name in sections():
        inner = [key for key in keys.values() if key.name.startswith(f"{name}.")]
        there = _wrap(f"There are {', '.join(NAMES[name])}.", 4) if name in NAMES else []
        return [*(_about(keys[name]) if name in keys else ()), *there, *_list_keys(inner)]
    if section == "algorithm" and (owners := _with_option(_options_of_methods(), option)):
        return list(_by_owner(name, owners, "algorithm.name"))
    if section == "model" and (owners := _with_option(_options_of_models(), option)):
        return list(_by_owner(name, owners, "model.name"))
    if name.startswith("data.options.") and (described := options_of_datasets().get(name)):
        return list(_about(described))
    if name in METHODS:
        return list(_describe_class("algorithm", name, options_of_method(name).values()))
    if name in (*BACKBONES, *OF_GRAPHS):
        return list(_describe_class("model", name, options_of_model(name).values()))
    if name in DATASETS:
        return list(_describe_dataset(name))
    if name.startswith((TU, PYG, OGB)):
        return list(_describe_published(name))
    if name in PARTITIONERS:
        return list(_describe_partitioner(name, keys))
    if (config := SHIPPED / f"{name}.yaml").is_file():
        return _wrap(f"{name}: a config of Shoal's, {config}; shoal run {name} --dry-run")
    return _explain_last_part(name, keys)


def _overview(keys: Mapping[str, Key]) -> Iterator[str]:
    """Yields all keys by section, and the other names that can be asked."""
    top = [name for name in keys if "." not in name]
    yield from _wrap(f"At the top: {', '.join(top)}.")
    for section in sections():
        yield from _wrap(
            f"{section}: {', '.join(name.partition('.')[2] for name in keys if name.startswith(f'{section}.'))}."
        )
    yield from _wrap("shoal explain SECTION.KEY says more; so do SECTION, a method, a model, and scores.")


def _about(key: Key) -> Iterator[str]:
    """Yields lines with the kind, the default and the meaning of a key."""
    yield from _wrap(f"{key.name}: {_kind_and_default(key)}")
    yield from _wrap(key.meaning.replace("`", ""), 4)
    if others := effects_of(key.name):
        yield from _wrap(f"Only for {'; and for '.join(others)}.", 4)
    if (value := example_of(key)) is not None:
        yield f"    Example: shoal run CONFIG {value}"


def _kind_and_default(key: Key) -> str:
    return f"{kind_of(key.hint)}; " + (f"default {key.default}" if key.default else "no default")


def _list_keys(keys: Iterable[Key]) -> Iterator[str]:
    """Yields keys with their defaults and meanings, shortly."""
    for key in keys:
        default = f" ({key.default})" if key.default else ""
        yield from _wrap(f"{key.name}{default}: {key.meaning.replace('`', '')}", after=4)


def _describe_class(section: str, name: str, options: Iterable[Key]) -> Iterator[str]:
    """Yields the docstring of a method or a model, and its options."""
    about = describe_method(name) if section == "algorithm" else describe_model(name)
    yield from _wrap(f"{section}.name={name}: {about}")
    yield from _list_keys(options)


def _describe_dataset(name: str) -> Iterator[str]:
    """Yields what a dataset is, and its options."""
    from shoal.storage.datasets.registry import record

    yield from _wrap(f"data.dataset={name}: {describe_dataset(name)}; docs/formats.md says more")
    options = options_of_datasets()
    yield from _list_keys(options[f"data.options.{option}"] for option in record(name).options)


def _describe_published(name: str) -> Iterator[str]:
    """Yields where files of a published dataset are looked for, and its options. Raises ShoalError: it has no form."""
    require_dataset(name)
    yield from _wrap(f"data.dataset={name}: {describe_published(name)}; docs/formats.md says more")
    if name.startswith(TU):
        options = options_of_datasets()
        yield from _list_keys(options[f"data.options.{option}"] for option in ("node_attributes", "degree_cap"))
    else:
        yield from _wrap("data.options are arguments of the class; root is a folder below the data root.", 4)


def _describe_partitioner(name: str, keys: Mapping[str, Key]) -> Iterator[str]:
    """Yields what a partition method does, and the keys whose meanings name it."""
    yield from _wrap(f"partition.method={name}: {describe_partitioner(name)}")
    named = re.compile(rf"\b{re.escape(name)}\b(?!\.)", re.IGNORECASE)
    yield from _list_keys(
        key for key in keys.values() if key.name.startswith("partition.") and named.search(key.meaning)
    )


def _by_owner(name: str, key_of: Mapping[str, Key], owner: str) -> Iterator[str]:
    """Yields an option of methods or models: owners with the same default and meaning together."""
    groups: dict[tuple[str, str], list[str]] = {}
    for user, key in key_of.items():
        groups.setdefault((_kind_and_default(key), key.meaning), []).append(user)
    yield name
    for (kind, meaning), owners in groups.items():
        yield from _wrap(f"{', '.join(owners)}: {kind}", 4)
        yield from _wrap(meaning.replace("`", ""), 8)
    first, key = next(iter(key_of.items()))
    if (value := example_of(key)) is not None:
        yield f"    Example: shoal run CONFIG {owner}={first} {value}"


def _with_option(options: Mapping[str, Mapping[str, Key]], option: str) -> dict[str, Key]:
    return {owner: keys[option] for owner, keys in options.items() if option in keys}


def options_of_method(name: str) -> dict[str, Key]:
    """Returns the options of a method of ours, by name."""
    cls = class_of_method(name)
    options = {key.name.partition(".")[2]: key for key in keys_of("algorithm", cls)}
    if cls.forms:
        hint, meaning = Literal[RECOMMENDED, *cls.forms], attributes(cls)["forms"]
        options["form"] = Key("algorithm.form", RECOMMENDED, meaning, hint)
    return options


def options_of_model(name: str) -> dict[str, Key]:
    """Returns the options of a model of ours, by name."""
    from shoal.algorithms.models.build import keywords

    cls, options = class_of_model(name), dict(OF_EVERY_MODEL)
    meanings = arguments(cls)
    for option, word in keywords(cls).items():
        options[option] = Key(f"model.{option}", in_yaml(word.default), meanings[option], word.annotation)
    return options


def options_of_datasets() -> dict[str, Key]:
    """Returns the options of all datasets of ours, by their keys."""
    from shoal.storage.datasets.sources.source import DataSource

    return {key.name: key for key in keys_of("data.options", DataSource)}


def _options_of_methods() -> dict[str, dict[str, Key]]:
    return {name: options_of_method(name) for name in METHODS}


def _options_of_models() -> dict[str, dict[str, Key]]:
    return {name: options_of_model(name) for name in (*BACKBONES, *OF_GRAPHS)}


def _explain_last_part(name: str, keys: Mapping[str, Key]) -> list[str]:
    """Explains a key by the last part of its name, as `lr`. Raises ShoalError: no key ends so, or several do."""
    every = {**keys, **options_of_datasets()}
    for options in (_options_of_methods(), _options_of_models()):
        every |= {key.name: key for of_name in options.values() for key in of_name.values()}
    last = name.rpartition(".")[2]
    names = [key for key in every if key.rpartition(".")[2] == last]
    if len(names) == 1 and last == name:
        return explanation(names[0])
    if names:
        raise ShoalError(name, f"did you mean {' or '.join(names)}? no such key")
    if about := _search(name, every):
        return about
    if other := OTHER_NAMES.get(last.lower().replace("-", "_")):
        raise ShoalError(name, f"did you mean {other}? no such key")
    close = did_you_mean(name, every) or did_you_mean_name(name, [*METHODS, *BACKBONES, *sections(), SCORES])
    raise ShoalError(name, f"{close}no such key, method or model; shoal explain lists all")


def _search(word: str, keys: Mapping[str, Key]) -> list[str]:
    """Lists the keys whose name or meaning has a word, and methods and models of it; none: an empty list."""
    # Words of a name are apart by any sign: macro_f1 is macro-F1.
    parts = map(re.escape, re.split(r"[-_ ]+", word.rstrip("s")))
    wanted = re.compile(rf"\b{'[-_ ]?'.join(parts)}", re.IGNORECASE)
    named = [
        key
        for key in keys.values()
        if wanted.search(key.name.replace("_", " ")) or word.lower() in NAMES.get(key.name, ())
    ]
    meant = [key for key in keys.values() if key not in named and wanted.search(key.meaning)]
    classes = [name for name in (*METHODS, *BACKBONES, *OF_GRAPHS, *DATASETS) if word.lower() in name]
    found_keys = [*named, *meant]
    shortened = [key._replace(meaning=f"{key.meaning.split('. ')[0].rstrip('.')}.") for key in found_keys[:MOST_FOUND]]
    lines = list(_list_keys(shortened))
    if len(found_keys) > MOST_FOUND:
        lines += _wrap(f"Further keys: {', '.join(key.name for key in found_keys[MOST_FOUND:])}.")
    if classes:
        lines += _wrap(f"Methods, models and datasets: {', '.join(classes)}.")
    if any(wanted.search(line) for line in ABOUT_SCORES.splitlines()):
        lines += _wrap("Names of scores have it, too: shoal explain scores.")
    return lines


def _wrap(text: str, indent: int = 0, after: int | None = None) -> list[str]:
    """Wraps a text into lines that fit the terminal; `after` is the indent of the second and further lines."""
    width = min(shutil.get_terminal_size().columns, WIDEST)
    first, rest = " " * indent, " " * (indent if after is None else after)
    options = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=rest, **options) or [""]  # type: ignore[arg-type]
