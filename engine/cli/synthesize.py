"""Synthetic twins in the files of their originals, with how far the writing is."""

from pathlib import Path

from shoal.engine.screen.progress import watch
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.synthetic.ogb_layout import write_ogb_layout
from shoal.storage.datasets.synthetic.twin import ORIGINALS, Twin
from shoal.storage.errors import ShoalError
from shoal.storage.progress import watched_by


def synthesize(options: DataSource, root: Path, compress: bool) -> Path:
    """Writes the twin that options name in OGB's raw layout, and gives its folder.

    Args:
        options: Dataset, scale, homophily, signal and seed.
        root: Data root; gets the folder of the original.
        compress: Deflate .npz files.

    Raises:
        ShoalError: There is no such twin, an option is out of range, `root` has the original, or the disk is too small.
    """
    name = options.dataset.lower()
    if name not in ORIGINALS:
        raise ShoalError(f"{options.dataset}: there is no such twin; known are {', '.join(ORIGINALS)}")
    with watched_by(watch):
        return write_ogb_layout(root.expanduser().resolve(), Twin.of(name, options), compress)
