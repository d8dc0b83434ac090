"""Whether the cluster is still there: without its control service Ray ends this process, a minute later and unasked."""

import socket
import time

import ray
from ray.exceptions import RayError

from storage.errors import ShoalError

SECONDS_BETWEEN_LOOKS = 5.0
SECONDS_GONE = 20.0
SECONDS_TO_ANSWER = 2.0


class ClusterHealth:
    """Looks now and then whether the control service (GCS) answers, and whether this machine is still a part."""

    def __init__(self) -> None:
        """Of the cluster that this process is connected to."""
        context = ray.get_runtime_context()
        host, _, port = context.gcs_address.rpartition(":")
        self._address, self._node = (host.strip("[]"), int(port)), context.get_node_id()
        self._answered = self._looked = time.monotonic()

    def require(self) -> None:
        """Looks, unless it just did.

        Raises:
            ShoalError: The control service is gone for some time, or Ray's process on this machine (raylet) has ended.
        """
        now = time.monotonic()
        if now - self._looked < SECONDS_BETWEEN_LOOKS:
            return
        self._looked = now
        if self._answers():
            self._answered = time.monotonic()
            self.require_machine()
        elif now - self._answered > SECONDS_GONE:
            host, port = self._address
            raise ShoalError(
                f"ray: the control service of the cluster (GCS) at {host}:{port} has not answered for "
                f"{now - self._answered:.0f} s; start the cluster again and use --resume"
            )

    def require_machine(self) -> None:
        """Looks for this machine in the cluster.

        Raises:
            ShoalError: It is no part of it any more.
        """
        if not self._answers():
            return
        try:
            nodes = ray.nodes()
        except RayError:
            return
        if not any(node["Alive"] for node in nodes if node["NodeID"] == self._node):
            raise ShoalError(
                "ray: the process of Ray on this machine (raylet) has ended; look for lack of memory, and use --resume"
            )

    def _answers(self) -> bool:
        try:
            socket.create_connection(self._address, timeout=SECONDS_TO_ANSWER).close()
        except OSError:
            return False
        return True
