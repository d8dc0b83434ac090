"""Names of datasets as other programs write them: each is known, or refused in one line that says why.

The lists are those of OpenFGL 1.1.0 (`supported_graph_fl_datasets`, `supported_subgraph_fl_datasets` in its
`config.py`) and what its loader knows beside them; each was read there.
"""

from pathlib import Path

import pytest
from support.errors import refused

from shoal.engine.config.config import parse_config, require_names
from shoal.storage.datasets.registry import labels_ahead, missing_files
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.options.dataset_names import DATASETS, usual_name

# fmt: off
GRAPHS = [
    "AIDS", "BZR", "COLLAB", "COX2", "DD", "DHFR", "ENZYMES", "IMDB-BINARY", "IMDB-MULTI", "MUTAG", "NCI1", "PROTEINS",
    "PTC_MR", "hERG", "ogbg-molhiv", "ogbg-molpca", "ogbg-ppa", "ogbg-code2",
]
NODES = [
    "Cora", "CiteSeer", "PubMed", "CS", "Physics", "Computers", "Photo", "Chameleon", "Squirrel", "ogbn-arxiv",
    "ogbn-products", "Tolokers", "Actor", "Amazon-ratings", "Roman-empire", "Questions", "Minesweeper", "Reddit",
    "Flickr",
]
# fmt: on
BESIDE = ("Genius", "DBLP", "IMDB", "Freebase", "ACM", "OAG-Venue", "OAG-L1-Field", "OGB-MAG")
# What is said of those that are not read.
REFUSED = {
    "hERG": "OpenFGL's own pickles",
    "ogbg-molpca": "did you mean 'ogbg-molpcba'",
    "ogbg-ppa": "features of edges or places, and none of nodes",
    "ogbg-code2": "sequences of words",
    **dict.fromkeys(BESIDE[1:], "unknown dataset"),
}
OF_TU = {"AIDS", "BZR", "COX2", "DD", "DHFR", "ENZYMES", "IMDB-MULTI", "MUTAG", "PTC_MR"}
READ = [name for name in (*GRAPHS, *NODES, "Genius") if name not in REFUSED]


def asked(name: str) -> str:
    """Returns the dataset of a config that names it; its name is known."""
    task = "graph" if name in GRAPHS else "node"
    config = parse_config({"name": "a", "task": task, "data": {"dataset": name}, "algorithm": "fedavg"}, "x.yaml")
    require_names(config)
    assert isinstance(config.data.dataset, str)
    return config.data.dataset


def test_33_of_37_names_of_openfgl_are_read() -> None:
    assert len(GRAPHS) + len(NODES) == 37
    assert len([name for name in READ if name in GRAPHS or name in NODES]) == 33


@pytest.mark.parametrize("name", READ)
def test_a_name_of_openfgl_is_known_as_it_is_written(name: str, tmp_path: Path) -> None:
    dataset = asked(name)
    if name in OF_TU:
        assert dataset == f"tu:{name}" == usual_name(name.lower()) == usual_name(f"TU:{name.lower()}")
    else:
        assert dataset.lower() in DATASETS
        assert dataset.lower() == name.lower()
    # It leads to a reader of its kind, and that to the files which it needs.
    source = DataSource(dataset, root=str(tmp_path))
    assert labels_ahead(source) == ("graph" if name in GRAPHS else "node")
    assert missing_files(source)


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_is_not_read_says_why(name: str) -> None:
    with refused("data.dataset", says=REFUSED[name]):
        asked(name)
