"""An object store on this machine (moto's), behind a proxy that counts what is read, truncates answers and refuses."""

import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

BUCKET, LONGEST = "shoal", 30.0
ANSWER = """<?xml version="1.0"?><Error><Code>{}</Code><Message>no</Message><RequestId>1</RequestId></Error>"""


class ObjectServer:
    """The proxy.

    Attributes:
        server: Port of the server that it stands before.
        read: Number of requests for the content of each object, by its path in the bucket.
        readers: Who read what: addresses of machines, and paths.
        truncate: Parts of paths of which the next answers are cut off in the middle, as often as they are here.
        damage: The same; the last byte of the next answer changes.
        refusal: Status and code of the error that requests get of which the path has a part; None: they are served.
        disturb: Every so many requests one is cut off, the next of them answered slowly, the next in part; 0: none.
    """

    def __init__(self, server: int, listening: socket.socket | None = None) -> None:
        """Stands before a server that listens at a port of this machine."""
        self.read: Counter[str] = Counter()
        self.readers: set[tuple[str, str]] = set()
        self.truncate: list[str] = []
        self.damage: list[str] = []
        self.refusal: tuple[int, str, str] | None = None
        self.server = server
        self.disturb = 0
        self._asked = 0
        self._listening = listening or socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def address(self, folder: str, bucket: str = BUCKET) -> str:
        """The address of a folder."""
        return self.address_by(folder, bucket, *self._listening.getsockname())

    def undisturbed(self, folder: str) -> str:
        """The address of a folder for this machine, not through the proxy."""
        return self.address_by(folder, BUCKET, "127.0.0.1", self.server)

    @staticmethod
    def address_by(folder: str, bucket: str, host: str, port: int) -> str:
        """The address of a folder by way of a listener."""
        return f"s3://{bucket}/{folder}?endpoint_override={host}:{port}&scheme=http&region=us-east-1"

    def _accept(self) -> None:
        while True:
            client, (machine, _) = self._listening.accept()
            threading.Thread(target=self._serve, args=(client, machine), daemon=True).start()

    def _serve(self, client: socket.socket, machine: str) -> None:
        with suppress(OSError), closing(client), closing(socket.create_connection(("127.0.0.1", self.server))) as up:
            wrong: list[str] = []
            threading.Thread(target=self._answer, args=(up, client, wrong), daemon=True).start()
            while asked := client.recv(1 << 16):
                request = re.match(rb"([A-Z]+) /([^ ?]*)(\?[^ ]*)? HTTP", asked)
                if request and self.refusal is not None and self.refusal[2] in request[2].decode():
                    body = b"" if request[1] == b"HEAD" else ANSWER.format(self.refusal[1]).encode()
                    head = f"HTTP/1.1 {self.refusal[0]} no\r\nContent-Type: application/xml\r\nContent-Length: "
                    client.sendall(f"{head}{len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
                    return
                if request and self.disturb:
                    self._asked += 1
                    if self._asked % self.disturb == 0:
                        wrong.append(("cut", "slow", "truncate")[self._asked // self.disturb % 3])
                        if wrong[-1] == "cut":
                            return
                if request and request[1] == b"GET" and request[2].startswith(f"{BUCKET}/".encode()):
                    path = request[2].decode().removeprefix(f"{BUCKET}/")
                    self.read[path] += 1
                    self.readers.add((machine, path))
                    for name, parts in (("truncate", self.truncate), ("damage", self.damage)):
                        for part in [part for part in parts if part in path][:1]:
                            parts.remove(part)
                            wrong.append(name)
                up.sendall(asked)

    def _answer(self, up: socket.socket, client: socket.socket, wrong: list[str]) -> None:
        with suppress(OSError):
            while answer := up.recv(1 << 16):
                if "slow" in wrong:
                    wrong.remove("slow")
                    time.sleep(0.2)
                if "truncate" in wrong:
                    client.sendall(answer[: len(answer) // 2])
                    client.shutdown(socket.SHUT_RDWR)
                elif wrong and not answer.endswith(b"\r\n\r\n"):
                    wrong.clear()
                    answer = answer[:-1] + bytes([answer[-1] ^ 1])
                client.sendall(answer)


@contextmanager
def object_server(listening: socket.socket | None = None) -> Iterator[ObjectServer]:
    """A server with a bucket, which ends with the block; the environment has credentials for it meanwhile.

    Its proxy listens where a socket says, by default on this machine.
    """
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    keys = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}
    before = {key: os.environ.get(key) for key in keys}
    os.environ.update(keys)
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    moto = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], **silent)
    try:
        began = time.monotonic()
        while True:
            try:
                with closing(socket.create_connection(("127.0.0.1", port), 1)) as made:
                    made.sendall(f"PUT /{BUCKET} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n".encode())
                    assert b" 200 " in made.recv(1 << 16)
                break
            except OSError:
                assert moto.poll() is None, "moto ended"
                assert time.monotonic() - began < LONGEST, "moto does not start"
        yield ObjectServer(port, listening)
    finally:
        moto.kill()
        moto.wait()
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})
