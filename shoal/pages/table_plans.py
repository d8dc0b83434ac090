"""Plans of the runs of a paper's tables: one for each run, in however many cells it is, and repetitions share it."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from shoal.engine.config.config import Config
from shoal.engine.config.config_text import MOST_BYTES
from shoal.engine.messages.models import KnownModels
from shoal.engine.preparing.checks import read_graph, require_fitting_graph
from shoal.engine.records.graphs import sources
from shoal.engine.runs.dry_run import expected
from shoal.engine.runs.plan import RunPlan
from shoal.storage.datasets.registry import missing_files
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.files.reading import read_text
from shoal.storage.graph.graph import Graph
from shoal.study.study import Selection
from shoal.sweeps.sweep import store_keys
from shoal.tables.papers import PaperStudy

# A key may be read by another one in this form, so that another seed may change more than `seed`.
REFERENCE, SEED = "${", "seed="


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
        self._models = KnownModels()
        self._refers: dict[str, bool] = {}
        self._graph: tuple[tuple[DataSource, ...], Graph] | None = None

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
        # The files that keys name are read once.
        vars(repeated)["inputs"] = plan.inputs
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
            self._seconds[key] = expected(plan, read=self._read).time.rounds
        return self._seconds[key]

    def missing(self, plan: RunPlan) -> list[Path]:
        """Returns the published files that a run reads and that are not there; they are looked for once."""
        graphs = repr(sources(plan.config))
        if graphs not in self._missing:
            self._missing[graphs] = [path for source in sources(plan.config) for path in missing_files(source)]
        return self._missing[graphs]

    def _read(self, config: Config) -> Graph:
        """Reads the graph of a config; the last one that was read is kept, since columns of a table share theirs."""
        of_config = sources(config)
        if self._graph is None or self._graph[0] != of_config:
            self._graph = None
            self._graph = of_config, read_graph(config)
        else:
            require_fitting_graph(config, self._graph[1])
        return self._graph[1]
