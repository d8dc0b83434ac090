"""Completion in a shell: configs, runs, keys of a config with their values, and names that commands take."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from pydantic import TypeAdapter

from shoal.cli.names import KINDS
from shoal.storage.errors import ShoalError

if TYPE_CHECKING:
    from shoal.engine.config.key_reference import Key

# Runs and sweeps are here, below the working directory, unless a config says otherwise.
KEPT = (Path("runs"), Path("runs") / "sweeps")


def complete_run(incomplete: str) -> list[str]:
    """Lists the runs and sweeps of `runs` by name; for paths the shell has its own completion."""
    with suppress(OSError):
        folders = [path for folder in KEPT if folder.is_dir() for path in sorted(folder.iterdir())]
        return [path.name for path in folders if path.name.startswith(incomplete) and (path / "config.yaml").exists()]
    return []


def complete_config(incomplete: str) -> list[str]:
    """Lists configs of Shoal's, those of the working directory, and runs."""
    from shoal.engine.config.config import SHIPPED

    here = sorted(str(path) for ending in ("yaml", "yml") for path in Path().glob(f"*.{ending}"))
    names = [*sorted(path.stem for path in SHIPPED.glob("*.yaml")), *here]
    return [*(name for name in names if name.startswith(incomplete)), *complete_run(incomplete)]


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Lists keys of a config that begin so, or the values of a key behind `=`; behind a comma, those of a sweep.

    A key of which nothing else begins so comes with its values, or with its default where any value may stand.
    """
    given = [str(word) for name in ("overrides", "axes", "tables") for word in ctx.params.get(name) or ()]
    key, equals, start = incomplete.partition("=")
    # Bash makes three words of `key=value`, and completes the last of them alone; other shells complete all of it.
    last = given[-1] if given else ""
    apart = given[-2] if last == "=" and len(given) > 1 else "" if incomplete else last
    keys = _keys(apart or key, ctx.params.get("config"), given)
    if apart in keys:
        return list(_values(keys[apart], incomplete))
    if equals:
        return [f"{key}={value}" for value in _values(keys[key], start)] if key in keys else []
    names = [name for name in keys if name.startswith(key)]
    if len(names) == 1:
        # A second word keeps the shell from ending the word behind `=`.
        return [f"{names[0]}={value}" for value in ("", *_values(keys[names[0]], ""))]
    return [f"{name}=" for name in names]


def complete_key(incomplete: str) -> list[str]:
    """Lists keys of a config by name."""
    from shoal.engine.config.key_reference import config_keys

    return [key.name for key in config_keys() if key.name.startswith(incomplete)]


def complete_explained(incomplete: str) -> list[str]:
    """Lists what `shoal explain` knows by name: keys, sections, and what a config can name."""
    from shoal.engine.config.key_reference import sections

    names = [*sections(), "scores", *(name for names, _ in KINDS.values() for name in names)]
    return [*complete_key(incomplete), *(name for name in names if name.startswith(incomplete))]


def complete_listed(incomplete: str) -> list[str]:
    """Lists the kinds of names that `shoal list` takes."""
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def complete_project(incomplete: str) -> list[str]:
    """Lists the projects of `shoal init`."""
    from shoal.cli.projects import project_names

    return [name for name in project_names() if name.startswith(incomplete)]


def complete_paper(incomplete: str) -> list[str]:
    """Lists the papers of `shoal reproduce`."""
    from shoal.tables.papers import paper_names

    return [name for name in paper_names() if name.startswith(incomplete)]


def complete_reader(incomplete: str) -> list[str]:
    """Lists the readers of `shoal read`."""
    from shoal.cli.readers import READERS

    return [name for name in READERS if name.startswith(incomplete)]


def _values(key: "Key", start: str) -> Iterator[str]:
    """Yields the values of a key that begin so, all of a closed set, else its default; behind those before a comma."""
    from shoal.cli.explain import NAMES

    before, comma, last = start.rpartition(",")
    values = NAMES.get(key.name) or closed_values(key.hint) or [key.default] * bool(key.default)
    for value in values:
        if value.startswith(last) and value not in before.split(","):
            yield f"{before}{comma}{value}"


def _keys(begin: str, config: str | None, given: Sequence[str]) -> "dict[str, Key]":
    """Maps names of keys to the keys that they stand for, where they begin so; a section may stand for one of its keys.

    Options of a method or a model are those of the one that the command or the config names.
    """
    from shoal.cli.explain import NAMES, options_of_datasets, options_of_method, options_of_model
    from shoal.engine.config.key_reference import config_keys, sections
    from shoal.engine.config.overrides import word_key

    keys = {key.name: key for key in config_keys()}
    keys["algorithm.name"] = keys["algorithm"]
    for section, options in sections().items():
        short = f"{section}.{word_key(options)}"
        if short in keys:
            keys[section] = keys[short]
    # These load what trains, which takes seconds.
    for section, names, options_of in (
        ("algorithm", NAMES["algorithm"], options_of_method),
        ("model", NAMES["model.name"], options_of_model),
    ):
        if begin.startswith(f"{section}.") and (name := _chosen(section, config, given)) in names:
            keys |= {key.name: key for key in options_of(str(name)).values()}
    keys |= options_of_datasets() if begin.startswith("data.options.") else {}
    return {name: key for name, key in keys.items() if name.startswith(begin)}


def _chosen(section: str, config: str | None, given: Sequence[str]) -> str | None:
    """Returns the method or the model that words of the command name, or else the config; None: neither does."""
    for word in reversed("\n".join(given).replace("\n=\n", "=").split("\n")):
        key, _, value = word.partition("=")
        if key in (section, f"{section}.name"):
            return value.partition(",")[0]
    if config is None:
        return None
    from shoal.engine.config.config import load_config

    with suppress(ShoalError, OSError):
        return getattr(getattr(load_config(config), section), "name", None)
    return None


def closed_values(hint: Any) -> list[str]:
    """Lists the values of a type that has few, as a config has them: words, true and false; of another none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schema = TypeAdapter(hint).json_schema()
    return list(dict.fromkeys(_words(schema)))


def _words(schema: Mapping[str, Any]) -> Iterator[str]:
    for part in (schema, *schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from map(str, part.get("enum", [part["const"]] if "const" in part else []))
        if part.get("type") == "boolean":
            yield from ("true", "false")
        if part.get("type") == "null" and part is not schema:
            yield "null"
        if part.get("type") == "array":
            yield from _words(part.get("items") or {})
