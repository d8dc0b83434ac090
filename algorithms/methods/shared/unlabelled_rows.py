"""What may read rows without a label in training, and what may not."""

from shoal.algorithms.base import Context
from shoal.storage.errors import ShoalError


def require_nodes(ctx: Context) -> None:
    """Refuses `algorithm.rows: all` where items are small graphs or pairs.

    Of nodes training sees all that `data.inductive` does not hide; graphs and pairs of the test are seen by nobody
    before they are scored.

    Raises:
        ShoalError: Items are no nodes.
    """
    if not all(info.items_are_rows for info in ctx.clients):
        raise ShoalError(
            "algorithm.rows: all is for nodes, and would take in the small graphs or pairs of the test; set train"
        )
