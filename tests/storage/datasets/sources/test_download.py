"""Downloads from a server of this machine: whole files only, silent servers given up, nothing left behind."""

import io
import socket
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.errors import refused

from shoal.storage.datasets.sources import download
from shoal.storage.datasets.sources.source import DataSource

ARCHIVE = io.BytesIO()
with zipfile.ZipFile(ARCHIVE, "w") as archive:
    archive.writestr("inner/a.npy", b"first")
    archive.writestr("b.npy", b"second")
BODIES = {"/a.npy": b"published", "/cut.npy": b"publ", "/both.zip": ARCHIVE.getvalue(), "/bad.zip": b"no archive"}


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
    return download.published(DataSource("d", root=str(root)), files, address.format)


def test_downloads_what_is_missing_and_only_that(url: str, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/own.npy").write_bytes(b"own")
    paths = published(tmp_path, url + "/{}", "own.npy", "a.npy")
    assert [path.read_bytes() for path in paths] == [b"own", b"published"]
    assert sorted(path.name for path in (tmp_path / "raw").iterdir()) == ["a.npy", "own.npy"]


def test_unpacks_an_archive_of_several_files(url: str, tmp_path: Path) -> None:
    paths = published(tmp_path, url + "/both.zip", "a.npy", "b.npy")
    assert [path.read_bytes() for path in paths] == [b"first", b"second"]
    assert sorted(path.name for path in (tmp_path / "raw").iterdir()) == ["a.npy", "b.npy"]


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("cut.npy", "ended after 4 of 9 bytes"),
        ("none.npy", "404"),
        ("bad.zip", "not a zip file"),
        ("both.zip", "it has no x.npy"),
    ],
)
def test_a_failed_download_is_one_line_and_leaves_no_piece(url: str, tmp_path: Path, address: str, reason: str) -> None:
    with refused(tmp_path / "raw/x.npy", says=reason):
        published(tmp_path, f"{url}/{address}", "x.npy")
    assert not list(tmp_path.rglob("*.part")) + list(tmp_path.rglob("x.npy"))


def test_a_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(download, "PATIENCE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, refused(tmp_path / "raw/x.npy"):
        published(tmp_path, f"http://127.0.0.1:{silent.getsockname()[1]}/x.npy", "x.npy")
