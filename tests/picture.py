"""The picture of a page in the documentation: `python tests/picture.py SWEEP/report/index.html` takes it."""

import base64
import io
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from support.browser import browser

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "figures" / "page-of-a-sweep.png"
# A window of so many pixels; so many colours are kept.
WIDTH, HEIGHT, COLOURS = 1100, 740, 256


def main(page: Path) -> None:
    """Writes what a window shows of a page."""
    with TemporaryDirectory() as profile, browser(Path(profile)) as window:
        window.ask("Emulation.setScrollbarsHidden", hidden=True)
        window.open(page.resolve(), WIDTH)
        shown = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
        taken = window.ask("Page.captureScreenshot", clip=shown)["data"]
    image = Image.open(io.BytesIO(base64.b64decode(taken)))
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
