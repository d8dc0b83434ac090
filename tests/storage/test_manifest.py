import json
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.errors import ShoalError
from storage.manifest import NAME, Manifest, read_manifest
from storage.store import Store


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
    assert plain["format"] == 1
    assert plain["nodes"] == sum(client["nodes"] for client in plain["clients"]) == 30


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/no: no manifest\.json, so no finished store; run .*$"):
        read_manifest(tmp_path / "no")


@pytest.mark.parametrize("content", [b"", b'{"format": 1,', b"\xff\xfe\x00"])
def test_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/{NAME}: damaged \(.*\); delete it and run .*$"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("content", ["[1]", "{}", '{"format": 2}', '{"format": "1"}'])
def test_another_version(tmp_path: Path, content: str) -> None:
    (tmp_path / NAME).write_text(content)
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/{NAME}: not a manifest of format 1; delete the store .*$"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("key", ["nodes", "clients", "splits", "identity"])
def test_a_missing_key_is_named(tmp_path: Path, manifest: Manifest, key: str) -> None:
    manifest.write(tmp_path)
    plain = json.loads((tmp_path / NAME).read_text())
    del plain[key]
    (tmp_path / NAME).write_text(json.dumps(plain))
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/{NAME}: damaged \(.*'{key}'.*\); delete it .*$"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("clients", [None, [7], [{"client": 0}], [{"client": 0, "file": None}]])
def test_clients_of_another_form(tmp_path: Path, manifest: Manifest, clients: object) -> None:
    manifest.write(tmp_path)
    plain = {**json.loads((tmp_path / NAME).read_text()), "clients": clients}
    (tmp_path / NAME).write_text(json.dumps(plain))
    with pytest.raises(ShoalError, match=rf"^{tmp_path}/{NAME}: damaged \(.*\); delete it .*$"):
        read_manifest(tmp_path)
