"""Hosts on Ray, and the server in this process."""

from shoal.engine.cluster.host_actor import await_hosts
from shoal.engine.cluster.ray_federation import RaySession
from shoal.engine.cluster.ray_pool import RayPool
from shoal.engine.hosts.federation import LocalFederation
from shoal.engine.messages.job import Job
from shoal.engine.rounds.sampling import Plan
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState


class ServerHere(RaySession):
    """A session whose hosts are actors; a server that is one as well takes seconds to start, for every run."""

    def federation(self, job: Job, plan: Plan, state: FederationState | None) -> LocalFederation:
        if not self._up:
            # They start for longer, where there is much else to do, than hosts are waited for that come back.
            await_hosts(self.hosts)
            self._up = True
        pool = RayPool(self.hosts, job, cell_timeout=60.0, retries=0)
        pool.require_data(range(len(job.model_of)))
        return LocalFederation(Server(job, plan, pool, state))
