"""A page of HTML that needs nothing else: a head, figures, tables, plain texts; light and dark, on phones, printed."""

import html
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from shoal.engine.records.outputs import FIGURES, PAGE, USUAL_KINDS
from shoal.engine.screen.progress import progress
from shoal.pages.figures import COLOURS, Drawing
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import output, replacing
from shoal.storage.files.names import place_in
from shoal.storage.plain_text import plain_text
from shoal.tables.text_table import TextTable

# Fewer files of figures take no time that one would wonder about.
FEW_FILES = 24
# Colours of figures on the dark background, in the order of the light ones; each has a contrast of at least 7 to 1.
DARK = ("#56b4e9", "#ff8c42", "#2dc79c", "#e38ac8", "#e5c04a", "#c4c4c4", "#ff7a8c", "#9bd3f0")


def _variables(colours: Sequence[str], paper: str, ink: str, faint: str, line: str, box: str, link: str) -> str:
    names = [f"--c{number}: {colour};" for number, colour in enumerate(colours)]
    return " ".join(names) + (
        f" --paper: {paper}; --ink: {ink}; --faint: {faint}; --line: {line}; --box: {box}; --link: {link};"
    )


LIGHT_VARIABLES = _variables(COLOURS, "#ffffff", "#14171a", "#545b63", "#c9ced4", "#f3f5f7", "#0058a3")
DARK_VARIABLES = _variables(DARK, "#14171a", "#e8eaed", "#a9b1ba", "#3d444c", "#1f2429", "#7cc0ff")


def in_html(text: str) -> str:
    """Returns a text as HTML has it, plain: names in it come from data and configs."""
    return html.escape(plain_text(text))


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: Its heading; none for the figures below the head.
        texts: Plain texts by what they are, folded.
        note: A line below the heading; `alarm` one that must not be missed.
        folded: Show only the heading until it is pressed.
        leads: Stand before all others but an alarm.
        links: Addresses, relative to the page, of cells of the tables, by the text of these.
    """

    title: str
    drawings: Sequence[Drawing] = ()
    tables: Sequence[TextTable] = ()
    texts: Sequence[tuple[str, str]] = ()
    note: str = ""
    alarm: str = ""
    folded: bool = False
    leads: bool = False
    links: Mapping[str, str] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Returns whether there is nothing in it."""
        return not (self.drawings or self.tables or self.texts or self.alarm)


@dataclass(frozen=True)
class Head:
    """The head of a page: what was run, one number that stands for it with its name, and the command that ran it.

    `badge` is a word that must be seen, such as `synthetic data`.
    """

    title: str
    number: str = ""
    number_is: str = ""
    facts: Sequence[tuple[str, str]] = ()
    command: str = ""
    texts: Sequence[tuple[str, str]] = ()
    badge: str = ""


def is_alone(place: Path) -> bool:
    """Returns whether a place is that of a page alone, an `.html` file, and not a folder for it and its files."""
    return place.suffix.lower() == ".html"


def require_place(place: Path | None) -> None:
    """Raises ShoalError: at the place of a page lies a file where a folder is needed, or a folder instead of a file."""
    if place is not None and not is_alone(place) and place.is_file():
        raise ShoalError(place, "is a file; a page goes into a folder, or alone into a file that ends in .html")
    if place is not None and is_alone(place):
        output(place)


def write_page(place: Path, head: Head, sections: Sequence[Section], kinds: Sequence[str] = USUAL_KINDS) -> Path:
    """Writes a page of sections that are not empty; returns its path.

    The place is a folder, which also gets the figures in files of some kinds, or the `.html` file of a page alone.
    """
    if is_alone(place):
        page, kinds = output(place), ()
    else:
        page = place / PAGE
    shown = [section for section in sections if section.note or not section.empty]
    # A warning comes before everything, and stays there if another section leads.
    shown.sort(key=lambda section: 0 if section.alarm else 1 if section.leads else 2)
    files = [(drawing, kind) for section in shown for drawing in section.drawings for kind in kinds]
    with nullcontext() if len(files) < FEW_FILES else progress("writing the page", len(files), "files") as step:
        for drawing, kind in files:
            with replacing(place_in(place, FIGURES, f"{drawing.name}.{kind}")) as unfinished:
                unfinished.write_bytes(drawing.file(kind))
            if step is not None:
                step.advance()
    with replacing(page) as unfinished:
        unfinished.write_text(_page(head, shown, kinds))
    return page


def _page(head: Head, sections: Sequence[Section], kinds: Sequence[str]) -> str:
    """Writes the page as text."""
    template = _templates().get_template("page.html.jinja")
    colours = {"light": LIGHT_VARIABLES, "dark": DARK_VARIABLES}
    return template.render(head=head, sections=sections, kinds=kinds, folder=FIGURES, **colours)


@lru_cache(maxsize=1)
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True,
        undefined=StrictUndefined, keep_trailing_newline=True,
    )  # fmt: skip
    environment.filters["plain"] = plain_text
    environment.globals |= {"linked": _linked, "in_colours": _in_colours}
    return environment


def _linked(table: str, links: Mapping[str, str]) -> Markup:
    """Turns the cells of a table that have the texts of links into links."""

    def link(cell: re.Match[str]) -> str:
        address = links.get(html.unescape(cell[2].strip()))
        return cell[0] if address is None else f'{cell[1]}<a href="{in_html(address)}">{cell[2].strip()}</a></td>'

    return Markup(re.sub(r"(<td[^>]*>)([^<]*)</td>", link, table))


def _in_colours(drawing: Drawing) -> Markup:
    """Returns the SVG of a figure in the colours of the page, light and dark."""
    # Names inside of a figure are the page's: those of two figures must differ.
    svg = drawing.svg
    for mark in ('id="', "url(#", 'href="#'):
        svg = svg.replace(mark, f"{mark}{drawing.name}-")
    for number, colour in enumerate(COLOURS):
        svg = svg.replace(colour, f"var(--c{number})")
    svg = svg.replace("#000000", "currentColor").replace("#ffffff", "var(--paper)")
    return Markup(plain_text(svg).replace("<svg ", f'<svg role="img" aria-label="{in_html(drawing.text)}" ', 1))
