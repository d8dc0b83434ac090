"""ACM and DBLP: papers of two archives, with the same words and the same areas."""

from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse as sp

from shoal.storage.datasets.sources.dataset_spec import DatasetSpec
from shoal.storage.datasets.sources.download import published
from shoal.storage.datasets.sources.source import DataSource, data_root, reading
from shoal.storage.graph.from_arrays import graph_from_arrays
from shoal.storage.graph.graph import Graph

URL = "https://github.com/shenxiaocam/ACDNE/raw/master/ACDNE_codes/input"
FILES = {"acmv9": Path("acdne/acmv9.mat"), "dblpv7": Path("acdne/dblpv7.mat")}
ADVICE = "delete it, and it is downloaded again"


def load_citation_domain(name: str, options: DataSource) -> Graph:
    """Papers of one archive, their words (x), their area (y, of five), who cites whom; no split of its own.

    x is 0/1 float32 SciPy CSR `[N, 6775]`. Papers of two areas, and those of none, are dropped with their edges:
    `cleaning.nodes_dropped` counts them. Another cut of these archives (UDAGCN's) has 7,410 and 5,578 papers of six
    areas. Source: Shen et al., "Adversarial Deep Network Embedding for Cross-Network Node Classification", AAAI 2020.

    Raises:
        ShoalError: The file is missing and cannot be downloaded, or is damaged or of wrong values.
    """
    path = data_root(options.root) / FILES[name]
    published(name, path.parent, [path.name], lambda file: f"{URL}/{file}")
    with reading(path, ADVICE):
        arrays = scipy.io.loadmat(path)
        group, x = np.asarray(arrays["group"]), sp.csr_array(arrays["attrb"]).astype(np.float32)
        network = sp.coo_array(arrays["network"])
        if not len(group) == x.shape[0] == network.shape[0] == network.shape[1]:
            raise ValueError(f"{len(group)} labels, {x.shape[0]} rows of words, a graph of {network.shape[0]} papers")
        kept = np.flatnonzero((group != 0).sum(1) == 1)
        number = np.full(len(group), -1, dtype=np.int64)
        number[kept] = np.arange(len(kept))
        edges = number[np.stack([network.row, network.col])]
        edges = edges[:, (edges >= 0).all(0)]
        y = (group[kept] != 0).argmax(1)
    found = {"edge_index": edges, "x": x[kept], "y": y}
    graph = graph_from_arrays(name, found, dict.fromkeys(found, str(path)))
    return graph.without_nodes(len(group) - len(kept))


DATASETS = tuple(DatasetSpec(name, load_citation_domain, [file]) for name, file in FILES.items())
