"""Which clients are worked on at once, their rows padded to those of the longest.

It depends on the clients alone: another size of a group may change the last bits of its numbers.
"""

from collections.abc import Sequence

# Bytes of a group, at most; and those up to which padding costs less than telling a device once more what to do.
MOST, NO_MATTER = 2**31, 2**24


def size_groups(rows: Sequence[int], row_bytes: int, client_bytes: int, most: int | None = None) -> list[list[int]]:
    """Groups of clients, each as positions in ascending order, the group of the longest first.

    The rows of a client are at least half of those of the longest in its group, or the group is small.

    Args:
        rows: Rows of every client.
        row_bytes: What a row takes, padded or not.
        client_bytes: What a client takes beside its rows.
        most: Bytes of a group of several clients, at most; None: `MOST`.
    """
    most = MOST if most is None else most
    groups: list[list[int]] = []
    for i in sorted(range(len(rows)), key=lambda i: -rows[i]):
        if groups:
            longest = rows[groups[-1][0]]
            size = (len(groups[-1]) + 1) * (longest * row_bytes + client_bytes)
            if size <= NO_MATTER or (size <= most and 2 * rows[i] >= longest):
                groups[-1].append(i)
                continue
        groups.append([i])
    return [sorted(group) for group in groups]
