"""Clients whose files a machine can read."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shoal.engine.cluster.roster import local_clients
from shoal.engine.config.config import Config
from shoal.engine.hosts.host import Host
from shoal.engine.messages.environment import environment
from shoal.engine.messages.job import Job, make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.server import Server
from shoal.storage.store.manifest import NAME
from shoal.storage.store.store import DOMAINS, hops_path, shard_path, split_path, training_path


@pytest.fixture
def job(start: Callable[..., Server], tmp_path: Path) -> Job:
    job = start().job
    return replace(job, store=str(shutil.copytree(job.store, tmp_path / "store")))


def test_local_clients_of_a_whole_store_are_all(job: Job) -> None:
    locality = local_clients(job, "10.0.0.1")
    assert (locality.machine, locality.clients) == ("10.0.0.1", frozenset(range(6)))
    assert locality.environment == environment("cpu")


def test_local_clients_without_a_file_omits_the_client(job: Job) -> None:
    assert job.propagation is not None
    for client, path in ((0, shard_path(0)), (2, split_path(job.split, 2)), (5, hops_path(job.propagation, 5))):
        (job.store_path / path).unlink()
        assert client not in local_clients(job, "here").clients
    assert local_clients(job, "here").clients == {1, 3, 4}
    # A job without hops needs none.
    assert local_clients(replace(job, propagation=None), "here").clients == {1, 3, 4, 5}


def test_local_clients_ignores_other_files(job: Job) -> None:
    for name in ("00009.arrow.unfinished", "notes.arrow", "00008"):
        (job.store_path / shard_path(0)).with_name(name).touch()
    assert local_clients(job, "here").clients == set(range(6))


@pytest.mark.parametrize("missing", [NAME, "clients", "splits", "hops"])
def test_local_clients_without_manifest_or_folder_is_empty(job: Job, missing: str) -> None:
    path = job.store_path / missing
    path.unlink() if path.is_file() else shutil.rmtree(path)
    assert local_clients(job, "here").clients == frozenset()


def test_local_clients_of_an_inductive_run_need_training_files(
    configure: Callable[..., Config], tmp_path: Path
) -> None:
    config = configure({"data.store": str(tmp_path / "store"), "data.inductive": True})
    job = make_job(config, prepare(config), "test")
    below = job.store_path / training_path(job.split)
    assert job.propagation is not None
    assert local_clients(job, "here").clients == set(range(6))
    for client, path in ((0, shard_path(0)), (2, split_path(job.split, 2)), (5, hops_path(job.propagation, 5))):
        (below / path).unlink()
        assert client not in local_clients(job, "here").clients
    assert local_clients(replace(job, training=""), "here").clients == set(range(6))
    (below / NAME).unlink()
    assert local_clients(job, "here").clients == frozenset()


def test_local_clients_numbers_whole_graphs_after_clients(
    start: Callable[..., Server], three_domains: Any, tmp_path: Path
) -> None:
    whole = start(three_domains.keys).job
    job = replace(whole, store=str(shutil.copytree(whole.store, tmp_path / "store")), id=str(tmp_path))
    graphs = job.store_path / DOMAINS
    assert local_clients(job, "here").clients == set(range(8))
    # A job that evaluates no domain needs none.
    assert local_clients(replace(job, domains=()), "here").clients == set(range(5))
    (graphs / shard_path(1)).unlink()
    (graphs / split_path(job.split, 2)).unlink()
    assert local_clients(job, "here").clients == {0, 1, 2, 3, 4, 5}
    (graphs / NAME).unlink()
    assert local_clients(job, "here").clients == set(range(5))
    # Such a machine can work for clients.
    Host().open(job)
