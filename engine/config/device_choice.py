"""The kind of device that a run computes on, by its config."""

from shoal.engine.config.config import Config
from shoal.storage.errors import ShoalError


def device_choice(config: Config) -> str:
    """`cpu` or `cuda`: `engine.device`, or, if that is `auto`, a GPU where hosts have a share of one.

    Raises:
        ShoalError: The config's device, shares and precision exclude one another.
    """
    share, device = config.resources.gpus_per_host, config.engine.device
    if device == "auto":
        device = "cuda" if share else "cpu"
    if device == "cuda" and share > 1:
        raise ShoalError(
            f"resources.gpus_per_host: a host computes on one GPU, found {share:g}; set it to 1 and engine.hosts to "
            "the number of GPUs, or engine.device=cpu"
        )
    if device == "cuda" and not share and config.engine.backend == "ray":
        raise ShoalError(
            "engine.device: cuda needs a share of a GPU for every host: set resources.gpus_per_host, as in 0.25"
        )
    if device == "cpu" and config.engine.precision == "tf32":
        raise ShoalError("engine.precision: tf32 is of GPUs; the run's device is cpu: take float32 or bfloat16")
    return device
