"""No number changes unnoticed: weights, predictions, scores and bytes of short runs against recorded digests."""

from pathlib import Path

import pytest
from integration.golden_digests import config_of, digest_of, execute, matrix, record_here, records
from integration.golden_ways import IN_PROCESS, IN_TURN, KILLED, ON_HOSTS, RESUMED, Digest, cases, expected_digest

from shoal.engine.runs.run import run


def require_recorded(name: str, digest: Digest) -> None:
    """Requires equal bits where a record of this kind of machine has the run, and nearly equal numbers elsewhere."""
    here = record_here()
    if here and name in here["runs"]:
        assert digest == here["runs"][name]
        return
    recorded = [record["runs"][name] for record in records() if name in record["runs"]]
    # FedTGP's margins enlarge the rounding of another processor to 1.1 % of the loss.
    for key in ("loss", "norm"):
        assert digest[key] == pytest.approx(recorded[0][key], rel=2e-2), key


def test_the_newest_record_is_whole() -> None:
    newest, *others = records()
    assert newest["runs"].keys() == matrix().keys()
    assert all(record["runs"].keys() <= matrix().keys() for record in others)
    for record in (newest, *others):
        assert len({run["sha256"] for run in record["runs"].values()}) == len(record["runs"])


def test_every_run_but_those_in_turn_is_made_in_one_way_by_default() -> None:
    assert sorted((*IN_PROCESS, *IN_TURN, *ON_HOSTS, *KILLED, *RESUMED)) == sorted(matrix())


@pytest.fixture
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds are as users run them: methods of ours are checked in their own tests."""
    monkeypatch.setenv("SHOAL_CHECK_ALWAYS", "0")


@pytest.mark.usefixtures("_unchecked")
@pytest.mark.parametrize("name", cases(IN_PROCESS, slow=matrix()))
def test_in_this_process(golden_graph: Path, name: str) -> None:
    require_recorded(name, execute(name, golden_graph))


@pytest.mark.parametrize(
    "same", ["fedavg gcn conv head", "fedavg sage conv head", "fedavg gat conv head", "fedavg gcnii", "fedproto gcn"]
)
def test_models_end_as_in_their_papers_where_no_embedding_is_read(golden_graph: Path, same: str) -> None:
    method, model, *_ = same.split()
    plain = {"algorithm": {"name": method}, "model": {"name": model, "hidden": 8}}
    config = config_of(same, plain, golden_graph, run__root=str(golden_graph.parent / "as-in-papers"))
    assert digest_of(run(config)) == expected_digest(same, golden_graph)
