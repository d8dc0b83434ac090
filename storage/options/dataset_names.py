"""Names of datasets: which there are, which are read into memory, and which have a synthetic twin."""

import re
from pathlib import Path

from shoal.storage.errors import ShoalError
from shoal.storage.options.types import is_own
from shoal.storage.suggestions import did_you_mean

# Read into memory as a whole; features of other datasets are drawn, or stay on disk.
IN_MEMORY = (
    *("digits", "cora", "citeseer", "pubmed", "computers", "photo", "cs", "physics", "flickr", "reddit", "files"),
    *("twitch-de", "twitch-en", "twitch-es", "twitch-fr", "twitch-pt", "twitch-ru", "twitch-tw", "acmv9", "dblpv7"),
    *("cornell", "texas", "wisconsin", "actor"),
    *("roman-empire", "amazon-ratings", "minesweeper", "tolokers", "questions"),
    *("penn94", "reed98", "amherst41", "cornell5", "johnshopkins55", "genius"),
    *("nci1", "proteins", "imdb-binary", "collab", "ogbg-molhiv", "ogbg-molbace", "ogbg-molbbbp"),
)
# The synthetic twin of a published graph that is too large to be at hand everywhere.
TWINS = {"ogbn-arxiv": "arxiv-like", "ogbn-products": "products-like", "ogbn-papers100m": "papers100m-like"}
DATASETS = (
    *IN_MEMORY,
    *("sbm", "sbm-graphs", "induced-node", "induced-edge", "induced-graph"),
    *TWINS,
    *TWINS.values(),
)
# A dataset class of torch_geometric, and the `name` that its constructor takes: `pyg:Planetoid/Cora`.
PYG = "pyg:"
PYG_NAME = re.compile(PYG + r"([A-Za-z]\w*)(?:/([\w.-]+))?")
# Molecules of OGB that cannot be read: labels of a graph, and those with numbers for labels.
MANY_TASKS = {
    "ogbg-molchembl": 1310,
    "ogbg-molclintox": 2,
    "ogbg-molmuv": 17,
    "ogbg-molpcba": 128,
    "ogbg-molsider": 27,
    "ogbg-moltox21": 12,
    "ogbg-moltoxcast": 617,
}
OF_NUMBERS = ("ogbg-molesol", "ogbg-molfreesolv", "ogbg-mollipo")


def has_user_options(name: str) -> bool:
    """Whether the options of a dataset are those of a class: of the user's own, or of PyG."""
    return name.startswith(PYG) or is_own(name)


def require_dataset(name: str) -> None:
    """Refuses a name of no dataset; files and classes are looked up when they are read.

    Raises:
        ShoalError: There is no such dataset, or it is one of OGB's molecules without one label of classes a graph.
    """
    known = name.lower()
    if known in MANY_TASKS or known in OF_NUMBERS:
        labels = f"{MANY_TASKS[known]} labels a graph" if known in MANY_TASKS else "numbers and no classes for labels"
        read = ", ".join(each for each in DATASETS if each.startswith("ogbg-"))
        raise ShoalError("data.dataset", f"{known} has {labels}; of OGB's molecules {read} can be read")
    if name.startswith(PYG) and not PYG_NAME.fullmatch(name):
        raise ShoalError("data.dataset", f"expected pyg:CLASS or pyg:CLASS/NAME, as pyg:Planetoid/Cora, got {name!r}")
    if known not in DATASETS and not has_user_options(name):
        names = f"{', '.join(DATASETS)}, pyg:CLASS/NAME, or my_file.py:MyDataset{did_you_mean(known, DATASETS)}"
        raise ShoalError("data.dataset", f"unknown dataset '{name}'; known are {names}")


def may_be_sparse(dataset: object, path: object) -> bool:
    """Whether a store of a dataset may keep its features sparse; those of an x.npy in the folder `path` stay dense.

    Several graphs are joined in memory, whatever they are.
    """
    if isinstance(dataset, list | tuple):
        return True
    name = str(dataset).lower()
    mapped = name == "files" and isinstance(path, str) and (Path(path).expanduser() / "x.npy").is_file()
    return (name in IN_MEMORY and not mapped) or has_user_options(str(dataset))
