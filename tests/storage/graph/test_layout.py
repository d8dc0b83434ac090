from pathlib import Path

import numpy as np
import scipy.sparse as sp
from support.errors import refused

from shoal.storage.datasets.registry import CATALOGUE
from shoal.storage.datasets.synthetic.induced_graphs import LEVELS
from shoal.storage.graph.layout import chosen_layout, require_possible, stored_bytes
from shoal.storage.options.dataset_names import IN_MEMORY, may_be_sparse


def test_every_dataset_is_in_memory_or_always_dense() -> None:
    in_blocks = {name for name, spec in CATALOGUE.items() if spec.finite}
    assert set(CATALOGUE) - set(IN_MEMORY) == in_blocks | {"sbm", "sbm-graphs", *LEVELS}
    assert may_be_sparse("Cora", None)
    assert not may_be_sparse("ogbn-products", None)


def test_a_folder_whose_features_stay_on_disk_is_dense(tmp_path: Path) -> None:
    assert may_be_sparse("files", str(tmp_path))
    (tmp_path / "x.npy").touch()
    assert not may_be_sparse("files", str(tmp_path))
    assert may_be_sparse("files", str(tmp_path / "graph.npz"))


def test_auto_is_the_smaller_one_and_a_word_is_taken() -> None:
    few, many = sp.csr_array(np.eye(10, dtype=np.float32)), np.ones((10, 10), dtype=np.float32)
    for x, smaller in ((few, "sparse"), (many, "dense")):
        assert chosen_layout(x, "auto", "cora", None, "float32") == smaller
        assert chosen_layout(x, "auto", "sbm", None, "float32") == "dense"
        for layout in ("dense", "sparse"):
            assert chosen_layout(x, layout, "cora", None, "float32") == layout
    assert stored_bytes(few, "sparse", "float16") == 10 * 4 + 10 * 6
    assert stored_bytes(few, "dense", "float16") == 200


def test_features_that_are_not_in_memory_cannot_be_sparse() -> None:
    with refused("data.layout"):
        require_possible("sparse", "sbm", None)
    for layout, dataset in (("auto", "sbm"), ("sparse", "physics")):
        require_possible(layout, dataset, None)
