import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.storage.errors import ShoalError
from shoal.storage.files.checksummed_json import SEAL, sealed
from shoal.storage.store.arrow_file import FileRecord
from shoal.storage.store.manifest import NAME, Manifest, read_manifest
from shoal.storage.store.store import Store

SPLIT, KERNEL = "stratified-50-20-30-seed0", "r0.5-k2-float32"


def unsealed_of(plain: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in plain.items() if key != SEAL}


@pytest.fixture
def manifest(make_store: Callable[..., Store]) -> Manifest:
    return make_store().manifest


def test_round_trip(tmp_path: Path, manifest: Manifest) -> None:
    manifest.write(tmp_path)
    again = read_manifest(tmp_path)
    assert again == manifest
    assert [client.nodes for client in again.clients] == [20, 9, 1]
    assert [p.name for p in tmp_path.glob("manifest*")] == [NAME]


def test_anyone_can_read_it(tmp_path: Path, manifest: Manifest) -> None:
    manifest.write(tmp_path)
    plain = json.loads((tmp_path / NAME).read_text())
    assert plain["format"] == 2
    assert plain["nodes"] == sum(client["nodes"] for client in plain["clients"]) == 30


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/no: no manifest\.json, so no finished store; run .*$"):
        read_manifest(tmp_path / "no")


@pytest.mark.parametrize("content", [b"", b'{"format": 1,', b"\xff\xfe\x00"])
def test_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/{NAME}: damaged \(.*\); delete it and run .*$"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("version", [1, 3, "2", None])
def test_another_version(tmp_path: Path, version: object) -> None:
    (tmp_path / NAME).write_text(sealed({"format": version}))
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/{NAME}: not a manifest of format 2, .*; .*set data\.store .*$"):
        read_manifest(tmp_path)


def test_a_manifest_from_before_seals_says_so(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text(json.dumps({"format": 1, "clients": []}))
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/{NAME}: made by an older Shoal, .*; delete the folder .*$"):
        read_manifest(tmp_path)


def test_one_that_cannot_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / NAME).symlink_to("/proc/self/mem")
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/{NAME}: cannot be read: Input/output error; look at the disk"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("key", ["classes", "features", "nodes"])
def test_a_changed_number_is_noticed(tmp_path: Path, manifest: Manifest, key: str) -> None:
    manifest.write(tmp_path)
    plain = json.loads((tmp_path / NAME).read_text())
    (tmp_path / NAME).write_text(json.dumps({**plain, key: plain[key] + 1}))
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/{NAME}: damaged \(changed since .*\); delete it and run .*$"):
        read_manifest(tmp_path)


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
    others = [
        replace(manifest, identity={}),
        replace(manifest, nodes=31),
        replace(manifest, features=4),
        replace(manifest, classes=3),
        replace(manifest, dtype="float16"),
        replace(manifest, clients=[replace(client, file=file), *manifest.clients[1:]]),
        replace(manifest, splits={SPLIT: replace(split, files=[file, *split.files[1:]])}),
        replace(manifest, splits={SPLIT: replace(split, counts=[[1, 1, 1], *split.counts[1:]])}),
        replace(manifest, hops={KERNEL: [file, *hops[1:]]}),
    ]
    contents = [other.content(SPLIT, KERNEL) for other in others]
    assert len({content, *contents}) == len(others) + 1
    assert manifest.content(SPLIT, None) not in contents
    assert replace(manifest, hops={}).content(SPLIT, None) == manifest.content(SPLIT, None) != content


@pytest.mark.parametrize("key", ["nodes", "clients", "splits", "identity"])
def test_a_missing_key_is_named(tmp_path: Path, manifest: Manifest, key: str) -> None:
    manifest.write(tmp_path)
    plain = json.loads((tmp_path / NAME).read_text())
    del plain[key]
    (tmp_path / NAME).write_text(sealed(unsealed_of(plain)))
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/{NAME}: damaged \(.*'{key}'.*\); delete it .*$"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("clients", [None, [7], [{"client": 0}], [{"client": 0, "file": None}]])
def test_clients_of_another_form(tmp_path: Path, manifest: Manifest, clients: object) -> None:
    manifest.write(tmp_path)
    plain = {**json.loads((tmp_path / NAME).read_text()), "clients": clients}
    (tmp_path / NAME).write_text(sealed(unsealed_of(plain)))
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/{NAME}: damaged \(.*\); delete it .*$"):
        read_manifest(tmp_path)


def test_graphs_are_written_where_there_are_any(tmp_path: Path, manifest: Manifest) -> None:
    assert (manifest.items, manifest.item_name, manifest.limits.graphs) == (30, "node", None)
    manifest.write(tmp_path)
    assert "graphs" not in (tmp_path / NAME).read_text()
    clients = [replace(client, graphs=number) for number, client in enumerate(manifest.clients)]
    many = replace(manifest, graphs=3, clients=clients)
    many.write(tmp_path)
    again = read_manifest(tmp_path)
    assert again == many
    assert (again.items, again.item_name, again.limits.graphs) == (3, "graph", 3)
    assert [client.items for client in again.clients] == [0, 1, 2]
    assert [client.items for client in manifest.clients] == [20, 9, 1]
    assert many.content(SPLIT, KERNEL) != manifest.content(SPLIT, KERNEL)


def test_pairs_are_written_where_there_are_any(tmp_path: Path, manifest: Manifest) -> None:
    assert (manifest.task, manifest.limits.pairs) == ("node", False)
    manifest.write(tmp_path)
    assert "pairs" not in (tmp_path / NAME).read_text()
    clients = [replace(client, pairs=number) for number, client in enumerate(manifest.clients)]
    many = replace(manifest, pairs=3, clients=clients)
    many.write(tmp_path)
    assert "graphs" not in (tmp_path / NAME).read_text()
    again = read_manifest(tmp_path)
    assert again == many
    assert (again.task, again.items, again.item_name, again.limits.pairs) == ("edge", 3, "pair", True)
    assert [client.items for client in again.clients] == [0, 1, 2]
    assert many.content(SPLIT, KERNEL) != manifest.content(SPLIT, KERNEL)
