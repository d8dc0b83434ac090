"""What a sweep is asked to do: a config, axes, and a key that validation chooses; on the command line or in a file."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from engine.settings.config import Config, load_config
from engine.settings.config_text import MOST_BYTES, require_small
from engine.settings.known_names import require_names
from engine.settings.number_keys import fingerprint_of
from engine.studies.axes import Choice, combinations
from storage.errors import ShoalError
from storage.option_types import message_of, quoted
from storage.plain_file import read_text

Scope = Literal["trained", "served", "global", "domains"]
Scalar = str | int | float | bool


class _Choose(BaseModel):
    """The key whose value validation chooses: `{key: algorithm.eps, seeds: 2, by: served}`."""

    model_config = ConfigDict(extra="forbid")
    key: str
    seeds: Annotated[int, Field(ge=1)] = 2
    by: Scope = "served"


class _File(BaseModel):
    """A study in YAML."""

    model_config = ConfigDict(extra="forbid")
    config: str
    axes: Annotated[dict[str, str | list[Scalar] | Scalar], Field(min_length=1)]
    choose: _Choose | None = None


@dataclass(frozen=True)
class Study:
    """A sweep before it starts.

    Attributes:
        config: Path of the config that all runs share.
        axes: As `combinations` reads them.
        choose: Key whose value is chosen by validation before the other seeds run; None: all values run with all seeds.
        choose_seeds: With so many of the seeds.
        choose_by: By the mean of this scope at the best validation round.
    """

    config: str
    axes: tuple[str, ...]
    choose: str | None = None
    choose_seeds: int = 2
    choose_by: Scope = "served"

    @cached_property
    def choices(self) -> list[Choice]:
        """All combinations.

        Raises:
            ShoalError: As `combinations`, or the key to be chosen is in no axis.
        """
        found = combinations(self.axes)
        if self.choose is not None and not any(self.choose in choice.columns for choice in found):
            known = ", ".join(dict.fromkeys(key for choice in found for key in choice.columns))
            raise ShoalError(f"--choose {self.choose}: no axis has this key; there are {known}")
        return found

    @cached_property
    def configs(self) -> list[Config]:
        """Config of every combination.

        Raises:
            ShoalError: As `choices`, or a config has a wrong key or value, or names what there is not.
        """
        found = [load_config(self.config, choice.overrides) for choice in self.choices]
        for config in found:
            require_names(config)
        return found

    def folder(self, root: Path, name: str) -> Path:
        """Where what came of it is written: beside the runs, named after them and after what varies."""
        said: dict[str, Any] = {"config": name, "axes": self.axes}
        if self.choose is not None:
            said |= {"choose": self.choose, "seeds": self.choose_seeds, "by": self.choose_by}
        return root / "sweeps" / f"{name}-{fingerprint_of(said)}"


def read_study(path: str, axes: Sequence[str], choose: str | None, choose_seeds: int, choose_by: Scope) -> Study:
    """A study of a config and axes, or of a file that names both, whose config lies beside it.

    Raises:
        ShoalError: The file cannot be read or has a wrong key, or there are no axes.
    """
    plain = _mapping(path) if not Path(path).is_dir() else None
    if plain is None or "axes" not in plain:
        if not axes:
            raise ShoalError(f"{path}: name what varies, as in seed=0,1,2; a file of a study has the key axes")
        return Study(path, tuple(axes), choose, choose_seeds, choose_by)
    try:
        file = _File.model_validate(plain)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"][:2])
        raise ShoalError(f"{path}: {key}: {message_of(error)}, found {quoted(first.get('input'))}") from None
    config = Path(path).parent / Path(file.config).expanduser()
    named = [f"{key}={axis_text(values)}" for key, values in file.axes.items()]
    asked = file.choose
    if asked is not None and choose is None:
        choose, choose_seeds, choose_by = asked.key, asked.seeds, asked.by
    return Study(str(config), (*named, *axes), choose, choose_seeds, choose_by)


def _mapping(path: str) -> dict[str, Any] | None:
    """What a file holds, if it is a plain mapping; a config is read again, and found fault with, by its own reader."""
    try:
        text = read_text(Path(path), MOST_BYTES)
        require_small(text)
        plain = yaml.safe_load(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    return plain if isinstance(plain, dict) else None


def axis_text(values: str | list[Scalar] | Scalar) -> str:
    """Values as an axis has them on the command line."""
    several = values if isinstance(values, list) else [values]
    return ",".join(str(value).lower() if isinstance(value, bool) else str(value) for value in several)
