"""The page as a browser shows it: nothing cut off or asked for, legible in light and dark, on phones, in print."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.browser import BROWSER, FAULTS, Page, browser

from shoal.pages import figures
from shoal.pages.figures import COLOURS, Drawing
from shoal.pages.looks import MOST_DASHES, MOST_LINES, Looks, in_panels
from shoal.pages.page import DARK, Head, Section, write_page
from shoal.pages.scaling_figures import against_fewest
from shoal.scaling.scaling import HOSTS, ROUND
from shoal.study.figure_data import Curve
from shoal.study.groups import Group, Row
from shoal.study.plain_names import PlainNames
from shoal.sweeps.sweep_view import SweepView
from shoal.tables.text_table import TextTable

LONG = [f"a_method_of_my_own_with_a_long_name_{n}.py:MyMethod, mu 0.0{n}" for n in range(6)]
ONE = np.ones(2)
CURVE = Curve({"round": np.array([1.0, 2.0]), "bytes": 2.0**20 * np.array([1.0, 16.0])}, ONE, 0.1 * ONE, 3)


def drawn(names: Sequence[str] = LONG) -> list[Drawing]:
    """A figure of every kind that has names in it."""
    found: list[Drawing] = []
    figures.curves(found, "curves", "By round", in_panels([(n, CURVE) for n in names]), "round", "test accuracy (%)")
    lines = in_panels([(name, [(0.02, 0.5, 0.1), (1.0, 0.7, 0.0)]) for name in names])
    figures.over_key(found, "rate", "By rate", lines, "participation rate", "test accuracy (%)")
    points: Any = in_panels([(name, (0.5, 0.1)) for name in names])[""]
    figures.points(found, "comparison", "Comparison", points, "test accuracy (%)")
    figures.sorted_clients(found, "clients", in_panels([(name, ONE) for name in names]), "test accuracy")
    figures.bars(found, "memory", "Memory", "MiB", {name: {"train": 1.0, "evaluate": 0.5} for name in names})
    return found


@pytest.mark.parametrize("name", ["file a$b$.npy", r"file \frac{$x_{$", LONG[0]])
def test_names_are_drawn_as_they_are(name: str) -> None:
    """Between two dollars matplotlib reads a formula, and a name of a file ends somewhere."""
    for drawing in drawn([name, "b"]):
        # In several lines where it is long.
        text = "".join("".join(ET.fromstring(drawing.svg).itertext()).split())
        assert "".join(name.split()) in text, drawing.name
    found: list[Drawing] = []
    figures.matrix(found, name + 300 * "x", "Weights", {"": np.ones((2, 2))}, ("a", "b"), "")
    assert len(f"{found[0].name}.svg.unfinished") <= 255


def test_files_of_a_figure_are_for_papers() -> None:
    (found, *_) = drawn(["a", "b"])
    assert found.file("png").startswith(b"\x89PNG\r\n\x1a\n")
    pdf = found.file("pdf")
    # A column is 3.3 in of 72 points, and letters are TrueType.
    assert re.search(rb"/MediaBox \[ 0 0 237\.6 ", pdf)
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf


@pytest.mark.parametrize(("most", "unit"), [(16, ""), (1 << 14, " [KMG]iB")])
def test_bytes_have_binary_ticks(most: int, unit: str) -> None:
    """Round numbers of MiB on a linear axis, powers of two with their units on one of powers."""
    found: list[Drawing] = []
    sent = [Curve({"bytes": 2.0**20 * np.array([1.0, end])}, ONE, ONE, 1) for end in (16, most)]
    figures.curves(found, "c", "t", in_panels([("a", sent[0]), ("b", sent[1])]), "bytes", "loss")
    texts = [text.strip() for text in ET.fromstring(found[0].svg).itertext()]
    ticks = [int(text.split()[0]) for text in texts if re.fullmatch(rf"\d+{unit}", text)]
    if unit:
        assert len(ticks) >= 3
        assert all(tick & (tick - 1) == 0 for tick in ticks)
    else:
        assert {4, 8, 12, 16} <= set(ticks)
        assert "total traffic, both ways (MiB)" in texts


def test_a_colour_is_a_method_in_every_figure() -> None:
    rates = [f"{n / 20:g}" for n in range(1, 11)]
    rows = [
        Row({"participation.ratio": rate, "algorithm": method, "model": model}, {"x": 1.0})
        for rate in rates
        for method in ("fedavg", "fedgta")
        for model in ("sgc", "gcn")
    ]
    groups = [Group(row.columns, (row,)) for row in rows]
    looks = Looks(groups, PlainNames(groups, (), ()), "")
    for without in ("", "participation.ratio"):
        panels = looks.panels([(group, group) for group in groups if group.columns["model"] == "gcn" or not without])
        every = [look for of in panels.values() for look in of]
        assert len(every) == (20 if without else 40)
        assert all(len(of) <= MOST_LINES and len({look.dash for look in of}) <= MOST_DASHES for of in panels.values())
        for look in every:
            assert look.colour == ("fedavg", "fedgta").index(look.shown.columns["algorithm"])
            assert look.label.startswith(("FedAvg", "FedGTA"))
    assert list(looks.panels([(group, group) for group in groups]))[:2] == [
        "participation rate 0.05", "participation rate 0.1",
    ]  # fmt: skip


def test_a_label_counts_things() -> None:
    rows = [Row({HOSTS: hosts, "train.lr": rate}) for hosts, rate in (("1", "0.1"), ("2", "1"))]
    groups = [Group(row.columns, (row,)) for row in rows]
    looks = Looks(groups, PlainNames(groups, (), ()), "")
    assert list(map(looks.label, groups)) == ["1 host, learning rate 0.1", "2 hosts, learning rate 1"]
    view = SweepView(rows, 2)
    assert list(map(view.label, range(2))) == ["1 host, learning rate 0.1", "2 hosts, learning rate 1"]


def test_speed_up_and_efficiency_are_against_the_fewest_hosts() -> None:
    """Of 4 and 2 s with one host, 1 and 1.5 s with four: the ratio of the means, as the table has it."""
    seconds = {"1": (4.0, 2.0), "4": (1.0, 1.5)}
    rows = {hosts: [Row({HOSTS: hosts}, {ROUND: s}) for s in of_hosts] for hosts, of_hosts in seconds.items()}
    groups = [Group({HOSTS: hosts}, tuple(of_hosts)) for hosts, of_hosts in rows.items()]
    found: list[Drawing] = []
    against_fewest(found, Looks(groups, PlainNames(groups, (), ()), ""))
    assert [drawing.text.partition("): ")[2] for drawing in found] == [
        "measured: 1 gives 1, 4 gives 2.4; ideal: 1 gives 1, 4 gives 4",
        "measured: 1 gives 100, 4 gives 60; ideal: 1 gives 100, 4 gives 100",
    ]


def test_a_warning_comes_first_and_then_what_leads(tmp_path: Path) -> None:
    sections = [
        Section("Results", note="r"),
        Section("Search", note="s", leads=True),
        Section("Runs", note="n"),
        Section("Warning", alarm="wrong"),
    ]
    text = write_page(tmp_path, Head("Order"), sections).read_text()
    assert re.findall(r"<h2>([^<]*)", text) == ["Warning", "Search", "Results", "Runs"]


def test_many_files_of_figures_are_told_as_they_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = drawn(["a"])[0]
    many = [replace(one, name=f"{one.name}-{n}") for n in range(24)]
    write_page(tmp_path, Head("Few"), [Section("", many[:8])], ("svg",))
    assert capsys.readouterr() == ("", "")
    write_page(tmp_path, Head("Many"), [Section("", many)], ("svg",))
    out, said = capsys.readouterr()
    assert out == ""
    assert said.splitlines()[-1].startswith("writing the page: 24/24 files, ")
    assert len(list((tmp_path / "figures").iterdir())) == 24


needs_a_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, Path]]:
    """A browser, and a page of long names with a wide table."""
    folder = tmp_path_factory.mktemp("page")
    rows = (("b", "10", "1.0 GiB"), ("a", "9", "512.0 MiB"), ("c", "-", "-"))
    tables = [TextTable(("name", "rounds", "traffic"), rows, 1), TextTable(tuple(LONG), (tuple(LONG),), 1)]
    head = Head("A title", "81.2 %", "a number", [("Method", LONG[0])], f"shoal sweep {LONG[0]}", [("y", "z")], "bad")
    signed: list[Drawing] = []
    points, scale = np.array([[-60.0, 12.0, np.nan]]), (-60, 60, " points")
    figures.matrix(signed, "signed", "Signed", {"": points}, ("class", "client"), "", ["a"], scale, ["0", "1", "2"])
    sections = [
        Section("", [*drawn(), *signed], alarm="wrong"),
        Section("Results", tables=tables, note="a note", links={"a": "../a"}),
        Section("More", texts=[("the config", "a: 1")], folded=True),
    ]
    written = write_page(folder / "made", head, sections, ("svg",))
    with browser(folder / "profile") as opened:
        yield opened, written


@needs_a_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_off_or_faint(page: tuple[Page, Path], width: int, scheme: str) -> None:
    opened, written = page
    opened.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    opened.open(written, width)
    assert opened.value(FAULTS) == []
    assert opened.value("getComputedStyle(document.body).backgroundColor") == (
        "rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 26)"
    )
    assert opened.said == []
    assert {url for url in opened.requests if not url.startswith("data:")} == {written.as_uri()}
    # All names, wrapped or not, are in every legend.
    texts = opened.value("[...document.querySelectorAll('figure svg')].map(s => s.textContent.replace(/\\s+/g, ''))")
    assert len(texts) == 6
    assert all(name.replace(" ", "") in text for name in LONG for text in texts[:5])
    assert all(number in texts[5] for number in ("-60", "+12", "–"))


@needs_a_browser
def test_tables_sort_and_print_shows_all(page: tuple[Page, Path]) -> None:
    opened, written = page
    opened.open(written, 1280)
    first = "[...document.querySelector('table').tBodies[0].rows].map(row => row.cells[0].textContent.trim()).join('')"
    button = "document.querySelectorAll('th button')[{}].click(), 1"
    assert opened.value(first) == "bac"
    # By text, by numbers, by bytes; what is no number is last.
    for column, order in ((0, "abc"), (1, "abc"), (1, "bac"), (2, "abc")):
        opened.value(button.format(column))
        assert opened.value(first) == order, column
    assert opened.value("document.querySelector('td a').getAttribute('href')") == "../a"
    assert opened.value("document.querySelectorAll('section > details:not([open])').length") == 1
    opened.ask("Page.printToPDF")
    assert opened.value("document.querySelectorAll('section > details:not([open])').length") == 0


@needs_a_browser
def test_a_table_has_its_head_on_every_printed_page(page: tuple[Page, Path]) -> None:
    """Chromium repeats no head with boxes of its own in it; nothing is wider than a page of A4 between its margins."""
    opened, written = page
    opened.ask("Emulation.setEmulatedMedia", media="print")
    opened.open(written, 718)
    shown = "[...document.querySelectorAll('th button')].map(one => getComputedStyle(one).display)"
    assert set(opened.value(shown)) == {"contents"}
    assert opened.value(FAULTS) == []
    opened.ask("Emulation.setEmulatedMedia", media="")


def test_dark_colours_are_as_many() -> None:
    assert len(DARK) == len(COLOURS) == len(set(DARK)) == len(set(COLOURS))
