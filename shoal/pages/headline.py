"""The headline of a page: what was found, as a comparison with its interval, never a maximum over test scores.

Methods are compared with a reference at the same settings, paired by seeds. The method that is named is the one with
the best validation, so that test scores choose nothing.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from shoal.engine.config.config import sections, usual
from shoal.engine.config.overrides import word_key
from shoal.engine.config.run_identity import flatten
from shoal.engine.records.summary import SAMPLED
from shoal.pages.looks import Looks
from shoal.storage.errors import ShoalError
from shoal.study.constant_class import constant_of
from shoal.study.groups import Group, baseline_of, interval_95, paired_differences
from shoal.study.main_score import MainScore
from shoal.study.means import is_of_sample
from shoal.study.plain_names import METHOD, MODELS
from shoal.tables.study_table import shared_keys

# Without a reference that is asked for, methods are compared with the first of these that ran.
REFERENCES = ("fedavg", "local")


@dataclass(frozen=True)
class Headline:
    """The number that stands for a page, and what it is."""

    number: str = ""
    number_is: str = ""


def make_headline(looks: Looks, main: MainScore, against: Mapping[str, str], mean: str) -> Headline:
    """Makes the headline of combinations; `against` has keys and values of the reference, if one is asked for.

    Raises ShoalError: no combination has the settings of that reference, so that none can be compared with it.
    """
    groups = [group for group in looks.groups if main.values(group)]
    if not groups:
        return Headline()
    if len(groups) == 1:
        return _of_one(groups[0], looks, main, mean)
    reference = find_reference(groups, looks, against)
    if reference and (compared := _of_comparison(groups, reference, looks, main)):
        return compared
    if against:
        asked = ", ".join(f"{key}={value}" for key, value in against.items())
        raise ShoalError("--against", f"no runs with the same seeds and settings differ from {asked} in it alone")
    settings = [key for key in shared_keys(groups) if len({group.columns.get(key) for group in groups}) > 1]
    if not settings:
        return _of_choice(groups, looks, main)
    others = [] if reference else [key for key in looks.keys if key not in settings]
    if others and (compared := _of_comparison(groups, _find_usual(others), looks, main)):
        return compared
    # Without a reference a headline shows settings alone.
    of_first = [
        group for group in groups if all(group.columns.get(key) == groups[0].columns.get(key) for key in others)
    ]
    return _of_settings(of_first, settings, looks, main)


def find_reference(groups: Sequence[Group], looks: Looks, against: Mapping[str, str]) -> dict[str, str]:
    """Returns keys and values of what combinations are compared with; without `against` a method; empty: none."""
    key = next((key for key in METHOD if key in looks.keys), "")
    if against or not key:
        return dict(against)
    methods = list(dict.fromkeys(group.columns[key] for group in groups if key in group.columns))
    return {key: next((name for name in REFERENCES if name in methods), methods[0])}


def _find_usual(keys: Sequence[str]) -> dict[str, str]:
    """Returns the defaults of keys, with which their other values are compared."""
    plain, of_sections = flatten(usual().plain()), sections()
    return {
        key: str(plain.get(f"{key}.{word_key(of_sections[key])}" if key in of_sections else key, "")) for key in keys
    }


def _of_one(group: Group, looks: Looks, main: MainScore, mean: str) -> Headline:
    several = f" (mean ± standard deviation of {group.finished} runs)" if group.finished > 1 else ""
    constant = constant_of([group], main.scope(group), mean)
    beside = "" if constant is None else f"; always the most frequent class: {100 * constant:.1f} %"
    return Headline(_score(group, main), f"{_named(group, looks, main)}{several}{beside}")


def _of_comparison(
    groups: Sequence[Group], reference: Mapping[str, str], looks: Looks, main: MainScore
) -> Headline | None:
    """Compares the method that validation prefers with a reference; None if no two have the same settings."""
    pairs: dict[str, list[tuple[Group, Group]]] = {}
    for group in groups:
        other = baseline_of(group, groups, reference)
        if other is not None and other is not group:
            pairs.setdefault(_of_keys(group, reference, looks), []).append((group, other))
    compared = {name: of_name for name, of_name in pairs.items() if _by_seed(of_name, main)}
    if not compared:
        return None

    def validation(name: str) -> float:
        scores = [fmean(v) for group, _ in compared[name] if (v := group.values(main.figure(group, "val")))]
        return fmean(scores) if scores else -1.0

    best = max(compared, key=validation)
    differences = [100 * value for value in _by_seed(compared[best], main)]
    group, other = compared[best][0]
    settings = f", mean over {len(compared[best])} settings" if len(compared[best]) > 1 else ""
    half = interval_95(differences)
    middle = fmean(differences)
    where = (
        f"95 % interval {middle - half:+.1f} to {middle + half:+.1f} over {len(differences)} seeds"
        if half is not None and math.isfinite(half)
        else "one seed, so without an interval"
        if len(differences) == 1
        else f"the same for all {len(differences)} seeds"
    )
    names, score = [best, _of_keys(other, reference, looks)], _named(group, looks, main)
    chosen = f"; of the {len(compared)} beside {names[1]} the best by validation" if len(compared) > 1 else ""
    if main.scope(group) != main.scope(other):
        models = [MODELS[main.scope(side)].removeprefix("of ") for side in (group, other)]
        names = [f"{name} ({model})" for name, model in zip(names, models)]
        score = looks.names.figure(main.figure(group), short=True).replace(" (%)", "")
    who = " over ".join(names)
    return Headline(f"{middle:+.1f} points", f"{who}, {score}{settings}; {where}{chosen}")


def _by_seed(pairs: Sequence[tuple[Group, Group]], main: MainScore) -> list[float]:
    """Returns differences by seed, means over the pairs that have the seed."""
    by_seed: dict[object, list[float]] = {}
    for group, other in pairs:
        for seeds, value in paired_differences(group, other, main.figure(group), main.figure(other)).items():
            by_seed.setdefault(seeds, []).append(value)
    return [fmean(values) for values in by_seed.values()]


def _of_settings(groups: Sequence[Group], settings: Sequence[str], looks: Looks, main: MainScore) -> Headline:
    """Shows the score in the first and the last setting."""
    order = list(groups)
    if len(settings) == 1 and all(_is_number(group.columns.get(settings[0], "")) for group in groups):
        order.sort(key=lambda group: float(group.columns[settings[0]]))
    first, last = order[0], order[-1]
    scores = [(group, spread) for group in (first, last) if (spread := main.spread(group))]
    number = " → ".join(f"{100 * spread.middle:.1f}" for _, spread in scores) + " %"
    between = " and ".join(looks.label(group) for group, _ in scores)
    return Headline(number, f"{_named(last, looks, main)}, at {between}")


def _of_choice(groups: Sequence[Group], looks: Looks, main: MainScore) -> Headline:
    """Shows the score of the combination that validation chooses."""
    best = main.best(groups)
    several = f" (mean ± standard deviation of {best.finished} runs)" if best.finished > 1 else ""
    chosen = f", of {len(groups)} combinations the one with the best validation: {looks.label(best)}"
    return Headline(_score(best, main), f"{_named(best, looks, main)}{several}{chosen}")


def _of_keys(group: Group, keys: Mapping[str, str], looks: Looks) -> str:
    """Returns the values of a group by which it is compared: those of the sections of some keys."""
    sections = {key.partition(".")[0] for key in keys}
    return looks.label(group, [key for key in looks.keys if key.partition(".")[0] in sections])


def _named(group: Group, looks: Looks, main: MainScore) -> str:
    return looks.names.figure(main.figure(group)).replace(" (%)", "")


def _score(group: Group, main: MainScore) -> str:
    spread = main.spread(group)
    assert spread is not None
    sampled = SAMPLED if any(is_of_sample(main.figure(group), row.figures) for row in group.rows) else ""
    deviation = "" if spread.low is None else f" ± {100 * spread.low:.1f}"
    return f"{100 * spread.middle:.1f}{deviation} %{sampled}"


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
