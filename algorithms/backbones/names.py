"""What a config may name as a model or a prompt, and where it is."""

from storage.alike import did_you_mean
from storage.errors import ShoalError
from storage.option_types import is_own

# By name of their modules: PyG takes seconds and 130 MiB of every process that imports it.
BACKBONES = {
    "gamlp": "algorithms.backbones.gamlp:GAMLP",
    "gat": "algorithms.backbones.gat:GAT",
    "gbp": "algorithms.backbones.gbp:GBP",
    "gcn": "algorithms.backbones.gcn:GCN",
    "gcnii": "algorithms.backbones.gcnii:GCNII",
    "gin": "algorithms.backbones.gin:GIN",
    "mlp": "algorithms.backbones.mlp:MLP",
    "s2gc": "algorithms.backbones.s2gc:S2GC",
    "sage": "algorithms.backbones.sage:GraphSAGE",
    "sgc": "algorithms.backbones.sgc:SGC",
    "sign": "algorithms.backbones.sign:SIGN",
    "transformer": "algorithms.backbones.transformer:Transformer",
}

# For graph tasks alone.
OF_GRAPHS = {"star": "algorithms.backbones.star:Star"}
# What a method may name in `models()`, and no config: networks without a classifier.
HEADLESS = {"topology": "algorithms.backbones.topology:Topology"}

# What stands before a coupled backbone of graphs.
PROMPTS = {
    "all_in_one": "algorithms.backbones.all_in_one:AllInOne",
    "gpf": "algorithms.backbones.feature_prompts:GPF",
    "gpf_plus": "algorithms.backbones.feature_prompts:GPFPlus",
    "none": "algorithms.backbones.feature_prompts:Unchanged",
    "supt": "algorithms.backbones.supt:SUPT",
    "vpg": "algorithms.backbones.vpg:VPG",
}


def require_backbone_name(name: str, task: str) -> None:
    """Refuses a name of no model for a task that is no file of the user's own either.

    Raises:
        ShoalError: It is one.
    """
    if name in OF_GRAPHS and task != "graph":
        raise ShoalError(f"model.name: {name} reads codes of small graphs, for graph tasks (task: graph); take gin")
    if name not in BACKBONES and name not in OF_GRAPHS and not is_own(name):
        names = sorted(BACKBONES)
        raise ShoalError(
            f"model.name: there is no {name!r}; choose one of {', '.join(names)}, or my_file.py:MyModel"
            f"{did_you_mean(name, names)}"
        )
