"""`shoal synthesize`: the written files make a store that is called synthetic; its length is shown as it goes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.small_runs import small_run

from shoal.engine.config.config import parse_config
from shoal.engine.preparing.identity import store_path
from shoal.engine.preparing.prepare import prepare

TWIN = ("synthesize", "products-like", "--scale", "0.001", "--homophily", "0.7", "--seed", "3")


def test_store_of_the_files_is_called_synthetic(
    tmp_path: Path, status: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    assert status(*TWIN, "--root", tmp_path) == 0
    output = capfd.readouterr()
    assert f"written: {tmp_path / 'ogbn_products'}" in output.out
    assert "edges: 61859/61859 rows" in output.err
    assert "features: 2449/2449 rows" in output.err
    data = {"dataset": "ogbn-products", "split": "public", "options": {}}
    config = parse_config(small_run(tmp_path, data=data, partition={"method": "random", "clients": 2}), "test")
    store = prepare(config)
    assert store.manifest.synthetic
    assert store.manifest.name == "products-like"
    made = store.manifest.identity["dataset"]["synthetic"]
    assert (made["scale"], made["homophily"], made["seed"]) == (0.001, 0.7, 3)
    (tmp_path / "ogbn_products" / "SYNTHETIC.json").unlink()
    assert store_path(config) != store.path


def test_refuses_a_root_with_the_original(tmp_path: Path, refused: Callable[..., str]) -> None:
    file = tmp_path / "ogbn_products" / "raw" / "edge.csv.gz"
    file.parent.mkdir(parents=True)
    file.touch()
    assert refused(*TWIN, "--root", tmp_path).startswith(f"shoal: {file}: is there, and not synthetic")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("products",), "products: there is no such twin; known are arxiv-like"),
        (("arxiv-like", "--scale", "0"), "scale: 0.0 must be more than 0"),
        (("arxiv-like", "--scale", "1e-6"), "scale: 1e-06 must be at least"),
        (("arxiv-like", "--homophily", "1.5"), "homophily: 1.5 must be in 0..1"),
        (("arxiv-like", "--seed", "-1"), "seed: -1 must be at least 0"),
    ],
)
def test_refuses_options(tmp_path: Path, refused: Callable[..., str], arguments: tuple[str, ...], message: str) -> None:
    assert message in refused("synthesize", *arguments, "--root", tmp_path)
    assert not list(tmp_path.iterdir())
