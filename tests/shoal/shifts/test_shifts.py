"""Strengths of shifts against other libraries and by hand, the reader's table, and the heat map of the page."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.csgraph import laplacian
from scipy.stats import wasserstein_distance
from support.needs import needs
from support.small_runs import run_small, small_run

from shoal.engine.config.config import load_config, parse_config
from shoal.engine.preparing.identity import store_or_overlay
from shoal.engine.preparing.prepare import prepare
from shoal.pages.report import report
from shoal.shifts import inspected
from shoal.shifts.inspected import summarize
from shoal.shifts.shifts import Shifts, measure_shifts
from shoal.shifts.shifts_page import shift_sections
from shoal.storage.store.store import Store, shard_path
from shoal.tables.text_table import TextTable


@pytest.mark.parametrize("layout", ["dense", "sparse"])
def test_strengths_are_those_of_plain_numpy(tmp_path: Path, layout: str) -> None:
    rng, nodes = np.random.default_rng(1), 60
    x = np.where(rng.random((nodes, 5)) < 0.4, rng.standard_normal((nodes, 5)), 0).astype(np.float32)
    edges, y, client = rng.integers(nodes, size=(2, 300)), rng.integers(3, size=nodes), np.arange(nodes) % 3
    np.savez(tmp_path / "graph.npz", edge_index=edges, x=x, y=y)
    np.save(tmp_path / "client.npy", client)
    partition = {"method": "file", "file": str(tmp_path / "client.npy"), "clients": 3}
    data = {"dataset": "files", "path": str(tmp_path / "graph.npz"), "layout": layout}
    plain = small_run(tmp_path, data=data, partition=partition)
    del plain["data"]["options"]
    shifts = measure_shifts(prepare(parse_config(plain, "shifts")))
    a = np.zeros((nodes, nodes), dtype=bool)
    a[tuple(edges)] = True
    a = (a | a.T) & ~np.eye(nodes, dtype=bool)
    share = np.bincount(y, minlength=3) / nodes
    spectra = []
    for i in range(3):
        mine = np.flatnonzero(client == i)
        inside = a[np.ix_(mine, mine)]
        assert shifts.nodes[i] == 20
        assert shifts.labels[i] == pytest.approx(np.abs(np.bincount(y[mine], minlength=3) / 20 - share).sum() / 2)
        assert shifts.homophily[i] == pytest.approx((y[mine][:, None] == y[mine])[inside].mean())
        away = np.linalg.norm(x[mine].mean(0) - x.mean(0)) / np.sqrt(((x - x.mean(0)) ** 2).sum(1).mean())
        assert shifts.features[i] == pytest.approx(away, rel=1e-5)
        spectra.append(np.linalg.eigvalsh(laplacian(sp.csr_array(inside.astype(float)), normed=True).toarray()))
    expected = [wasserstein_distance(own, np.concatenate(spectra)) for own in spectra]
    np.testing.assert_allclose(shifts.spectrum, expected, atol=1e-9)
    pair = np.abs(np.bincount(y[client == 0], minlength=3) - np.bincount(y[client == 2], minlength=3)).sum() / 40
    assert shifts.divergence_BB[0, 2] == pytest.approx(pair)
    assert (shifts.divergence_BB.diagonal() == 0).all()


def test_knobs_are_seen_in_what_is_measured(tmp_path: Path) -> None:
    def spread(method: str, **options: float) -> dict[str, float]:
        partition = {"method": method, "clients": 6, **options}
        options_of_graph = {"nodes": 900, "homophily": 0.5}
        store = prepare(parse_config(small_run(tmp_path, data={"options": options_of_graph}, partition=partition), "x"))
        shifts = measure_shifts(store)
        return {name: float(np.std(getattr(shifts, name))) for name in ("nodes", "homophily", "features", "labels")}

    even, uneven = spread("homophily", skew=0.0), spread("homophily", skew=1.0)
    assert uneven["homophily"] > 1.5 * even["homophily"]
    assert spread("random", zipf=1.0)["nodes"] > 50
    assert spread("random")["nodes"] < 1


def test_reader_and_page(tmp_path: Path, shoal: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    run = run_small(tmp_path)
    capsys.readouterr()
    shoal("read", run, "shifts", "--out", tmp_path / "shifts.csv")
    assert "shifts between 4 clients" in capsys.readouterr().out
    assert len((tmp_path / "shifts.csv").read_text().splitlines()) == 5
    (section,) = shift_sections(run)
    assert [drawing.name for drawing in section.drawings] == ["shifts"]
    page = report([run], None, kinds=("svg",)).read_text()
    assert "Shifts between clients" in page
    assert shift_sections(tmp_path) == []
    # Where shards are gone, or the graph is, a page goes without.
    store = Path(load_config(run).data.store or store_or_overlay(load_config(run)))
    for shard in (store / "clients").iterdir():
        shard.unlink()
    assert shift_sections(run) == []


def test_inspect_shows_a_row_a_shift(
    tmp_path: Path, shoal: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_small(tmp_path, partition={"method": "random", "zipf": 1.0})
    store = store_or_overlay(load_config(run))
    shifts = measure_shifts(Store(store))
    # The mean difference of any two clients over twice the mean.
    n = shifts.nodes.astype(float)
    gini = np.abs(n[:, None] - n).mean() / (2 * n.mean())
    assert shifts.gini == pytest.approx(gini)
    assert gini > 0.1
    for folder in (store, run):
        capsys.readouterr()
        shoal("inspect", folder)
        out = capsys.readouterr().out
        lines = {line.split("  ")[0]: line.split() for line in out.splitlines()}
        assert f"Gini coefficient of their nodes {gini:.3f}" in out
        for name, column in {"label divergence": shifts.labels, "spectral distance": shifts.spectrum}.items():
            numbers = [f"{number:.3f}" for number in (column.mean(), column.min(), column.max())]
            assert lines[name][-3:] == numbers
    capsys.readouterr()
    shoal("inspect", run, "--json")
    assert "Gini" not in capsys.readouterr().out


def test_inspect_says_why_it_leaves_shifts_out(
    tmp_path: Path, shoal: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(store_or_overlay(load_config(run_small(tmp_path))))
    assert isinstance(summarize(store.path), TextTable)
    with monkeypatch.context() as patch:
        patch.setattr(inspected, "MOST_NODES", 119)
        said = summarize(store.path)
        assert isinstance(said, str)
        assert "119 nodes" in said
    shard = store.path / shard_path(next(iter(store.manifest.clients.files.files()))[0])
    shard.write_bytes(shard.read_bytes()[:-9] + b"something")
    capsys.readouterr()
    shoal("inspect", store.path)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith(inspected.LEFT_OUT)]
    assert shard.name in line
    shard.unlink()
    assert "shards are missing" in str(summarize(store.path))
    assert summarize(tmp_path) is None


@needs("noise")
def test_noise_is_seen_in_what_is_measured(tmp_path: Path) -> None:
    def measured(**noise: Any) -> Shifts:
        data = {"options": {"nodes": 600, "homophily": 0.9}, "noise": noise}
        return measure_shifts(prepare(parse_config(small_run(tmp_path, data=data), "x")))

    clean, edges = measured(), measured(edges_added=1.0)
    assert (edges.homophily < clean.homophily - 0.1).all()
    assert (edges.spectrum != clean.spectrum).any()
