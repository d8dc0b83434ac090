"""Refuses runs that would leave out the weights of edges."""

from shoal.algorithms.base import WEIGHTED
from shoal.algorithms.method_errors import code_of
from shoal.algorithms.methods.registry.load import describe, load, weighing_methods
from shoal.algorithms.models.build import backbone
from shoal.algorithms.models.layers.coupled import Coupled
from shoal.engine.config.config import Config
from shoal.storage.errors import ShoalError

WAY_OUT = "or set data.edge_weights to drop"


def require_weights_used(config: Config, dataset: str, weighted: bool) -> None:
    """Refuses a run that would leave out what edges weigh.

    Args:
        config: The run.
        dataset: Name of the dataset.
        weighted: Whether its edges have weights.

    Raises:
        ShoalError: They have, and the task, the method, or a model reads edges without them; names the key.
    """
    if not weighted:
        return
    has = f"the edges of dataset '{dataset}' have weights"
    if config.task == "graph":
        raise ShoalError("task", f"{has}, which graph tasks leave out; set data.edge_weights to drop")
    name = config.algorithm.name
    algorithm = load(describe(name, config.algorithm.options))
    if WEIGHTED not in algorithm.supports:
        others = ", ".join(weighing_methods(config.task))
        raise ShoalError("algorithm.name", f"{has}, which {name} leaves out; take another method ({others}), {WAY_OUT}")
    if config.data.features.from_edges:
        raise ShoalError(
            "data.features", f"{has}, which {config.data.features.kind} leaves out; take other features, {WAY_OUT}"
        )
    for spec in config.models():
        if not _weighs_edges(spec.name, config.task):
            raise ShoalError(
                "model.name",
                f"{has}, which {spec.name} leaves out; take gcn, gcnii or a model that reads hops, {WAY_OUT}",
            )
        if spec.options.get("fanouts") is not None:
            raise ShoalError("model.fanouts", f"{has}, by which no neighbours are drawn; leave it out, {WAY_OUT}")
    with code_of(algorithm, "models"):
        described = [str(model["name"]) for model in algorithm.models().values() if model is not None]
    for model in described:
        if not _weighs_edges(model, config.task):
            raise ShoalError(
                "algorithm", f"{has}, which {model}, a model of {name}, leaves out; take another, {WAY_OUT}"
            )


def _weighs_edges(model: str, task: str) -> bool:
    """Whether a model that passes messages weighs them; others read hops, which were weighed, or no edges."""
    cls = backbone(model, True, task)
    return not issubclass(cls, Coupled) or cls.weighs_edges
