"""Final models and predictions of a run, so that its accuracies can be checked from outside."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from safetensors.torch import save_file
from torch import Tensor

from algorithms.client import Client
from algorithms.protocol import Tree
from engine.hosts.host import Host
from engine.preparing.prepare import prepare
from engine.records import checkpoint
from engine.rounds.state import FederationState
from engine.screen.progress import progress
from engine.settings.config import load_config
from engine.wire.cell import evaluation
from engine.wire.job import Job, make_job
from storage.errors import ShoalError
from storage.split import to_codes
from storage.store import Store

MODELS, PREDICTIONS = "models.safetensors", "predictions.arrow"


def export(run: Path) -> Path:
    """Writes `<run>/export/models.safetensors` and `predictions.arrow` from the newest checkpoint.

    Models: parameters by name, under `global/` if the server has one, and under `client/<number>/` where clients hold
    models of their own. Predictions, one row a node: `node` int64 (global id), `client` int32, `label` int32, `part`
    int8 (0 none, 1 train, 2 validation, 3 test), and the predicted class, int32, in every scope that still exists
    after the run: `served`, and `global` if there is one.

    Raises:
        ShoalError: Not a run folder, or it has no checkpoint.
    """
    config = load_config(run)
    found = checkpoint.load_newest(run / "checkpoints")
    if found is None:
        raise ShoalError(f"{run}: no checkpoint to export; run it first")
    state = found[0]
    store = Store(prepare(config).path)
    job = make_job(config, store, run.name)
    algorithm = job.algorithm()
    if algorithm.whole:
        store = prepare(config, whole=True)
        job = make_job(config, store, run.name)
    host = Host()
    # Wherever the run was trained, it can be exported here.
    host.open(replace(job, device="cpu", precision="float32"))
    has_model = bool(algorithm.serve(state.server))
    out = run / "export"
    out.mkdir(exist_ok=True)
    models: Tree = {}
    columns: dict[str, list[np.ndarray]] = {}
    with progress("export", store.clients, "clients") as step:
        for client_id in range(store.clients):
            for scope, client in _deployed(host, state, client_id, algorithm.serve(state.server)):
                columns.setdefault(scope, []).append(algorithm.predict(client, "all").argmax(1).int().cpu().numpy())
                if scope == "global":
                    models.update(_named(client, "global/"))
                elif not has_model:
                    models.update(_named(client, f"client/{client_id:05d}/"))
            _describe(job, store, client_id, columns)
            step.advance()
    save_file(models, out / MODELS)
    table = {name: pa.array(np.concatenate(parts)) for name, parts in sorted(columns.items())}
    batch = pa.RecordBatch.from_arrays(list(table.values()), names=list(table))
    with pa.OSFile(str(out / PREDICTIONS), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return out


def _deployed(host: Host, state: FederationState, client: int, current: Tree) -> Iterator[tuple[str, Client]]:
    """The client in every scope that a finished run still has; one at a time, they share the host's model."""
    own = evaluation(state.round, [client], state.clients, state.inboxes, 0.0)
    download = state.downloads.get(state.newest.get(client, 0), {})
    yield "served", host.visit(client, own, download)
    if current:
        yield "global", host.visit(client, evaluation(state.round, [client], {}, {}, 0.0), current)


def _named(client: Client, prefix: str) -> dict[str, Tensor]:
    return {prefix + name: p.detach().clone() for name, p in client.model.module.named_parameters()}


def _describe(job: Job, store: Store, client: int, columns: dict[str, list[np.ndarray]]) -> None:
    shard, split = store.shard(client), store.split(job.split, client)
    described = {
        "node": shard.node,
        "client": np.full(shard.nodes, client, dtype=np.int32),
        "label": shard.label,
        "part": to_codes(split, shard.nodes),
    }
    for name, values in described.items():
        columns.setdefault(name, []).append(values)
