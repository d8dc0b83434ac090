"""Lines of metrics as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from engine.settings.number_keys import flatten

SCOPES = "scopes."


def metrics_table(lines: Sequence[Mapping[str, Any]]) -> pa.Table:
    """A row a round; columns by dotted name, null where a round has no such number.

    - `round` int64, `cohort` list<int64>: the clients that took part
    - `loss` float64: mean of the cohort's training losses
    - `<scope>.<part>.<weighting>` float64, as `served.test.nodes`: accuracies, shares of 1, of evaluated rounds
    - `scalars_up`, `scalars_down` float64: as papers count, four bytes each; `hosts.alive`, `hosts.of` int64
    - `bytes_up`, `bytes_down` int64: sent by clients, to clients; `seconds.<part>` float64; `memory.<process>` int64,
      bytes; `retries` int64; `notes.<name>` float64: what the method notes

    Args:
        lines: As `engine.records.metrics.read_metrics` gives them.
    """
    rows = [{name.removeprefix(SCOPES): value for name, value in flatten(line).items()} for line in lines]
    names = dict.fromkeys(name for row in rows for name, value in row.items() if _is_number(value) or name == "cohort")
    return pa.table({name: pa.array([row.get(name) for row in rows], _kind(name, rows)) for name in names})


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.DataType:
    if name == "cohort":
        return pa.list_(pa.int64())
    whole = all(isinstance(row[name], int) for row in rows if row.get(name) is not None)
    return pa.int64() if whole else pa.float64()
