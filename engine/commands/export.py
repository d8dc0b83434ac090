"""Final models and predictions of a run, so that its accuracies can be checked from outside."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from algorithms.base import Algorithm
from algorithms.faults import code_of
from algorithms.protocol import MODEL, Tree
from engine.hosts.host import Host
from engine.hosts.visit import Visit
from engine.preparing.prepare import prepare
from engine.records import checkpoint, inputs
from engine.records.best_rounds import load_best
from engine.records.run_folder import CHECKPOINTS, read_summary
from engine.records.tensors_file import write_tensors
from engine.rounds.scoring import predicted_classes
from engine.rounds.state import FederationState
from engine.screen.progress import progress
from engine.settings.config import load_config
from engine.wire.cell import evaluation_cell
from engine.wire.job import Job, make_job
from storage.errors import ShoalError
from storage.shard import Shard
from storage.split import to_codes
from storage.store import Store

MODELS, PREDICTIONS = "models.safetensors", "predictions.arrow"


def export(run: Path, best: str | None = None) -> Path:
    """Writes `models.safetensors` and `predictions.arrow` of the last round, or of a best one, to `<run>/export`.

    Models: parameters by name, under `global/` if the server has one, and under `client/<number>/` where clients hold
    models of their own; of a method with several models, those that it names lie below their names.

    Predictions, one row a node: `node` int64 (global id), `client` int32, `label` int32, `part` int8 (0 none, 1 train,
    2 validation, 3 test), and the predicted class, int32, in every scope that still exists after the run: `served`, and
    `global` if there is one. In graph tasks one row a graph, `graph` int64 in the place of `node`; in edge tasks one
    row a pair, `source` and `target` int64, global ids of its nodes.

    Args:
        run: Folder of a finished run.
        best: Scope whose best validation round is exported, which `run.keep_best` keeps, to `<run>/export/best-<scope>`
            and with the predictions of that scope alone; None: the last round.

    Raises:
        ShoalError: No folder of a finished run, or its checkpoint cannot be used, or the store is another one.
    """
    config = load_config(run)
    summary = read_summary(run)
    if best is None:
        state = checkpoint.load_last(run / CHECKPOINTS, summary["rounds"]).state
    else:
        state = load_best(run, summary, best).state
    store = Store(prepare(config).path)
    job = make_job(config, store, run.name)
    algorithm = job.algorithm()
    if algorithm.whole_graph:
        store = prepare(config, whole=True)
        job = make_job(config, store, run.name)
    if inputs.differences(summary["inputs"], {inputs.STORE: job.content}):
        raise ShoalError(f"{store.path}: not the store that {run} was run on; bring that back, or run it again")
    if changed := inputs.differences(summary["inputs"], inputs.pretrained(config)):
        raise ShoalError(f"{run}: was run with another content of {', '.join(changed)}; bring that back")
    host = Host()
    # Wherever the run was trained, it can be exported here.
    host.open(replace(job, device="cpu", precision="float32"))
    with code_of(algorithm, "global_model"):
        global_model = algorithm.global_model(state.server)
    if algorithm.shares_part:
        global_model = {}
    personal = algorithm.keeps_model or not global_model
    out = run / "export" / (f"best-{best}" if best else "")
    out.mkdir(parents=True, exist_ok=True)
    models: Tree = {}
    columns: dict[str, list[np.ndarray]] = {}
    with progress("export", store.clients, "clients") as step:
        for client_id in range(store.clients):
            for scope, visit in _deployed(host, state, client_id, global_model):
                if best is None or scope == best:
                    predicted = _predicted(algorithm, visit)
                    columns.setdefault(scope, []).append(predicted.int().cpu().numpy())
                if scope == "global":
                    models.update(_received(visit))
                elif personal:
                    models.update(_all_of(visit))
            _describe(job, store, client_id, columns)
            step.advance()
    write_tensors(out / MODELS, models)
    table = {name: pa.array(np.concatenate(parts)) for name, parts in sorted(columns.items())}
    batch = pa.RecordBatch.from_arrays(list(table.values()), names=list(table))
    with pa.OSFile(str(out / PREDICTIONS), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return out


def _deployed(host: Host, state: FederationState, client: int, current: Tree) -> Iterator[tuple[str, Visit]]:
    """The client in every scope that a finished run still has; one at a time, they share the host's models."""
    own = evaluation_cell(state.round, [client], state.clients, state.inboxes)
    download = state.downloads.get(state.newest.get(client, 0), {})
    yield "served", host.visit(client, own, download)
    if current:
        yield "global", host.visit(client, evaluation_cell(state.round, [client], {}, {}), current)


def _predicted(algorithm: Algorithm, visit: Visit) -> Tensor:
    client = visit.scored
    try:
        return predicted_classes(algorithm, client, visit.given, "all", client.info.items)
    except ShoalError as error:
        raise ShoalError(f"client {client.info.client}: {error.line}", error.detail) from error


def _all_of(visit: Visit) -> dict[str, Tensor]:
    """All models of a client."""
    names = visit.client.models
    return {key: p for name in names for key, p in _named(visit, name, f"client/{visit.client.info.client:05d}/")}


def _received(visit: Visit) -> dict[str, Tensor]:
    """The models that a client without a past was given by the server."""
    names = [name for name, model in visit.client.models.items() if model.received]
    return {key: p for name in names for key, p in _named(visit, name, "global/")}


def _named(visit: Visit, name: str, prefix: str) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a model, that of the config by their names alone, others below the name of the model."""
    below = prefix if name == MODEL else f"{prefix}{name}/"
    for key, p in visit.client.models[name].module.named_parameters():
        # Row by row, in whatever order it lies in the model.
        yield below + key, p.detach().clone(memory_format=torch.contiguous_format)


def _describe(job: Job, store: Store, client: int, columns: dict[str, list[np.ndarray]]) -> None:
    shard, split = store.shard(client), store.split(job.split, client)
    described = {
        **_items(shard),
        "client": np.full(shard.items, client, dtype=np.int32),
        "label": shard.item_label,
        "part": to_codes(split, shard.items),
    }
    for name, values in described.items():
        columns.setdefault(name, []).append(values)


def _items(shard: Shard) -> dict[str, np.ndarray]:
    """What names the items of a shard, by the name of the column."""
    if shard.pairs is None:
        return {"node" if shard.graph is None else "graph": shard.item}
    source, target = shard.node[shard.pairs.ends].T
    return {"source": source, "target": target}
