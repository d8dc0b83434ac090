"""The head of a page: what was run, in which words, and the number that stands for it."""

import os
import shlex
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import yaml

from shoal.algorithms.methods.registry.names import display_name
from shoal.engine.config.config import Config, load_config, usual
from shoal.engine.config.config_text import MOST_BYTES
from shoal.engine.config.run_identity import flatten
from shoal.engine.records.run_folder import name_of_parent, parent_of, read_summary
from shoal.engine.records.summary import DISTINCT, DONE, describe_distinct
from shoal.engine.runs.remote_run import copies_of
from shoal.engine.screen.tables import ITEMS
from shoal.engine.sections.sections import by_subject, facts_of
from shoal.pages.headline import Headline
from shoal.pages.looks import Looks
from shoal.pages.page import Head
from shoal.scaling.scaling import CLIENTS, HOSTS, LINK, NODES, REPEAT, SCALE, WARMUP
from shoal.storage.files.reading import read_text
from shoal.storage.options.types import is_address
from shoal.study.figure_data import manifest_of
from shoal.study.groups import Row
from shoal.study.plain_names import METHOD, MODEL, value_names
from shoal.study.study import is_seed
from shoal.study.sweep_folder import is_sweep, sweep_of

# A head lists at most so many values of a key, and a title at most so many names.
MOST_VALUES, MOST_IN_TITLE = 8, 4
# What features did to runs is a sentence each.
MOST_WAYS = 3


def head_of(path: Path, rows: Sequence[Row], looks: Looks, scaling: bool, headline: Headline) -> Head:
    """Returns the head of a page of a run, or of a sweep or several runs that begin with a folder."""
    groups, names = looks.groups, looks.names
    first = next(row.path for row in groups[0].rows if row.figures)
    config, summary = load_config(first), read_summary(first)
    command, texts = _command(path, first, config, scaling)
    title = _title(config, looks, summary)
    if scaling:
        numbers = (f"{_join_names(_values(looks, key))} {names.key(key)}" for key in looks.keys)
        title = f"Scaling of {Path(sweep_of(path)['config']).stem}: {', '.join(numbers)}"
    facts = tuple(_facts(rows, looks, config, summary).items())
    badge = "synthetic data" if summary["synthetic"] else ""
    return Head(title, headline.number, headline.number_is, facts, command, texts, badge)


def _values(looks: Looks, key: str) -> list[str]:
    values = dict.fromkeys(group.columns[key] for group in looks.groups if key in group.columns)
    return [looks.names.value(key, value) for value in values]


def _shorten(values: Sequence[str], most: int = MOST_VALUES) -> str:
    return ", ".join(values) if len(values) <= most else f"{', '.join(values[: most - 1])}, … ({len(values)})"


def _of_key(looks: Looks, keys: Sequence[str], alone: str) -> list[str]:
    """Returns names of the values of the first of `keys` that varies among the runs of a page, or `[alone]`."""
    varying = next((key for key in keys if key in looks.keys), None)
    return [alone] if varying is None else list(dict.fromkeys(_values(looks, varying)))


def _join_names(values: Sequence[str]) -> str:
    return values[0] if len(values) < 2 else f"{', '.join(values[:-1])} and {values[-1]}"


def _title(config: Config, looks: Looks, summary: Mapping[str, Any]) -> str:
    names = looks.names
    shown = [key for key in looks.keys if key != "name"]
    methods = _of_key(looks, METHOD, display_name(config.algorithm.name))
    who = f"{len(methods)} methods" if len(methods) > MOST_IN_TITLE else ", ".join(methods)
    data = _of_key(looks, ["data.dataset"], summary["dataset"])
    others = [names.key(key) for key in shown if key not in (*METHOD, "data.dataset") and not key.startswith(METHOD[0])]
    by = f", by {_shorten(others, MOST_IN_TITLE)}" if others else ""
    return f"{who} on {_shorten(data, MOST_IN_TITLE)}{by}"


def _facts(rows: Sequence[Row], looks: Looks, config: Config, summary: Mapping[str, Any]) -> dict[str, str]:
    """Returns the facts of a head by name; a key that varies is a fact with all its values, and no part of others."""
    names, keys = looks.names, looks.keys
    models = [model.name for model in config.models()]
    varied_sections = {key.partition(".")[0] for key in keys}
    facts = {
        "Method": _shorten(_of_key(looks, METHOD, display_name(config.algorithm.name))),
        "Model": _shorten(_of_key(looks, MODEL, ", ".join(value_names("model", models).values()))),
        "Dataset": _shorten(_of_key(looks, ["data.dataset"], summary["dataset"])),
    }
    manifest = None if varied_sections & {"data", "partition"} else manifest_of(rows[0].path)
    clients, partition = f"{summary['clients']:,}", config.partition.method
    if manifest is not None:
        sizes = manifest.clients.columns["nodes"]
        facts["Dataset"] += f", {manifest.nodes:,} nodes, {manifest.outputs}"
        clients += f", of {sizes.min():,} to {sizes.max():,} nodes"
        partition += f", {100 * manifest.quality['cut_fraction']:.1f} % of the edges cut"
    if "partition" not in varied_sections:
        facts |= {"Clients": clients, "Partition": f"{partition}, seed {config.partition.seed}"}
    if "data" not in varied_sections:
        shares = " / ".join(f"{100 * share:g}" for share in config.data.fractions)
        split = "of a file" if config.data.split_file else config.data.split
        facts["Split"] = f"{split}, {shares} %, seed {config.data.split_seed}"
    if not varied_sections & {"data", "partition"}:
        shared = describe_distinct(summary.get(DISTINCT, {}), ITEMS[config.task])
        facts |= {"Shared": shared} if shared else {}
    part = config.participation
    who = f"{part.count} clients" if part.count is not None else f"{100 * part.ratio:g} % of the clients"
    everyone = part.count is None and part.ratio == 1
    varies = bool({"participation", "schedule"} & varied_sections) or not config.schedule.synchronous
    takes_part = "" if varies else ", all clients in each" if everyone else f", {who} in each"
    if "rounds" not in keys:
        facts["Rounds"] = f"{summary['rounds']:,}{takes_part}"
    seeds, repeats = (
        dict.fromkeys(value for row in rows for key, value in row.columns.items() if is_seed(key) and wanted(key))
        for wanted in (lambda key: key != REPEAT, lambda key: key == REPEAT)
    )
    if repeats:
        facts["Repeats"] = str(len(repeats))
    facts["Seeds"] = _shorten(list(seeds) or [str(config.seed)])
    if "engine" not in varied_sections:
        # Earlier versions wrote no number.
        hosts = summary.get("hosts") or max(len(summary.get("busy_seconds") or ()), 1)
        on_ray = f"{hosts} host{'s' if hosts > 1 else ''} on Ray"
        facts["Hosts"] = on_ray if config.engine.backend == "ray" else "one process"
        environment = summary["environment"]
        device = environment.get("device", "cpu")
        facts["Hosts"] += f", {environment.get('cpu', device) if device == 'cpu' else device}"
    took = [row.figures["seconds.rounds"] for row in rows if "seconds.rounds" in row.figures]
    facts["Duration"] = f"{_time(sum(took))} in rounds" + (f" of {len(took)} runs" if len(took) > 1 else "")
    facts |= _done_to_runs(looks)
    if len(rows) == 1:
        facts |= facts_of(summary)
    if len(rows) == 1 and (parent := parent_of(rows[0].path)):
        facts["Fork of"] = f"{name_of_parent(parent)}, after round {parent['round']}"
    named = (*METHOD, *MODEL, "data.dataset", "name")
    facts |= {names.key(key).capitalize(): _shorten(_values(looks, key)) for key in keys if key not in named}
    return facts


def _done_to_runs(looks: Looks) -> dict[str, str]:
    """Returns what features did to the runs, by subject: once where it is the same in all of them, else each way."""
    firsts = [next((row.path for row in group.rows if row.figures), None) for group in looks.groups]
    done = [by_subject(read_summary(path).get(DONE, {})) for path in firsts if path is not None]
    texts = {
        subject: list(dict.fromkeys(lines.get(subject, "none") for lines in done))
        for subject in dict.fromkeys(subject for lines in done for subject in lines)
    }
    return {
        subject.capitalize(): "; ".join([*ways[:MOST_WAYS], *([f"… ({len(ways)})"] if len(ways) > MOST_WAYS else [])])
        for subject, ways in texts.items()
    }


def _time(seconds: float) -> str:
    """Writes a duration in words."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _command(path: Path, first: Path, config: Config, scaling: bool) -> tuple[str, list[tuple[str, str]]]:
    """Returns the command that makes the same again, and the config that it reads."""
    if not is_sweep(path):
        if parent := parent_of(first):
            return _of_fork(parent, config), []
        # The reader has no config of this name, so that the page must show the file that the command reads.
        file = Path(f"{first.name}.yaml")
        return shlex.join(["shoal", "run", str(file)]), [(f"the config: save it as {file}", _own_keys(config))]
    study = sweep_of(path)
    file = Path(study["config"])
    words = _of_scaling(study) if scaling else ["shoal", "sweep", _near(str(file)), *study["axes"]]
    if study.get("choose"):
        words += [f"--choose={study['choose']}", f"--choose-seeds={study['choose_seeds']}"]
        words += [f"--choose-by={study['choose_by']}"]
    words += study.get("search", ())
    words += [f"--fork-at={study['fork_at']}"] if study.get("fork_at") else []
    text = read_text(file, MOST_BYTES) if file.is_file() else _own_keys(config)
    return shlex.join(words), [(f"the config, {file.name}", text)]


def _of_fork(parent: Mapping[str, Any], config: Config) -> str:
    """Returns the command of a run that went on from another one; its changes where that one is there."""
    remote = is_address(parent["run"])
    place = parent["run"] if remote else _near(parent["run"])
    words = ["shoal", "fork", place, "--round", str(parent["round"])]
    folder = copies_of(parent["run"])[0] if remote else Path(parent["run"])
    if not folder.is_dir():
        return shlex.join([*words, f"name={config.name}"])
    old, new = (flatten(side.plain()) for side in (load_config(folder), config))
    changed = {key: value for key, value in new.items() if key not in old or old[key] != value}
    return shlex.join([*words, *(f"{key}={yaml.safe_dump(value).split(chr(10))[0]}" for key, value in changed.items())])


def _of_scaling(study: Mapping[str, Any]) -> list[str]:
    """Returns the command of a scaling study: the columns of its runs are the axes, and overrides come after them."""
    columns = [run["columns"] for run in study["runs"]]
    words = ["shoal", "scale", _near(study["config"])]
    values = {key: list(dict.fromkeys(of_run.get(key, "") for of_run in columns)) for key in columns[0]}
    words += [axis for axis in study["axes"] if axis.partition("=")[0] not in values]
    graph = next((key for key in (NODES, SCALE) if key in values), None)
    if graph is not None and len(values[graph]) == len(values.get(CLIENTS, ())) > 1 and len(columns) < prod(
        len(of_key) for of_key in values.values()
    ):  # fmt: skip
        words.append("--weak")
        del values[graph]
    options = {CLIENTS: "--clients", NODES: "--graph", SCALE: "--graph", HOSTS: "--hosts"}
    for key, option in options.items():
        words += [option, ",".join(values[key])] if key in values else []
    return [*words, "--repeat", str(len(values[REPEAT])), "--warmup", values[WARMUP][0], "--link", values[LINK][0]]


def _near(path: str) -> str:
    """Returns a path relative to the working directory if it is below it, or the name of a config of ours."""
    return path.removeprefix(f"{Path.cwd()}{os.sep}") if Path(path).exists() else Path(path).name


def _own_keys(config: Config) -> str:
    """Writes the keys of a config that are not at their defaults, as YAML."""
    keys = _differing(config.plain(), usual().plain())
    return yaml.safe_dump(keys, sort_keys=False).replace(f"{Path.cwd()}{os.sep}", "")


def _differing(plain: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    differing: dict[str, Any] = {}
    for key, value in plain.items():
        default = defaults.get(key)
        if isinstance(value, dict) and isinstance(default, dict):
            if inner := _differing(value, default):
                differing[key] = inner
        elif value != default or key not in defaults:
            differing[key] = value
    return differing
