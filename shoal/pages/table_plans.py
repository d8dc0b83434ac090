"""Plans of the runs of a paper's tables: one for each run, in however many cells it is, and repetitions share it."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from shoal.engine.config.config import Config
from shoal.engine.config.config_text import MOST_BYTES
from shoal.engine.config.run_identity import of_seed
from shoal.engine.messages.models import KnownModels
from shoal.engine.preparing.checks import read_graph, require_fitting_graph
from shoal.engine.records.graphs import sources
from shoal.engine.runs.dry_run import expected
from shoal.engine.runs.measuring import Measured
from shoal.engine.runs.plan import RunPlan
from shoal.storage.datasets.registry import LargeGraph, missing_files
from shoal.storage.files.reading import read_text
from shoal.storage.graph.graph import Graph
from shoal.study.study import Selection
from shoal.sweeps.sweep import store_keys
from shoal.tables.papers import PaperStudy

# A key may be read by another one in this form, so that another seed may change more than `seed`.
REFERENCE, SEED = "${", "seed="
# Graphs that were read, all together, take at most this part of the memory.
SHARE_TO_KEEP = 16


class TablePlans:
    """The plans that tables of a paper share.

    A config is read and checked once for all seeds: what differs between repetitions is `seed` alone. Such plans name
    folders, stores and times; the sweep that trains checks every config by itself.
    """

    def __init__(self) -> None:
        """Begins without a plan."""
        self._plans: dict[tuple[str, ...], RunPlan] = {}
        self._seconds: dict[str, float] = {}
        self._missing: dict[str, list[Path]] = {}
        self._models, self._measured = KnownModels(), Measured()
        self._refers: dict[str, bool] = {}
        self._graphs: dict[str, Graph] = {}
        self._large = LargeGraph(outlines=True)

    def of(self, study: PaperStudy) -> list[RunPlan]:
        """Returns the plan of every selection of a study. Raises ShoalError: a config is wrong; names the cell."""
        return [self._plan(study, selection) for selection in study.selections]

    def _plan(self, study: PaperStudy, selection: Selection) -> RunPlan:
        given = selection.overrides
        refers = self._refers_to_keys(study.config) or any(REFERENCE in text for text in given)
        key = study.config, *(text for text in given if refers or not text.startswith(SEED))
        if key not in self._plans:
            self._plans[key] = RunPlan.of(study.config_of(selection), known=self._models)
        plan, seed = self._plans[key], int(selection.columns["seed"])
        if refers or plan.config.seed == seed:
            return plan
        repeated = replace(plan, config=plan.config.model_copy(update={"seed": seed}))
        # The files that keys name are read once, and the keys compared with their defaults.
        vars(repeated).update(inputs=plan.inputs, named=of_seed(plan.named, seed))
        return repeated

    def _refers_to_keys(self, config: str) -> bool:
        """Returns whether a key of a config's file may read another one; reading the config says what is wrong."""
        if config not in self._refers:
            self._refers[config] = True
            with suppress(OSError, ValueError):
                self._refers[config] = REFERENCE in read_text(Path(config), MOST_BYTES)
        return self._refers[config]

    def seconds(self, plan: RunPlan) -> float:
        """Estimates the seconds of the rounds of a run by measuring, once for all of equal data, method and model."""
        key = f"{store_keys(plan)} {plan.config.algorithm} {plan.config.train} {plan.config.rounds}"
        if key not in self._seconds:
            self._seconds[key] = expected(plan, read=self._read, known=self._measured).time.rounds
        return self._seconds[key]

    def missing(self, plan: RunPlan) -> list[Path]:
        """Returns the published files that a run reads and that are not there; they are looked for once."""
        graphs = repr(sources(plan.config))
        if graphs not in self._missing:
            self._missing[graphs] = [path for source in sources(plan.config) for path in missing_files(source)]
        return self._missing[graphs]

    def _read(self, config: Config) -> Graph:
        """Reads the graph of a config, or takes it from those that were read last, as many as memory has room for."""
        key = repr(sources(config))
        graph = self._graphs.pop(key, None)
        if graph is None:
            graph = read_graph(config, self._large)
        else:
            require_fitting_graph(config, graph)
        room = config.memory_limit() // SHARE_TO_KEEP - _bytes(graph)
        # The newest come first.
        for other, older in reversed([*self._graphs.items()]):
            if (room := room - _bytes(older)) < 0:
                del self._graphs[other]
        self._graphs[key] = graph
        return graph


def _bytes(graph: Graph) -> int:
    """Counts bytes of a graph's arrays in memory: those of shared or mapped values take none."""
    arrays = [value for value in vars(graph).values() if isinstance(value, np.ndarray)]
    if sp.issparse(graph.x):
        arrays += [graph.x.data, graph.x.indices, graph.x.indptr]
    return sum(array.nbytes for array in arrays if all(array.strides) and not isinstance(array, np.memmap))
