"""The sections of searches: the best so far over rounds, importance of keys, all trials in parallel coordinates."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from shoal.algorithms.methods.registry.names import display_name
from shoal.pages import figures as drawings
from shoal.pages.figures import Drawing
from shoal.pages.looks import Look
from shoal.pages.page import Section
from shoal.storage.errors import ShoalError
from shoal.storage.files.checksummed_json import unsealed
from shoal.storage.files.reading import read_bytes
from shoal.study.plain_names import key_names
from shoal.study.sweep_folder import SEARCH
from shoal.tables.text_table import TextTable

VALIDATION = "validation accuracy (%)"


def chosen_table(plain: Mapping[str, Any]) -> TextTable:
    """Makes the table of searches: the costs of each, and the options that it chose."""
    rows = []
    for search in plain["searches"]:
        complete = sum(trial["state"] == "complete" for trial in search["trials"])
        chosen, score = "-", "-"
        if search["chosen"] is not None:
            trial = search["trials"][search["chosen"]]
            names = key_names(search["keys"])
            chosen = ", ".join(f"{names[key]} {value}" for key, value in trial["values"].items())
            score = f"{100 * _score(trial):.2f}"
        rounds = (f"{search['rounds']:,}", f"{search['without']:,}")
        rows.append((_name(search), str(len(search["trials"])), str(complete), *rounds, score, chosen))
    heads = ("search", "trials", "complete", "rounds", "unpruned", "validation (%)", "chosen")
    seeds = "of 1 seed that reports" if plain["seeds"] == 1 else f"mean of {plain['seeds']} seeds that report"
    note = f"validation of {plain['by']} models, {seeds} nothing; rounds of all seeds"
    return TextTable(heads, tuple(rows), len(heads), title="Chosen options", notes=(note,))


def read_search(folder: Path) -> dict[str, Any] | None:
    """Reads the search in the folder of a sweep, in the form of `Search.plain`; None if there is none.

    Raises ShoalError: its file is damaged.
    """
    try:
        return unsealed(read_bytes(folder / SEARCH))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ShoalError(folder / SEARCH, f"damaged ({error}); the same shoal sweep writes it again") from None


def read_chosen(folder: Path) -> TextTable | None:
    """Reads what the search in the folder of a sweep chose; None if there is none. Raises as `read_search`."""
    plain = read_search(folder)
    return None if plain is None else chosen_table(plain)


def search_sections(folder: Path) -> list[Section]:
    """Makes the sections of the search in a folder; none if there is none. Raises as `read_search`."""
    if (plain := read_search(folder)) is None:
        return []
    figures: list[Drawing] = []
    searches = plain["searches"]
    looks = [
        Look(_name(search), place, 0, [(float(at), best, 0.0) for at, best in search["progress"]])
        for place, search in enumerate(searches)
    ]
    # A search of one batch without rungs has a single best, which the table has.
    if any(len(look.shown) > 1 for look in looks):
        drawings.over_key(figures, "best-so-far", "Best validation so far", {"": looks}, "rounds trained", VALIDATION)
    trials = []
    for place, search in enumerate(searches):
        names, label = key_names(search["keys"]), _name(search)
        if shares := search["importance"]:
            parts = {names[key]: {"share": 100 * share} for key, share in shares.items()}
            drawings.bars(figures, f"importance-{place}", f"Importance of keys, {label}", "%", parts)
        _coordinates(figures, f"trials-{place}", label, search, dict(text.split("=", 1) for text in plain["space"]))
        rows = [
            (str(trial["number"] + 1), *(trial["values"][key] for key in names), trial["state"], _rounds(trial),
             f"{100 * _score(trial):.2f}" if trial["scores"] else trial["error"])
            for trial in search["trials"]
        ]  # fmt: skip
        heads = ("trial", *names.values(), "state", "rounds", "validation (%)")
        trials.append(TextTable(heads, tuple(rows), len(heads), title=label))
    important = any(search["importance"] for search in searches)
    note = "importance: share of each key in how trials differ at the first rung (PED-ANOVA)" if important else ""
    return [
        Section("Search", figures, [chosen_table(plain)], note=note, leads=True),
        Section("Trials", tables=trials, folded=True),
    ]


def _name(search: Mapping[str, Any]) -> str:
    """Returns the values of the combination that was searched, methods as their papers write them."""
    return ", ".join(map(display_name, search["label"].split(", ")))


def _score(trial: Mapping[str, Any]) -> float:
    """Returns the validation at the last rung of a trial."""
    return float(list(trial["scores"].values())[-1])


def _rounds(trial: Mapping[str, Any]) -> str:
    return max(trial["scores"], key=int, default="0")


def _coordinates(
    figures: list[Drawing], name: str, label: str, search: Mapping[str, Any], space: Mapping[str, str]
) -> None:
    trials = [trial for trial in search["trials"] if trial["scores"]]
    scores = [100 * _score(trial) for trial in trials]
    axes, ends = {}, {}
    for key, shown in key_names(search["keys"]).items():
        texts = [trial["values"][key] for trial in trials]
        order = sorted(dict.fromkeys(texts))
        values: Sequence[float] = [order.index(text) for text in texts]
        with suppress(ValueError):
            values = [float(text) for text in texts]
            order = sorted(order, key=float)
        values = [math.log(value) for value in values] if space[key].endswith(":log") else values
        axes[shown], ends[shown] = values, (order[0], order[-1])
    axes["validation (%)"], ends["validation (%)"] = scores, (f"{min(scores):.1f}", f"{max(scores):.1f}")
    drawings.parallel(figures, name, f"Trials, {label}", axes, ends)
