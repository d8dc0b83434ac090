"""Lines of metrics as a table."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from engine.records.metrics import numbers_of


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
    rows = [numbers_of(line) for line in lines]
    columns = {name: [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
    table = pa.table({name: pa.array(values, _kind(values)) for name, values in columns.items()})
    cohorts = pa.array([line["cohort"] for line in lines], pa.list_(pa.int64()))
    return table.append_column("cohort", cohorts)


def _kind(values: Sequence[float | None]) -> pa.DataType:
    whole = all(isinstance(value, int) for value in values if value is not None)
    return pa.int64() if whole else pa.float64()
