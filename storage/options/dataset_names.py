"""Names of datasets: which there are, which are read into memory, and which have a synthetic twin."""

import re
from pathlib import Path

from shoal.storage.errors import ShoalError
from shoal.storage.options.types import is_own
from shoal.storage.suggestions import did_you_mean_name, plain_name

# Datasets stand by the module below `storage/datasets` that has their records, which is loaded when one of them is
# named. These are read into memory as a whole; features of other datasets are drawn, or stay on disk.
READ_INTO_MEMORY = (
    ("readers.digits", ("digits",)),
    ("readers.planetoid", ("cora", "citeseer", "pubmed")),
    ("readers.npz_graphs", ("computers", "photo", "cs", "physics")),
    ("readers.pyg", ("flickr",)),
    ("readers.npz_graphs", ("reddit",)),
    ("user.files", ("files",)),
    ("readers.twitch", ("twitch-de", "twitch-en", "twitch-es", "twitch-fr", "twitch-pt", "twitch-ru", "twitch-tw")),
    ("readers.wikipedia", ("chameleon", "crocodile", "squirrel")),
    ("readers.blogcatalog", ("blogcatalog",)),
    ("readers.heco", ("heco-acm", "heco-dblp")),
    ("readers.matlab_graphs", ("acmv9", "dblpv7")),
    ("readers.pyg", ("cornell", "texas", "wisconsin", "actor")),
    ("readers.pyg", ("roman-empire", "amazon-ratings", "minesweeper", "tolokers", "questions")),
    ("readers.matlab_graphs", ("penn94", "reed98", "amherst41", "cornell5", "johnshopkins55", "genius")),
    ("readers.tu", ("nci1", "proteins", "imdb-binary", "collab")),
    ("readers.ogb_molecules", ("ogbg-molhiv", "ogbg-molbace", "ogbg-molbbbp")),
    ("readers.ogb_molecules", ("ogbg-molesol", "ogbg-molfreesolv", "ogbg-mollipo")),
    ("readers.ogb_molecules", ("ogbg-molsider", "ogbg-moltox21", "ogbg-moltoxcast", "ogbg-molclintox")),
    ("readers.ogb_molecules", ("ogbg-molmuv", "ogbg-molpcba", "ogbg-molchembl")),
)
# The synthetic twin of a published graph that is too large to be at hand everywhere.
TWINS = {"ogbn-arxiv": "arxiv-like", "ogbn-products": "products-like", "ogbn-papers100m": "papers100m-like"}
# Small graphs cut out of another dataset.
INDUCED = ("induced-node", "induced-edge", "induced-graph")
NOT_IN_MEMORY = (
    ("synthetic.sbm", ("sbm",)),
    ("synthetic.sbm", ("sbm-graphs",)),
    ("registry", INDUCED),
    ("readers.ogb", tuple(TWINS)),
    ("synthetic.twin", tuple(TWINS.values())),
)
IN_MEMORY = tuple(name for _, names in READ_INTO_MEMORY for name in names)
# Every dataset, and the module that has its record.
DATASETS = {name: module for module, names in (*READ_INTO_MEMORY, *NOT_IN_MEMORY) for name in names}
# Other names of datasets, as `plain_name` writes them: by collection, and by files.
COLLECTIONS = (
    (("planetoid",), ("cora", "citeseer", "pubmed")),
    (("amazon", "amazonelectronics"), ("computers", "photo")),
    (("coauthor", "msacademic"), ("cs", "physics")),
    (("webkb", "geomgcn"), ("cornell", "texas", "wisconsin")),
    (("tu", "tudataset"), ("nci1", "proteins", "imdb-binary", "collab")),
    (("linkx", "facebook100", "fb100"), ("penn94", "reed98", "amherst41", "cornell5", "johnshopkins55")),
)
OTHER_NAMES = {
    **{before + plain_name(name): name for prefixes, names in COLLECTIONS for before in prefixes for name in names},
    **{name.removeprefix("ogbn-"): name for name in TWINS},
    **{"amazoncomputer": "computers", "amazonphotos": "photo", "msacademicphy": "physics", "film": "actor"},
}
# A dataset class of torch_geometric, and the `name` that its constructor takes: `pyg:Planetoid/Cora`.
PYG = "pyg:"
PYG_NAME = re.compile(PYG + r"([A-Za-z]\w*)(?:/([\w.-]+))?")


def has_user_options(name: str) -> bool:
    """Whether the options of a dataset are those of a class: of the user's own, or of PyG."""
    return name.startswith(PYG) or is_own(name)


def require_dataset(name: str) -> None:
    """Raises a ShoalError for a name of no dataset; files and classes are looked up when they are read."""
    lower = name.lower()
    if name.startswith(PYG) and not PYG_NAME.fullmatch(name):
        raise ShoalError("data.dataset", f"expected pyg:CLASS or pyg:CLASS/NAME, as pyg:Planetoid/Cora, got {name!r}")
    if lower not in DATASETS and not has_user_options(name):
        names = f"{', '.join(DATASETS)}, pyg:CLASS/NAME, or my_file.py:MyDataset"
        meant = did_you_mean_name(lower, DATASETS, OTHER_NAMES)
        raise ShoalError("data.dataset", f"{meant}unknown dataset '{name}'; known are {names}")


def may_be_sparse(dataset: object, path: object) -> bool:
    """Whether a store of a dataset may keep its features sparse; those of an x.npy in the folder `path` stay dense.

    Several graphs are joined in memory, whatever they are.
    """
    if isinstance(dataset, list | tuple):
        return True
    name = str(dataset).lower()
    mapped = name == "files" and isinstance(path, str) and (Path(path).expanduser() / "x.npy").is_file()
    return (name in IN_MEMORY and not mapped) or has_user_options(str(dataset))
