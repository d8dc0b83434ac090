"""A store at an address: prepared, sent, read once by each machine; what an object store can do wrong is one line."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyarrow import fs
from support.errors import refused
from support.fixtures import Configure
from support.object_server import BUCKET, ObjectServer, object_server
from support.small_runs import small_run

from shoal.engine.config.config import Config, parse_config
from shoal.engine.preparing.identity import remote_of
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.run_folder import read_summary
from shoal.engine.runs.run import run
from shoal.storage.store.remote_store import Remote, RemoteStore

PREFIX = "a/store"


@pytest.fixture(scope="module")
def objects() -> Iterator[ObjectServer]:
    with object_server() as server:
        yield server


@pytest.fixture
def server(objects: ObjectServer, request: pytest.FixtureRequest) -> Iterator[ObjectServer]:
    """The server without objects, and serving."""
    objects.refusal = None
    objects.truncate.clear()
    objects.damage.clear()
    files(objects).delete_dir_contents(BUCKET)
    objects.read.clear()
    yield objects
    objects.refusal = None


def files(server: ObjectServer) -> fs.S3FileSystem:
    return fs.FileSystem.from_uri(server.address("any"))[0]


@pytest.fixture
def config_of(server: ObjectServer, tmp_path: Path) -> Configure:
    def config_of(store: str | None = None, **changes: Any) -> Config:
        data = {"store": store or server.address(PREFIX), **changes.pop("data", {})}
        if "://" in data["store"]:
            data = {"cache": str(tmp_path / "cache"), **data}
        return parse_config(small_run(tmp_path, data=data, **changes), "config")

    return config_of


def found(config: Config) -> RemoteStore:
    remote = remote_of(config).find()
    assert remote is not None
    return remote


def data_read(server: ObjectServer) -> dict[str, int]:
    manifests = ("manifest.json", "tables/")
    return {path: count for path, count in server.read.items() if not any(each in path for each in manifests)}


# Splits, hops and stores below that are not there at first.
LATER = {"propagation": {"hops": 2}, "data": {"split_seed": 3, "inductive": True}}


@pytest.mark.parametrize(("there", "several"), [(None, (LATER, {"algorithm": {"name": "global"}})), ("file", ({},))])
def test_runs_on_an_address_are_those_on_a_folder(
    config_of: Configure, server: ObjectServer, tmp_path: Path, there: str | None, several: tuple[dict[str, Any], ...]
) -> None:
    store = f"file://{tmp_path}/there" if there else None
    for changes in several:
        expected = run(config_of(str(tmp_path / "folder"), **changes, run={"root": str(tmp_path / "here")}))
        prepare(config_of(store, **changes), centralized="algorithm" in changes)
        # A machine that has not prepared it.
        shutil.rmtree(tmp_path / "cache")
        server.read.clear()
        got = run(config_of(store, **changes))
        assert got.name == expected.name
        for key in ("scopes", "inputs"):
            assert read_summary(got)[key] == read_summary(expected)[key]
        read = data_read(server)
        assert set(read.values()) == (set() if there else {1})
        # Another run of this machine asks for the manifests alone.
        server.read.clear()
        run(config_of(store, **changes), fresh=True)
        assert data_read(server) == {}


@pytest.mark.slow
def test_two_hosts_read_each_object_once(config_of: Configure, server: ObjectServer, tmp_path: Path) -> None:
    expected = run(config_of(str(tmp_path / "folder"), run={"root": str(tmp_path / "here")}))
    on_hosts = {"engine": {"backend": "ray", "hosts": 2, "cell_size": 1}, "resources": {"cpus_per_host": 0.3}}
    prepare(config_of(**on_hosts))
    shutil.rmtree(tmp_path / "cache")
    server.read.clear()
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config_of(**on_hosts).plain()))
    subprocess.run([sys.executable, "-m", "shoal", "run", str(file)], check=True, capture_output=True)
    (got,) = (tmp_path / "runs").glob("*/summary.json")
    assert read_summary(got.parent)["scopes"] == read_summary(expected)["scopes"]
    read = data_read(server)
    # Shards, splits and hops of all four clients.
    assert len(read) == 3
    assert set(read.values()) == {1}


@pytest.mark.usefixtures("unpacked")
def test_what_comes_or_lies_here_damaged_is_fetched_again(
    config_of: Configure, server: ObjectServer, tmp_path: Path
) -> None:
    config = config_of()
    expected = read_summary(run(config))["scopes"]
    shutil.rmtree(tmp_path / "cache")
    server.truncate.append("clients/00001")
    server.damage.append("clients/00002")
    assert read_summary(run(config, fresh=True))["scopes"] == expected
    assert server.truncate == server.damage == []
    for path in (tmp_path / "cache").glob("objects/*/*"):
        if path.name != ".lock" and b"ARROW1" in path.read_bytes():
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.write_bytes(content)
    server.read.clear()
    assert read_summary(run(config, fresh=True))["scopes"] == expected
    read = data_read(server)
    assert len(read) == 12
    assert set(read.values()) == {1}


@pytest.mark.usefixtures("unpacked")
def test_an_object_that_changed_is_refused(config_of: Configure, server: ObjectServer, tmp_path: Path) -> None:
    config = config_of()
    prepare(config)
    shutil.rmtree(tmp_path / "cache")
    there, path = files(server), f"{BUCKET}/{PREFIX}/clients/00002.arrow"
    with there.open_input_file(path) as file:
        content = file.read()
    with there.open_output_stream(path) as file:
        file.write(content[:-1] + bytes([content[-1] ^ 1]))
    with refused(f"s3://{path}", says="manifest says"):
        run(config)


def test_a_store_of_which_the_manifest_is_missing_is_none(
    config_of: Configure, server: ObjectServer, tmp_path: Path
) -> None:
    config = config_of()
    server.refusal = (403, "AccessDenied", f"{BUCKET}/{PREFIX}/manifest.json")
    with refused(f"s3://{BUCKET}/{PREFIX}/manifest.json", says="no right"):
        prepare(config)
    server.refusal = None
    assert files(server).get_file_info(f"{BUCKET}/{PREFIX}/clients/00000-00003.arrow").size
    assert remote_of(config).find() is None
    (made,) = (tmp_path / "cache").rglob("clients/00000-00003.arrow")
    before = made.stat()
    prepare(config)
    # It was sent as it was made, and moved into the cache.
    assert before.st_ino in {path.stat().st_ino for path in (tmp_path / "cache").glob("objects/*/*")}
    assert data_read(server) == {}


@pytest.mark.usefixtures("unpacked")
def test_a_missing_object_is_refused_and_made_again(config_of: Configure, server: ObjectServer, tmp_path: Path) -> None:
    config = config_of()
    expected = read_summary(run(config))["scopes"]
    shutil.rmtree(tmp_path / "cache")
    files(server).delete_file(f"{BUCKET}/{PREFIX}/clients/00001.arrow")
    with refused(f"s3://{BUCKET}/{PREFIX}/clients/00001.arrow", says="no such file"):
        run(config, fresh=True)
    files(server).delete_file(f"{BUCKET}/{PREFIX}/manifest.json")
    prepare(config)
    assert read_summary(run(config, fresh=True))["scopes"] == expected


@pytest.mark.parametrize(
    ("refusal", "says"),
    [
        ((403, "AccessDenied", ""), "no right"),
        ((403, "InvalidAccessKeyId", ""), "no right"),
        ((403, "SignatureDoesNotMatch", ""), "no right"),
        pytest.param((403, "RequestTimeTooSkewed", ""), "a clock", marks=pytest.mark.slow),
        ((301, "PermanentRedirect", ""), "region"),
        ((400, "AuthorizationHeaderMalformed", ""), "region"),
        ((404, "NoSuchBucket", ""), "bucket"),
    ],
)
def test_a_refusal_of_the_object_store_is_one_line(
    config_of: Configure, server: ObjectServer, refusal: tuple[int, str, str], says: str
) -> None:
    config = config_of()
    server.refusal = refusal
    with refused(f"s3://{BUCKET}/{PREFIX}", says=says):
        run(config)


def test_a_file_that_is_refused_without_a_reason_is_explained(config_of: Configure, server: ObjectServer) -> None:
    prepare(config_of())
    remote = found(config_of()).remote
    shutil.rmtree(remote.cache_here())
    server.refusal = (301, "PermanentRedirect", "")
    with refused(f"s3://{BUCKET}/{PREFIX}", says="region"):
        remote.open()


def test_an_address_that_nobody_serves_is_refused(server: ObjectServer, tmp_path: Path) -> None:
    with refused("s3://none/store", says="bucket"):
        Remote(server.address("store", bucket="none"), str(tmp_path)).find()
    with refused("s3://shoal/store", says="regions"):
        Remote("s3://shoal/store?regions=eu", str(tmp_path)).find()


@pytest.mark.slow
def test_a_port_at_which_nobody_listens_is_refused(tmp_path: Path) -> None:
    with refused("s3://shoal/store", says="was not served"):
        Remote("s3://shoal/store?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1", str(tmp_path)).find()


def test_a_cache_without_room_is_refused(config_of: Configure, tmp_path: Path) -> None:
    prepare(config_of())
    shutil.rmtree(tmp_path / "cache")
    with refused("data.cache_limit"):
        run(config_of(data={"cache_limit": "4KiB"}))
