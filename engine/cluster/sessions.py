"""The hosts that a config asks for: Ray is loaded only where it is to carry the run."""

from shoal.engine.config.config import Config
from shoal.engine.hosts.federation import LocalSession, Session


def open_session(config: Config) -> Session:
    """Starts what `engine.backend` names.

    Raises:
        ShoalError: The cluster cannot be reached or is too small.
    """
    if config.engine.backend == "local":
        return LocalSession(config)
    # Loading Ray takes a second, and nothing in one process needs it.
    from shoal.engine.cluster.ray_federation import RaySession

    return RaySession(config)
