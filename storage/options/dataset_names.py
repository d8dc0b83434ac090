"""Names of datasets: which there are, which are read into memory, and which stand for others."""

from pathlib import Path

from shoal.storage.errors import ShoalError
from shoal.storage.options.types import is_own
from shoal.storage.suggestions import did_you_mean

# Read into memory as a whole; of other datasets features are drawn, or stay on disk.
IN_MEMORY = (
    "digits",
    "cora",
    "citeseer",
    "pubmed",
    "computers",
    "photo",
    "cs",
    "physics",
    "flickr",
    "reddit",
    "files",
    "twitch-de",
    "twitch-en",
    "twitch-es",
    "twitch-fr",
    "twitch-pt",
    "twitch-ru",
    "twitch-tw",
    "acmv9",
    "dblpv7",
    "cornell",
    "texas",
    "wisconsin",
    "actor",
    "roman-empire",
    "amazon-ratings",
    "minesweeper",
    "tolokers",
    "questions",
    "penn94",
    "reed98",
    "amherst41",
    "cornell5",
    "johnshopkins55",
    "genius",
    "nci1",
    "proteins",
    "imdb-binary",
    "collab",
    "ogbg-molhiv",
    "ogbg-molbace",
    "ogbg-molbbbp",
)
# The synthetic twin of a published graph that is too large to be at hand everywhere.
TWINS = {
    "ogbn-arxiv": "arxiv-like",
    "ogbn-products": "products-like",
    "ogbn-papers100m": "papers100m-like",
}
DATASETS = (
    *IN_MEMORY,
    "sbm",
    "sbm-graphs",
    "induced-node",
    "induced-edge",
    "induced-graph",
    *TWINS,
    *TWINS.values(),
)
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


def require_dataset(name: str) -> None:
    """Refuses a name of no dataset that is no file of the user's own either.

    Raises:
        ShoalError: It is one, or it is that of molecules of OGB with another number of labels than one, or none of
            classes.
    """
    known = name.lower()
    if known in MANY_TASKS or known in OF_NUMBERS:
        labels = f"{MANY_TASKS[known]} labels a graph" if known in MANY_TASKS else "numbers and no classes for labels"
        read = ", ".join(each for each in DATASETS if each.startswith("ogbg-"))
        raise ShoalError(f"data.dataset: {known} has {labels}; of OGB's molecules {read} can be read")
    if known not in DATASETS and not is_own(name):
        names = f"{', '.join(DATASETS)}, or my_file.py:MyDataset{did_you_mean(known, DATASETS)}"
        raise ShoalError(f"data.dataset: unknown dataset '{name}'; known are {names}")


def may_be_sparse(dataset: object, path: object) -> bool:
    """Whether a store of a dataset may keep its features sparse; those of an x.npy in the folder `path` stay dense.

    Several graphs are put behind one another in memory, whatever they are.
    """
    if isinstance(dataset, list | tuple):
        return True
    name = str(dataset).lower()
    mapped = name == "files" and isinstance(path, str) and (Path(path).expanduser() / "x.npy").is_file()
    return (name in IN_MEMORY and not mapped) or is_own(str(dataset))
