"""What a config may name as a method, and where it is."""

from storage.alike import did_you_mean
from storage.errors import ShoalError
from storage.option_types import is_own

METHODS = {
    "local": "algorithms.methods.local:Local",
    "global": "algorithms.methods.centralized:Global",
    "fedavg": "algorithms.methods.fedavg:FedAvg",
    "fedgta": "algorithms.methods.fedgta:FedGTA",
    "fedprox": "algorithms.methods.fedprox:FedProx",
    "fedopt": "algorithms.methods.fedopt:FedOPT",
    "scaffold": "algorithms.methods.scaffold:SCAFFOLD",
    "feddc": "algorithms.methods.feddc:FedDC",
    "moon": "algorithms.methods.moon:MOON",
    "fpl": "algorithms.methods.fpl:FPL",
    "fedproc": "algorithms.methods.fedproc:FedProc",
    "fednh": "algorithms.methods.fednh:FedNH",
    "fedproto_averaged": "algorithms.methods.fedproto_averaged:FedProtoAveraged",
    "lg_fedavg": "algorithms.methods.lg_fedavg:LGFedAvg",
    "fedgen": "algorithms.methods.fedgen:FedGen",
    "fedproto": "algorithms.methods.fedproto:FedProto",
    "fedtgp": "algorithms.methods.fedtgp:FedTGP",
    "feddistill": "algorithms.methods.feddistill:FedDistill",
    "fedpg": "algorithms.methods.fedpg.fedpg:FedPG",
    "fedgkc": "algorithms.methods.fedgkc.fedgkc:FedGKC",
    "fggp": "algorithms.methods.fggp.fggp:FGGP",
    "fml": "algorithms.methods.fml:FML",
    "fedkd": "algorithms.methods.fedkd:FedKD",
    "gcfl_plus": "algorithms.methods.gcfl_plus.gcfl_plus:GCFLPlus",
    "adafgl": "algorithms.methods.adafgl.adafgl:AdaFGL",
    "fedsage_plus": "algorithms.methods.fedsage_plus.fedsage_plus:FedSagePlus",
    "fedsage_plus_fedgta": "algorithms.methods.fedsage_plus.fedsage_plus:FedSagePlusFedGTA",
    "fedgl": "algorithms.methods.fedgl:FedGL",
    "fedgl_fedgta": "algorithms.methods.fedgl:FedGLFedGTA",
    "fgssl": "algorithms.methods.fgssl:FGSSL",
    "fedpub": "algorithms.methods.fedpub.fedpub:FedPUB",
    "fedstar": "algorithms.methods.fedstar:FedStar",
    "fedgpl": "algorithms.methods.fedgpl.fedgpl:FedGPL",
    "class_means": "algorithms.methods.class_means:ClassMeans",
}


def require_method_name(name: str) -> None:
    """Refuses a name of no method that is no file of the user's own either.

    Raises:
        ShoalError: It is one.
    """
    if name not in METHODS and not is_own(name):
        raise ShoalError(
            f"algorithm.name: {name!r} is unknown; there are {', '.join(METHODS)}, or my_file.py:MyMethod"
            f"{did_you_mean(name, METHODS)}"
        )
