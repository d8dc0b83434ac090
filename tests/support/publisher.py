"""A proxy on this machine that answers for the hosts of published datasets, over TLS, by a certificate of its own.

What downloads runs as it is: its addresses, its checks of certificates, redirects and archives. The environment leads
to the proxy (`https_proxy`) and vouches for the certificate (`SSL_CERT_FILE`), as in a network behind one.
"""

import datetime
import io
import ssl
import threading
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class Publisher(ThreadingHTTPServer):
    """Files by their addresses, and what was asked for.

    Attributes:
        files: Content of every address; a text is an address to which it redirects.
        asked: Addresses in the order in which they were asked for.
        vouched: File of the certificate.
    """

    daemon_threads = True

    def __init__(self, files: Mapping[str, bytes | str], folder: Path) -> None:
        """Makes a key and a certificate for all hosts of the addresses, in a folder."""
        super().__init__(("127.0.0.1", 0), _Answers)
        self.files, self.asked = dict(files), list[str]()
        hosts = {address.split("/")[2] for address in files}
        self.vouched = _make_certificate(folder, hosts)
        self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.tls.load_cert_chain(self.vouched)


class _Answers(BaseHTTPRequestHandler):
    """Opens a tunnel for CONNECT, ends it here, and answers what is asked in it."""

    server: Publisher
    host = ""

    def do_CONNECT(self) -> None:
        self.host = self.path.partition(":")[0]
        self.send_response(200)
        self.end_headers()
        try:
            self.connection = self.server.tls.wrap_socket(self.connection, server_side=True)
        except ssl.SSLError:
            # The other side does not trust the certificate.
            self.close_connection = True
            return
        self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb")
        self.close_connection = False

    def do_GET(self) -> None:
        address = f"https://{self.host}{self.path}"
        self.server.asked.append(address)
        content = self.server.files.get(address)
        if content is None:
            self.send_error(404)
        elif isinstance(content, str):
            self.send_response(302)
            self.send_header("Location", content)
            self.send_header("Content-Length", "0")
            self.end_headers()
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        pass


def _make_certificate(folder: Path, hosts: set[str]) -> Path:
    """Writes a certificate for some hosts, signed by itself, and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "publisher of tests")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in sorted(hosts)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    of_key = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path = folder / "publisher.pem"
    path.write_bytes(made.public_bytes(serialization.Encoding.PEM) + of_key)
    return path


@contextmanager
def publishing(files: Mapping[str, bytes | str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    """Answers for all hosts of some addresses, as long as the block runs; a folder for the certificate."""
    with Publisher(files, folder) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        for variable in ("https_proxy", "HTTPS_PROXY"):
            monkeypatch.setenv(variable, f"http://127.0.0.1:{server.server_port}")
        for variable in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv("SSL_CERT_FILE", str(server.vouched))
        # `urlopen` keeps the proxies that it found at first.
        monkeypatch.setattr(urllib.request, "_opener", None)
        yield server
        server.shutdown()


def archive_of(folder: Path, top: str = "") -> bytes:
    """Packs all files of a folder, below a folder `top` of the archive."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, str(Path(top) / path.relative_to(folder)))
    return content.getvalue()
