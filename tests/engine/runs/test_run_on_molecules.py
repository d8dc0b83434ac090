"""The config of OGB's molecules from raw files to a best round, on few and made-up ones."""

from pathlib import Path

import numpy as np
import pytest
from rooms import ROOT
from sklearn.metrics import roc_auc_score
from support.small_molecules import drawn_molecules, write_molecules

from shoal.engine.config.config import Config, load_config
from shoal.engine.hosts.host import Host
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.checkpoint import load_newest
from shoal.engine.records.run_folder import read_summary
from shoal.engine.rounds.sampling import evaluation_cell
from shoal.engine.rounds.scoring import scores_of
from shoal.engine.runs.run import run
from shoal.storage.options.split_codes import TEST, TRAIN, VAL
from shoal.storage.store.split import to_codes

GRAPHS = 120


@pytest.fixture
def config(tmp_path: Path) -> Config:
    write_molecules(tmp_path, "ogbg-molhiv", drawn_molecules(3, GRAPHS))
    return load_config(
        ROOT / "configs/molhiv.yaml",
        [
            f"data.root={tmp_path}", f"run.root={tmp_path / 'runs'}", "partition.clients=3", "rounds=8",
            "model.hidden=8", "train.batch_size=16", "train.lr=0.01", "engine.backend=local", "run.tensorboard=false",
        ],
    )  # fmt: skip


def test_from_raw_files_to_the_best_round(config: Config) -> None:
    folder = run(config)
    store = prepare(config)
    assert (store.manifest.graphs, store.manifest.features, store.manifest.classes) == (GRAPHS, 174, 2)
    assert store.manifest.layout == "sparse"
    tenth = np.arange(GRAPHS) % 10
    published = np.select([tenth < 6, tenth < 8], [TRAIN, VAL], TEST)
    for client in range(3):
        shard = store.shard(client)
        assert to_codes(store.split("public", client), shard.items).tolist() == published[shard.item].tolist()
    kept = load_newest(folder / "checkpoints")
    assert kept is not None
    host, job = Host(), make_job(config, store, "again")
    host.open(job)
    areas = []
    for client in range(3):
        visit = host.visit(client, evaluation_cell(8, [client], {}, {}), {"w": kept.state.server["w"]})
        rows = visit.client.data.test
        score = scores_of(job.algorithm(), visit.client, visit.received, "test", len(rows)).detach().double().numpy()
        label = visit.client.data.label[rows].numpy()
        areas += [roc_auc_score(label, score[:, 1] - score[:, 0])] if len(set(label)) == 2 else []
    summary = read_summary(folder)["scopes"]["global"]
    found = summary["last"]["test"]["roc_auc"]
    # One client has test molecules of one label only.
    assert (found["clients"], found["ranked"], len(areas)) == (pytest.approx(np.mean(areas)), 2, 2)
    # It learns what the first feature tells, and more than the share of the larger class.
    assert found["nodes"] > 0.8
    assert summary["best"]["val"]["roc_auc"]["nodes"] >= summary["last"]["val"]["roc_auc"]["nodes"]
