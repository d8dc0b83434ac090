"""The backend on Ray: the server of a run as an actor, beside hosts as actors that stay warm between runs."""

import math
import os
import socket
import time
import traceback
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import ray
import torch
from ray.exceptions import ObjectLostError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from torch import Tensor

from shoal.algorithms.protocol import Tree
from shoal.engine.cluster.cluster import (
    START_SECONDS,
    Patience,
    connect,
    disconnect,
    free_machines,
    gpu_places,
    raylet_fault,
    share_tensors,
)
from shoal.engine.cluster.mixing import multiply_blocks, take_blocks
from shoal.engine.cluster.ray_pool import RayPool
from shoal.engine.cluster.reports import Prints, Work, publish
from shoal.engine.cluster.room import cells_and_memory, host_number, resources_of
from shoal.engine.cluster.roster import DataLocality, local_clients, plain_error
from shoal.engine.cluster.states import (
    LOST_STATES,
    SENT_WITH_A_CALL,
    Item,
    StatesLost,
    hand_over_inboxes,
    hand_over_states,
    leave_on_device,
    take_states,
    tensors_of,
    with_states,
    write_in_parallel,
)
from shoal.engine.config.config import Config
from shoal.engine.hosts.backend import ServerLost, server_device
from shoal.engine.hosts.device import give_back_memory, lost, resident
from shoal.engine.hosts.devices.gpu import fetch
from shoal.engine.hosts.host import Host
from shoal.engine.messages.cell import Cell, OnDevice
from shoal.engine.messages.job import Job
from shoal.engine.records.checkpoint import write_clients
from shoal.engine.rounds.costs import NO_KERNEL, Kernel, Live, Watch, note_kernels, seconds_of_kernels, working_clock
from shoal.engine.rounds.reduction import join_sums
from shoal.engine.rounds.sampling import Plan
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.engine.screen.progress import say
from shoal.storage.errors import ShoalError

BETWEEN_BEATS = 1.0
SECONDS_BETWEEN_CHECKS = 5.0
SECONDS_GONE = 20.0
SECONDS_TO_ANSWER = 2.0
# A host with large results keeps at most so many bytes of freed memory between calls.
KEPT_BETWEEN_CALLS = 2**26
# Rounds that take no longer than this together are one call of the server: a call takes about 2 ms of processor time.
SECONDS_OF_A_CALL = 0.25


class HostActor(Host):
    """A host as a Ray actor."""

    # Smaller states come with the outcomes, and outlive the process.
    keeps_from = float(SENT_WITH_A_CALL)

    def __init__(self) -> None:
        super().__init__()
        self._process = uuid.uuid4().hex
        share_tensors()
        self._prints = Prints()
        self._server: Any = None
        self._signed = -math.inf

    def ping(self) -> int:
        """Returns the process id of the host, once it is up."""
        return os.getpid()

    def hosts_here(self) -> int:
        raylet = psutil.Process().parent()
        beside = raylet.children() if raylet is not None else []
        return max(1, sum(map(_is_host, beside)))

    def begins(self, client: int) -> None:
        self._prints.client, now = client, time.monotonic()
        if self._server is not None and now - self._signed >= self._between_signs:
            self._signed = now
            self._server.sign.remote(self._number)

    def compiles(self, kernel: Kernel) -> None:
        """Shows the server which kernel this host compiles."""
        if self._server is not None:
            self._server.sign.remote(self._number, kernel)

    def run_call(
        self, job_id: str, cells: Sequence[Cell], shared: Tree, *kept: Any, states: int = 0, results: int = 0
    ) -> Any:
        """Runs the cells of one call; their outcomes have the memory that the process holds afterwards, and prints.

        A process whose GPU no longer answers ends itself: Ray starts a new one, and the cells run again there or on
        other hosts.

        Args:
            kept: States, and results of mixing, at the places that `Cell.kept` and `Cell.inboxes` name.
            states: The number of results, beside the outcomes, that may hold new states of clients.
            results: The number of results that may hold these, and blocks of uploads to be mixed.
        """
        if states:
            # The results of the call before lie in Ray's memory now, so that theirs can be freed.
            give_back_memory(KEPT_BETWEEN_CALLS)
        before, began, outcomes = seconds_of_kernels(), working_clock(), []
        with self._ending_without_gpu(), self._prints.capture(cells[0].round):
            given = [with_states(cell, kept, self._state_at) for cell in cells]
            for outcome in self.run_cells(job_id, given, shared):
                if outcome is not None:
                    outcome.busy, began = working_clock() - began, working_clock()
                outcomes.append(outcome)
        leave_on_device(outcomes, self._process)
        held, kernels = resident(), seconds_of_kernels() - before
        for outcome in (made := [outcome for outcome in outcomes if outcome is not None]):
            outcome.memory, outcome.kernels = held, kernels / len(outcomes)
        if made:
            made[0].printed = self._prints.take()
            join_sums(made, cells[0].stages.adder)
        if not states:
            return outcomes
        trees = take_states(outcomes)
        large: list[Any] = [*trees, *[None] * (states - len(trees))]
        for outcome in outcomes:
            if outcome is not None:
                large += take_blocks(outcome, cells[0].up, len(large))
        return [outcomes, *large, *[None] * (results - len(large))]

    def give_states(self, places: Sequence[OnDevice]) -> list[Any]:
        """Copies states that stayed on the device to the processor, one by one; returns nothing, and then these."""
        with self._ending_without_gpu():
            trees = [self._state_at(place) for place in places]
            return [None, *(dict(zip(tree, fetch(list(tree.values())))) for tree in trees)]

    def _state_at(self, place: OnDevice) -> Tree:
        """Returns a state that stayed on the device. Raises StatesLost: it is of another process."""
        opened, state = self._opened, None
        if opened is not None and opened.stacks is not None and place.process == self._process:
            state = opened.stacks.kept_state(place.client, place.version)
        if state is None:
            raise StatesLost(f"client {place.client}")
        return state

    def multiply(self, rows: Tensor, order: Sequence[int], gives: bool, *blocks: Tensor) -> list[Any]:
        """Multiplies as `shoal.engine.cluster.mixing.multiply_blocks` does."""
        torch.set_num_threads(1)
        give_back_memory(KEPT_BETWEEN_CALLS)
        return multiply_blocks(rows, order, gives, blocks)

    def write_states(self, path: Path, address: str | None, items: Sequence[Item], *values: Any) -> str | None:
        """Writes what clients keep into a file and returns its digest.

        If the folder is not on this machine, the file is sent to the address of the run; None: it has none.
        """
        tensors = tensors_of(items, values)
        if path.parent.is_dir():
            return write_clients(path, tensors)
        if address is None:
            return None
        from shoal.engine.records.remote_parts import send_part

        return send_part(address, partial(write_clients, tensors=tensors))

    def enter(self, job: Job, number: int = 0, server: Any = None, between_signs: float = 0.0) -> DataLocality:
        """Opens a job, unless its machine has the files of no client; returns the clients whose files it has.

        As clients are visited, an actor `server` is shown that the host of this number lives.
        """
        self._number, self._server, self._between_signs, self._signed = number, server, between_signs, -math.inf
        note_kernels(self.compiles)
        locality = local_clients(job, ray.util.get_node_ip_address())
        if locality.clients:
            with self._ending_without_gpu():
                self.open(job)
        return locality

    @contextmanager
    def _ending_without_gpu(self) -> Iterator[None]:
        """Ends this process where the block fails because its GPU answers no more; a new one may begin to use it."""
        try:
            yield
        except Exception:
            # Not every call of a GPU is a client's visit, whose failure is a DeviceLost.
            if self._opened is None or not lost(self._opened.device):
                raise
            traceback.print_exc()
            os._exit(1)


def _is_host(process: psutil.Process) -> bool:
    """Returns whether a process is a host of any run, by the title that Ray gives it."""
    with suppress(psutil.Error):
        return "".join(process.cmdline()[:1]).startswith(f"ray::{HostActor.__name__}")
    return False


def start_hosts(count: int, cpus: float, gpus: float, server_gpus: float = 0.0, named: bool = False) -> list[Any]:
    """Starts host actors, which Ray restarts when they die; `await_hosts` waits for them.

    `named` hosts are `host-0` and so on in Ray's list of actors, those of one namespace.
    """
    places = gpu_places(count, cpus, gpus, server_gpus) or ["SPREAD"] * count
    actor = ray.remote(HostActor)
    always = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": -1, "max_task_retries": 0}
    return [
        actor.options(name=f"host-{host}" if named else None, scheduling_strategy=place, **always).remote()
        for host, place in enumerate(places)
    ]


def seconds_for_one(config: Config) -> float:
    """Returns the seconds in which a first host must come; it needs them even if others are given fewer."""
    return max(config.ray.start_timeout, START_SECONDS)


def await_hosts(hosts: Sequence[Any], seconds: float, others: Patience | None = None) -> dict[Any, int]:
    """Waits until all hosts are up for the first time: `seconds` for one, and as long as `others` has for the others.

    Returns:
        The number of each host that is not up, by the call that it will answer.

    Raises:
        ShoalError: A host failed, or none is up.
    """
    first = Patience(seconds)
    others = others or first
    pings = {host.ping.remote(): number for number, host in enumerate(hosts)}
    up: Sequence[Any] = []
    while (missing := len(hosts) - len(up)) > 0:
        if not (others if up else first).on(f"{missing} of {len(hosts)} hosts to start"):
            break
        up, _ = ray.wait(list(pings), num_returns=len(pings), timeout=BETWEEN_BEATS)
    if not up:
        raise ShoalError(
            "engine.hosts", f"none of {len(hosts)} started in {seconds:.0f} s; free machines or raise ray.start_timeout"
        )
    try:
        ray.get(up)
    except RayError as error:
        raise ShoalError(
            "engine.hosts", f"{len(hosts)} host actors did not start ({' '.join(str(error).split())[:200]})"
        ) from error
    if missing:
        say(f"{len(up)} of {len(hosts)} hosts are up; the others join the run once Ray has machines for them")
    return {ping: number for ping, number in pings.items() if ping not in up}


class ClusterHealth:
    """Checks now and then that the control service (GCS) answers, and that this machine is still in the cluster."""

    def __init__(self) -> None:
        """Takes the cluster that this process is connected to."""
        context = ray.get_runtime_context()
        host, _, port = context.gcs_address.rpartition(":")
        self._address, self._node = (host.strip("[]"), int(port)), context.get_node_id()
        self._answered = self._checked = time.monotonic()

    def require(self, now: bool = False) -> None:
        """Checks the cluster, unless it just did; `now` asks again, of this machine alone: a silent service may return.

        Raises:
            ShoalError: The control service has been gone for some time, or Ray's process on this machine has ended.
        """
        since = time.monotonic()
        if not now and since - self._checked < SECONDS_BETWEEN_CHECKS:
            return
        self._checked = since
        try:
            socket.create_connection(self._address, timeout=SECONDS_TO_ANSWER).close()
            self._answered = time.monotonic()
            nodes = ray.nodes()
        except (OSError, RayError):
            if not now and since - self._answered > SECONDS_GONE:
                host, port = self._address
                raise ShoalError(
                    "ray",
                    f"the control service of the cluster (GCS) at {host}:{port} has not answered for "
                    f"{since - self._answered:.0f} s; start the cluster again and use --resume",
                ) from None
            return
        if not any(node["Alive"] for node in nodes if node["NodeID"] == self._node):
            raise ShoalError("ray", raylet_fault())


class RayBackend:
    """Hosts as Ray actors (`hosts`), and a server as an actor beside them."""

    def __init__(self, config: Config) -> None:
        """Connects to Ray, which may raise a ShoalError, and starts the hosts; `open` waits for them.

        A number of hosts that depends on the run is known only in `open`.
        """
        self._config = config
        # The hosts that were not up at the last look, by their first call.
        self._late: dict[Any, int] = {}
        self._server: Any = None
        # `_newest` is the round of the newest line that was given.
        self._servers = self._newest = 0
        self._connect()
        # What is free is read before hosts of this process take any of it.
        self._machines = free_machines(config)
        if config.engine.hosts != "auto":
            self._start_hosts(config.engine.hosts)

    def _connect(self) -> None:
        self._waits = connect(self._config)
        self._health = ClusterHealth()
        self.hosts: list[Any] = []
        self._up = self._in_round = False

    def _start_hosts(self, count: int) -> None:
        share = resources_of(self._config, self._machines)
        shares = (share.cpus_per_host, share.gpus_per_host, share.server_gpus)
        self.hosts = start_hosts(count, *shares, named=True)

    def _require_hosts(self, job: Job, plan: Plan) -> None:
        """Starts the hosts of a job, unless an earlier run has left as many."""
        needs = cells_and_memory(job, plan) if self._config.engine.hosts == "auto" else (0, 0)
        self._number = host_number(self._config, self._machines, *needs)
        if len(self.hosts) >= self._number.hosts:
            return
        if self.hosts:
            # GPUs that the former hosts share are free only when these have ended.
            self.close()
            self._connect()
        self._start_hosts(self._number.hosts)

    def describe_hosts(self) -> str:
        return self._number.in_words()

    def open(self, job: Job, plan: Plan, state: FederationState | None) -> None:
        """Starts a server and waits until every client has a host that can read its data; see `Backend.open`."""
        self.end()
        self._require_hosts(job, plan)
        self._health = ClusterHealth()
        if state is not None:
            state.kept |= hand_over_states(state.clients)
            hand_over_inboxes(state.inboxes)
        self._run, self._newest = job.id, 0 if state is None else state.round
        self._server = self._start_server(job, plan, state)
        # The server starts while the hosts do.
        self.await_hosts()
        self._get(self._server.ready.remote(self._still_late()))

    def _still_late(self) -> set[int]:
        """Returns the hosts that never were up."""
        for ping in ray.wait(list(self._late), num_returns=len(self._late), timeout=0)[0] if self._late else ():
            del self._late[ping]
        return set(self._late.values())

    def await_hosts(self) -> None:
        """Waits until hosts are up for the first time, see `await_hosts`; may raise a ShoalError."""
        if not self._up:
            try:
                self._late = await_hosts(self.hosts, seconds_for_one(self._config), self._waits)
            except ShoalError:
                self._health.require(now=True)
                raise
            self._up = True

    def rounds(self, watch: Watch, until: int) -> Iterator[dict[str, Any]]:
        self._in_round, ref = True, self._server.rounds.remote(until)
        try:
            # A long round that follows short ones does not keep their lines from the driver.
            for live, lines in self._beats(ref):
                yield from self._new(lines)
                if live is not None:
                    watch(live)
        finally:
            self._in_round = False
        with self._faults():
            lines = ray.get(ref)
        yield from self._new(lines)

    def _new(self, lines: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yields lines that the driver has not: a beat may show those of this call again, or of the call before."""
        for line in lines:
            if line["round"] > self._newest:
                self._newest = line["round"]
                yield line

    def round(self, watch: Watch) -> dict[str, Any]:
        """Runs one round and returns its line of metrics; calls `watch` meanwhile."""
        (line,) = self.rounds(watch, 0)
        return line

    def publish(self, line: Mapping[str, Any]) -> None:
        if self._config.ray.address is not None:
            publish(self._run, line)

    def state(self, on_disk: Collection[str] = ()) -> FederationState:
        return self._get(self._server.state.remote(on_disk))

    def write_states(self, folder: Path, state: FederationState) -> dict[str, str]:
        try:
            late = self._still_late()
            # Hosts are at work in the midst of a round, so that the driver writes.
            hosts = {} if self._in_round else {n: host for n, host in enumerate(self.hosts) if n not in late}
            return write_in_parallel(folder, state, hosts, self._config.engine.cell_timeout)
        except ObjectLostError as error:
            raise ServerLost(LOST_STATES) from error

    def end(self) -> None:
        if self._server is not None:
            ray.kill(self._server)
            self._server = None

    def close(self) -> None:
        disconnect(self._config)

    def _start_server(self, job: Job, plan: Plan, state: FederationState | None) -> Any:
        # On the driver's machine the server shares the driver's fate, and checkpoints stay on one machine.
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
        share = resources_of(self._config, self._machines)
        if job.compute.device == "cuda":
            job = replace(job, compute=replace(job.compute, gpu_share=share.gpus_per_host))
        # A server that is killed keeps its name for some time, so that the next one has another.
        self._servers += 1
        actor = ray.remote(ServerActor).options(
            name=f"server-{self._servers}",
            num_cpus=share.server_cpus,
            num_gpus=share.server_gpus,
            # A second thread answers `alive` while a round runs in the first, and `state` waits for busy hosts.
            max_concurrency=3,
            scheduling_strategy=here,
        )
        return actor.remote(self._config, self.hosts[: self._number.hosts], job, plan, state)

    def _get(self, ref: Any) -> Any:
        """Waits for an answer of the server; raises as `_beats`."""
        for _ in self._beats(ref):
            pass
        with self._faults():
            return ray.get(ref)

    def _beats(self, ref: Any) -> Iterator[tuple[Live | None, Sequence[dict[str, Any]]]]:
        """Yields what the server shows, now and then until it has an answer.

        Raises ServerLost if it is silent, ShoalError as it or the cluster.
        """
        silence = self._config.engine.cell_timeout
        answered = time.monotonic()
        with self._faults():
            beat = self._server.alive.remote()
            while True:
                done, _ = ray.wait([ref, beat], num_returns=1, timeout=BETWEEN_BEATS)
                self._health.require()
                if ref in done:
                    return
                if beat in done:
                    yield ray.get(beat)
                    answered = time.monotonic()
                    ray.wait([ref], timeout=BETWEEN_BEATS)
                    beat = self._server.alive.remote()
                elif time.monotonic() - answered > silence:
                    ray.kill(self._server)
                    self._health.require(now=True)
                    raise ServerLost(f"the server was silent for {silence:.0f} s")

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Raises errors of Ray in the block as ServerLost, or as the ShoalError of the server or the cluster."""
        try:
            yield
        except RayTaskError as error:
            if isinstance(error.cause, ServerLost):
                raise error.cause from error
            raise plain_error(error, "the server") from error
        except RayError as error:
            self._health.require(now=True)
            raise ServerLost(f"{type(error).__name__}: {str(error).splitlines()[0]}") from error


class ServerActor:
    """The server as a Ray actor."""

    def __init__(self, config: Config, hosts: list[Any], job: Job, plan: Plan, state: FederationState | None) -> None:
        share_tensors()
        self._live: Live | None = None
        # Hosts compile the same kernels, each for itself: the one of the largest number.
        self._kernel = NO_KERNEL
        self._refusal: ShoalError | None = None
        # Lines of the call under way, of which `alive` shows those that are there.
        self._lines: list[dict[str, Any]] = []
        # The failure of a round after others, and by whether a round is evaluated the seconds of the newest one.
        self._failure: Exception | None = None
        self._seconds: dict[bool, float] = {}
        self._prints = Prints()
        this_actor = ray.get_runtime_context().current_actor
        try:
            engine, seconds = config.engine, seconds_for_one(config)
            self._pool = RayPool(hosts, job, engine.cell_timeout, engine.retries, this_actor, seconds)
            with self._prints.capture(0):
                self._server = Server(job, plan, self._pool, state, server_device(config))
        except ShoalError as error:
            # An actor whose constructor raises counts as lost and would be started again; `ready` raises instead.
            self._refusal = ShoalError(*error.args, detail=error.detail)

    def ready(self, late: set[int]) -> None:
        """Waits until every client and graph has a host that can read its data; raises a ShoalError if one has none.

        Hosts that are `late` have never been up.
        """
        if self._refusal is not None:
            raise self._refusal
        self._pool.roster.late = late
        self._pool.require_data(range(len(self._server.infos) + len(self._server.graphs)))

    def rounds(self, until: int) -> list[dict[str, Any]]:
        """Runs the next round, and others up to round `until` as long as they are short; returns their lines.

        The next call raises the failure of a round that was not the first: lines of the others come back before.
        """
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        lines = self._lines = list[dict[str, Any]]()
        rest = SECONDS_OF_A_CALL
        while not lines or (self._server.state.round < until and self._seconds.get(self._evaluates, math.inf) < rest):
            evaluates, began = self._evaluates, time.monotonic()
            try:
                lines.append(self._round())
            except Exception as error:
                if not lines:
                    raise
                self._failure = error
                break
            self._seconds[evaluates] = time.monotonic() - began
            rest -= self._seconds[evaluates]
        return lines

    @property
    def _evaluates(self) -> bool:
        """Whether the next round ends with an evaluation."""
        return self._server.schedule.evaluates(self._server.state.round + 1)

    def _round(self) -> dict[str, Any]:
        """Runs one round; its line also has what server and hosts hold, did and printed, and the events of hosts."""
        work = self._pool.work = Work()
        with self._prints.capture(self._server.state.round + 1):
            line = self._server.add_scores(self._server.round(self._watch))
        self._live = None
        work.print(None, *self._prints.take())
        line["hosts"] |= work.end(line["seconds"]["round"], line["hosts"]["of"])
        hosts = {str(host): held for host, held in sorted(self._pool.memory.items())}
        line |= {"memory": {"server": resident(), "hosts": hosts}, "printed": work.printed}
        return {**line, "events": self._pool.events()}

    def sign(self, host: int, kernel: Kernel = NO_KERNEL) -> None:
        """Notes that a host lives, and which kernel it compiles, if it does."""
        self._pool.signed[host] = time.monotonic()
        self._kernel = max(self._kernel, kernel)

    def _watch(self, live: Live) -> None:
        self._live = live

    def state(self, on_disk: Collection[str]) -> FederationState:
        """Returns the state after the last committed round, without the models of these digests."""
        state = self._server.state.without_models(on_disk)
        return replace(state, kept=self._pool.fetch_states(state.kept)) if state.kept else state

    def alive(self) -> tuple[Live | None, list[dict[str, Any]]]:
        """Returns the progress of the round under way, and the lines of those of the same call before it.

        A call that returns shows that the server is alive.
        """
        return None if self._live is None else replace(self._live, kernel=self._kernel), list(self._lines)
