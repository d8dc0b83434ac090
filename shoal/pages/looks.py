"""The looks of combinations in figures: a colour is a method on the whole page, dashes and panels are other keys."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from shoal.study.groups import Group, list_varied
from shoal.study.plain_names import METHOD, MODEL, PlainNames, with_value

# A reader cannot tell more lines of one axes apart, nor more dashes.
MOST_LINES, MOST_DASHES, MOST_PANELS = 8, 4, 12
# Values of these keys need no name of the key beside them.
BY_THEMSELVES = (*METHOD, *MODEL, "data.dataset", "partition.method")
T = TypeVar("T")


@dataclass(frozen=True)
class Look(Generic[T]):
    """A line, point or bar of a figure, and what it shows; colour and dash are numbers, from 0."""

    label: str
    colour: int
    dash: int
    shown: T


Panels = dict[str, list[Look[T]]]


def in_panels(shown: Sequence[tuple[str, T]]) -> Panels[T]:
    """Gives every entry with a name another colour, and arranges them in panels."""
    looks = [Look(name, number, 0, value) for number, (name, value) in enumerate(shown)]
    return _split({"": looks})


def _split(panels: Panels[T]) -> Panels[T]:
    """Splits panels with more than `MOST_LINES` lines, and keeps the first `MOST_PANELS`."""
    panels_split: Panels[T] = {}
    for title, lines in panels.items():
        for start in range(0, len(lines), MOST_LINES):
            name = f"{title} {start // MOST_LINES + 1}".strip() if len(lines) > MOST_LINES else title
            panels_split[name] = lines[start : start + MOST_LINES]
    return dict(list(panels_split.items())[:MOST_PANELS])


class Looks:
    """Looks of the combinations of a page."""

    def __init__(self, groups: Sequence[Group], names: PlainNames, alone: str) -> None:
        """Chooses the keys that vary; `alone` is the name of a combination that has no others beside it."""
        self.groups, self.names, self.alone = groups, names, alone
        self.keys = list_varied(groups)

    def main(self, without: str = "") -> str:
        """Returns the key that colours stand for: the method if it varies, else the model, else another one."""
        keys = [key for key in self.keys if key != without]
        return next((key for key in (*METHOD, *MODEL) if key in keys), keys[0] if keys else "")

    def label(self, group: Group, keys: Sequence[str] | None = None) -> str:
        """Returns some values of a group, by default all that vary, in a line."""
        shown = self.keys if keys is None else keys
        return self.label_of({key: group.columns[key] for key in shown if key in group.columns})

    def label_of(self, values: Mapping[str, str]) -> str:
        """Returns keys with their values in a line."""
        named = {key: self.names.value(key, value) for key, value in values.items()}
        pairs = (v if key in BY_THEMSELVES else with_value(self.names.key(key), v) for key, v in named.items())
        return ", ".join(pairs)

    def name(self, group: Group) -> str:
        """Returns the label of a group, or its name where it is alone."""
        return self.label(group) or self.alone

    def number(self, key: str, group: Group) -> int:
        """Returns the place of a group's value among those of a key."""
        values = list(dict.fromkeys(other.columns.get(key) for other in self.groups))
        return values.index(group.columns.get(key))

    def each(self, shown: Sequence[tuple[Group, T]]) -> list[Look[T]]:
        """Makes the looks of groups, each with all of its values as its label."""
        main = self.main()
        return [Look(self.label(group), self.number(main, group) if main else 0, 0, value) for group, value in shown]

    def panels(self, shown: Sequence[tuple[Group, T]], without: str = "") -> Panels[T]:
        """Arranges what groups show in panels, with at most so many lines and dashes in each, and so many panels.

        `without` is a key that an axis shows; groups that differ in it alone are one line, whose entry comes once.
        """
        main = self.main(without)
        others = [key for key in self.keys if key not in (main, without)]
        panel_keys: list[str] = []
        while others and self._is_crowded(shown, others, panel_keys):
            largest = max(others, key=lambda key: len({group.columns.get(key) for group, _ in shown}))
            others.remove(largest)
            panel_keys.append(largest)
        rests = list(dict.fromkeys(self.label(group, others) for group, _ in shown))
        by_title: Panels[T] = {}
        without_any = f"without {', '.join(map(self.names.key, panel_keys))}" if panel_keys else ""
        for group, value in shown:
            lines = by_title.setdefault(self.label(group, panel_keys) or without_any, [])
            label = ", ".join(filter(None, (self.label(group, [main]), self.label(group, others))))
            colour = self.number(main, group) if main else 0
            lines.append(Look(label, colour, rests.index(self.label(group, others)), value))
        return _split(by_title)

    def _is_crowded(self, shown: Sequence[tuple[Group, T]], others: Sequence[str], panel_keys: Sequence[str]) -> bool:
        """Returns whether a panel has too many lines or dashes."""
        dashes: dict[str, list[str]] = {}
        for group, _ in shown:
            dashes.setdefault(self.label(group, panel_keys), []).append(self.label(group, others))
        return any(len(labels) > MOST_LINES or len(set(labels)) > MOST_DASHES for labels in dashes.values())
