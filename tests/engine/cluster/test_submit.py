"""Runs as jobs: what is refused before anything is sent. `tests/integration/test_launching.py` sends one."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from support.errors import refused
from support.fixtures import Configure, Refused

from shoal.engine.cluster.submit import submit


@contextmanager
def closed() -> Iterator[str]:
    """The address of a port that nothing listens at, and that nobody else takes."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@contextmanager
def no_ray() -> Iterator[str]:
    """A server of something else, which knows no page that it is asked for."""
    with HTTPServer(("127.0.0.1", 0), type("Other", (BaseHTTPRequestHandler,), {})) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("address", ["", "127.0.0.1:8265", "http://:8265", "http://head:port", "ray://head:10001"])
def test_no_address_of_a_dashboard_is_refused(configure: Configure, address: str) -> None:
    with refused("--address"):
        submit(configure({}), "run", address)


@pytest.mark.parametrize(("listener", "says"), [(closed, "nothing listens there"), (no_ray, "takes no job (")])
def test_an_address_without_ray_is_refused(configure: Configure, listener: Callable, says: str) -> None:
    with listener() as address, refused("--address", address, says=says):
        submit(configure({"engine.backend": "ray"}), "run", address)


def test_a_folder_for_hosts_is_refused(configure: Configure) -> None:
    keys = {"engine.backend": "ray", "ray.runtime_env": {"working_dir": "/here"}}
    with closed() as address, refused("ray.runtime_env.working_dir"):
        submit(configure(keys), "run", address)


@pytest.mark.parametrize("override", ["train.lrr=1", "algorithm.mu=1"])
def test_a_wrong_key_is_refused_before_the_cluster_is_asked(tiny: Path, refused: Refused, override: str) -> None:
    with closed() as address:
        line = refused("submit", tiny, override, "--address", address)
    assert line.partition("unknown")[0].endswith((f"{override.partition('=')[0]}: ", "did you mean 'lr'? "))
