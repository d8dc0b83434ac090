"""The table of counts by client: a dict as a sparse matrix, of few bytes a client."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.engine.scores import table as table_module
from shoal.engine.scores.table import ScoreTable

COUNTS = st.integers(0, 99).map(lambda n: np.full((2, 3, 4), n))
STEPS = st.lists(
    st.tuples(st.sampled_from(["change", "with", "only", "others"]), st.dictionaries(st.integers(0, 9), COUNTS))
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 3))
def test_a_table_of_scores_is_a_dict_in_a_matrix(steps: list[tuple[str, dict[int, Any]]], most: int) -> None:
    table, plain = ScoreTable(), dict[int, Any]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "MOST_CHANGED", most)
        patch.setattr(table_module, "IN_BLOCK", 2)
        for step, counts in steps:
            before, copied = dict(plain), table.copy()
            if step == "change":
                # Every second one goes.
                table.change({i: None if i % 2 else of for i, of in counts.items()})
                plain = {i: of for i, of in (plain | counts).items() if i not in counts or i % 2 == 0}
            elif step == "with":
                table, plain = table.with_counts(ScoreTable(counts)), plain | counts
            else:
                table = table.only(np.array(list(counts), dtype=np.int64), others=step == "others")
                plain = {i: of for i, of in plain.items() if (i in counts) == (step == "only")}
            np.testing.assert_equal((dict(table), dict(copied)), (plain, before))
            assert table.content != copied.content or plain == before
            assert ScoreTable().with_counts(table).content == (table if plain else ScoreTable()).content
            assert list(table) == table.clients.tolist() == sorted(plain)
            blocks = np.concatenate([np.zeros((0, 2, 3, 4), np.int64), *table.blocks()])
            np.testing.assert_array_equal(blocks, [plain[i] for i in sorted(plain)] or blocks)


def test_a_table_is_of_few_bytes_a_client() -> None:
    """Of ten items each and 40 classes, of which a client has up to eight."""
    rng, tables = np.random.default_rng(0), []
    for first in range(0, 3000, 100):
        support = rng.multinomial(5, [1 / 8] * 8 + [0] * 32, (100, 2))
        counts = np.stack([support, support, support], axis=2)
        tables.append(ScoreTable(zip(range(first, first + 100), counts)))
    table = ScoreTable().with_counts(*tables)
    rows = table._rows
    assert sum(values.nbytes for values in (table.clients, rows.data, rows.indices, rows.indptr)) < 200 * len(table)
