"""A grid of runs on the same store and warm hosts."""

import itertools
from collections.abc import Sequence
from pathlib import Path

from engine.commands.run import run
from engine.hosts.federation import Session, open_session
from engine.records.run_folder import finished, run_path, started
from engine.screen.progress import say
from engine.settings.config import Config, load_config
from storage.errors import ShoalError

# The configs of all are read before the first one starts.
MOST_RUNS = 1000
SESSION_KEYS = {"engine", "resources", "ray"}


def expand(grid: Sequence[str]) -> list[dict[str, str]]:
    """`["a=1,2", "b=x,y"]` as the overrides of every run, the last key changing fastest.

    Raises:
        ShoalError: A key without values, or too many runs.
    """
    runs = 1
    axes: list[list[tuple[str, str]]] = []
    for axis in grid:
        key, equals, values = axis.partition("=")
        choices = [value for value in values.split(",") if value]
        if not key or not equals or not choices:
            raise ShoalError(f"{axis}: an axis of a sweep has the form key.sub=a,b,c")
        runs *= len(choices)
        if runs > MOST_RUNS:
            raise ShoalError(f"{axis}: a sweep has at most {MOST_RUNS:,} runs; give fewer values")
        axes.append([(key, value) for value in choices])
    return [dict(choice) for choice in itertools.product(*axes)]


def sweep(config_path: str, grid: Sequence[str]) -> list[tuple[Path, dict[str, str]]]:
    """Runs a grid; finished runs are skipped, unfinished ones resumed.

    Args:
        config_path: The config that all runs share.
        grid: `key=a,b,c`, one a swept key.

    Returns:
        Every run folder with its overrides, in the order of the grid.

    Raises:
        ShoalError: Any of the configs is wrong (before the first run starts), or a run failed.
    """
    choices = expand(grid)
    configs = [load_config(config_path, [f"{key}={value}" for key, value in choice.items()]) for choice in choices]
    session: Session | None = None
    opened: dict[str, object] = {}
    result = []
    try:
        for number, (config, choice) in enumerate(zip(configs, choices), 1):
            label = ", ".join(f"{key} {value}" for key, value in choice.items())
            path = run_path(config)
            say(f"[{number}/{len(configs)}] {label}")
            if finished(path):
                # Needs no hosts to say so, or that its data is another by now.
                run(config)
            else:
                wanted = _session_keys(config)
                if session is None or wanted != opened:
                    if session is not None:
                        session.close()
                    session, opened = open_session(config), wanted
                run(config, resume=started(path), session=session)
            result.append((path, choice))
    finally:
        if session is not None:
            session.close()
    return result


def _session_keys(config: Config) -> dict[str, object]:
    return config.model_dump(include=SESSION_KEYS)
