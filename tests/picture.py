"""Pictures of pages in the documentation, taken from the code as it is.

As a hook of mkdocs it runs Shoal while the site is built, and puts pictures of its pages into the gallery; that of
the front page is taken anew where Cora's files are in `$SHOAL_DATA`. `python tests/picture.py` writes that of the
README.
"""

import base64
import io
import logging
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from PIL import Image
from support.browser import BROWSER, browser

ROOT = Path(__file__).resolve().parent.parent
FRONT = "figures/page-of-a-sweep.png"
CORA = Path(os.environ.get("SHOAL_DATA", "/")) / "planetoid" / "Cora"
# A window of so many pixels; so many colours are kept.
WIDTH, HEIGHT, COLOURS = 1100, 740, 256
log = logging.getLogger("mkdocs.hooks.picture")


@dataclass(frozen=True)
class Picture:
    """A part of a page that commands write.

    Attributes:
        name: Of its file.
        title: What it shows.
        commands: Commands of `shoal`; a word with a star or question marks is the folder that it matches.
        page: The page that they leave, a pattern.
        heading: The picture begins with the heading that has this text; empty: with the page.
        of_cora: Whether it needs Cora's files.
    """

    name: str
    title: str
    commands: tuple[str, ...]
    page: str
    heading: str = ""
    of_cora: bool = False


# The sweep of the README, or where Cora is missing one that needs no files.
OF_CORA = "sweep cora engine.backend=local rounds=30 algorithm=local,fedavg,fedgta partition.clients=5 seeds=3 --report"
OF_DIGITS = "sweep quickstart rounds=5 engine.backend=local algorithm=local,fedavg,fedgta seeds=2 --report"
SWEEP = (OF_CORA if CORA.exists() else OF_DIGITS, "clock runs/sweeps/*")
RUN = (
    "run quickstart rounds=6 engine.backend=local algorithm=fedavg",
    "influence runs/quickstart-????????",
    "report runs/quickstart-????????",
)
SCALE = ("scale quickstart rounds=3 engine.backend=local --clients 5,10,20",)
SEARCH = (
    "sweep quickstart rounds=4 engine.backend=local algorithm=fedavg seeds=1 --search optuna"
    " --space train.lr=0.005:0.2:log --space train.dropout=0:0.7 --trials 6 --choose-seeds 1 --report",
)
PAPER = ("reproduce fedgta table3 --smallest --only Cora,GCN,FedAvg,FedGTA engine.backend=local",)
OF_RUN, OF_SWEEP = "runs/*/report/index.html", "runs/sweeps/*/report/index.html"
GALLERY = (
    Picture("sweep", "A sweep", SWEEP, OF_SWEEP),
    Picture("run", "A run", RUN, OF_RUN),
    Picture("influence", "The influence of each client on a run", RUN, OF_RUN, "Influence of clients"),
    Picture("clock", "Simulated time", SWEEP, "runs/sweeps/*/clock/index.html"),
    Picture("search", "A search", SEARCH, OF_SWEEP),
    Picture("scale", "A scaling study", SCALE, OF_SWEEP),
    Picture(
        "reproduce", "A paper's table, in three rounds of one seed", PAPER, "runs/papers/*/index.html", of_cora=True
    ),
)


def take(pictures: Sequence[Picture], folder: Path) -> dict[str, Path]:
    """Runs the commands of pictures, each list of them in a folder of its own, two at a time; gives files by name."""
    several = {picture.commands: folder / picture.name for picture in pictures}
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(perform, several.items()))
    taken = {}
    with TemporaryDirectory(ignore_cleanup_errors=True) as profile, browser(Path(profile)) as window:
        window.ask("Emulation.setScrollbarsHidden", hidden=True)
        for picture in pictures:
            (page,) = several[picture.commands].glob(picture.page)
            taken[picture.name] = folder / f"{picture.name}.png"
            photograph(window, page, picture.heading, taken[picture.name])
    return taken


def perform(work: tuple[tuple[str, ...], Path]) -> None:
    """Runs commands in a new folder, with Cora's files in its data where there are some."""
    commands, folder = work
    (folder / "data" / "planetoid").mkdir(parents=True)
    if CORA.exists():
        (folder / "data" / "planetoid" / "Cora").symlink_to(CORA.resolve())
    for command in commands:
        words: list[str] = []
        for word in shlex.split(command):
            words += (
                sorted(str(path.relative_to(folder)) for path in folder.glob(word)) if set("*?") & set(word) else [word]
            )
        ended = subprocess.run(
            [sys.executable, "-m", "shoal", *words],
            cwd=folder,
            env={**os.environ, "SHOAL_DATA": str(folder / "data")},
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, f"shoal {command}: {ended.stderr[-2000:]}"


def photograph(window: Any, page: Path, heading: str, picture: Path) -> None:
    """Writes what a window shows of a page, from a heading on, whose part is unfolded."""
    window.open(page.resolve(), WIDTH)
    top, end = window.value(
        f"""(() => {{
          const heading = [...document.querySelectorAll("h2")].find(one => one.textContent.includes({heading!r}))
          const part = {heading!r} && heading.parentElement.querySelector("details")
          if (part) part.open = true
          const top = {heading!r} ? heading.getBoundingClientRect().top + scrollY - 20 : 0
          return [top, document.documentElement.scrollHeight]
        }})()"""
    )
    shown = {"x": 0, "y": top, "width": WIDTH, "height": min(HEIGHT, end - top), "scale": 1}
    taken = window.ask("Page.captureScreenshot", clip=shown, captureBeyondViewport=True)["data"]
    image = Image.open(io.BytesIO(base64.b64decode(taken)))
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(picture, optimize=True)


@cache
def of_the_site() -> tuple[TemporaryDirectory[str], dict[str, Path]]:
    """The pictures of the site, in a folder that lives as long as this process: `mkdocs serve` builds often."""
    folder = TemporaryDirectory()
    if BROWSER is None:
        log.info("no Chromium on this machine: the gallery has no pictures")
        return folder, {}
    pictures = [one for one in GALLERY if CORA.exists() or not one.of_cora]
    if not CORA.exists():
        log.info(f"{CORA} is missing: the pictures of Cora are not taken anew")
    return folder, take(pictures, Path(folder.name))


def on_files(files: Any, config: Any) -> Any:
    """Adds the pictures to the files of the site."""
    from mkdocs.structure.files import File

    places = {f"figures/gallery/{name}.png": path for name, path in of_the_site()[1].items()}
    if places and CORA.exists():
        places[FRONT] = of_the_site()[1]["sweep"]
        files.remove(files.get_file_from_path(FRONT))
    for place, path in places.items():
        files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Puts the pictures and their commands into the gallery."""
    if page.file.src_uri != "gallery.md":
        return markdown
    taken = of_the_site()[1]
    missing = "Cora's files" if taken else "a browser, Chromium"
    for one in GALLERY:
        commands = "\n".join(f"shoal {command}" for command in one.commands)
        shown = f"![{one.title}](figures/gallery/{one.name}.png)"
        below = shown if one.name in taken else f"Not drawn: the machine that built this site lacks {missing}."
        markdown += f"\n## {one.title}\n\n```bash\n{commands}\n```\n\n{below}\n"
    return markdown


def main() -> None:
    """Writes the picture of the README."""
    assert CORA.exists(), f"{CORA} is missing: set SHOAL_DATA to a folder of published files"
    with TemporaryDirectory() as folder:
        (path,) = take([Picture("sweep", "", SWEEP[:1], OF_SWEEP)], Path(folder)).values()
        (ROOT / "docs" / FRONT).write_bytes(path.read_bytes())


if __name__ == "__main__":
    main()
