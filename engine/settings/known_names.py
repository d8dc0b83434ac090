"""Names in a config are those of something: looked up without loading it, which takes seconds."""

from algorithms.backbones.names import require_backbone_name
from algorithms.methods.names import require_method_name
from engine.settings.config import Config
from storage.dataset_names import require_dataset


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
