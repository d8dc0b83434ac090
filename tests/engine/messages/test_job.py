"""What hosts are told of a run, against the config, the graph's own arrays and modules built by hand."""

import itertools
import pickle
import platform
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.errors import refused
from support.fixtures import Configure, Keys, MakeJob, Start
from torch import nn

from shoal.algorithms.client import ClientInfo
from shoal.algorithms.models.build import build
from shoal.algorithms.protocol import MODEL
from shoal.algorithms.rng import key
from shoal.engine.messages.job import Job, make_job
from shoal.engine.preparing.prepare import prepare
from shoal.storage.options.split_codes import TRAIN
from shoal.storage.shards.view import Cache
from shoal.storage.store.client_table import Clients, SplitRecord
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import DOMAINS, Store, shard_path

ANOTHER = f"machine {platform.node()} sees another store here than"


@pytest.fixture
def job_of(configure: Configure) -> MakeJob:
    """Makes the job of a config, on its store as it is prepared or was left."""

    def job_of(base: Keys | None = None, prepared: bool = True, **keys: Any) -> Job:
        config = configure({**(base or {}), **{name.replace("__", "."): value for name, value in keys.items()}})
        return make_job(config, prepare(config) if prepared else Store(Path(config.data.store or "")), "job")

    return job_of


def test_what_a_config_says(job_of: MakeJob, configure: Configure, tmp_path: Path) -> None:
    job = job_of(seed=5, algorithm__weight="train", model__init="own")
    assert (job.id, job.seed, job.hops, job.model_of) == ("job", 5, 2, (0,) * 6)
    assert (job.method.name, job.method.options) == ("fedavg", {"weight": "train"})
    assert job.models == configure({"model.init": "own"}).models()
    assert (job.propagation, job_of(propagation__hops=0).propagation) == ("r0.5-k2-float32", None)
    assert [job_of(engine__on_client_error=what).skip_failed_clients for what in ("fail", "skip")] == [False, True]
    assert [one.compute.gpu_share for one in (job, job_of(resources__gpus_per_host=0.25))] == [1.0, 0.25]
    assert Path(job.store).is_absolute()
    assert (job.compute.memory_limit, job_of(engine__memory_limit=9000).compute.memory_limit) == (None, 9000)
    file = tmp_path / "mine.py"
    file.write_text("from shoal.algorithms.methods.fedavg import FedAvg as Mine\n")
    own = job_of(algorithm__name=f"{file}:Mine")
    assert own.method.source == file.read_text()
    assert pickle.loads(pickle.dumps(own)) == own


def test_sizes_and_data_are_those_of_the_graph(job_of: MakeJob, graphs: Mapping[str, Path]) -> None:
    job = job_of(heterogeneity__rule="blocks", model=[{"name": "sgc"}, {"name": "mlp"}], algorithm__name="local")
    store = Store(job.store_path)
    y, split, assignment, x = (np.load(graphs["plain"] / f"{name}.npy") for name in ("y", "split", "assignment", "x"))
    for i, info in enumerate(job.infos(store)):
        mine = assignment == i
        assert info == ClientInfo(i, mine.sum(), (split[mine] == TRAIN).sum(), 4, i // 3)
        view, node = job.view(store, i, Cache(0)), store.shard(i).node
        np.testing.assert_array_equal(sorted(node), np.flatnonzero(mine))
        np.testing.assert_array_equal(view.label, y[node])
        np.testing.assert_array_equal(view.x, x[node])
        np.testing.assert_array_equal(sorted(view.train), np.flatnonzero(split[node] == TRAIN))


def test_the_store_must_be_the_one_that_the_job_was_made_for(job_of: MakeJob, tmp_path: Path) -> None:
    job = job_of()
    assert job.content == Store(job.store_path).manifest.content(job.split, job.propagation)
    assert job.open_store().manifest == Store(job.store_path).manifest
    other = job_of(data__store=str(tmp_path / "store"), data__dtype="float16")
    for changed in ({"store": other.store}, {"split": "stratified"}, {"propagation": "r1.0-k1-float32"}):
        wrong = replace(job, **changed)
        with refused(wrong.store_path, says=ANOTHER):
            wrong.open_store()


@pytest.mark.usefixtures("unpacked")
def test_files_are_checked_unless_the_config_says_otherwise(job_of: MakeJob, tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    job, careless = job_of(data__store=store), job_of(data__store=store, engine__verify="never")
    path = job.store_path / shard_path(0)
    content = path.read_bytes()
    path.write_bytes(content[:7] + b"1" + content[8:])  # of no meaning in an Arrow file
    with refused(path, says="checksum does not match the manifest"):
        job.view(job.open_store(), 0, Cache(0))
    assert careless.view(careless.open_store(), 0, Cache(0)).nodes == 30


def drawn(*parts: int | str) -> torch.Tensor:
    """Parameters of the config's model from a seed, by torch alone."""
    torch.manual_seed(key(*parts))
    module = build("gamlp", 5, 4, 2, 0.5, {"hidden": 8})
    torch.manual_seed(key(*parts))
    module.reset_parameters()  # type: ignore[operator]
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def test_initial_parameters(start: Start) -> None:
    job = start({"seed": 4}).job
    (built,) = job.build_models(Store(job.store_path), job.algorithm())[MODEL]
    own = replace(built, spec=built.spec.model_copy(update={"init": "own"}))
    with torch.random.fork_rng(devices=[]):
        # Another model of the same client, and clients that each have their own.
        for client, (name, of_name) in itertools.product((0, 3), ((MODEL, []), ("copilot", ["copilot"]))):
            assert torch.equal(job.initial(built, name, client), drawn(4, "init", *of_name))
            assert torch.equal(job.initial(own, name, client), drawn(4, "init", *of_name, client))


def test_whole_graphs_have_numbers_behind_those_of_clients(job_of: MakeJob, three_domains: Any) -> None:
    job = job_of(three_domains.keys)
    assert job.domains == ("north", "south", "west")
    store = job.open_store()
    graphs = job.open_graphs(store)
    assert graphs is not None
    assert job.graphs == graphs.manifest.content(job.split, job.propagation) != job.content
    assert [info.client for info in job.infos(store)] == [0, 1, 2, 3, 4]
    assert [job.who(i) for i in (4, 5, 7)] == ["client 4", "domain north", "domain west"]
    before = 0
    for number, (info, graph) in enumerate(zip(job.graph_infos(graphs), three_domains.graphs, strict=True)):
        assert info == ClientInfo(5 + number, len(graph.y), (graph.split == TRAIN).sum(), 4)
        view = job.view(graphs, number, Cache(0))
        assert view.label.tolist() == graph.y[graphs.shard(number).node - before].tolist()
        assert view.entries == 2 * len(graph.edges)
        before += len(graph.y)


def test_whole_graphs_must_be_those_of_the_clients(job_of: MakeJob, three_domains: Any, tmp_path: Path) -> None:
    job = job_of(three_domains.keys)
    store = shutil.copytree(job.store, tmp_path / "store")
    graphs = store / DOMAINS
    keys = {"base": three_domains.keys, "prepared": False, "data__store": str(store)}
    assert job_of(**keys).graphs == job.graphs
    manifest = Store(graphs).manifest
    # As another dataset would leave them: of other files, or of other sizes.
    clients = Clients.of([*list(manifest.clients)[:2], replace(manifest.clients[2], nodes=35)])
    for other in ({"identity": {**manifest.identity, "dataset": {}}}, {"clients": clients}, {"published": {"x": "0"}}):
        replace(manifest, **other).write(graphs)
        with refused(graphs, says="holds other graphs than those that the clients of"):
            job_of(**keys)
    for without, missing in (("splits", "public"), ("hops", "r0.5-k2-float32")):
        replace(manifest, **{without: {}}).write(graphs)
        with refused(graphs, says=f"has no '{missing}' of this config"):
            job_of(**keys)
    (graphs / NAME).unlink()
    with refused(graphs, says=f"no {NAME}, so no finished store"):
        job_of(**keys)
    # On another machine there may be others, under the same path.
    split = manifest.splits["public"]
    public = SplitRecord(split.counts, 7, split.files)
    replace(manifest, splits={**manifest.splits, "public": public}).write(graphs)
    moved = replace(job, store=str(store))
    with refused(graphs, says=ANOTHER):
        moved.open_graphs(moved.open_store())
