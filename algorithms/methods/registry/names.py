"""Names of methods for configs, and their modules."""

from typing import Annotated

from pydantic import AfterValidator

from shoal.storage.errors import ShoalError
from shoal.storage.options.types import Name, Named, is_own
from shoal.storage.suggestions import did_you_mean_name, form_meant

METHODS = {
    "local": "shoal.algorithms.methods.local:Local",
    "global": "shoal.algorithms.methods.local:Global",
    "fedavg": "shoal.algorithms.methods.fedavg:FedAvg",
    "fedgta": "shoal.algorithms.methods.fedgta.fedgta:FedGTA",
    "fedprox": "shoal.algorithms.methods.fedprox:FedProx",
    "fedopt": "shoal.algorithms.methods.fedopt:FedOPT",
    "scaffold": "shoal.algorithms.methods.scaffold:SCAFFOLD",
    "feddc": "shoal.algorithms.methods.feddc:FedDC",
    "moon": "shoal.algorithms.methods.moon:MOON",
    "fpl": "shoal.algorithms.methods.fpl:FPL",
    "fedproc": "shoal.algorithms.methods.fedproc:FedProc",
    "fednh": "shoal.algorithms.methods.fednh:FedNH",
    "fedproto_averaged": "shoal.algorithms.methods.fedproto:FedProtoAveraged",
    "lg_fedavg": "shoal.algorithms.methods.lg_fedavg:LGFedAvg",
    "fedgen": "shoal.algorithms.methods.fedgen:FedGen",
    "fedproto": "shoal.algorithms.methods.fedproto:FedProto",
    "fedtgp": "shoal.algorithms.methods.fedtgp:FedTGP",
    "feddistill": "shoal.algorithms.methods.feddistill:FedDistill",
    "fedpg": "shoal.algorithms.methods.fedpg.fedpg:FedPG",
    "fedgkc": "shoal.algorithms.methods.fedgkc:FedGKC",
    "fggp": "shoal.algorithms.methods.fggp.fggp:FGGP",
    "fml": "shoal.algorithms.methods.fml:FML",
    "fedkd": "shoal.algorithms.methods.fedkd:FedKD",
    "gcfl_plus": "shoal.algorithms.methods.gcfl_plus.gcfl_plus:GCFLPlus",
    "adafgl": "shoal.algorithms.methods.adafgl.adafgl:AdaFGL",
    "fedsage_plus": "shoal.algorithms.methods.fedsage_plus.fedsage_plus:FedSagePlus",
    "fedsage_plus_fedgta": "shoal.algorithms.methods.fedsage_plus.fedsage_plus:FedSagePlusFedGTA",
    "fedsage_plus_moon": "shoal.algorithms.methods.fedsage_plus.fedsage_plus:FedSagePlusMOON",
    "fedsage_plus_feddc": "shoal.algorithms.methods.fedsage_plus.fedsage_plus:FedSagePlusFedDC",
    "fedgl": "shoal.algorithms.methods.fedgl:FedGL",
    "fedgl_fedgta": "shoal.algorithms.methods.fedgl:FedGLFedGTA",
    "fedgl_moon": "shoal.algorithms.methods.fedgl:FedGLMOON",
    "fedgl_feddc": "shoal.algorithms.methods.fedgl:FedGLFedDC",
    "fgssl": "shoal.algorithms.methods.fgssl:FGSSL",
    "fedpub": "shoal.algorithms.methods.fedpub.fedpub:FedPUB",
    "fedstar": "shoal.algorithms.methods.fedstar:FedStar",
    "fedgpl": "shoal.algorithms.methods.fedgpl.fedgpl:FedGPL",
    "fedgcn": "shoal.algorithms.methods.fedgcn:FedGCN",
    "class_means": "shoal.algorithms.methods.class_means:ClassMeans",
    "fedtad": "shoal.algorithms.methods.fedtad.fedtad:FedTAD",
    "s2fgl": "shoal.algorithms.methods.s2fgl.s2fgl:S2FGL",
    "fedspray": "shoal.algorithms.methods.fedspray.fedspray:FedSpray",
    "fediih": "shoal.algorithms.methods.fediih.fediih:FedIIH",
    "fedlog": "shoal.algorithms.methods.fedlog.fedlog:FedLoG",
    "fedgm": "shoal.algorithms.methods.fedgm.fedgm:FedGM",
    "feddep": "shoal.algorithms.methods.feddep.feddep:FedDEP",
}
# Methods that their papers write otherwise than their classes are called.
AS_WRITTEN = {
    "class_means": "Class means",
    "fedgl_feddc": "FedGL with FedDC",
    "fedgl_fedgta": "FedGL with FedGTA",
    "fedgl_moon": "FedGL with MOON",
    "fedproto_averaged": "FedProto, averaged",
    "fedpub": "FED-PUB",
    "fedsage_plus": "FedSage+",
    "fedsage_plus_feddc": "FedSage+ with FedDC",
    "fedsage_plus_fedgta": "FedSage+ with FedGTA",
    "fedsage_plus_moon": "FedSage+ with MOON",
    "gcfl_plus": "GCFL+",
    "lg_fedavg": "LG-FedAvg",
}
# Methods that read hops whatever the model of the config: themselves, or by a copilot.
READ_HOPS_THEMSELVES = ("class_means", "fedgkc", "fedkd", "fml")
# Methods for which hop k is the k-th power of one propagation.
READ_POWERS = (*READ_HOPS_THEMSELVES, "fedpub", "fedgm")
# Methods that read a client's graph by its model alone, which may read sums over edges between clients.
READ_NO_EDGES = ("local", "fedavg", "fedgcn", "fedprox", "fedopt", "scaffold", "feddc", "moon")
# Methods that average one model in one phase, which a server may do step by step as uploads come.
AVERAGE_ONE_MODEL = ("fedavg", "fedgcn", "fedopt", "fedprox")
# A config that asks for generated neighbours without a method is pointed to this one.
GENERATES_NEIGHBOURS = "fedsage_plus"
_AUGMENTED = ("on its augmented graph once it has one", "on graphs as they are")
# Other methods are compared with these first.
TO_COMPARE = ("local", "fedavg")
# Their clients multiply no matrices beside those of the model in local training, or for an upload those of `fedgta`:
# a pass over all nodes, and `lp_steps` products of the graph with labels, at every `sketch_every`-th visit.
SKETCH_LABELS = ("fedgta",)
ONLY_TRAIN = (
    "fedavg",
    "feddc",
    "fedgcn",
    "fedopt",
    "fedprox",
    "global",
    "lg_fedavg",
    "local",
    "scaffold",
    *SKETCH_LABELS,
)
# The scopes `deployed` and `global` read this beside parameters, in words, for the methods that do.
BESIDE_PARAMETERS = {
    "adafgl": ("with the branches that it trained", "without branches"),
    "feddep": ("with its generated embeddings once it has them", "without embeddings"),
    "fedsage_plus": _AUGMENTED,
    "fedsage_plus_feddc": _AUGMENTED,
    "fedsage_plus_fedgta": _AUGMENTED,
    "fedsage_plus_moon": _AUGMENTED,
    "fggp": ("with the bank of prototypes of that round", "with the newest bank"),
}


def display_name(method: str) -> str:
    """Returns a method as its paper writes it, `FedGTA` for `fedgta`; for `my_file.py:MyMethod` its class."""
    return AS_WRITTEN.get(method) or METHODS.get(method, method).rpartition(":")[2]


def beside_parameters(name: str) -> tuple[str, str]:
    """Says what `deployed` and `global` read beside parameters; clients of a user's own method may keep anything."""
    of_a_users = ("with what it keeps of its own", "without what clients keep")
    return BESIDE_PARAMETERS.get(name, ("", "") if name in METHODS else of_a_users)


def _as_listed(name: str) -> str:
    """Returns a method's name in the case that configs keep, and runs are named by; any other name as it is."""
    return name.lower() if name.lower() in METHODS else name


class MethodSpec(Named):
    """The section `algorithm` of a config.

    Attributes:
        name: Name of the method, in any case, or `my_file.py:Name`.
        options: All other keys: the options of the method.
    """

    name: Annotated[Name, AfterValidator(_as_listed)]


def require_method_name(name: str) -> None:
    """Raises a ShoalError for a name of no method that is no file of the user's own either."""
    if name not in METHODS and not is_own(name):
        hint = form_meant(name, "MyMethod") or did_you_mean_name(name, METHODS)
        there = f"there are {', '.join(METHODS)}, or my_file.py:MyMethod"
        raise ShoalError("algorithm.name", f"{hint}{name!r} is unknown; {there}")
