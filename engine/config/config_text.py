"""The YAML of a config, looked through before anything is built from it: a small text may be huge as values."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from shoal.storage.errors import ShoalError, one_line
from shoal.storage.files.digest import text_digest
from shoal.storage.files.reading import read_text

MOST_BYTES = 1 << 22
# A text may have so many nodes once its aliases are written out; the longest is a list with a model for each client.
MOST_VALUES = 200_000
DEEPEST = 32
# OmegaConf writes so the value of another key, or of a variable of the environment.
INTERPOLATION = re.compile(r"\$\{([^${}]*)\}")
VARIABLE = re.compile(r"oc\.env:\w+(,[^:]*)?")
LONGEST_WITH_INTERPOLATION = 1000
# libyaml takes a tenth of the time, where it is there.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
# Each earlier name of a key has today's, in the same section, and those of its values that were renamed, too.
RENAMED: dict[str, tuple[str, dict[str, str]]] = {
    "engine.path": ("engine.trainer", {"loop": "autograd", "closed_form": "analytic", "stacked": "batched"}),
    "evaluation.metric": ("evaluation.metrics", {}),
}
# Each earlier key has today's in another section, and its value that needs no key there.
MOVED: dict[str, tuple[str, Any]] = {
    "participation.devices": ("devices.kind", None),
    "participation.network": ("devices.network", None),
    "participation.seed": ("devices.seed", 0),
    "schedule.devices": ("devices.kind", "phones"),
    "schedule.network": ("devices.network", "consumer"),
    "schedule.seed": ("devices.seed", 0),
}
_announced: set[str] = set()


def with_new_names(key: str, value: Any) -> list[tuple[str, Any]]:
    """Renames a dotted key and its value, or a section, to today's names, of which a section may need several;
    announces a renamed key once in a process.
    """
    if isinstance(value, Mapping):
        # A section of which all keys moved is not given.
        return [(name, values) for name, values in with_new_keys({key: value}).items() if values or not value]
    if key in MOVED:
        new, values = MOVED[key][0], dict[str, str]()
    elif key in RENAMED:
        new, values = RENAMED[key]
    else:
        return [(key, value)]
    today = values.get(value, value) if isinstance(value, str) else value
    announce(key, f"is now {new}: write {new}: {today}")
    return [(new, today)]


def announce(key: str, what: str) -> None:
    """Prints a line about a key, once in a process."""
    if key not in _announced:
        _announced.add(key)
        print(one_line(f"shoal: {key} {what}"), file=sys.stderr, flush=True)


def with_new_keys(plain: dict[Any, Any]) -> dict[Any, Any]:
    """Renames the keys of a config's plain values to today's. Raises ValueError: a key is there by both names."""
    for old, (new, _) in RENAMED.items():
        section, _, name = old.rpartition(".")
        holder, today = plain.get(section), new.rpartition(".")[2]
        if isinstance(holder, Mapping) and name in holder:
            if today in holder:
                raise ValueError(f"{old} is now {new}, and both are there; remove {old}")
            ((_, value),) = with_new_names(old, holder[name])
            plain = {**plain, section: {today if key == name else key: v for key, v in holder.items()} | {today: value}}
    return _with_moved_keys(plain)


def _with_moved_keys(plain: dict[Any, Any]) -> dict[Any, Any]:
    """Moves keys to today's sections; of two for the same key, that of the section that the schedule read counts."""
    schedule, moved = plain.get("schedule"), dict[str, dict[str, Any]]()
    word = schedule.get("name", "synchronous") if isinstance(schedule, Mapping) else schedule or "synchronous"
    sections = ("participation", "schedule") if word != "synchronous" else ("schedule", "participation")
    for old in sorted(MOVED, key=lambda old: sections.index(old.partition(".")[0])):
        (section, _, name), (new, standard) = old.partition("."), MOVED[old]
        if isinstance(holder := plain.get(section), Mapping) and name in holder:
            plain = {**plain, section: {key: value for key, value in holder.items() if key != name}}
            if holder[name] != standard:
                section, _, key = new.partition(".")
                moved.setdefault(section, {})[key] = with_new_names(old, holder[name])[0][1]
    for section, values in moved.items():
        today = plain.get(section, {})
        if not isinstance(today, Mapping) or today.keys() & values.keys():
            names = [old for old, (new, _) in MOVED.items() if new.partition(".")[2] in values]
            raise ValueError(f"{names[0]} is now {MOVED[names[0]][0]}, and both are there; remove {names[0]}")
        plain = {**plain, section: {**today, **values}}
    return plain


def require_small(text: str) -> None:
    """Raises ValueError: YAML is nested, repeated by aliases, or typed by tags beyond what a config needs."""
    # Every open collection, and every anchor, has how many values it holds, and how deep.
    opened: list[tuple[str | None, int, int]] = [(None, 0, 0)]
    anchors: dict[str, tuple[int, int]] = {}
    for event in yaml.parse(text, Loader=LOADER):
        line = f"line {event.start_mark.line + 1}"
        if getattr(event, "tag", None) is not None:
            raise ValueError(f"{line}: a tag ({event.tag}); write the value without it")
        if isinstance(event, yaml.CollectionStartEvent):
            opened.append((event.anchor, 1, 0))
            if len(opened) - 1 > DEEPEST:
                raise ValueError(f"{line}: nested more than {DEEPEST} deep")
            continue
        if isinstance(event, yaml.ScalarEvent):
            _require_plain(event.value, line)
            anchor, values, depth = event.anchor, 1, 0
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise ValueError(f"{line}: *{event.anchor} names nothing before it")
            anchor, (values, depth) = None, anchors[event.anchor]
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, values, depth = opened.pop()
        else:
            continue
        if anchor is not None:
            anchors[anchor] = values, depth
        around, beside, deepest = opened[-1]
        opened[-1] = around, beside + values, max(deepest, depth + 1)
        if beside + values > MOST_VALUES:
            raise ValueError(f"{line}: more than {MOST_VALUES:,} values")
        if len(opened) - 1 + depth > DEEPEST:
            raise ValueError(f"{line}: nested more than {DEEPEST} deep")


def _require_plain(value: str, line: str) -> None:
    """Refuses interpolations in interpolations, and those in long texts."""
    if "${" not in value:
        return
    if len(value) > LONGEST_WITH_INTERPOLATION:
        raise ValueError(f"{line}: ${{…}} in a text of more than {LONGEST_WITH_INTERPOLATION} characters")
    if "${" in INTERPOLATION.sub("", value):
        raise ValueError(f"{line}: {value[:80]!r}: write ${{section.key}} or ${{oc.env:NAME}}, none within another")


def require_resolvable(tree: Mapping[Any, Any]) -> None:
    """Raises ValueError: an interpolation names no single value, or an interpolation, which may be endless."""
    for value in _texts(tree):
        for name in INTERPOLATION.findall(value):
            if VARIABLE.fullmatch(name):
                continue
            named = _value_of(tree, name)
            if isinstance(named, Mapping | list) or (isinstance(named, str) and "${" in named):
                raise ValueError(f"${{{name}}} must name one value, which is no ${{…}} itself")


def _texts(tree: Any) -> Sequence[str]:
    """Yields all texts with an interpolation."""
    if isinstance(tree, str):
        return [tree] if "${" in tree else []
    if isinstance(tree, Mapping):
        for key in tree:
            if not isinstance(key, str):
                raise ValueError(f"{key!r}: a key must be a text")
            if "${" in key:
                raise ValueError(f"{key!r}: a key has no ${{…}}")
        return [text for value in tree.values() for text in _texts(value)]
    return [text for value in tree for text in _texts(value)] if isinstance(tree, list) else []


def _value_of(tree: Any, name: str) -> Any:
    for part in name.split("."):
        if isinstance(tree, Mapping) and part in tree:
            tree = tree[part]
        elif isinstance(tree, list) and part.isdecimal() and len(part) < 7 and int(part) < len(tree):
            tree = tree[int(part)]
        else:
            raise ValueError(f"${{{name}}}: there is no such key; write ${{section.key}} or ${{oc.env:NAME}}")
    return tree


CONFIG = "config.yaml"
SEAL, RUN = "# seal: ", "# run: "
# JSON files of a run have its name by this key.
OF_RUN = "run"
OF_A_RUN = re.compile(r".+-[0-9a-f]{8}")


def with_seal(text: str, run: str | None = None) -> str:
    """Appends the name of the run and the seal to a text, as last lines, which are comments in YAML."""
    text += "" if run is None else f"{RUN}{run}\n"
    return f"{text}{SEAL}{text_digest(text)[:16]}\n"


def require_as_kept(file: Path) -> str | None:
    """Checks the config of a run folder, and gives the name of its run; None: it began before configs had one.

    Raises ShoalError: it was changed, or cannot be read.
    """
    try:
        text = read_text(file, MOST_BYTES)
    except FileNotFoundError:
        raise ShoalError(file, "no such config") from None
    except (OSError, ValueError) as error:
        raise ShoalError(file, f"cannot be read: {getattr(error, 'strerror', None) or error}") from error
    kept, _, _ = text.rpartition(SEAL)
    if text != with_seal(kept):
        raise ShoalError(file, "not as the run wrote it; copy it out of the run folder to run it as another config")
    last = kept.splitlines()[-1:]
    return last[0].removeprefix(RUN) if last and last[0].startswith(RUN) else None


def new_run(folder: Path) -> str | None:
    """Names a run that begins in a folder, after the folder; None: the folder is not named as those of runs."""
    return folder.name if OF_A_RUN.fullmatch(folder.name) else None


def run_of(folder: Path) -> str | None:
    """Returns the name that all files of a run carry, its folder's when it began; None: files had none yet."""
    try:
        return require_as_kept(folder / CONFIG)
    except ShoalError:
        return new_run(folder)


def require_same_run(folder: Path, found: object) -> None:
    """Raises ValueError: a file that carries the name `found`, None for none, is not of the run of a folder."""
    expected = run_of(folder)
    if found != expected:
        raise ValueError(f"written by {found or 'an unnamed run'}, this folder is of {expected or 'an unnamed run'}")
