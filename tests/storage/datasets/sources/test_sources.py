"""Derived arrays are used as they were made, or not at all; downloads are whole files, and leave nothing behind."""

import io
import os
import socket
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from support.errors import refused
from support.shards import flip

from shoal.storage.datasets.registry import load
from shoal.storage.datasets.sources import download
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.synthetic.ogb_layout import write_ogb_layout
from shoal.storage.datasets.synthetic.twin import Twin


def overwrite(path: Path) -> None:
    """Same size, same time of change."""
    stat = path.stat()
    flip(path, -5)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


FILES = ("csr/indptr.npy", "csr/indices.npy", "csr/cleaning.json", "y.npy", "split.npy")


@pytest.fixture(params=["arxiv-like", "ogbn-arxiv"])
def options(request: pytest.FixtureRequest, tmp_path: Path) -> DataSource:
    twin = DataSource("arxiv-like", root=str(tmp_path), scale=0.01)
    if request.param == "ogbn-arxiv":
        write_ogb_layout(tmp_path, Twin.of("arxiv-like", twin))
        return DataSource("ogbn-arxiv", root=str(tmp_path))
    return twin


def folder(tmp_path: Path) -> Path:
    (note,) = tmp_path.rglob("contents.json")
    return note.parent


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [overwrite, lambda path: os.truncate(path, 3), lambda path: path.write_bytes(b"")])
def test_a_damaged_one_is_named(options: DataSource, tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    load(options)
    damage(folder(tmp_path) / name)
    with refused(says="and it is made again"):
        load(options)


@pytest.mark.parametrize("name", ["y.npy", "split.npy", "contents.json"])
def test_a_deleted_one_is_made_again(options: DataSource, tmp_path: Path, name: str) -> None:
    before = load(options)
    place = folder(tmp_path)
    (place / name).unlink()
    after = load(options)
    assert np.array_equal(after.y, before.y)
    overwrite(place / "y.npy")
    with refused(place / "y.npy", says="not as it was made"):
        load(options)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["contents.json", "source.json"])
@pytest.mark.parametrize("text", ["", "{}", '{"csr/indptr.npy": "0"}', "\x00"])
def test_damaged_notes_delete_nothing(options: DataSource, tmp_path: Path, name: str, text: str) -> None:
    load(options)
    place = folder(tmp_path)
    before = {path: path.stat() for path in place.rglob("*.npy")}
    (place / name).write_text(text)
    with refused(place / name, says=f"delete the folder {place}"):
        load(options)
    assert {path: path.stat() for path in before} == before


ARCHIVE = io.BytesIO()
with zipfile.ZipFile(ARCHIVE, "w") as archive:
    archive.writestr("inner/a.npy", b"first")
    archive.writestr("b.npy", b"second")
# More than a reader holds at once; and the same with a block of no known type behind the header of its first file.
LARGE, CONTENT = io.BytesIO(), np.random.default_rng(0).bytes(1 << 18)
with zipfile.ZipFile(LARGE, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("x.npy", CONTENT)
    archive.writestr("y.npy", b"second")
DAMAGED = bytearray(LARGE.getvalue())
DAMAGED[30 + len("x.npy")] = 0xFF
BODIES = {
    **{"/a.npy": b"published", "/cut.npy": b"publ", "/both.zip": ARCHIVE.getvalue(), "/bad.zip": b"no archive"},
    **{"/large.zip": LARGE.getvalue(), "/damaged.zip": bytes(DAMAGED)},
}


class Publisher(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = BODIES.get(self.path)
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + (5 if "cut" in self.path else 0)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Publisher) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def published(root: Path, address: str, *names: str) -> list[Path]:
    """Files of dataset `d` in the folder `raw`, from an address with the place of a name."""
    files = [Path("raw") / name for name in names]
    return download.fetch_published(DataSource("d", root=str(root)), files, address.format)


def test_downloads_what_is_missing_and_unpacks_archives(url: str, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/own.npy").write_bytes(b"own")
    paths = published(tmp_path, url + "/{}", "own.npy", "a.npy")
    assert [path.read_bytes() for path in paths] == [b"own", b"published"]
    paths = published(tmp_path / "other", url + "/both.zip", "a.npy", "b.npy")
    assert [path.read_bytes() for path in paths] == [b"first", b"second"]
    found = [sorted(path.name for path in (tmp_path / folder).iterdir()) for folder in ("raw", "other/raw")]
    assert found == [["a.npy", "own.npy"], ["a.npy", "b.npy"]]
    paths = published(tmp_path / "large", url + "/large.zip", "x.npy", "y.npy")
    assert [path.read_bytes() for path in paths] == [CONTENT, b"second"]


FAILURES = {
    "cut.npy": "ended after 4 of 9 bytes",
    "none.npy": "404",
    "bad.zip": "not a zip file",
    "damaged.zip": "invalid block type",
    "both.zip": "it has no x.npy",
}


@pytest.mark.parametrize("address", FAILURES)
def test_a_failed_download_is_one_line_and_leaves_no_piece(url: str, tmp_path: Path, address: str) -> None:
    with refused(tmp_path / "raw/x.npy", says=FAILURES[address]):
        published(tmp_path, f"{url}/{address}", "x.npy")
    assert not list(tmp_path.rglob("*.part")) + list(tmp_path.rglob("x.npy"))


def test_a_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "PATIENCE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, refused(tmp_path / "raw/x.npy"):
        published(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}/x.npy", "x.npy")
