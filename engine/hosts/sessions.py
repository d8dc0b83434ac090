"""Hosts for runs, where `engine.backend` says; Ray is imported for it alone."""

from engine.hosts.federation import LocalSession, Session
from engine.settings.config import Config


def open_session(config: Config) -> Session:
    """Starts what `engine.backend` names.

    Raises:
        ShoalError: The cluster cannot be reached or is too small.
    """
    if config.engine.backend == "local":
        return LocalSession(config)
    from engine.hosts.ray_federation import RaySession

    return RaySession(config)
