"""The file of clients' scores: what a kill leaves of it, and what a resume makes of that."""

from pathlib import Path

import numpy as np
import pytest
from support.errors import refused

from shoal.engine.records.client_scores import ClientScores, read_client_scores
from shoal.engine.rounds.evaluation import client_scores

# Validation and test of two clients and three classes: rows of the class, predicted so, rightly so.
COUNTS = {
    4: np.array([[[2, 0, 0], [1, 1, 0], [1, 0, 0]], [[1, 2, 1], [2, 1, 1], [1, 1, 1]]]),
    7: np.array([[[0, 0, 0], [0, 0, 0], [0, 0, 0]], [[0, 3, 0], [0, 3, 0], [0, 3, 0]]]),
}


def columns(times: int = 1) -> dict[str, np.ndarray]:
    return client_scores({"served": {client: times * counts for client, counts in COUNTS.items()}, "domains": COUNTS})


def test_columns_by_hand() -> None:
    found = {name: values.tolist() for name, values in columns().items()}
    assert found == {
        "scope": ["served"] * 3,
        "part": ["val", "test", "test"],
        "client": [4, 4, 7],
        "rows": [2, 4, 3],
        "correct": [1, 3, 3],
        # Of class 0: 2 * 1 / (2 + 1), of class 1, which is predicted once and never right: 0; the third does not occur.
        "f1": [pytest.approx((2 / 3 + 0) / 2), pytest.approx((2 / 3 + 2 / 3 + 1) / 3), 1.0],
    }
    assert client_scores({"served": {}}) == {}


def test_another_metric() -> None:
    """Twice the area counts wins of class 1 over class 0, and halves for draws."""
    counts = np.array([[[2, 2], [2, 2], [2, 1], [0, 7]], [[2, 0], [2, 0], [2, 0], [0, 0]]])
    found = client_scores({"global": {0: counts}}, "roc_auc")
    assert found["part"].tolist() == ["val", "test"]
    assert found["roc_auc"][0] == 7 / 8
    assert np.isnan(found["roc_auc"][1])


@pytest.mark.parametrize("lost", [0, 1, 20, 100, 400])
def test_a_resume_after_a_kill_is_as_if_there_was_none(tmp_path: Path, lost: int) -> None:
    """Some bytes of the last batch are not written, and the checkpoint is of round 4."""
    paths = [tmp_path / name for name in ("whole", "cut")]
    for path in paths:
        path.mkdir()
        for number in (2, 4, 6):
            ClientScores(path).append(number, columns(number))
    file = paths[1] / "clients.arrows"
    file.write_bytes(file.read_bytes()[: file.stat().st_size - lost])
    resumed = ClientScores(paths[1])
    assert resumed.restore([2, 4]) is None
    assert read_client_scores(paths[1])["round"].to_pylist() == [2, 2, 2, 4, 4, 4]
    resumed.append(6, columns(6))
    assert file.read_bytes() == (paths[0] / "clients.arrows").read_bytes()


def test_client_scores_missing_rounds_are_named(tmp_path: Path) -> None:
    scores = ClientScores(tmp_path)
    assert scores.restore([]) is None

    def missing(count: int, first: int) -> str:
        return f"{scores.path}: is without the scores of {count} evaluated rounds, of which {first} is the first"

    assert scores.restore([2, 4, 6]) == missing(3, 2)
    scores.append(2, columns())
    scores.append(4, columns())
    scores.append(5, {})
    table = read_client_scores(tmp_path)
    assert table["rows"].to_pylist() == 2 * [2, 4, 3]
    types = [(name, str(table.schema.field(name).type)) for name in ("round", "client", "rows", "correct", "f1")]
    assert types == [*((name, "int32") for name, _ in types[:4]), ("f1", "double")]
    scores.path.write_bytes(scores.path.read_bytes()[:-30])
    assert scores.restore([2, 4]) == missing(1, 4)
    assert read_client_scores(tmp_path)["round"].to_pylist() == [2, 2, 2]
    # A run that is started over.
    assert scores.restore([]) is None
    with refused(scores.path, says="no scores of clients"):
        read_client_scores(tmp_path)
