"""The files of a graph in tables: edges and nodes, each one file or a folder of parts."""

from pathlib import Path

from shoal.storage.errors import ShoalError

EDGES, NODES = "edges", "nodes"
PARQUET = ".parquet"
KINDS = (*(f".{text}{packed}" for text in ("csv", "tsv") for packed in ("", ".gz", ".bz2", ".zst", ".lz4")), PARQUET)
# Folders of these hold files that are no part of the table any more.
VERSIONED = ("_delta_log", ".hoodie")


def table_of(folder: Path, name: str) -> Path | None:
    """Finds the table `name` in a folder, a file or a folder of parts, or None. Raises ShoalError: two, or unread."""
    tables = [path for kind in KINDS if (path := folder / f"{name}{kind}").exists()]
    if len(tables) > 1:
        raise ShoalError(tables[0], f"there is also {tables[1].name}; keep one of the two")
    others = sorted(path for path in folder.glob(f"{name}*") if path.name.partition(".")[0] == name)
    if others and not tables and not (folder / "edge_index.npy").exists():
        raise ShoalError(others[0], f"expected {name}.csv or {name}.parquet; write the table as one of these")
    return tables[0] if tables else None


def parts_of(table: Path) -> list[Path]:
    """Lists the files of a table, one or its parts in the order of names; empty, hidden and `_` ones are no parts."""
    if not table.is_dir():
        return [table]
    if log := next((name for name in VERSIONED if (table / name).exists()), None):
        raise ShoalError(table, f"has {log}, so that not every file is valid; write the table as plain Parquet")
    parts = sorted(path for path in table.iterdir() if not path.name.startswith((".", "_")))
    for part in parts:
        if part.is_dir():
            raise ShoalError(part, "a folder inside of a table; write the table again, not divided by a column")
    parts = [part for part in parts if part.stat().st_size]
    if not parts:
        raise ShoalError(table, "has no part of a table; write it again")
    return parts
