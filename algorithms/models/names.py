"""Names of models and prompts in a config, the classes behind them, and the section `model`."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, model_validator

from shoal.storage.errors import ShoalError
from shoal.storage.options.types import FilePath, Flag, Name, Named, absolute_user_path, is_own
from shoal.storage.suggestions import did_you_mean_name, form_meant

# Models are given by name: a process imports those that it trains. These read powers of the propagation, which were
# computed before.
READ_HOPS = {
    "gamlp": "shoal.algorithms.models.decoupled.gamlp:GAMLP",
    "gbp": "shoal.algorithms.models.decoupled.fixed_hops:GBP",
    "s2gc": "shoal.algorithms.models.decoupled.fixed_hops:S2GC",
    "sgc": "shoal.algorithms.models.decoupled.fixed_hops:SGC",
    "sign": "shoal.algorithms.models.decoupled.sign:SIGN",
}
# Models among these that weigh each hop for itself, whichever it is.
WEIGH_HOPS = ("gamlp", "sign")
# These pass messages along edges, or read features alone.
READ_NO_HOPS = {
    "disengcn": "shoal.algorithms.models.gnn.disengcn:DisenGCN",
    "gat": "shoal.algorithms.models.gnn.gat:GAT",
    "gcn": "shoal.algorithms.models.gnn.gcn:GCN",
    "gcnii": "shoal.algorithms.models.gnn.gcnii:GCNII",
    "gin": "shoal.algorithms.models.gnn.gin:GIN",
    "mlp": "shoal.algorithms.models.decoupled.fixed_hops:MLP",
    "sage": "shoal.algorithms.models.gnn.sage:GraphSAGE",
    "transformer": "shoal.algorithms.models.gnn.transformer:Transformer",
}
# Models that read features of edges, and have parameters by how many there are: gat and transformer where edges
# have any, the others only there.
READ_EDGES = {
    "gat": "shoal.algorithms.models.edges.edge_gat:EdgeGAT",
    "transformer": "shoal.algorithms.models.edges.edge_transformer:EdgeTransformer",
}
NEED_EDGES = {
    "gine": "shoal.algorithms.models.edges.gine:GINE",
    "han": "shoal.algorithms.models.edges.han:HAN",
    "hgt": "shoal.algorithms.models.edges.hgt:HGT",
    "rgcn": "shoal.algorithms.models.edges.rgcn:RGCN",
}
# These have parameters by kinds of nodes and edges.
OF_KINDS = ("han", "hgt")
# Models with first layers that can read sums of neighbours at all clients, by `data.cross_edges`.
READ_SUMS = {"one_hop": ("gcn", "sage"), "two_hop": ("gcn",)}
BACKBONES = dict(sorted({**READ_HOPS, **READ_NO_HOPS, **NEED_EDGES}.items()))

# Other names of models, as `plain_name` writes them.
OTHER_NAMES = {"graphsage": "sage", "ssgc": "s2gc", "gcn2": "gcnii", "ginedge": "gine", "relationalgcn": "rgcn"}

# These models are for graph tasks only.
OF_GRAPHS = {"star": "shoal.algorithms.models.gnn.star:Star"}
# Networks without a classifier, which a method may name in `models()` but a config may not.
HEADLESS = {"topology": "shoal.algorithms.models.gnn.topology:Topology"}

# Prompts before a coupled backbone of graphs.
PROMPTS = {
    "all_in_one": "shoal.algorithms.models.prompts.prompts:AllInOne",
    "gpf": "shoal.algorithms.models.prompts.prompts:GPF",
    "gpf_plus": "shoal.algorithms.models.prompts.prompts:GPFPlus",
    "none": "shoal.algorithms.models.prompts.prompts:Unchanged",
    "supt": "shoal.algorithms.models.prompts.prompts:SUPT",
    "vpg": "shoal.algorithms.models.prompts.prompts:VPG",
}

# Larger numbers are refused, so that the number of parameters can be computed: it stays below 2^63.
WIDEST, MOST_LAYERS = 2**24, 1000


def describe_edge_features(count: int, models: Sequence[str], by_hops: bool = False) -> str:
    """Says who reads the features of edges, of which there are so many, or that hops do; empty: edges have none."""
    if not count:
        return ""
    readers = {*READ_EDGES, *NEED_EDGES}
    read, others = ([name for name in dict.fromkeys(models) if (name in readers) == reads] for reads in (True, False))
    has = f"{count} feature{'s' if count > 1 else ''} of edges"
    if by_hops:
        return f"{has}, whose kinds hops are of (propagation.relations)"
    if not others:
        return f"{has}, read by {' and '.join(read)}"
    return f"{has}, not read by {' and '.join(others)}; {', '.join(sorted(readers))} read them"


def least_edge_features(models: Sequence[str]) -> int:
    """Returns the number of features of edges that some models may need at least; those of the user may."""
    return int(any(name in NEED_EDGES or is_own(name) for name in models))


def require_backbone_name(name: str, task: str) -> None:
    """Raises a ShoalError for what is neither a model for a task nor a user's file."""
    if name in OF_GRAPHS and task != "graph":
        raise ShoalError("model.name", f"{name} reads codes of small graphs, for graph tasks (task: graph); take gin")
    if name not in BACKBONES and name not in OF_GRAPHS and not is_own(name):
        names = sorted(BACKBONES)
        hint = form_meant(name, "MyModel") or did_you_mean_name(name, names, OTHER_NAMES)
        there = f"choose one of {', '.join(names)}, or my_file.py:MyModel"
        raise ShoalError("model.name", f"{hint}there is no {name!r}; {there}")


def _as_listed(name: str) -> str:
    """Returns a model's name in the case that configs keep, and runs are named by; any other name as it is."""
    return name.lower() if name.lower() in (*BACKBONES, *OF_GRAPHS) else name


class ModelSpec(Named):
    """The section `model` of a config, or an entry of it where it is a list.

    Attributes:
        name: Name of the model, in any case, or `my_file.py:Name`.
        init: `shared`: clients of this model start equal; `own`: each with its own parameters.
        pretrained: safetensors of the parameters that its GNN starts from, `own` or not, as `shoal pretrain` makes it;
            all others are drawn.
        frozen: The GNN stays as it starts, in no message; it needs a prompt (`none` for a classifier alone).
        options: All other keys: the backbone's keyword-only parameters.
    """

    name: Annotated[Name, AfterValidator(_as_listed)] = "gamlp"
    init: Literal["shared", "own"] = "shared"
    pretrained: FilePath | None = None
    frozen: Flag = False

    @model_validator(mode="after")
    def _require_one_gnn(self) -> "ModelSpec":
        """Refuses GNNs of each client's own that nothing trains and no message has."""
        if self.frozen and self.init == "own":
            raise ValueError("frozen keeps one GNN for all clients, and init: own draws one for each; leave one out")
        return self

    @model_validator(mode="before")
    @classmethod
    def _find_readout(cls, received: Any) -> Any:
        """Makes the path of a user's readout absolute."""
        if isinstance(received, dict) and "readout" in received:
            return {**received, "readout": absolute_user_path(received["readout"])}
        return received
