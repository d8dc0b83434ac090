"""A dataset in a config and in the registry, and the folders of published and derived files."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from shoal.storage.datasets.features.feature_options import DATASET_FEATURES, MadeFeatures
from shoal.storage.errors import ShoalError
from shoal.storage.options.dataset_names import PYG, TU, has_user_options, usual_name
from shoal.storage.options.target_names import CLASSIFICATION, Target
from shoal.storage.options.types import FilePath, Flag, Number, Whole, is_own

if TYPE_CHECKING:
    from shoal.storage.graph.graph import Graph

# The way out of a damaged published file.
AGAIN = "delete it, and it is downloaded again"
# Nodes are numbered with 31 bits.
Count = Annotated[Whole, Field(lt=2**31)]
EdgeWeights = Literal["keep", "drop"]
EdgeFeatures = Literal["keep", "drop"]
# An encoder of texts that needs no model: hashed words and pairs of words.
NGRAMS = "ngrams"


@dataclass(frozen=True)
class DataSource:
    """The keys of a config's `data` section that choose the graph.

    Attributes:
        dataset: Name of the dataset, upper or lower case.
        root: Folder of published files; None means the variable SHOAL_DATA, else `~/.cache/shoal`.
        path: The user's own graph, an .npz file or a folder; dataset `files` only.
        row_normalize: Scale every row of the features to sum 1.
        scratch: Folder for arrays derived from OGB graphs and twins; None means the folder of published files.
        memory_limit: Bytes of memory to read OGB graphs and draw twins in; does not change the graph.
        feature_dtype: How features of an OGB graph are kept on disk, `float32` or `float16`; None means float16
            for ogbn-papers100m, else float32.
        scale: Counts of a twin over those of the original.
        neighbors: Nearest neighbours of an image; dataset `digits` only.
        nodes, classes, features: How many there are; dataset `sbm` only, as the next two.
        blocks: Number of communities, each of one class; None means as many as classes.
        degree: Edges of a node, on average.
        homophily: Share of edges that join nodes of one class, 0 to 1; `sbm` and twins. None: 0.8, or the twin's.
        signal: Norm of what a class adds to features, in standard deviations of the noise of one; `sbm` and twins.
            None: 1, or the twin's.
        seed: Of everything random in generated graphs.
        node_attributes: Take the measured attributes of nodes beside their labels, without which they are always taken;
            graphs of TUDataset only, as the next one.
        degree_cap: Nodes of this degree and above have one column, where degrees stand for features that are missing;
            None: every degree has its own.
        graphs: Number of graphs G; dataset `sbm-graphs` only, which has the options of `sbm`, too, but no blocks.
        text: Columns of texts in a table of nodes, one or several that are joined; dataset `files` only, as the next
            two.
        encoder: What makes features of them: `ngrams`, hashed words and pairs of words; `sentences:MODEL`, a model of
            sentence-transformers or its folder; or a function of the user's, `my_file.py:encode`.
        text_width: Columns of `ngrams`.
        invalid: What is done with rows of a table of molecules that are none: `refuse` or `drop`; dataset `files` only.
        base: Dataset that graphs are cut from; `induced-node`, `induced-edge` and `induced-graph` only, which also read
            the options of this dataset, as the next six.
        samples: Training graphs of a class, and as many test graphs.
        shots: Of them those that may be trained on, the others are of no part; None: all.
        width: Columns that features are reduced to.
        smallest: Nodes of a graph from which on no further hop is taken.
        largest: Most nodes of a graph.
        user_options: Options of a dataset of the user's own or of PyG, which has no other.
        padding: What is added to graphs that are still too small: `none`, `random` nodes, or nodes of the `same_class`.
        title: What the user's own graph is called; None: `files`.
        made: Features that take the place of the dataset's own.
        edge_weights: `drop` leaves out what edges weigh; of the user's own graphs, others have no weights.
        edge_features: `drop` leaves out features of edges; of graphs that have any.
        labels: Whether the task reads labels; else the user's own graphs may have none.
        target: What labels are, classes, numbers or several labels; of the user's own graphs and those of PyG alone.
        beside: Files that other keys name, which may lie in the folder of the user's own graph.
        noted: Digests of the files of the user's own graph, as a store notes them, for when these are gone.
    """

    dataset: str
    root: str | None = None
    path: str | None = None
    row_normalize: bool = False
    scratch: FilePath | None = None
    memory_limit: int = 4 << 30
    feature_dtype: str | None = None
    scale: Number = 1.0
    neighbors: Count = 8
    nodes: Count = 10000
    classes: Count = 10
    features: Count = 32
    blocks: Count | None = None
    degree: Number = 10.0
    homophily: Number | None = None
    signal: Number | None = None
    seed: Whole = 0
    node_attributes: Flag = False
    degree_cap: Count | None = None
    graphs: Count = 1000
    text: str | tuple[str, ...] | None = None
    encoder: str = NGRAMS
    text_width: Count = 4096
    invalid: Literal["refuse", "drop"] = "refuse"
    base: str | None = None
    samples: Count = 200
    shots: Count | None = None
    width: Count = 100
    smallest: Count = 100
    largest: Count = 300
    padding: str = "none"
    title: str | None = None
    made: MadeFeatures = DATASET_FEATURES
    edge_weights: EdgeWeights = "keep"
    edge_features: EdgeFeatures = "keep"
    labels: bool = True
    target: Target = CLASSIFICATION
    beside: tuple[str, ...] = ()
    user_options: Mapping[str, Any] = field(default_factory=dict)
    noted: Mapping[str, str] | None = None

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns of texts."""
        return (self.text,) if isinstance(self.text, str) else self.text or ()

    @property
    def name(self) -> str:
        """The name of the graph among several: the dataset's, or that of the file or folder of the user's graph."""
        if self.dataset.startswith(PYG):
            return self.dataset.removeprefix(PYG).replace("/", "-")
        if is_own(self.dataset):
            return self.dataset.rpartition(":")[2]
        name = self.key.removeprefix(TU)
        return Path(self.path).expanduser().resolve().stem if name == "files" and self.path else name

    @property
    def key(self) -> str:
        """Name of the dataset as the registry has it."""
        name = usual_name(self.dataset)
        return name if has_user_options(name) or name.startswith(TU) else name.lower()


@dataclass(frozen=True)
class DatasetSpec:
    """A dataset that a config can name, defined beside its reader; `storage/datasets/registry.py` has all of them.

    Attributes:
        name: In a config, in lower case.
        load: Reads or makes the graph, of this name and with these options. It raises a ShoalError that names the file
            or the key: a file is missing and cannot be downloaded, or is damaged or of wrong values, or an option is
            out of range.
        files: Published files, as paths below the data root; of some they depend on the options.
        task: What has labels: nodes or graphs. None: the data says.
        items: Number of nodes, or of graphs, where it is known before they are read.
        classes: Number of classes, where it is known before they are read.
        content: The options that change the graph, and the files of the user's own, in types JSON has.
        options: The keys of `data.options` that it reads.
        finite: The reader checks that features are finite.
        weighted: Edges may have weights.
        target: What labels are, where the data does not say it.
    """

    name: str
    load: Callable[[str, DataSource], "Graph"]
    files: Sequence[Path] | Callable[[DataSource], Sequence[Path]] = ()
    task: Literal["node", "graph"] | None = "node"
    items: Callable[[DataSource], int | None] = lambda options: None
    classes: Callable[[DataSource], int | None] = lambda options: None
    content: Callable[[DataSource], dict[str, Any]] = lambda options: {}
    options: Sequence[str] = ()
    finite: bool = False
    weighted: bool = False
    target: Target = CLASSIFICATION

    def published_files(self, options: DataSource) -> Sequence[Path]:
        """Lists the published files that these options read, as paths below the data root."""
        return self.files(options) if callable(self.files) else self.files


def data_root(root: str | None) -> Path:
    """Returns the absolute folder of published files: `root`, else SHOAL_DATA, else `~/.cache/shoal`."""
    return Path(root or os.environ.get("SHOAL_DATA") or "~/.cache/shoal").expanduser().resolve()


def find_folder(root: Path, folders: Sequence[Path], part: str) -> Path:
    """Finds the first of several folders below `root` that has a file or folder `part`; the first of all if none has.

    Files of a collection lie in a folder of its name or in the data root, as PyG or as its own archive lays them out.
    """
    return next((folder for folder in folders if (root / folder / part).exists()), folders[0])


def derived_root(options: DataSource) -> Path:
    """Returns the absolute folder below which arrays made from published files or drawn at random are kept."""
    return Path(options.scratch).expanduser().resolve() if options.scratch else data_root(options.root)


@contextmanager
def reading(where: object, advice: str) -> Iterator[None]:
    """Turns whatever goes wrong while bytes are decoded into one ShoalError that names the file.

    Every exception is caught, because damaged bytes raise almost anything (a pickle even AttributeError): the block
    under it decodes and does nothing else.
    """
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ShoalError(where, f"cannot be read ({type(error).__name__}: {reason}); {advice}") from error
