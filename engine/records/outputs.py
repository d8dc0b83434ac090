"""Folders that commands and callbacks write beside the records of a run or a sweep, with the names of their files.

Modules that write into a folder ask here for its place, so that a link in another user's folder cannot lead them away.
"""

from pathlib import Path

from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import output
from shoal.storage.files.names import place_in, require_name

EXPORT, REPORT, CLOCK, PROCESSES = "export", "report", "clock", "said"
MODELS, BESIDE = "models.safetensors", "beside.safetensors"
PREDICTIONS, OF_DOMAINS = "predictions.arrow", "predictions-domains.arrow"
BEST = r"best-\w+"
# Predictions of another graph are written in a form by the ending of their file.
FORMS = (".csv", ".parquet", ".npz")
# A page has these names in its folder.
PAGE, FIGURES, KINDS = "index.html", "figures", ("svg", "png", "pdf")
# The last kind, with its fonts, takes most of a figure's time, and is written where it is asked for.
USUAL_KINDS = KINDS[:2]
# Callbacks have these names in the folder of a run.
CSV, TENSORBOARD, WANDB = "metrics.csv", "tensorboard", "wandb"
OF_CALLBACKS = (CSV, TENSORBOARD, WANDB)

OF_A_PAGE = rf"index\.html|{FIGURES}/[^/]+\.({'|'.join(KINDS)})"
# `PAGES` has the paths of pages below a run or a sweep, `OF_RUNS` those of other output below a run, and `OF_SWEEPS`
# those of the output of a sweep's processes.
PAGES = (rf"{REPORT}/({OF_A_PAGE})", rf"{CLOCK}/({OF_A_PAGE}|rounds\.csv|target\.csv)")
OF_RUNS = (
    rf"{EXPORT}/({BEST}/)?((models|beside)\.safetensors|predictions(-domains)?\.arrow)",
    rf"metrics\.csv|{TENSORBOARD}/events\.out\.tfevents\..+|{WANDB}/.+",
)
OF_SWEEPS = (rf"{PROCESSES}/[^/]+\.txt",)
# W&B makes links in its folder.
LINKS_OF_RUNS = (rf"{WANDB}/.+",)


def export_folder(run: Path, best: str | None) -> Path:
    """Returns the folder of the models and predictions of the last round, or of the best one of a scope.

    Raises ShoalError: a link leads out of the run, or no scope has such a name.
    """
    names = [] if best is None else [require_name("best", f"best-{best}", BEST)]
    return place_in(run, EXPORT, *names)


def require_form(out: Path) -> None:
    """Raises a ShoalError for a file whose ending is none of `FORMS`, or that cannot be one."""
    if out.suffix.lower() not in FORMS:
        raise ShoalError(out, f"expected a file that ends in {', '.join(FORMS)}")
    output(out)


def page_folder(path: Path, kind: str = REPORT) -> Path:
    """Returns the folder of the page of a run or a sweep; `kind` is that of its results or of its clock.

    Raises ShoalError: a link leads out of the folder of the run or the sweep.
    """
    return place_in(path, kind)


def printed_file(sweep: Path, run: str) -> Path:
    """Returns the file for the output of the process of a run of a sweep; raises as `page_folder`."""
    return place_in(sweep, PROCESSES, f"{run}.txt")
