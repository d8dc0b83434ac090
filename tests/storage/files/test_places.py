"""Folders for caches and sockets where the usual ones cannot be written."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from rooms import PACKAGES, ROOT
from support.errors import refused

from shoal.storage.files import places
from shoal.storage.files.places import cache_folder, give_places, remove_temporary, short_folder

# Root, too, then cannot write what nobody may write.
DROP = "-dac_override,-dac_read_search"
UNPRIVILEGED = ["setpriv", f"--bounding-set={DROP}", f"--inh-caps={DROP}"] if os.geteuid() == 0 else []
PROGRAM = """
import os, shoal.storage.kernels.prefetch
from shoal.engine.cluster.cluster import _token
_token(joining=False)
import matplotlib
print(os.environ["NUMBA_CACHE_DIR"], os.environ["RAY_AUTH_TOKEN_PATH"], matplotlib.get_cachedir())
"""


def test_cache_folder_is_the_first_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No folder can be made below a file.
    (tmp_path / "file").touch()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "asked"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "asked"
    monkeypatch.setenv("SHOAL_CACHE", str(tmp_path / "file" / "asked"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "shoal"
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    shared = cache_folder()
    assert shared == tmp_path / f"shoal-{os.geteuid()}"
    assert shared.stat().st_mode & 0o777 == 0o700
    # What lies in it is run: nobody else may put anything there.
    shared.chmod(0o777)
    with refused("SHOAL_CACHE"):
        cache_folder()


def test_what_the_user_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "__file__", "/proc/none/places.py")
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/mine")
    give_places()
    assert os.environ["NUMBA_CACHE_DIR"] == "/mine"


def test_short_folder_passes_over_long_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "long").mkdir()
    monkeypatch.setenv("LONG", str(tmp_path / "long"))
    monkeypatch.setattr(places, "SHORT", ("UNSET", "LONG", "/not/there", str(tmp_path)))
    room = len(str(tmp_path)) + len("/ray-") + 8
    folder = short_folder("ray-", room)
    assert folder.parent == tmp_path
    (folder / "socket").touch()
    remove_temporary()
    assert not folder.exists()
    with refused("RAY_TMPDIR", says=f"of {len(str(tmp_path)) - 1} bytes at most"):
        short_folder("ray-", room - 1)


@pytest.mark.skipif(bool(UNPRIVILEGED) and not shutil.which("setpriv"), reason="root can write everywhere")
def test_code_and_home_read_only(tmp_path: Path) -> None:
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "home").mkdir()
    folders = [*(path for path in tmp_path.rglob("*") if path.is_dir() and not path.is_symlink()), tmp_path]
    env = {**os.environ, "HOME": str(tmp_path / "home"), "PYTHONPATH": str(tmp_path), "TMPDIR": tempfile.gettempdir()}
    for name in ("NUMBA_CACHE_DIR", "RAY_AUTH_TOKEN_PATH", "MPLCONFIGDIR", "SHOAL_CACHE", "XDG_CACHE_HOME"):
        env.pop(name, None)
    for folder in folders:
        folder.chmod(0o555)
    try:
        command = [*UNPRIVILEGED, sys.executable, "-B", "-c", PROGRAM]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    finally:
        for folder in folders:
            folder.chmod(0o755)
    assert done.returncode == 0, done.stderr
    where = f"{tempfile.gettempdir()}/shoal-{os.geteuid()}"
    assert done.stdout.split() == [f"{where}/numba", f"{where}/ray_token", f"{where}/matplotlib"]
