"""The backend that a config asks for. Ray, which takes a second to load, is imported only for its own."""

import os
from importlib.machinery import PathFinder
from pathlib import Path

from shoal.engine.config.config import Config
from shoal.engine.hosts.backend import Backend, LocalBackend, server_device
from shoal.storage.errors import ShoalError


def open_backend(config: Config) -> Backend:
    """Starts the backend of `engine.backend`. Raises ShoalError: a cluster or a GPU is missing, or too small."""
    if config.engine.backend == "local":
        return LocalBackend(server_device(config))
    require_own_package()
    from shoal.engine.cluster.ray_backend import RayBackend

    return RayBackend(config)


def require_own_package() -> None:
    """Checks that no file in the working directory, which other processes search first, has the name of this package.

    Raises ShoalError: there is one.
    """
    ours = Path(__file__).absolute().parents[2] / "__init__.py"
    spec = PathFinder.find_spec("shoal", [os.getcwd()])
    if spec is not None and spec.origin is not None and not ours.samefile(spec.origin):
        raise ShoalError(
            Path(spec.origin),
            "has the name of this package, and other processes would run it instead; rename it, or start elsewhere",
        )
