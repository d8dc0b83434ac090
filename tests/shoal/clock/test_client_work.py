"""Operations of the clients of runs against those that torch counts in them, and against sums by hand."""

from pathlib import Path

import numpy as np
import pytest
from support.errors import refused
from support.small_runs import small_run
from torch.utils.flop_counter import FlopCounterMode

import shoal
from shoal.clock.report import client_work
from shoal.engine.config.config import load_config
from shoal.engine.preparing.identity import store_or_overlay
from shoal.storage.store.manifest import read_manifest
from shoal.storage.store.store import training_path


@pytest.mark.parametrize("name", ["sgc", "mlp"])
def test_work_of_a_run_is_what_torch_counts_in_it(tmp_path: Path, name: str) -> None:
    def run(epochs: int) -> tuple[Path, int]:
        with FlopCounterMode(display=False) as counter:
            found = shoal.run(
                small_run(
                    tmp_path, model={"name": name}, train={"epochs": epochs},
                    engine={"backend": "local", "trainer": "autograd"},
                )
            )  # fmt: skip
        return found.path, counter.get_total_flops()

    # Of what both do beside training, nothing is left in the difference.
    (one, fewer), (two, more) = run(1), run(2)
    train = client_work(one).train.flops
    assert 0 < 3 * train.sum() == more - fewer
    assert client_work(two).train.flops.tolist() == (2 * train).tolist()


def test_upload_of_fedgta_is_a_pass_and_its_propagation(tmp_path: Path) -> None:
    run = shoal.run(small_run(tmp_path, algorithm={"name": "fedgta", "lp_steps": 3, "sketch_every": 2})).path
    clients = read_manifest(store_or_overlay(load_config(run))).clients
    nodes, entries = clients.count("nodes"), clients.count("entries")
    # Every second time: SGC of 8 features for all nodes, then three products of A + I with labels of 3 classes.
    wanted = (2 * nodes * 8 * 3 + 3 * 2 * (entries + nodes) * 3) / 2
    work = client_work(run)
    np.testing.assert_allclose(work.upload.flops, wanted)
    assert not work.note
    (split,) = read_manifest(store_or_overlay(load_config(run))).splits.values()
    np.testing.assert_array_equal(work.evaluate.flops, 2 * split.counts[:, 1:].sum(1) * 8 * 3)


def test_inductive_training_computes_training_nodes_and_evaluation_all(tmp_path: Path) -> None:
    model = {"name": "gcn", "hidden": 4, "layers": 1, "head": "linear"}
    run = shoal.run(small_run(tmp_path, data={"inductive": True}, model=model, train={"epochs": 1})).path
    place = store_or_overlay(load_config(run))
    whole = read_manifest(place)
    (name,) = whole.splits
    seen = read_manifest(place / training_path(name))
    nodes, train, all_nodes = seen.clients.count("nodes"), whole.splits[name].counts[:, 0], whole.clients.count("nodes")
    assert nodes.sum() == train.sum() < all_nodes.sum()
    work = client_work(run)
    looped, all_looped = (m.clients.count("entries") + m.clients.count("nodes") for m in (seen, whole))
    # The weight of 8 x 4, the matrix, and a classifier of 4 x 3.
    wanted = 2 * (2 * nodes * 32 + 2 * looped * 4 + 3 * train * 12)
    np.testing.assert_array_equal(work.train.flops, wanted * (train > 0))
    np.testing.assert_array_equal(work.evaluate.flops, 2 * (all_nodes * 32 + all_looped * 4 + all_nodes * 12))


def test_each_client_has_the_work_of_its_own_model(tmp_path: Path) -> None:
    two = [{"name": "mlp", "hidden": 4}, {"name": "mlp", "hidden": 4, "layers": 3}]
    run = shoal.run(small_run(tmp_path, algorithm={"name": "fedproto"}, model=two)).path
    work = client_work(run)
    (split,) = read_manifest(store_or_overlay(load_config(run))).splits.values()
    layers = np.array([8 * 4 + 4 * 3, 8 * 4 + 4 * 4 + 4 * 3] * 2)
    np.testing.assert_array_equal(work.evaluate.flops, 2 * split.counts[:, 1:].sum(1) * layers)


def test_layers_that_read_other_clients_are_refused(tmp_path: Path) -> None:
    run = shoal.run(small_run(tmp_path, data={"cross_edges": "one_hop"}, model={"name": "gcn", "hidden": 4})).path
    with refused(run, says="layers that read data.cross_edges"):
        client_work(run)
