"""When the steps of ten clients are, by our clock and by those of peers: `python benchmarks/peer_clocks.py shoal`.

With the Python of an environment that has a peer, the same with `flgo` (FLGo 0.4.4) or `appfl` (APPFL 1.12.0). Only the
clocks run, no client trains. Clients 0 to 3 compute for 2 s, 4 to 6 for 3 s, 7 to 9 for 7 s; messages take no time.
A line has the schedule, then for each step its second and the clients of its uploads.
"""

import logging
import math
import sys
from types import SimpleNamespace
from typing import Any

SECONDS, STEPS, BUFFER = [2] * 4 + [3] * 3 + [7] * 3, 8, 4
Steps = list[tuple[float, list[int]]]


def shoal() -> dict[str, Steps]:
    """Ours."""
    import numpy as np

    from shoal.engine.config.round_sections import ScheduleOptions
    from shoal.engine.schedules.asynchronous.events import timeline
    from shoal.engine.simulation.schedule import Fleet

    count = len(SECONDS)
    fast, none = np.full(count, math.inf), np.zeros(count)
    fleet = Fleet(none.astype(int), fast, fast, none, none, none, fast, fast, none, none, math.inf, math.inf)

    def steps(**keys: Any) -> Steps:
        options = ScheduleOptions(concurrency=count, **keys)
        found = timeline(options, STEPS, fleet, np.array(SECONDS, float), (0, 0), 0)
        return [(float(at), ids.tolist()) for at, ids in zip(found.seconds, found.client)]

    everyone = steps(name="tiers", tiers=1)
    return {
        "synchronous": everyone,
        "fedasync": steps(name="fedasync"),
        "fedbuff": steps(name="fedbuff", buffer=BUFFER),
    }


def appfl() -> dict[str, Steps]:
    """APPFL's drivers, with a server that counts and clients that only report their steps."""
    from appfl.vsim import AsyncSimDriver, ClientProfile, SyncSimDriver

    quiet = logging.getLogger("quiet")
    quiet.setLevel(logging.CRITICAL)

    def server(buffer: int) -> Any:
        uploads: list[Any] = []
        made = SimpleNamespace(num_clients=len(SECONDS), get_parameters=lambda **_: {})
        made.scheduler, made.set_num_clients = made, lambda count: setattr(made, "num_clients", count)
        made.global_update = lambda **of: uploads.append(of) or {}
        made.get_num_global_epochs = lambda: len(uploads) // buffer
        made.training_finished = lambda: len(uploads) >= STEPS * buffer
        return made

    def client(number: int) -> Any:
        answer = {}, {"current_local_steps": 1}
        return SimpleNamespace(
            get_id=lambda: number, load_parameters=lambda _: None, train=lambda: None, get_parameters=lambda: answer
        )

    clients = [client(number) for number in range(len(SECONDS))]
    profiles = {i: ClientProfile(compute_factor=of, bandwidth=0) for i, of in enumerate(SECONDS)}
    found = {}
    for name, size in (("synchronous", len(SECONDS)), ("fedasync", 1), ("fedbuff", BUFFER)):
        kind, more = (SyncSimDriver, {"target_rounds": STEPS}) if size > BUFFER else (AsyncSimDriver, {})
        driver = kind(server(size), clients, profiles, len(SECONDS), logger=quiet, base_step_time=1.0, **more)
        driver.run()
        if size > BUFFER:
            found[name] = [(each["t_barrier"], sorted(each["accepted_cids"])) for each in driver.history]
            continue
        groups = [driver.history[first : first + size] for first in range(0, STEPS * size, size)]
        found[name] = [(group[-1]["vtime"], sorted(each["cid"] for each in group)) for group in groups]
    return found


def flgo() -> dict[str, Steps]:
    """FLGo's servers, with its clock and states of clients."""
    import flgo.simulator.base as base
    from flgo.algorithm.asyncbase import AsyncServer

    def steps(size: int, synchronous: bool = False) -> Steps:
        class Server(AsyncServer):  # type: ignore[misc]
            def __init__(self) -> None:
                self.current_round, self.num_clients, self.model, self.buffer = 1, len(SECONDS), SimpleNamespace(), []
                self.clients_per_round, self.sample_option = self.num_clients, "uniform_available"
                self.concurrent_clients, self.buffered_clients = set[int](), set[int]()

            @property
            def available_clients(self) -> list[int]:
                return list(self.gv.simulator.idle_clients)

            def get_tolerance_for_latency(self) -> int:
                return 10**6

            @base.with_clock
            def communicate(self, ids: list[int], mtype: int = 0, asynchronous: bool = False) -> Any:
                return (
                    {"__cid": list(ids), "__t": [self.gv.clock.current_time + SECONDS[i] for i in ids]} if ids else {}
                )

            def package_handler(self, received: Any) -> bool:
                self.buffer += received["__cid"]
                if len(self.buffer) < size:
                    return False
                found.append((self.gv.clock.current_time, sorted(map(int, self.buffer))))
                self.buffer = []
                return True

        found, server, clock = Steps(), Server(), base.ElemClock()
        clients = [SimpleNamespace(id=i, num_steps=1) for i in range(len(SECONDS))]
        simulator = base.BasicSimulator([server, *clients])
        simulator.set_variable(simulator.all_clients, "latency", SECONDS)
        clock.register_simulator(simulator)
        server.gv = SimpleNamespace(clock=clock, simulator=simulator, logger=logging.getLogger("quiet"))
        while len(found) < STEPS:
            clock.step()
            if synchronous:
                server.package_handler(server.communicate(list(range(len(SECONDS)))))
            else:
                server.current_round += server.iterate()
        return found

    return {"synchronous": steps(1, True), "fedasync": steps(1), "fedbuff": steps(BUFFER)}


for schedule, made in {"shoal": shoal, "appfl": appfl, "flgo": flgo}[sys.argv[1]]().items():
    print(schedule, *(f"{at:g}:{','.join(map(str, ids))}" for at, ids in made))
