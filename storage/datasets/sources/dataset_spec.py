"""Record of a dataset in the registry; each is defined beside its reader."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.graph.graph import Graph


@dataclass(frozen=True)
class DatasetSpec:
    """A dataset that a config can name; `storage/datasets/registry.py` has all of them.

    Attributes:
        name: In a config, in lower case.
        load: Reads or makes the graph, of this name and with these options.
        files: Published files, as paths below the data root; of some they depend on the options.
        task: What has labels: nodes or graphs. None: the data says.
        items: Number of nodes, or of graphs, where it is known before they are read.
        classes: Number of classes, where it is known before they are read.
        content: The options that change the graph, and the files of the user's own, in types JSON has.
        finite: The reader checks that features are finite.
        weighted: Edges may have weights.
    """

    name: str
    load: Callable[[str, DataSource], Graph]
    files: Sequence[Path] | Callable[[DataSource], Sequence[Path]] = ()
    task: Literal["node", "graph"] | None = "node"
    items: Callable[[DataSource], int] | None = None
    classes: Callable[[DataSource], int | None] | None = None
    content: Callable[[DataSource], dict[str, Any]] | None = None
    finite: bool = False
    weighted: bool = False

    def published_files(self, options: DataSource) -> Sequence[Path]:
        """The published files that these options read, as paths below the data root."""
        return self.files(options) if callable(self.files) else self.files
