"""A page of HTML that needs nothing else: headings, figures, tables, plain texts."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.engine.studies.figures import Drawing
from shoal.engine.studies.text_table import TextTable
from shoal.storage.files.atomic import replacing

PAGE, FIGURES = "index.html", "figures"
STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #111; background: #fff; }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-bottom: 1px solid #999; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #ccc; white-space: nowrap; text-align: left; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; }
figure { margin: 0; overflow-x: auto; }
figure svg { width: 100%; min-width: 33rem; height: auto; }
figcaption { font-size: .85rem; }
pre { background: #f4f4f4; padding: .75rem; overflow-x: auto; font-size: .8rem; }
.note { font-size: .85rem; color: #333; }
@media print { body { max-width: none; } figure { break-inside: avoid; } figure svg { min-width: 0; } }
"""


@dataclass(frozen=True)
class Section:
    """A part of a page: a heading, a line below it, figures, tables, and plain texts by what they are."""

    title: str
    drawings: Sequence[Drawing] = ()
    tables: Sequence[TextTable] = ()
    texts: Sequence[tuple[str, str]] = ()
    note: str = ""


def write_page(folder: Path, title: str, sections: Sequence[Section]) -> Path:
    """Writes a page of sections, and its figures beside it as SVG and PNG; gives the page."""
    for drawing in (drawing for section in sections for drawing in section.drawings):
        with replacing(folder / FIGURES / f"{drawing.name}.svg") as unfinished:
            unfinished.write_text(drawing.svg)
        with replacing(folder / FIGURES / f"{drawing.name}.png") as unfinished:
            unfinished.write_bytes(drawing.png)
    with replacing(folder / PAGE) as unfinished:
        unfinished.write_text(_page(title, sections))
    return folder / PAGE


def _page(title: str, sections: Sequence[Section]) -> str:
    """The page as text."""
    body = "\n".join(_section(section) for section in sections)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'
        f"<title>{html.escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{html.escape(title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _section(section: Section) -> str:
    parts = [f"<h2>{html.escape(section.title)}</h2>"]
    if section.note:
        parts.append(f'<p class="note">{html.escape(section.note)}</p>')
    for table in section.tables:
        below = (*table.notes, *table.legend("bold", "underlined"))
        notes = "".join(f'<p class="note">{html.escape(note)}</p>' for note in below)
        parts.append(f'<div class="wide" tabindex="0">{table.html()}</div>\n{notes}')
    if section.drawings:
        parts += ['<div class="figures">', *(_figure(drawing) for drawing in section.drawings), "</div>"]
    for name, text in section.texts:
        parts.append(f"<details><summary>{html.escape(name)}</summary>\n<pre>{html.escape(text)}</pre>\n</details>")
    return "<section>\n" + "\n".join(parts) + "\n</section>"


def _figure(drawing: Drawing) -> str:
    # Names inside of a figure are the page's: those of two figures must differ.
    svg = drawing.svg
    for mark in ('id="', "url(#", 'href="#'):
        svg = svg.replace(mark, f"{mark}{drawing.name}-")
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(drawing.text)}" ', 1)
    return f'<figure tabindex="0">\n{svg}\n<figcaption>{html.escape(drawing.title)}</figcaption>\n</figure>'
