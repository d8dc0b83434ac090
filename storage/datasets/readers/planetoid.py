"""Cora, CiteSeer and PubMed with their public split."""

import hashlib
from pathlib import Path

import numpy as np

from shoal.storage.datasets.features.features import compact
from shoal.storage.datasets.sources.download import fetch_published
from shoal.storage.datasets.sources.source import DatasetSpec, DataSource, reading
from shoal.storage.errors import ShoalError
from shoal.storage.files.reading import open_plain
from shoal.storage.graph.graph import Graph, clean_edges
from shoal.storage.options.split_codes import TEST, TRAIN, UNASSIGNED, VAL

URL = "https://github.com/kimiyoung/planetoid/raw/master/data"
FOLDERS = {"cora": "Cora", "citeseer": "CiteSeer", "pubmed": "PubMed"}
PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
# Digests of the files as published at `URL`: a pickle of any other content could run code.
SHA256 = {
    "ind.cora.x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    "ind.cora.tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "ind.cora.allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "ind.cora.y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
    "ind.cora.ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "ind.cora.ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "ind.cora.graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "ind.cora.test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    "ind.citeseer.x": "d20de19150741e555de0ed037195630fc194114ebc7fd72ced62810148aa22f6",
    "ind.citeseer.tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
    "ind.citeseer.allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
    "ind.citeseer.y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
    "ind.citeseer.ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
    "ind.citeseer.ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
    "ind.citeseer.graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
    "ind.citeseer.test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    "ind.pubmed.x": "fbe9cb5c47200d1b7769a26e579be3b7130b556831f9d850e77c4c74f2599b33",
    "ind.pubmed.tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
    "ind.pubmed.allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
    "ind.pubmed.y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
    "ind.pubmed.ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
    "ind.pubmed.ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
    "ind.pubmed.graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
    "ind.pubmed.test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
}


def paths(name: str) -> list[Path]:
    """Lists the published files of a graph, below the data root."""
    return [Path("planetoid") / FOLDERS[name] / "raw" / f"ind.{name}.{part}" for part in PARTS]


def load_planetoid(name: str, options: DataSource) -> Graph:
    """Loads a citation graph: words of papers (x, CSR if sparse), field of a paper (y), who cites whom (edges).

    PyG's reader parses `<data root>/planetoid/<name>/raw`; it drops loops and duplicates itself, so
    `cleaning` counts what was left to do. These files are pickles, and only the published ones are opened, by
    their SHA-256. Source: Yang, Cohen and Salakhutdinov, "Revisiting Semi-Supervised Learning with Graph
    Embeddings", ICML 2016.
    """
    files = fetch_published(options, paths(name), lambda file: f"{URL}/{file}")
    folder = files[0].parent
    for path in files:
        _require_published(path)
    from torch_geometric.io import read_planetoid_data

    with reading(folder, f"replace the raw files of dataset '{name}'"):
        data = read_planetoid_data(str(folder), name)
    split = np.full(data.num_nodes, UNASSIGNED, dtype=np.int8)
    for mask, part in ((data.train_mask, TRAIN), (data.val_mask, VAL), (data.test_mask, TEST)):
        split[mask.numpy()] = part
    y = data.y.numpy()
    indptr, indices, cleaning = clean_edges(data.edge_index.numpy(), len(y), str(folder))
    return Graph(name, indptr, indices, compact(data.x.numpy()), y, int(y.max()) + 1, split=split, cleaning=cleaning)


def _require_published(path: Path) -> None:
    advice = "delete it, and it is downloaded again; or give a graph of your own as data.dataset=files"
    with reading(path, advice), open_plain(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256[path.name]:
        raise ShoalError(path, f"not the published file, and a pickle is opened if it is that only; {advice}")


DATASETS = tuple(DatasetSpec(name, load_planetoid, paths(name)) for name in FOLDERS)
