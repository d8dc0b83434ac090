"""The backend on Ray: the server of a run as an actor, beside host actors that stay warm between runs."""

import time
from contextlib import suppress
from typing import Any

import psutil
import ray
from ray.exceptions import RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shoal.engine.cluster import tensor_transport
from shoal.engine.cluster.cluster import ClusterHealth, connect
from shoal.engine.cluster.host_actor import await_hosts, start_hosts
from shoal.engine.cluster.ray_pool import RayPool
from shoal.engine.config.config import Config
from shoal.engine.hosts.backend import ServerLost, server_device
from shoal.engine.hosts.device import resident
from shoal.engine.messages.job import Job
from shoal.engine.rounds.costs import Live, Watch, unwatched
from shoal.engine.rounds.evaluation import Columns
from shoal.engine.rounds.sampling import Plan
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.storage.errors import ShoalError

BETWEEN_BEATS = 1.0


class RayBackend:
    """Hosts as Ray actors, and a server as an actor beside them.

    Attributes:
        hosts: Actor handles.
    """

    def __init__(self, config: Config) -> None:
        """Connects to Ray and starts the hosts; `open` waits for them.

        Raises:
            ShoalError: The cluster cannot be reached or is too small.
        """
        connect(config)
        self._config = config
        share = config.resources
        self.hosts = start_hosts(config.engine.hosts, share.cpus_per_host, share.gpus_per_host, share.server_gpus)
        self._up = False
        self._server: Any = None

    def open(self, job: Job, plan: Plan, state: FederationState | None) -> None:
        """Starts a server and waits until every client has a host that can read its data; see `Backend.open`."""
        self.end()
        self._health = ClusterHealth()
        self._server = self._start_server(job, plan, state)
        # The server starts while the hosts do.
        self.await_hosts()
        self._get(self._server.ready.remote())

    def await_hosts(self) -> None:
        """Waits until all hosts are up for the first time.

        Raises:
            ShoalError: They did not come up in time.
        """
        if not self._up:
            await_hosts(self.hosts)
            self._up = True

    def round(self, watch: Watch) -> dict[str, Any]:
        return self._get(self._server.round.remote(), watch)

    def client_scores(self) -> Columns:
        return self._get(self._server.client_scores.remote())

    def state(self) -> FederationState:
        return self._get(self._server.state.remote())

    def end(self) -> None:
        if self._server is not None:
            ray.kill(self._server)
            self._server = None

    def close(self) -> None:
        started = psutil.Process().children(recursive=True) if self._config.ray.address is None else []
        ray.shutdown()
        # Ray ends what it started, but where processes of its own were killed it leaves others behind.
        for process in started:
            with suppress(psutil.Error):
                process.kill()

    def _start_server(self, job: Job, plan: Plan, state: FederationState | None) -> Any:
        # On the driver's machine the server shares the driver's fate, and checkpoints stay on one machine.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        share = self._config.resources
        # A second thread answers `alive` while a round runs in the first.
        actor = ray.remote(ServerActor).options(
            num_cpus=share.server_cpus, num_gpus=share.server_gpus, max_concurrency=2, scheduling_strategy=here
        )
        return actor.remote(self._config, self.hosts, job, plan, state)

    def _get(self, ref: Any, watch: Watch = unwatched) -> Any:
        """Waits as long as the server gives signs of life.

        Raises:
            ServerLost: The server died or went silent.
            ShoalError: What the server raised, or the cluster is gone.
        """
        silence = self._config.engine.cell_timeout
        answered = time.monotonic()
        beat = self._server.alive.remote()
        try:
            while True:
                done, _ = ray.wait([ref, beat], num_returns=1, timeout=BETWEEN_BEATS)
                self._health.require()
                if ref in done:
                    return ray.get(ref)
                if beat in done:
                    if live := ray.get(beat):
                        watch(live)
                    answered = time.monotonic()
                    ray.wait([ref], timeout=BETWEEN_BEATS)
                    beat = self._server.alive.remote()
                elif time.monotonic() - answered > silence:
                    ray.kill(self._server)
                    self._health.require_machine()
                    raise ServerLost(f"the server was silent for {silence:.0f} s")
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, ShoalError):
                raise ShoalError(cause.line, cause.detail) from None
            raise ShoalError(f"the server failed: {type(cause).__name__}: {cause}", str(error)) from error
        except RayError as error:
            self._health.require_machine()
            raise ServerLost(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error


class ServerActor:
    """The server as a Ray actor; by itself it asks for no CPU and no GPU."""

    def __init__(self, config: Config, hosts: list[Any], job: Job, plan: Plan, state: FederationState | None) -> None:
        tensor_transport.register()
        self._live: Live | None = None
        self._refusal: ShoalError | None = None
        try:
            self._pool = RayPool(hosts, job, config.engine.cell_timeout, config.engine.retries)
            self._server = Server(job, plan, self._pool, state, server_device(config))
        except ShoalError as error:
            # An actor that is not made counts as lost, and would be made again; `ready` tells it.
            self._refusal = ShoalError(error.line, error.detail)

    def ready(self) -> None:
        """Waits until every client, and every graph to evaluate, has a host that sees its data.

        Raises:
            ShoalError: A client has none, or the server could not be made.
        """
        if self._refusal is not None:
            raise self._refusal
        self._pool.require_data([info.client for info in (*self._server.infos, *self._server.graphs)])

    def round(self) -> dict[str, Any]:
        """Runs one round; its line has the memory of server and hosts, and what happened to hosts."""
        line = self._server.round(self._watch)
        self._live = None
        hosts = {str(host): held for host, held in sorted(self._pool.memory.items())}
        return {**line, "memory": {"server": resident(), "hosts": hosts}, "events": self._pool.events()}

    def _watch(self, live: Live) -> None:
        self._live = live

    def client_scores(self) -> Columns:
        """The scores of every client after the last evaluation."""
        return self._server.client_scores()

    def state(self) -> FederationState:
        """The state after the last committed round."""
        return self._server.state

    def alive(self) -> Live | None:
        """Answers while a round is under way, with how far it is."""
        return self._live
