"""Folders that commands and callbacks write beside the records of a run or a sweep, with the names of their files.

What writes into one asks here for its place, so that a link in a folder from somebody else leads it nowhere.
"""

from pathlib import Path

from shoal.storage.files.names import place_in, require_name

EXPORT, REPORT, CLOCK, PROCESSES = "export", "report", "clock", "said"
MODELS, BESIDE = "models.safetensors", "beside.safetensors"
PREDICTIONS, OF_DOMAINS = "predictions.arrow", "predictions-domains.arrow"
BEST = r"best-\w+"
# Of a page, in its folder.
PAGE, FIGURES, KINDS = "index.html", "figures", ("svg", "png", "pdf")
# Of callbacks.
CSV, TENSORBOARD, WANDB = "metrics.csv", "tensorboard", "wandb"
OF_CALLBACKS = (CSV, TENSORBOARD, WANDB)

OF_A_PAGE = rf"index\.html|{FIGURES}/[^/]+\.({'|'.join(KINDS)})"
# Paths below a run, or a sweep, of pages; below a run, of what else is written; below a sweep, of what its processes
# print.
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


def page_folder(path: Path, kind: str = REPORT) -> Path:
    """Returns the folder of the page of a run or a sweep; `kind` is that of its results or of its clock.

    Raises ShoalError: a link leads out of the folder of the run or the sweep.
    """
    return place_in(path, kind)


def printed_file(sweep: Path, run: str) -> Path:
    """Returns the file of what the process of a run of a sweep prints; raises as `page_folder`."""
    return place_in(sweep, PROCESSES, f"{run}.txt")
