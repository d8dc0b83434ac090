"""A page of HTML that needs nothing else: a head, figures, tables, plain texts; light and dark, on phones, printed."""

import html
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from shoal.engine.records.outputs import FIGURES, KINDS, PAGE
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
STYLE = (
    f":root {{ color-scheme: light dark; {LIGHT_VARIABLES} }}\n"
    f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {DARK_VARIABLES} }} }}\n"
    """
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
body { margin: 0 auto; padding: 1rem; max-width: 72rem; }
a { color: var(--link); }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
h3 { font-size: .95rem; margin: 1.25rem 0 .35rem; }
h2, h3, summary { break-after: avoid; }
section > details > summary { font-size: 1.1rem; font-weight: 600; }
section { border-top: 1px solid var(--line); margin-top: 1.25rem; padding-top: .75rem; }
section > h2 { margin-top: 0; }
summary { cursor: pointer; padding: .15rem 0; }
.badge, .alarm { border: 2px solid var(--c6); border-radius: .3rem; padding: .1rem .5rem; font-weight: 600; }
.badge { font-size: .8rem; white-space: nowrap; }
.alarm { display: block; padding: .5rem .75rem; margin: .75rem 0; }
.headline { margin: .5rem 0 1rem; }
.headline strong { font-size: 2rem; line-height: 1.2; margin-right: .5rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); gap: .35rem 1.5rem; }
.facts { margin: .5rem 0; font-size: .9rem; }
.facts div { display: flex; gap: .5rem; }
dt { color: var(--faint); flex: none; min-width: 5.5rem; }
dd { margin: 0; overflow-wrap: anywhere; min-width: 0; }
.command { user-select: all; white-space: pre-wrap; overflow-wrap: anywhere; }
pre { background: var(--box); padding: .6rem .75rem; overflow-x: auto; font-size: .8rem; margin: .5rem 0; }
.wide { overflow-x: auto; background: /* A shadow where more columns are. */
  linear-gradient(to right, var(--paper) 40%, transparent) left / 2.5rem 100% no-repeat local,
  linear-gradient(to left, var(--paper) 40%, transparent) right / 2.5rem 100% no-repeat local,
  linear-gradient(to right, var(--faint), transparent) left / .5rem 100% no-repeat scroll,
  linear-gradient(to left, var(--faint), transparent) right / .5rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: bottom; }
td { white-space: nowrap; }
th { overflow-wrap: break-word; }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; }
th button { cursor: pointer; text-align: inherit; }
th button::after { content: "\\a0\\2195"; color: var(--faint); }
th[aria-sort=ascending] button::after { content: "\\a0\\2191"; }
th[aria-sort=descending] button::after { content: "\\a0\\2193"; }
.figures { display: grid; gap: 1rem 1.5rem; align-items: start; }
.figures { grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); }
figure { margin: 0; }
figure svg { display: block; width: 100%; height: auto; }
figure svg text { fill: currentColor; }
figcaption { font-size: .85rem; color: var(--faint); }
figcaption a { margin-left: .4rem; }
.note { font-size: .85rem; color: var(--faint); margin: .35rem 0; }
/* The hues of a picture stay, and white becomes black. */
@media screen and (prefers-color-scheme: dark) { figure svg image { filter: invert(1) hue-rotate(180deg); } }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  .figures { grid-template-columns: repeat(2, 1fr); }
  figure, tr, thead { break-inside: avoid; }
  thead { display: table-header-group; }
  .wide { overflow: visible; background: none; }
  table { font-size: 8pt; }
  th, td { padding: .15rem .3rem; }
  td { white-space: normal; }
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  figcaption a, th button::after { display: none; }
  :is(header, section) > details::details-content { content-visibility: visible; display: block; }
}
"""
)
# The script sorts a table when the head of a column is pressed, sizes in bytes as numbers, and opens all parts in
# print.
SCRIPT = """
const units = {KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40}
const number = text => parseFloat(text.replaceAll(",", "")) * (units[(text.match(/[KMGT]iB/) || [""])[0]] || 1)
const order = (a, b, sign) => {
  const [x, y] = [number(a), number(b)]
  return isNaN(x) - isNaN(y) || sign * (isNaN(x) ? a.localeCompare(b) : x - y)
}
document.querySelectorAll("table").forEach(table => table.querySelectorAll("th").forEach((head, column) => {
  const button = document.createElement("button")
  button.append(...head.childNodes)
  head.append(button)
  button.onclick = () => {
    const sign = head.getAttribute("aria-sort") == "ascending" ? -1 : 1
    table.querySelectorAll("th").forEach(other => other.removeAttribute("aria-sort"))
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending")
    const text = row => row.cells[column].textContent.trim()
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort((a, b) => order(text(a), text(b), sign)))
  }
}))
onbeforeprint = () => {
  document.querySelectorAll(":is(header, section) > details").forEach(part => { part.open = true })
}
"""


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


def write_page(place: Path, head: Head, sections: Sequence[Section], kinds: Sequence[str] = KINDS) -> Path:
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
    body = "\n".join(_section(section, kinds) for section in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{in_html(head.title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{_head(head)}\n{body}\n</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def _head(head: Head) -> str:
    badge = f' <span class="badge">{in_html(head.badge)}</span>' if head.badge else ""
    parts = [f"<h1>{in_html(head.title)}{badge}</h1>"]
    if head.number:
        text = in_html(head.number_is)
        parts.append(f'<p class="headline"><strong>{in_html(head.number)}</strong> {text}</p>')
    if head.facts:
        facts = (f"<div><dt>{in_html(n)}</dt><dd>{in_html(t)}</dd></div>" for n, t in head.facts)
        parts.append(f'<dl class="facts">{"".join(facts)}</dl>')
    if head.command:
        parts.append(f'<pre class="command">{in_html(head.command)}</pre>')
    return "\n".join(["<header>", *parts, *map(_text, head.texts), "</header>"])


def _text(named: tuple[str, str]) -> str:
    name, text = map(in_html, named)
    return f"<details><summary>{name}</summary>\n<pre>{text}</pre>\n</details>"


def _section(section: Section, kinds: Sequence[str]) -> str:
    parts = []
    if section.alarm:
        parts.append(f'<p class="alarm" role="alert">{in_html(section.alarm)}</p>')
    if section.note:
        parts.append(f'<p class="note">{in_html(section.note)}</p>')
    for table in section.tables:
        heading = table.heading[:1].upper() + table.heading[1:]
        title = f"<h3>{in_html(heading)}</h3>\n" if heading else ""
        below = (*table.notes, *table.legend("bold", "underlined"))
        notes = "".join(f'<p class="note">{in_html(note)}</p>' for note in below)
        parts.append(f'{title}<div class="wide" tabindex="0">{_add_links(table.html(), section.links)}</div>\n{notes}')
    if section.drawings:
        parts += ['<div class="figures">', *(_figure(drawing, kinds) for drawing in section.drawings), "</div>"]
    parts += map(_text, section.texts)
    title, body = in_html(section.title), "\n".join(parts)
    if section.folded:
        body = f"<details><summary>{title}</summary>\n{body}\n</details>"
    elif title:
        body = f"<h2>{title}</h2>\n{body}"
    return f"<section>\n{body}\n</section>"


def _add_links(table: str, links: Mapping[str, str]) -> str:
    """Turns the cells of a table that have the texts of links into links."""

    def link(cell: re.Match[str]) -> str:
        address = links.get(html.unescape(cell[2].strip()))
        return cell[0] if address is None else f'{cell[1]}<a href="{in_html(address)}">{cell[2].strip()}</a></td>'

    return re.sub(r"(<td[^>]*>)([^<]*)</td>", link, table)


def _figure(drawing: Drawing, kinds: Sequence[str]) -> str:
    # Names inside of a figure are the page's: those of two figures must differ.
    svg = drawing.svg
    for mark in ('id="', "url(#", 'href="#'):
        svg = svg.replace(mark, f"{mark}{drawing.name}-")
    for number, colour in enumerate(COLOURS):
        svg = svg.replace(colour, f"var(--c{number})")
    svg = svg.replace("#000000", "currentColor").replace("#ffffff", "var(--paper)")
    svg = plain_text(svg).replace("<svg ", f'<svg role="img" aria-label="{in_html(drawing.text)}" ', 1)
    files = " ".join(f'<a href="{FIGURES}/{drawing.name}.{kind}">{kind.upper()}</a>' for kind in kinds)
    return f"<figure>\n{svg}\n<figcaption>{in_html(drawing.title)} {files}</figcaption>\n</figure>"
