"""Names of user code in a config, and its files in a run folder."""

import copy
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from shoal.storage.errors import ShoalError
from shoal.storage.options.types import is_own
from shoal.storage.user_code.user_code import UserCode, read_user_code

# A run keeps user code in this folder.
CODE = "code"
# The value of these keys may be `my_file.py:Name`; `model` may be a list.
PLACES = (
    ("algorithm", "name"),
    ("model", "name"),
    ("model", "readout"),
    ("partition", "method"),
    ("data", "dataset"),
    ("attack", "kind"),
    ("participation", "selection"),
    ("stages", "name"),
    ("schedule", "name"),
    ("evaluation", "metrics"),
    ("callbacks", "name"),
)


def read_all(plain: dict[str, Any]) -> list[tuple[str, UserCode]]:
    """Reads all user code that a config names, by its key. Raises ShoalError: a file cannot be read."""
    names = [(key, holder[last]) for key, holder, last in _places(plain) if is_own(str(holder[last]))]
    return [(key, read_user_code(key, name)) for key, name in names]


def own_among(key: str, names: Iterable[str]) -> dict[str, UserCode]:
    """Selects the user code among the names of a key, by name; raises as `read_all`."""
    return {name: read_user_code(key, name) for name in names if is_own(name)}


def rename_code(plain: dict[str, Any], rename: Callable[[str], str]) -> dict[str, Any]:
    """Copies the plain values of a config, with other names of user code."""
    values = copy.deepcopy(plain)
    for _, holder, last in _places(values):
        if is_own(str(holder[last])):
            holder[last] = rename(holder[last])
    return values


def kept_name(code: UserCode) -> str:
    """Names user code in a run folder: `code/<digits>/my_file.py:Name`."""
    file, _, name = code.name.rpartition(":")
    return f"{CODE}/{code.digest[:8]}/{Path(file).name}:{name}"


def shown_name(name: str) -> str:
    """Shortens a name for people: user code is `my_file.py:Name`, wherever the file is."""
    return Path(name).name if is_own(name) else name


def locate_code(plain: dict[str, Any], run: Path) -> dict[str, Any]:
    """Copies the values of a config in a run folder, with the user code found there.

    Raises ShoalError: code in the folder is not as the run wrote it, or cannot be read.
    """
    values = rename_code(plain, lambda name: str(run.absolute() / name) if name.startswith(f"{CODE}/") else name)
    for key, code in read_all(values):
        if code.name.startswith(f"{run.absolute() / CODE}/") and code.name != str(run.absolute() / kept_name(code)):
            raise ShoalError(
                Path(code.file), key, "not as the run kept it; --fresh of the first config writes it again"
            )
    return values


def _places(plain: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yields every place where a name may stand: its key, what holds it, and the key or number in that."""
    for section, last in PLACES:
        value = plain.get(section)
        if section == "algorithm" and isinstance(value, str):
            yield section, plain, section
        for number, holder in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(holder, dict) or last not in holder:
                continue
            key = f"{section}.{number}.{last}" if isinstance(value, list) else f"{section}.{last}"
            if isinstance(holder[last], list):
                for place in range(len(holder[last])):
                    yield key, holder[last], place
            else:
                yield key, holder, last
