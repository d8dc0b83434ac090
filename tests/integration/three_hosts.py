"""Three Ray hosts on one machine: network namespaces joined by a bridge, an address and a raylet each."""

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

HOSTS = 3
PATIENCE = 240
PREFIX = "shoal-test-"
HEAD = "10.77.0.10:6379"
# A cut link is noticed after a few seconds instead of a minute.
HEALTH_CHECKS = {"initial_delay_ms": "1000", "period_ms": "500", "timeout_ms": "1000", "failure_threshold": "3"}


def ip(*arguments: str, check: bool = True) -> str:
    """Runs `ip` and gives what it prints."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if check and done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def remove_namespaces() -> None:
    """Ends what runs in the namespaces of this process, and of earlier ones that are gone, then the namespaces."""
    mine = []
    for line in ip("netns", "list", check=False).splitlines():
        name = line.split()[0]
        owner = name.removeprefix(PREFIX).partition("-")[0]
        if name.startswith(PREFIX) and (int(owner) == os.getpid() or not psutil.pid_exists(int(owner))):
            mine.append(name)
    for name in mine:
        for pid in ip("netns", "pids", name, check=False).split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
    for name in mine:
        ip("netns", "del", name, check=False)


class Cluster:
    """Hosts 0 (the head, where drivers run), 1 and 2, one CPU each, behind a token that only its owner can read."""

    def __init__(self, folder: Path) -> None:
        """Lays the network; hosts are started one by one."""
        self.folder = folder
        self.given_up: set[int] = set()
        # A folder to mount over a path on a host: its local disk.
        self.disks: dict[int, tuple[Path, Path]] = {}
        token = folder / "token"
        with os.fdopen(os.open(token, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write(secrets.token_hex(32))
        self.env = {
            **os.environ,
            **{f"RAY_health_check_{name}": value for name, value in HEALTH_CHECKS.items()},
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "RAY_raylet_start_wait_time_s": str(PATIENCE),
            "OMP_NUM_THREADS": "1",
        }
        switch = self.name("switch")
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "link", "set", "br0", "up")
        ip("-n", switch, "addr", "add", "10.77.0.254/24", "dev", "br0")
        for host in range(HOSTS):
            name = self.name(host)
            ip("netns", "add", name)
            ip("link", "add", f"v{host}", "netns", switch, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("-n", switch, "link", "set", f"v{host}", "master", "br0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "addr", "add", f"10.77.0.1{host}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "route", "add", "default", "via", "10.77.0.254")

    def name(self, host: int | str) -> str:
        """The namespace of a host."""
        return f"{PREFIX}{os.getpid()}-{host}"

    def inside(self, host: int, *command: str) -> list[str]:
        """A command as it runs on a host."""
        return ["ip", "netns", "exec", self.name(host), *command]

    def listening(self) -> socket.socket:
        """A socket that all hosts can reach, and this process serves."""
        made: list[socket.socket] = []

        def listen() -> None:
            # Of this thread alone.
            with Path(f"/run/netns/{self.name('switch')}").open() as namespace:
                assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) == 0, os.strerror(
                    ctypes.get_errno()
                )
            made.append(socket.create_server(("10.77.0.254", 0)))

        thread = threading.Thread(target=listen)
        thread.start()
        thread.join()
        return made[0]

    def start(self, host: int) -> None:
        """Starts Ray on a host; the head first."""
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--node-ip-address=10.77.0.1{host}"]
        head = ["--head", "--port=6379", "--include-dashboard=false", f"--temp-dir={self.folder}"]
        options = ["--num-cpus=1", "--object-store-memory=150000000", "--disable-usage-stats"]
        command = [*ray, *([f"--address={HEAD}"] if host else head), *options]
        if host in self.disks:
            disk, path = self.disks[host]
            command = ["sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', str(disk), str(path), *command]
        command = self.inside(host, *command)
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stdout + done.stderr

    def heal(self) -> None:
        """Every host up and reachable again; what a disturbed host still runs is ended first."""
        for host in range(HOSTS):
            ip("-n", self.name("switch"), "link", "set", f"v{host}", "up")
            # A raylet that was cut off ends itself some time after it hears that it was given up.
            if host in self.given_up or not self.process(host, "raylet"):
                self.kill(host)
                self.start(host)
        self.given_up.clear()

    def kill(self, host: int) -> None:
        """The machine goes down: every process of a host ends at once."""
        for process in self.processes(host):
            process.kill()

    def cut(self, host: int) -> None:
        """Cuts the link of a machine, which works on."""
        ip("-n", self.name("switch"), "link", "set", f"v{host}", "down")
        self.given_up.add(host)

    def processes(self, host: int) -> Iterator[psutil.Process]:
        """What runs on a host."""
        for pid in ip("netns", "pids", self.name(host)).split():
            try:
                yield psutil.Process(int(pid))
            except psutil.NoSuchProcess:
                continue

    def process(self, host: int, title: str) -> psutil.Process | None:
        """A process of a host by how its program is called or, of a Ray worker, its actor and the call it is in."""
        for process in self.processes(host):
            try:
                if Path(process.cmdline()[0]).name.startswith(title):
                    return process
            except (psutil.Error, IndexError):
                continue
        return None

    def find(self, title: str) -> psutil.Process | None:
        """A process on any host by its title; a worker that is changing its title is looked for again."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            for host in range(HOSTS):
                if process := self.process(host, title):
                    return process
        return None
