"""Names of datasets: which there are, which are read into memory, and which have a synthetic twin."""

import re
from pathlib import Path

from shoal.storage.errors import ShoalError
from shoal.storage.options.types import is_own
from shoal.storage.suggestions import did_you_mean, did_you_mean_name, plain_name

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
# Published collections by their own names: graphs of TUDataset, `tu:MUTAG`, and of OGB, `ogb:arxiv`.
TU, OGB = "tu:", "ogb:"
TU_NAME = re.compile(TU + r"([A-Za-z][\w.+-]*)")
OF_TU = dict(READ_INTO_MEMORY)["readers.tu"]
# Graphs of TU that benchmarks call by their names alone, by these in lower case.
ALONE = ("AIDS", "BZR", "COX2", "DD", "DHFR", "ENZYMES", "IMDB-MULTI", "MUTAG", "PTC_MR")
TITLES_OF_TU = {title.lower(): title for title in ALONE}
OF_OGB = tuple(name for name in DATASETS if name.startswith("ogb"))
# Datasets of OGB that are not read, by what they have.
OTHERS_OF_OGB = {
    **dict.fromkeys(("ogbn-mag", "ogbl-biokg", "ogbl-wikikg2"), "several kinds of nodes or edges"),
    **dict.fromkeys(("ogbn-proteins", "ogbg-ppa", "ogbl-vessel"), "features of edges or places, and none of nodes"),
    **dict.fromkeys(("ogbl-ppa", "ogbl-collab", "ogbl-ddi", "ogbl-citation2"), "a split of edges with negatives"),
    "ogbg-code2": "sequences of words to predict",
}
# Datasets of other programs that are not read, and the way out.
OF_OTHERS = {
    "herg": "OpenFGL's own pickles, which are not opened; molecules are read from a table of SMILES, "
    "data.dataset=files data.path=herg.csv",
}
# A dataset class of torch_geometric, and the `name` that its constructor takes: `pyg:Planetoid/Cora`.
PYG = "pyg:"
PYG_NAME = re.compile(PYG + r"([A-Za-z]\w*)(?:/([\w.-]+))?")


def usual_name(name: str) -> str:
    """Returns our name of a dataset of OGB or TU, `ogbn-arxiv` of `ogb:arxiv`, `tu:MUTAG` of MUTAG; keeps others."""
    prefix, _, title = name.partition(":")
    title = title.lower()
    if f"{prefix.lower()}:" == TU:
        return title if title in OF_TU else f"{TU}{TITLES_OF_TU.get(title, name.partition(':')[2])}"
    if f"{prefix.lower()}:" == OGB:
        return next((ours for ours in OF_OGB if title in (ours, ours.partition("-")[2])), f"{OGB}{title}")
    return f"{TU}{TITLES_OF_TU[name.lower()]}" if name.lower() in TITLES_OF_TU else name


def has_user_options(name: str) -> bool:
    """Whether the options of a dataset are those of a class: of the user's own, or of PyG."""
    return name.startswith(PYG) or is_own(name)


def require_dataset(name: str) -> None:
    """Raises a ShoalError for a name of no dataset; files and classes are looked up when they are read."""
    name = usual_name(name)
    lower = name.lower()
    if name.startswith(OGB) or lower in OTHERS_OF_OGB:
        _refuse_of_ogb(lower.removeprefix(OGB))
    if lower in OF_OTHERS:
        raise ShoalError("data.dataset", f"{name} is {OF_OTHERS[lower]}")
    if name.startswith(TU):
        if not TU_NAME.fullmatch(name):
            raise ShoalError("data.dataset", f"expected tu:NAME as TUDataset has it, as tu:MUTAG, got {name!r}")
        return
    if name.startswith(PYG) and not PYG_NAME.fullmatch(name):
        raise ShoalError("data.dataset", f"expected pyg:CLASS or pyg:CLASS/NAME, as pyg:Planetoid/Cora, got {name!r}")
    if lower not in DATASETS and not has_user_options(name):
        names = f"{', '.join(DATASETS)}, tu:NAME, ogb:NAME, pyg:CLASS/NAME, or my_file.py:MyDataset"
        meant = did_you_mean_name(lower, DATASETS, OTHER_NAMES)
        if not meant and Path(name).is_dir():
            meant = f"write data.dataset=files data.path={name}; "
        raise ShoalError("data.dataset", f"{meant}unknown dataset '{name}'; known are {names}")


def _refuse_of_ogb(title: str) -> None:
    """Refuses a dataset of OGB that is not read."""
    for name, has in OTHERS_OF_OGB.items():
        if title in (name, name.partition("-")[2]):
            raise ShoalError("data.dataset", f"{name} has {has}, which is not read; known are {', '.join(OF_OGB)}")
    meant = did_you_mean(title, [*OF_OGB, *(name.partition("-")[2] for name in OF_OGB)])
    raise ShoalError("data.dataset", f"{meant}OGB has no dataset '{title}' that is read; known are {', '.join(OF_OGB)}")


def may_be_sparse(dataset: object, path: object) -> bool:
    """Whether a store of a dataset may keep its features sparse; those of an x.npy in the folder `path` stay dense.

    Several graphs are joined in memory, whatever they are.
    """
    if isinstance(dataset, list | tuple):
        return True
    name = usual_name(str(dataset)).lower()
    mapped = name == "files" and isinstance(path, str) and (Path(path).expanduser() / "x.npy").is_file()
    return (name in IN_MEMORY and not mapped) or name.startswith(TU) or has_user_options(str(dataset))
