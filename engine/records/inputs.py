"""Digests of the files that a run reads: the same content is the same run, wherever the files are."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from shoal.algorithms.methods.registry.names import require_method_name
from shoal.engine.config.config import Config
from shoal.engine.config.names import read_all
from shoal.engine.config.run_identity import steering
from shoal.engine.sections.sections import files_of
from shoal.storage.errors import ShoalError
from shoal.storage.files.digest import input_digest, text_digest
from shoal.storage.options.types import is_own
from shoal.storage.user_code.user_code import read_user_code

# Contents of prepared stores have these names, among those of files.
STORE = "the prepared store"
GRAPHS = "the prepared whole graphs"
TRAINING = "the prepared training nodes"


def of_stores(clients: str, graphs: str, training: str, keep: str) -> dict[str, str]:
    """Names the contents of the stores that a run reads; computed hops (`propagation.keep`) have another content."""
    named = {STORE: clients, GRAPHS: graphs, TRAINING: training}
    suffix = "" if keep == "all" else f" (propagation.keep {keep})"
    return {name + suffix: content for name, content in named.items() if content}


def contents(config: Config) -> dict[str, str]:
    """Digests the files and the user code that keys of a config name. Raises ShoalError: one cannot be read."""
    # This module loads kernels and formats of graphs, which a list of runs need not wait for.
    from shoal.engine.records.graphs import digest_of_graphs

    data, partition = config.data, config.partition
    readers: dict[str, Callable[[], str | None]] = {
        "data.path": partial(digest_of_graphs, config),
        "data.split_file": lambda: _of_file(data.split_file if data.split == "file" else None),
        "partition.file": lambda: _of_file(partition.file if partition.method == "file" else None),
        **{key: partial(_of_file, file) for key, file in {**files_of(config), **config.devices.files}.items()},
    }
    of_callbacks = {
        f"callbacks.{number}.name": read_user_code("callbacks", callback["name"]).identity
        for number, callback in enumerate(steering(config.plain()["callbacks"]))
        if is_own(callback["name"])
    }
    return _user_code(config) | of_callbacks | _digests(readers) | digest_pretrained(config)


def digest_pretrained(config: Config) -> dict[str, str]:
    """Digests the files that models start from, by the keys that name them. Raises ShoalError: as for `contents`."""
    models = config.models()
    keys = [f"model.{number}.pretrained" for number in range(len(models))] if len(models) > 1 else ["model.pretrained"]
    return _digests({key: partial(_of_file, model.pretrained) for key, model in zip(keys, models)})


def _digests(readers: Mapping[str, Callable[[], str | None]]) -> dict[str, str]:
    digests = {}
    for key, read in readers.items():
        try:
            content = read()
        except ShoalError as error:
            raise error if key in error.line else ShoalError(key, *error.args) from None
        if content is not None:
            digests[key] = content
    return digests


def _user_code(config: Config) -> dict[str, str]:
    """Identifies user code, by the keys that name it."""
    # A wrong name of a method is refused here, before its code is read.
    require_method_name(config.algorithm.name)
    identities = {key: code.identity for key, code in read_all(config.plain()) if not key.startswith("callbacks.")}
    for key, names in (("data.dataset", config.data.dataset), ("evaluation.metrics", config.evaluation.metrics)):
        if key in identities and not isinstance(names, str):
            several = [read_user_code(key, name).identity if is_own(name) else name for name in names]
            identities[key] = text_digest(str(several))
    return identities


def _of_file(file: str | None) -> str | None:
    return None if file is None else input_digest(Path(file))


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Returns the names of the inputs that differ in content; an input that only one side knows is not compared."""
    return sorted(name for name in old.keys() & new.keys() if old[name] != new[name])
