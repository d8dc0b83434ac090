"""`shoal synthesize`: the written files make a store that is called synthetic; its length is shown as it goes."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal.engine.cli.main import command
from shoal.engine.config.config import parse_config
from shoal.engine.preparing.identity import store_path
from shoal.engine.preparing.prepare import prepare

Shoal = Callable[..., int]
TWIN = ("synthesize", "products-like", "--scale", "0.001", "--homophily", "0.7", "--seed", "3")


@pytest.fixture
def shoal(monkeypatch: pytest.MonkeyPatch) -> Shoal:
    """Runs a command and gives its exit status."""

    def run(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["shoal", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            command()
        return int(end.value.code or 0)

    return run


def test_store_of_the_files_is_called_synthetic(
    tmp_path: Path, shoal: Shoal, capfd: pytest.CaptureFixture[str]
) -> None:
    assert shoal(*TWIN, "--root", tmp_path) == 0
    output = capfd.readouterr()
    assert f"written: {tmp_path / 'ogbn_products'}" in output.out
    assert "edges: 61859/61859 rows" in output.err
    assert "features: 2449/2449 rows" in output.err
    plain = {
        "name": "twin",
        "data": {"dataset": "ogbn-products", "root": str(tmp_path), "split": "public"},
        "partition": {"method": "random", "clients": 2},
        "algorithm": "fedavg",
    }
    config = parse_config(plain, "test")
    store = prepare(config)
    assert store.manifest.synthetic
    assert store.manifest.name == "products-like"
    made = store.manifest.identity["dataset"]["synthetic"]
    assert (made["scale"], made["homophily"], made["seed"]) == (0.001, 0.7, 3)
    (tmp_path / "ogbn_products" / "SYNTHETIC.json").unlink()
    assert store_path(config) != store.path


def test_refuses_a_root_with_the_original(tmp_path: Path, shoal: Shoal, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ogbn_products" / "raw" / "edge.csv.gz"
    file.parent.mkdir(parents=True)
    file.touch()
    assert shoal(*TWIN, "--root", tmp_path) == 2
    assert f"shoal: {file}: is there, and not synthetic" in capfd.readouterr().err


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
def test_refuses_options(
    arguments: tuple[str, ...], message: str, tmp_path: Path, shoal: Shoal, capfd: pytest.CaptureFixture[str]
) -> None:
    assert shoal("synthesize", *arguments, "--root", tmp_path) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("shoal: ")]
    assert message in line
    assert not list(tmp_path.iterdir())
