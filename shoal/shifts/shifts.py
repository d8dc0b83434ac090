"""Strengths of the shifts between clients, of the data that a store holds of each.

Axes: B clients, C classes, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shoal.storage.graph.rows import CsrRows
from shoal.storage.options.target_names import CLASSIFICATION
from shoal.storage.shards.shard import Shard
from shoal.storage.store.store import Store
from shoal.tables.text_table import TextTable

HEADS = ("client", "nodes", "label divergence", "homophily", "feature distance", "spectral distance")
# Eigenvalues of a client of more nodes take seconds.
MOST_NODES = 1500
# A table on a screen has the rows of so many clients.
MOST_ROWS = 30


@dataclass(frozen=True)
class Shifts:
    """Strengths by client, float64 `[B]`, NaN where one is not defined.

    Attributes:
        nodes: Nodes of every client, int64.
        label_BC: Items of every client by class, int64; of no columns where no classes are predicted.
        homophily: Share of a client's edges with labels at both ends that join nodes of one class.
        features: Distance of the mean of its features from that of all, over the root of the variance of all nodes.
        spectrum: Distance of Wasserstein between the eigenvalues of its normalised Laplacian and those of all clients
            (Gu, Hua and Liu, "Spectral distances on graphs", Discrete Applied Mathematics 2015).
    """

    nodes: np.ndarray
    label_BC: np.ndarray
    homophily: np.ndarray
    features: np.ndarray
    spectrum: np.ndarray

    @property
    def shares_BC(self) -> np.ndarray:
        """Shares of classes at every client; of one without labels NaN."""
        count_B1 = self.label_BC.sum(1, keepdims=True)
        return np.where(count_B1 > 0, self.label_BC / np.maximum(count_B1, 1), np.nan)

    @property
    def labels(self) -> np.ndarray:
        """Total variation distance of a client's shares of classes from those of all, 0 to 1."""
        if not self.label_BC.shape[1]:
            return np.full(len(self.nodes), np.nan)
        return np.abs(self.shares_BC - self.label_BC.sum(0) / max(self.label_BC.sum(), 1)).sum(1) / 2

    @property
    def gini(self) -> float:
        """Gini coefficient of the clients' numbers of nodes: 0 where all are the same, below 1."""
        ordered, clients = np.sort(self.nodes), len(self.nodes)
        return float(((2 * np.arange(1, clients + 1) - clients - 1) * ordered).sum() / max(clients * ordered.sum(), 1))

    @property
    def divergence_BB(self) -> np.ndarray:
        """Total variation distance of the shares of classes of any two clients."""
        return np.abs(self.shares_BC[:, None] - self.shares_BC[None]).sum(2) / 2

    def summary(self) -> TextTable:
        """Makes a table of a row a shift: its mean over clients at which it is defined, the least and the most."""
        columns = (self.nodes, self.labels, self.homophily, self.features, self.spectrum)
        cells = [("nodes", f"{self.nodes.mean():,.1f}", f"{self.nodes.min():,}", f"{self.nodes.max():,}")]
        for name, column in zip(HEADS[2:], columns[1:], strict=True):
            if len(defined := column[~np.isnan(column)]):
                mean, least, most = (f"{number:.3f}" for number in (defined.mean(), defined.min(), defined.max()))
                cells.append((name, mean, least, most))
        title = f"shifts between {len(self.nodes)} clients; Gini coefficient of their nodes {self.gini:.3f}"
        return TextTable(("shift", "mean", "least", "most"), tuple(cells), 1, title=title)

    def table(self, rows: int | None = MOST_ROWS) -> TextTable:
        """Makes a table of all clients, or of more than `rows` of least, median and most."""
        numbers = np.stack([self.nodes, self.labels, self.homophily, self.features, self.spectrum], 1)
        names: Sequence[str] = [str(client) for client in range(len(numbers))]
        if rows is not None and len(numbers) > rows:
            names = ("least", "median", "most")
            columns = [column[~np.isnan(column)] for column in numbers.T]
            reduced = [[f(c) if len(c) else np.nan for c in columns] for f in (np.min, np.median, np.max)]
            numbers = np.array(reduced)
        cells = tuple(
            (name, f"{row[0]:,.0f}", *("-" if value != value else f"{value:.3f}" for value in row[1:]))
            for name, row in zip(names, numbers)
        )
        notes = (
            "label divergence: total variation, 0 to 1, from all; homophily: edges that join one class",
            "feature distance: of means, in spreads of all; spectral distance: of Laplacians' eigenvalues, 0 to 2, "
            f"of clients of at most {MOST_NODES:,} nodes",
            f"Gini coefficient of nodes: {self.gini:.3f}",
        )
        return TextTable(HEADS, cells, 1, title=f"shifts between {len(self.nodes)} clients", notes=notes)


def measure_shifts(store: Store, spectra_too: bool = True) -> Shifts:
    """Measures the shifts between all clients of a store, which are opened one after another.

    Without spectra, which take the longest, there are no spectral distances.
    """
    manifest = store.manifest
    of_classes = manifest.target == CLASSIFICATION
    labels, homophily, sums, squares, spectra = [], [], [], 0.0, list[np.ndarray]()
    for client in range(store.clients):
        shard = store.shard(client)
        label = shard.item_label[shard.item_label >= 0] if of_classes else np.zeros(0, dtype=np.int64)
        labels.append(np.bincount(label, minlength=manifest.classes if of_classes else 0))
        homophily.append(_homophily(shard) if of_classes and shard.kind == "nodes" else np.nan)
        total, square = _moments(shard.x)
        sums.append(total)
        squares += square
        spectra.append(_spectrum(shard) if spectra_too and shard.nodes <= MOST_NODES else np.zeros(0))
    nodes, sum_BF = manifest.clients.count("nodes"), np.stack(sums)
    mean_F = sum_BF.sum(0) / max(nodes.sum(), 1)
    variance = max(squares / max(nodes.sum(), 1) - float(mean_F @ mean_F), 0.0)
    away = np.linalg.norm(sum_BF / np.maximum(nodes, 1)[:, None] - mean_F, axis=1)
    every = np.concatenate(spectra)
    return Shifts(
        nodes,
        np.stack(labels),
        np.array(homophily),
        away / np.sqrt(variance) if variance > 0 else np.zeros(len(nodes)),
        np.array([_wasserstein(values, every) if len(values) else np.nan for values in spectra]),
    )


def _homophily(shard: Shard) -> float:
    source = np.repeat(np.arange(shard.nodes), np.diff(shard.indptr))
    first, second = shard.label[source], shard.label[shard.indices]
    both = (first >= 0) & (second >= 0)
    return float((first == second)[both].mean()) if both.any() else float("nan")


def _moments(x: Any) -> tuple[np.ndarray, float]:
    """Computes sums of columns, float64 `[F]`, and the sum of all squares."""
    if isinstance(x, CsrRows):
        values = np.asarray(x.values, dtype=np.float64)
        return np.bincount(x.columns, weights=values, minlength=x.features), float((values**2).sum())
    rows = np.asarray(x[:], dtype=np.float64)
    return rows.sum(0), float((rows**2).sum())


def _spectrum(shard: Shard) -> np.ndarray:
    """Computes the eigenvalues of I - D^-1/2 A D^-1/2 without weights, float64 `[N]`; that of a lone node is 0."""
    a = np.zeros((shard.nodes, shard.nodes))
    degree = np.diff(shard.indptr)
    source = np.repeat(np.arange(shard.nodes), degree)
    root = 1 / np.sqrt(np.maximum(degree, 1))
    a[source, shard.indices] = -root[source] * root[shard.indices]
    a[np.arange(shard.nodes), np.arange(shard.nodes)] = degree > 0
    return np.linalg.eigvalsh(a)


def _wasserstein(first: np.ndarray, second: np.ndarray) -> float:
    """Computes the distance of Wasserstein of two samples: the area between their distribution functions.

    SciPy has the same, and takes seconds to be imported.
    """
    first, second = np.sort(first), np.sort(second)
    every = np.sort(np.concatenate([first, second]))
    below = (np.searchsorted(values, every[:-1], side="right") / len(values) for values in (first, second))
    return float((np.abs(next(below) - next(below)) * np.diff(every)).sum())
