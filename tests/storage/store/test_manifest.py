import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.errors import refused

from shoal.storage.files.checksummed_json import SEAL, sealed, unsealed
from shoal.storage.store.arrow_file import FileRecord
from shoal.storage.store.manifest import NAME, Manifest, read_manifest
from shoal.storage.store.store import Store

SPLIT, KERNEL = "stratified-50-20-30-seed0", "r0.5-k2-float32"


@pytest.fixture
def manifest(make_store: Callable[..., Store]) -> Manifest:
    return make_store().manifest


def test_round_trip(tmp_path: Path, manifest: Manifest) -> None:
    manifest.write(tmp_path)
    again = read_manifest(tmp_path)
    assert again == manifest
    assert [client.nodes for client in again.clients] == [20, 9, 1]
    assert [p.name for p in tmp_path.glob("manifest*")] == [NAME]


def test_content_is_of_what_a_run_reads(manifest: Manifest) -> None:
    content = manifest.content(SPLIT, KERNEL)
    assert re.fullmatch("[0-9a-f]{32}", content)
    split, hops = manifest.splits[SPLIT], manifest.hops[KERNEL]
    more = replace(
        manifest, splits={"public": split, **manifest.splits}, hops={"r1.0-k1-float32": hops, **manifest.hops}
    )
    for same in (more, replace(manifest, provenance={"created": "today"}, quality={"cut_fraction": 1})):
        assert same.content(SPLIT, KERNEL) == content
    file, client = FileRecord(1, "0" * 32), manifest.clients[0]
    changes = ({"identity": {}}, {"nodes": 31}, {"features": 4}, {"classes": 3}, {"dtype": "float16"})
    others = [
        *(replace(manifest, **change) for change in changes),
        replace(manifest, clients=[replace(client, file=file), *manifest.clients[1:]]),
        replace(manifest, splits={SPLIT: replace(split, files=[file, *split.files[1:]])}),
        replace(manifest, splits={SPLIT: replace(split, counts=[[1, 1, 1], *split.counts[1:]])}),
        replace(manifest, hops={KERNEL: [file, *hops[1:]]}),
    ]
    contents = [other.content(SPLIT, KERNEL) for other in others]
    assert len({content, *contents}) == len(others) + 1
    assert manifest.content(SPLIT, None) not in contents
    assert replace(manifest, hops={}).content(SPLIT, None) == manifest.content(SPLIT, None) != content


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "damaged"),
        (b'{"format": 1,', "damaged"),
        (b"\xff\xfe\x00", "damaged"),
        *((sealed({"format": version}).encode(), "not a manifest of format 2") for version in (1, 3, "2", None)),
        (b'{"format": 1, "clients": []}', "made by an older Shoal"),
    ],
)
def test_other_content_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    with refused(tmp_path, says="no manifest.json"):
        read_manifest(tmp_path)
    (tmp_path / NAME).write_bytes(content)
    with refused(tmp_path / NAME, says=says):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        *({key: None} for key in ("nodes", "clients", "splits", "identity")),
        *({"clients": clients} for clients in ([7], [{"client": 0}], [{"client": 0, "file": None}])),
    ],
)
def test_changed_manifest_is_damaged(tmp_path: Path, manifest: Manifest, change: dict[str, Any]) -> None:
    manifest.write(tmp_path)
    plain = unsealed((tmp_path / NAME).read_text())
    changed = {key: value for key, value in (plain | change).items() if value is not None}
    # With the seal of what it was, and with one of its own.
    for text in (json.dumps({**changed, SEAL: "0" * 16}), sealed(changed)):
        (tmp_path / NAME).write_text(text)
        with refused(tmp_path / NAME, says="damaged"):
            read_manifest(tmp_path)


@pytest.mark.parametrize(("kind", "item", "task"), [("graphs", "graph", "graph"), ("pairs", "pair", "edge")])
def test_other_items_are_written_where_there_are_any(
    tmp_path: Path, manifest: Manifest, kind: str, item: str, task: str
) -> None:
    assert (manifest.items, manifest.item_name, manifest.task) == (30, "node", "node")
    assert (manifest.limits.graphs, manifest.limits.pairs) == (None, False)
    manifest.write(tmp_path)
    assert not {"graphs", "pairs", "weighted", "layout", "domains", "label_names"} & set(
        unsealed((tmp_path / NAME).read_text())
    )
    clients = [replace(client, **{kind: number}) for number, client in enumerate(manifest.clients)]
    many = replace(manifest, clients=clients, **{kind: 3})
    many.write(tmp_path)
    again = read_manifest(tmp_path)
    assert again == many
    assert (again.items, again.item_name, again.task) == (3, item, task)
    assert (again.limits.graphs, again.limits.pairs) == ((3, False) if kind == "graphs" else (None, True))
    assert [client.items for client in again.clients] == [0, 1, 2]
    assert many.content(SPLIT, KERNEL) != manifest.content(SPLIT, KERNEL)
