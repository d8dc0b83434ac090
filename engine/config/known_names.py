"""Checks names in a config without importing torch, which takes seconds."""

from shoal.algorithms.methods.registry.names import require_method_name
from shoal.algorithms.models.names import require_backbone_name
from shoal.engine.config.config import Config
from shoal.storage.options.dataset_names import require_dataset


def require_names(config: Config) -> None:
    """Refuses a method, model or dataset that there is not; files of the user's own are not looked into.

    Raises:
        ShoalError: There is none of a name.
    """
    require_method_name(config.algorithm.name)
    for model in config.models():
        require_backbone_name(model.name, config.task)
    dataset = config.data.dataset
    for name in (dataset,) if isinstance(dataset, str) else dataset:
        require_dataset(name)
