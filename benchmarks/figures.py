"""How benchmarks print figures: a last line of JSON with the targets they are held to."""

import json
from typing import Any


def target(value: float, goal: float, at_most: bool = False) -> dict[str, Any]:
    """A figure beside its goal: at least, or `at_most`."""
    return {"value": value, "goal": goal, "met": value <= goal if at_most else value >= goal}


def print_figures(figures: dict[str, Any], targets: dict[str, dict[str, Any]]) -> None:
    """Prints `{"figures": …, "targets": {name: {"value": …, "goal": …, "met": …}}}` on one line."""
    print(json.dumps({"figures": figures, "targets": targets}))
