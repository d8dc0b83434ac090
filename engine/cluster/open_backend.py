"""The backend that a config asks for. Ray, which takes a second to load, is imported only for its own."""

from shoal.engine.config.config import Config
from shoal.engine.hosts.backend import Backend, LocalBackend, server_device


def open_backend(config: Config) -> Backend:
    """Starts what `engine.backend` names; raises a ShoalError for no or too small a cluster, or no GPU."""
    if config.engine.backend == "local":
        return LocalBackend(server_device(config))
    from shoal.engine.cluster.ray_backend import RayBackend

    return RayBackend(config)
