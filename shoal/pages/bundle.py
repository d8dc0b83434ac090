"""One file with all that others need of a finished run: its config, models, predictions, scores, page and versions."""

import importlib.metadata
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile

from shoal.engine.records.metrics import METRICS
from shoal.engine.records.outputs import PAGE
from shoal.engine.records.run_folder import CONFIG, SUMMARY, read_summary
from shoal.pages.report import report
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import output, replacing

VERSIONS, ENDING = "versions.json", ".zip"


def require_zip(out: Path) -> None:
    """Raises a ShoalError for a file that does not end in `.zip`."""
    if out.suffix.lower() != ENDING:
        raise ShoalError(out, f"expected a file that ends in {ENDING}")


def write_bundle(run: Path, exported: Path, out: Path) -> None:
    """Writes a .zip file: the files of `exported`, config, scores and page of the run, and `versions.json`.

    The last has the version of Shoal, and what the run itself noted of its environment. Raises ShoalError: the run is
    not finished, or the file cannot be written.
    """
    versions = {"shoal": importlib.metadata.version("shoal"), "environment": read_summary(run)["environment"]}
    with TemporaryDirectory() as folder, replacing(output(out)) as unfinished:
        page = report([run], Path(folder) / PAGE)
        files = [page, *(run / name for name in (CONFIG, SUMMARY, METRICS))]
        files += sorted(file for file in exported.iterdir() if file.is_file())
        with ZipFile(unfinished, "w", ZIP_DEFLATED) as archive:
            for file in files:
                archive.write(file, file.name)
            archive.writestr(VERSIONS, json.dumps(versions, indent=1) + "\n")
