"""Keys of a config as one looks them up: type, bounds, default, meaning, and with what else they have an effect.

The source of `shoal explain` and of docs/config.md. Meanings are those of the docstrings of the options.
"""

import dataclasses
import re
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args, get_type_hints

import yaml
from pydantic import TypeAdapter
from pydantic_core import PydanticUndefined

from shoal.algorithms.models.names import ModelSpec
from shoal.engine.config.config import Config, usual
from shoal.engine.config.effects import RULES, Rule

# JSON schemas and annotations name bounds so; a bound that is this far away is none.
BOUNDS = {
    "minimum": "at least", "ge": "at least", "exclusiveMinimum": "above", "gt": "above",
    "maximum": "at most", "le": "at most", "exclusiveMaximum": "below", "lt": "below",
}  # fmt: skip
FAR = 2**31
# Keys that are null by default have these examples.
EXAMPLES = {"integer": 10, "number": 60.0, "bytes": "8GiB", "path": "path/to/it", "path or address": "path/to/it"}
TYPES = {"integer": "whole number", "boolean": "true or false", "string": "text", "object": "mapping"}


class Key(NamedTuple):
    """A key, its value of a config without it, in YAML, empty if it must be given; what it does; its annotation."""

    name: str
    default: str
    meaning: str
    hint: Any


def config_keys() -> Iterator[Key]:
    """Yields all keys of a config in its order, those at the top first; without the options of what a key names."""
    meanings, hints = attributes(Config), get_type_hints(Config, include_extras=True)
    for name, field in Config.model_fields.items():
        if meaning := field.description or meanings.get(name):
            yield Key(name, in_yaml(field.default), meaning, hints[name])
    for name, options in sections().items():
        yield from keys_of(name, options)


def sections() -> dict[str, type]:
    """Maps the name of each section to the class of its options."""
    types = {name: field.annotation for name, field in Config.model_fields.items()}
    return {
        name: ModelSpec if name == "model" else cls  # type: ignore[misc]
        for name, cls in types.items()
        if name == "model" or dataclasses.is_dataclass(cls)
    }


def keys_of(section: str, options: type) -> Iterator[Key]:
    """Yields the keys of a class of options; one with options of its own has theirs after it."""
    meanings = attributes(options)
    hints = get_type_hints(options, include_extras=True)
    for name, value in values_of(options).items():
        hint = hints[name]
        # A section of one key may say what it is in its first paragraph.
        meaning = meanings.get(name, (options.__doc__ or "").split("\n\n")[0])
        yield Key(f"{section}.{name}", in_yaml(value), " ".join(meaning.split()), hint)
        inner = get_args(hint)[0] if get_args(hint) else hint
        if dataclasses.is_dataclass(inner):
            yield from keys_of(f"{section}.{name}", inner)  # type: ignore[arg-type]


def values_of(options: type) -> dict[str, Any]:
    """Lists the defaults of the fields of a dataclass or a model, by name."""
    if dataclasses.is_dataclass(options):
        return {field.name: field.default for field in dataclasses.fields(options)}
    return {name: field.default for name, field in options.model_fields.items()}  # type: ignore[attr-defined]


def attributes(options: type) -> dict[str, str]:
    """Reads the texts on attributes from the docstrings of a class and its bases."""
    texts = [cls.__dict__.get("__doc__") for cls in reversed(options.__mro__)]
    return {name: words for text in texts for name, words in entries(text, "Attributes").items()}


def arguments(cls: type) -> dict[str, str]:
    """Reads the texts on arguments from the docstrings of the constructors of a class and its bases."""
    texts = [base.__dict__["__init__"].__doc__ for base in reversed(cls.__mro__) if "__init__" in base.__dict__]
    return {name: words for text in texts for name, words in entries(text, "Args").items()}


def entries(text: str | None, heading: str) -> dict[str, str]:
    """Reads the names below a heading of a docstring, and what is said of each; several may share a text."""
    part = re.search(rf"(?m)^( *){heading}:\n(.*?)(?:\n\s*\n|\Z)", text or "", flags=re.DOTALL)
    if part is None:
        return {}
    indent = part[1] + " " * 4
    names = r"\w+(?:, \w+)*"
    texts = re.findall(rf"(?ms)^{indent}({names}): (.*?)(?=^{indent}{names}: |\Z)", part[2] + "\n")
    return {name: " ".join(words.split()) for several, words in texts for name in several.split(", ")}


def in_yaml(value: Any) -> str:
    """Formats a default as a config has it; empty for none, and for a section."""
    # pydantic holds some defaults in descriptions of its own.
    value = getattr(value, "default", value)
    if value is dataclasses.MISSING or value is PydanticUndefined or dataclasses.is_dataclass(value) or value == {}:
        return ""
    plain = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(plain, default_flow_style=True).splitlines()[0]


def kind_of(hint: Any) -> str:
    """Describes type and bounds of the values of a key, in words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schema = TypeAdapter(hint).json_schema()
    return _in_words(schema, schema.get("$defs", {}))


def _in_words(schema: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    """Describes a JSON schema in words; `parts` are those that it refers to by name."""
    if "$ref" in schema:
        return _in_words(parts[schema["$ref"].rpartition("/")[2]], parts)
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return ", or ".join(dict.fromkeys(_in_words(kind_schema, parts) for kind_schema in schema[several]))
    if "enum" in schema or "const" in schema:
        return " or ".join(str(word) for word in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "value")
    if kind == "array":
        inner = schema.get("items") or (schema.get("prefixItems") or [{}])[0]
        return f"list of {_in_words(inner, parts)}"
    if "name" in schema.get("properties", {}):
        return "name, or mapping with name"
    bounds = [f"{words} {schema[key]:,}" for key, words in BOUNDS.items() if abs(schema.get(key, FAR)) < FAR]
    return " ".join([TYPES.get(kind, kind), " and ".join(bounds)]).rstrip()


def effects_of(name: str) -> list[str]:
    """Describes what else a config must have for a key to have an effect: another key and its values."""
    return [f"{rule.other} {rule.values}" for rule in RULES if name in rule.keys]


def example_of(key: Key) -> str | None:
    """Overrides with another value than the default, and what it needs to have an effect; None: none is known."""
    default = yaml.safe_load(key.default) if key.default else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapter = TypeAdapter(key.hint)
    missing = list(_missing(key.name))
    if not all(rule.by_words for rule in missing):
        return None
    needed = dict.fromkeys(f"{rule.other}={rule.values.partition(',')[0]} " for rule in missing)
    for value in _others(default, adapter.json_schema()):
        try:
            adapter.validate_python(value)
        except ValueError:
            continue
        return f"{''.join(needed)}{key.name}={in_yaml(value)}"
    return None


def _missing(key: str, above: frozenset[str] = frozenset()) -> Iterator[Rule]:
    """Lists the rules that leave a key without effect by default, behind those of the keys that they ask for."""
    for rule in RULES:
        if key in rule.keys and not rule.holds(usual()):
            if rule.other not in above:
                yield from (other for other in _missing(rule.other, above | {key}) if other.by_words)
            yield rule


def _others(default: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
    """Yields values other than the default that a type allows."""
    if isinstance(default, bool):
        yield not default
    elif isinstance(default, int | float):
        # The others are half of it, twice it, or numbers near zero.
        yield from (default / 2, default * 2) if isinstance(default, float) and default else (default * 2 or 1, 0.5)
    for alternative in (schema, *schema.get("anyOf", ())):
        yield from (word for word in alternative.get("enum", ()) if word != default)
        if alternative.get("type") in EXAMPLES:
            yield EXAMPLES[alternative["type"]]
