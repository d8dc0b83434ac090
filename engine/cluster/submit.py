"""Submits a run as a job of a Ray cluster: its driver runs on the cluster, and survives the machine that submits."""

import os
import secrets
import socket
import tempfile
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from shoal.engine.config.config import Config
from shoal.engine.records.run_folder import RunFolder
from shoal.storage.errors import ShoalError

# Kubernetes and SLURM wait as long. Ray's default is 3 s, too short to write the checkpoint of a large run.
SECONDS_TO_STOP = 30
CONNECT_SECONDS = 10
# Ray would read the address from these variables.
OTHER_ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")


def submit(config: Config, run: str, address: str) -> str:
    """Sends the config with its user code to the jobs of a cluster; returns the id of the job.

    The job goes on with a run that was stopped. Paths of the config are those of the cluster's head.

    Args:
        run: Name of the run folder, with which the id begins.
        address: The address of the dashboard of the head, e.g. `http://HEAD:8265`.

    Raises:
        ShoalError: Nothing takes jobs there, or the config names something that a job cannot have.
    """
    if "working_dir" in config.ray.runtime_env:
        raise ShoalError("ray.runtime_env.working_dir", "is for `shoal run`; a submitted run has a folder of its own")
    _require_listener(address)
    for name in OTHER_ADDRESSES:
        os.environ.pop(name, None)
    # These modules load much of Ray, which waits until something listens.
    from ray.exceptions import RayError
    from ray.job_submission import JobSubmissionClient

    joins = "ray.address=auto" if config.engine.backend == "ray" else ""
    with tempfile.TemporaryDirectory(prefix="shoal-") as folder:
        with closing(RunFolder(Path(folder))) as kept:
            kept.begin(config)
        try:
            return JobSubmissionClient(address).submit_job(
                entrypoint=f"python -m shoal run . --resume {joins}".rstrip(),
                submission_id=f"{run}-{secrets.token_hex(3)}",
                runtime_env={"working_dir": folder, "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(SECONDS_TO_STOP)}},
            )
        # Ray's client raises the last three, some of them for `requests`.
        except (RayError, RuntimeError, ValueError, OSError) as error:
            reason = " ".join(str(error).split())[:300]
            raise ShoalError(
                "--address", address, f"takes no job ({reason}); install 'ray[default]' there and here"
            ) from error


def _require_listener(address: str) -> None:
    """Raises ShoalError: the address is none of a dashboard, or nothing listens there."""
    try:
        parts = urlsplit(address)
        usual = {"http": 80, "https": 443}[parts.scheme]
        place = (parts.hostname or "", parts.port or usual)
    except (ValueError, KeyError):
        place = ("", 0)
    if not place[0]:
        raise ShoalError("--address", f"expected the dashboard of a cluster, http://HEAD:8265, found {address!r}")
    try:
        socket.create_connection(place, timeout=CONNECT_SECONDS).close()
    except (OSError, UnicodeError) as error:
        raise ShoalError(
            "--address",
            address,
            f"nothing listens there ({getattr(error, 'strerror', None) or error}); start the cluster with "
            "`ray start --head --dashboard-host=0.0.0.0`, or give the address that it prints",
        ) from error
