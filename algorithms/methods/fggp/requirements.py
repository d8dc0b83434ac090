"""Which models and options of training FGGP can work with."""

from shoal.algorithms.client import FlatModel
from shoal.algorithms.context import Context
from shoal.algorithms.protocol import MODEL
from shoal.storage.errors import ShoalError


def require_fitting(ctx: Context, model: FlatModel, view: bool, generator: bool, keeps_classifier: bool) -> None:
    """Checks a run before its first round.

    Args:
        ctx: The run.
        model: The clients' model.
        view: Clients learn from a second view of their graph.
        generator: A generator draws it.
        keeps_classifier: Classifiers are not averaged.

    Raises:
        ShoalError: They cannot; names the key.
    """
    name = ctx.models[MODEL][0].name
    if keeps_classifier and not model.has_body:
        raise ShoalError(
            f"model.layers: FGGP averages what lies below the classifier, and a {name} of one layer is nothing else; "
            "take 2 layers, or algorithm.head_mode: average"
        )
    if not view:
        return
    coupled = model.coupled
    if coupled is None:
        raise ShoalError(
            f"algorithm.gkic: a second view of the graph needs a model that passes messages, and {name} reads hops; "
            "take gcn, or gkic: off"
        )
    if generator and coupled.operator != "symmetric":
        raise ShoalError(
            f"algorithm.gkic: the generator makes matrices for gcn and gcnii, not for {name}; take one of these, "
            "knn_only, or off"
        )
    if coupled.fanouts:
        raise ShoalError("model.fanouts: a second view of the graph is read whole; leave it out, or take gkic: off")
    if ctx.train.batch_size is not None:
        raise ShoalError("train.batch_size: both views take all rows in one step; leave it out, or take gkic: off")
