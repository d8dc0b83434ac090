"""Exports the final models and predictions of a run, so that its accuracies can be checked from outside."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from shoal.algorithms.base import Algorithm, keeps_models, overrides
from shoal.algorithms.method_errors import code_of
from shoal.algorithms.protocol import MODEL, Tree, only_trains, parameters_key
from shoal.engine.config.config import load_config
from shoal.engine.hosts.host import Host, Visit
from shoal.engine.messages.job import Job, make_job
from shoal.engine.records import checkpoint, inputs
from shoal.engine.records.outputs import BESIDE, MODELS, OF_DOMAINS, PREDICTIONS, export_folder
from shoal.engine.records.run_folder import CHECKPOINTS, read_summary
from shoal.engine.records.tensors import write_tensors
from shoal.engine.rounds.sampling import evaluation_cell
from shoal.engine.rounds.state import FederationState
from shoal.engine.runs.plan import RunPlan
from shoal.engine.scores.counts import scores_of
from shoal.engine.screen.progress import progress
from shoal.storage.errors import ShoalError
from shoal.storage.files.atomic import replacing
from shoal.storage.options.split_codes import UNASSIGNED
from shoal.storage.options.target_names import CLASSIFICATION, CLUSTERING, MULTILABEL, Target
from shoal.storage.shards.split import to_codes
from shoal.storage.store.store import Store

# These columns hold classes.
CLASSES = {"label", "deployed", "global", "domains"}


def export(run: Path, best: str | None = None, probabilities: bool = False) -> Path:
    """Writes `models.safetensors` and `predictions.arrow` of the last round, or of a best one, to `<run>/export`.

    Models: parameters by name, under `global/` if the server has one, and under `client/<number>/` where clients hold
    personal models; those that a method names are below their names. A server that has one for each of several models
    of the config has them under `global/<number>/`, and rounds under `round/<number>/<number>/`.

    What else `deployed` and `global` are predicted from is in `beside.safetensors`, if anything: where clients have no
    models of their own, a model that a client deploys and that is not the server's, under `round/<number>/` of the
    round that it is from, or `client/<number>/` if it is this client's alone, and `round`, int32 `[clients]`, the round
    of every client, 0 before its first; for a method with a `predict` of its own also all that this may read, under
    `client/<number>/state/`, `client/<number>/inbox/`, `round/<number>/download/` and `global/download/`.

    Predictions have the columns that `shoal.Run.predictions` names. Where classes have names, all of these are in the
    schema's metadata, `label_names`, as a JSON list. Where the server's model is scored on the whole graphs of domains,
    `predictions-domains.arrow` has a row for every item of those, with its `domain` (dictionary of names) and the class
    predicted with all edges, `domains`.

    Args:
        run: Folder of a finished run.
        best: Scope whose best validation round is exported, which `run.keep_best` keeps, to `<run>/export/best-<scope>`
            and with the predictions of that scope alone; None: the last round.
        probabilities: With a column of probabilities for every scope beside that of the predicted class.

    Raises:
        ShoalError: No folder of a finished run, or its checkpoint cannot be used, or the store is another one.
    """
    out = export_folder(run, best)
    opened = reopen(run, best)
    host, job, store, state = opened.host, opened.job, opened.store, opened.state
    algorithm, global_model = opened.algorithm, opened.global_model
    personal = keeps_models(algorithm) or not global_model
    models: Tree = {}
    beside = _read_by_predict(state, global_model, algorithm.models()) if overrides(algorithm, "predict") else {}
    rows = []
    with progress("export", store.clients, "clients") as step:
        for client_id in range(store.clients):
            kind = "" if personal or len(job.models) == 1 else f"{job.model_of[client_id]}/"
            columns = _describe_items(store, job.split, client_id, client=client_id)
            for scope, visit in visits_of(host, state, client_id, global_model):
                if best is None or scope == best:
                    columns |= _predict_scope(scope, algorithm, visit, job.who(client_id), probabilities)
                if scope == "global":
                    models.update(_name_parameters(visit, f"global/{kind}", received=True))
                elif personal:
                    models.update(_name_parameters(visit, f"client/{client_id:05d}/"))
                else:
                    deployed = dict(_name_parameters(visit, kind))
            if not personal:
                _keep_apart(models, beside, deployed, client_id, state.newest.get(client_id, 0))
            rows.append(columns)
            step.advance()
    with replacing(out / MODELS) as unfinished:
        write_tensors(unfinished, models)
    (out / BESIDE).unlink(missing_ok=True)
    if beside:
        rounds = [state.newest.get(client_id, 0) for client_id in range(store.clients)]
        with replacing(out / BESIDE) as unfinished:
            write_tensors(unfinished, {**beside, "round": torch.tensor(rounds, dtype=torch.int32)})
    names, ids = store.manifest.label_names, store.ids()
    _write(out / PREDICTIONS, with_ids(_join(rows), ids), names)
    graphs = job.open_graphs(store) if best != "deployed" else None
    if graphs is not None:
        of_domains = _of_domains(host, job, graphs, state, global_model, probabilities)
        _write(out / OF_DOMAINS, with_ids(of_domains, ids), names)
    return out


@dataclass(frozen=True)
class Reopened:
    """A finished run at one round, on a host of this process; `global_model` is empty unless it is a whole model."""

    host: Host
    job: Job
    store: Store
    algorithm: Algorithm
    state: FederationState
    global_model: Tree


def reopen(run: Path, best: str | None) -> Reopened:
    """Opens the last round of a run, or the best one of a scope; arguments and errors are those of `export`."""
    config = load_config(run)
    summary = read_summary(run)
    if best is None:
        state = checkpoint.load_last(run / CHECKPOINTS, summary["rounds"]).state
    else:
        state = checkpoint.load_best(run, summary, best).state
    plan = RunPlan.of(config, trains=False)
    store, algorithm = plan.prepare(), plan.algorithm
    job = make_job(config, store, run.name)
    if inputs.differences(summary["inputs"], inputs.of_stores(job.content, "", "", config.propagation.keep)):
        raise ShoalError(store.path, f"not the store that {run} was run on; restore that, or start the run over")
    if changed := inputs.differences(summary["inputs"], inputs.digest_pretrained(config)):
        raise ShoalError(run, f"{', '.join(changed)} changed since this run started; restore the content")
    host = Host()
    # Export runs on any machine, whatever device trained the run.
    host.open(job.on_processor())
    with code_of(algorithm, "global_model"):
        global_model = algorithm.global_model({name: t.clone() for name, t in state.server.items()})
    # A part of a model predicts nothing for a client without the other part.
    return Reopened(host, job, store, algorithm, state, global_model if "w" in global_model else {})


def _of_domains(
    host: Host, job: Job, graphs: Store, state: FederationState, current: Tree, probabilities: bool
) -> dict[str, pa.Array]:
    """Predicts the items of all domains' whole graphs by the server's model; returns columns."""
    rows = []
    for place in range(len(job.domains)):
        number = len(job.model_of) + place
        visit = host.visit(number, evaluation_cell(state.round, [number], {}, {}), current)
        predicted = _predict_scope("domains", job.algorithm(), visit, job.who(number), probabilities)
        rows.append({**predicted, **_describe_items(graphs, job.split, place, domain=place)})
    joined = _join(rows)
    return joined | {"domain": pa.DictionaryArray.from_arrays(joined["domain"], pa.array(job.domains))}


def _write(file: Path, table: dict[str, pa.Array], label_names: Sequence[str] | None) -> None:
    """Writes one batch, its columns in the order of their names; each column of classes has one of names, if any."""
    notes = None
    if label_names is not None:
        notes = {"label_names": json.dumps(label_names)}
        of_classes = pa.types.is_integer(table["label"].type)
        for column in CLASSES & table.keys() if of_classes else ():
            labelled = pc.if_else(pc.greater_equal(table[column], 0), table[column], None)
            table[f"{column}_name"] = pa.DictionaryArray.from_arrays(labelled, pa.array(label_names))
    schema = pa.schema([(name, table[name].type) for name in sorted(table)], notes)
    batch = pa.RecordBatch.from_arrays([table[name] for name in schema.names], schema=schema)
    with (
        replacing(file) as unfinished,
        pa.OSFile(str(unfinished), "wb") as sink,
        pa.ipc.new_file(sink, batch.schema) as writer,
    ):
        writer.write_batch(batch)


def _join(rows: Sequence[dict[str, np.ndarray]]) -> dict[str, pa.Array]:
    """Concatenates the columns of all clients: probabilities `[N, C]` as lists, parts as text, null for none."""
    joined = {name: np.concatenate([columns[name] for columns in rows]) for name in rows[0]}
    code = joined.pop("part")
    parts = pa.DictionaryArray.from_arrays(pa.array(code - 1, mask=code == UNASSIGNED), ["train", "val", "test"])
    arrays = {
        name: pa.array(v) if v.ndim == 1 else pa.FixedSizeListArray.from_arrays(pa.array(v.ravel()), v.shape[1])
        for name, v in joined.items()
    }
    return {**arrays, "part": parts}


def with_ids(table: dict[str, pa.Array], ids: pa.Array | None) -> dict[str, pa.Array]:
    """Replaces numbers of nodes in a table by the user's ids, if nodes have ids."""
    if ids is None:
        return table
    columns = {"node": "id", "source": "source_id", "target": "target_id"}
    return table | {name: ids.take(table[node]) for node, name in columns.items() if node in table}


def visits_of(host: Host, state: FederationState, client: int, current: Tree) -> Iterator[tuple[str, Visit]]:
    """Yields the client in every scope that a finished run still has; use one at a time, they share the models."""
    cell = evaluation_cell(state.round, [client], state.clients, state.inboxes)
    download = state.downloads.get(state.newest.get(client, 0), {})
    yield "deployed", host.visit(client, cell, download)
    if current:
        yield "global", host.visit(client, evaluation_cell(state.round, [client], {}, {}), current)


def _predict_scope(
    scope: str, algorithm: Algorithm, visit: Visit, who: str, probabilities: bool
) -> dict[str, np.ndarray]:
    """Returns columns of a scope: the class of the largest score of every item, and probabilities if asked."""
    client = visit.scored
    try:
        # Nodes that a backdoor attached come after the client's, and are in no table.
        scores_NC = scores_of(algorithm, client, visit.received, "all", len(client.data.label))[: client.info.items]
    except ShoalError as error:
        raise ShoalError(who, *error.args, detail=error.detail) from error
    if client.data.target == CLUSTERING:
        # No cluster is a class, whose name it would get.
        return {f"{scope}_cluster": scores_NC.argmax(1).int().cpu().numpy()}
    if client.data.target != CLASSIFICATION:
        return {scope: column_of(stated_values(scores_NC, client.data.target))}
    columns = {scope: scores_NC.argmax(1).int().cpu().numpy()}
    if probabilities:
        columns[f"{scope}_probability"] = probabilities_of(scores_NC).numpy()
    return columns


def stated_values(scores_NT: Tensor, target: Target) -> Tensor:
    """Returns what scores say of targets that are no classes: numbers, or probabilities of labels, float32 `[N, T]`."""
    scores_NT = scores_NT.detach().float().cpu()
    return scores_NT.sigmoid() if target == MULTILABEL else scores_NT


def column_of(values_NT: Tensor | np.ndarray) -> np.ndarray:
    """Returns a column of values of items, `[N, T]`, or `[N]` of one target."""
    values = np.asarray(values_NT)
    return values[:, 0] if values.shape[1] == 1 else values


def probabilities_of(scores_NC: Tensor) -> Tensor:
    """Returns the softmax of a method's scores, float32 `[N, C]`, on the processor."""
    return scores_NC.detach().float().softmax(1).cpu()


def _read_by_predict(state: FederationState, global_model: Tree, names: Iterable[str]) -> Tree:
    """Returns the tensors that a method's `predict` may read beside models of these names: states and downloads."""
    parameters = {parameters_key(name) for name in names}
    tensors = {f"global/download/{name}": t for name, t in global_model.items() if name != "w"}
    for number, tree in state.downloads.items():
        tensors.update({f"round/{number:06d}/download/{name}": t for name, t in tree.items() if name != "w"})
    for kind, trees in (("state", state.clients), ("inbox", state.inboxes)):
        for client, tree in trees.items():
            kept = [name for name in tree if not only_trains(name) and name not in parameters]
            tensors.update({f"client/{client:05d}/{kind}/{name}": tree[name] for name in kept})
    return tensors


def _keep_apart(models: Tree, beside: Tree, deployed: Tree, client: int, number: int) -> None:
    """Keeps the model that a client deploys, once for all clients of a round, if it is not the server's."""
    deployed = {name: t for name, t in deployed.items() if f"global/{name}" in models}
    if all(torch.equal(models[f"global/{name}"], t) for name, t in deployed.items()):
        return
    of_round = f"round/{number:06d}/"
    if any(not torch.equal(beside.get(of_round + name, t), t) for name, t in deployed.items()):
        of_round = f"client/{client:05d}/"
    beside.update({of_round + name: t for name, t in deployed.items()})


def _name_parameters(visit: Visit, prefix: str, received: bool = False) -> Iterator[tuple[str, Tensor]]:
    """Yields parameters of a client's models, or of those that the server sends; the config's model adds no name."""
    for name, model in visit.client.models.items():
        if received and not model.received:
            continue
        below = prefix if name == MODEL else f"{prefix}{name}/"
        for key, p in model.module.named_parameters():
            # Files have row-major parameters; a model may lay them out otherwise.
            yield below + key, p.detach().clone(memory_format=torch.contiguous_format)


def _describe_items(store: Store, split: str, number: int, **same: int) -> dict[str, np.ndarray]:
    """Returns columns of the items of a client or a whole graph: ids, labels, parts, and numbers that all share."""
    shard = store.shard(number)
    columns = {name: np.full(shard.items, value, dtype=np.int32) for name, value in same.items()}
    if shard.pairs is None:
        columns["node" if shard.graph is None else "graph"] = shard.item
    else:
        columns["source"], columns["target"] = shard.node[shard.pairs.ends].T
    label = shard.item_label if shard.target is None else column_of(shard.target)
    return {**columns, "label": label, "part": to_codes(store.split(split, number), shard.items)}
