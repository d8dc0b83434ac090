"""The cache of files by checksum: each is fetched once, the oldest go first, and none that is open."""

import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.errors import refused

from shoal.storage.files.digest import digest_of
from shoal.storage.files.object_cache import ObjectCache

KIB = 1024


def file_of(number: int) -> bytes:
    return bytes([number]) * KIB


class Fetches:
    """Gets numbered files of a KiB from a cache, and counts what was fetched."""

    def __init__(self) -> None:
        self.done: list[int] = []

    def get(self, cache: ObjectCache, number: int) -> Path:
        content = file_of(number)

        def fetch(target: Path) -> None:
            self.done.append(number)
            target.write_bytes(content)

        path = cache.get(digest_of(content), len(content), fetch)
        assert path.read_bytes() == content
        return path


@pytest.fixture
def fetches() -> Fetches:
    return Fetches()


def held(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("objects/*/*"))


def test_many_users_at_once_fetch_each_file_once(tmp_path: Path, fetches: Fetches) -> None:
    users = [ObjectCache(tmp_path, None) for _ in range(8)]
    with ThreadPoolExecutor(len(users)) as threads:
        list(threads.map(lambda user: [fetches.get(user, number) for number in range(20)], users))
    assert sorted(fetches.done) == list(range(20))


def test_the_oldest_files_go_and_none_that_is_open(tmp_path: Path, fetches: Fetches) -> None:
    open_here = ObjectCache(tmp_path, 6 * KIB)
    kept = [fetches.get(open_here, number) for number in range(2)]
    for number in range(2, 40):
        # Each is let go at once.
        fetches.get(ObjectCache(tmp_path, 6 * KIB), number)
        assert held(tmp_path) <= 6 * KIB
    assert all(path.exists() for path in kept)
    fetches.done.clear()
    newest = ObjectCache(tmp_path, 6 * KIB)
    for number in (0, 1, 39, 38, 20):
        fetches.get(newest, number)
    assert fetches.done == [20]


def test_a_file_that_was_read_again_stays_longer(tmp_path: Path, fetches: Fetches) -> None:
    for number in (0, 1, 2, 0, 3, 0):
        fetches.get(ObjectCache(tmp_path, 3 * KIB), number)
    assert fetches.done == [0, 1, 2, 3]


def test_open_files_that_fill_the_cache_are_refused(tmp_path: Path, fetches: Fetches) -> None:
    user = ObjectCache(tmp_path, 3 * KIB)
    for number in range(3):
        fetches.get(user, number)
    with refused("data.cache_limit"):
        fetches.get(ObjectCache(tmp_path, 3 * KIB), 3)
    del user
    fetches.get(ObjectCache(tmp_path, 3 * KIB), 3)


def break_off(target: Path) -> None:
    target.write_bytes(b"half")
    raise KeyboardInterrupt


def shorten(path: Path) -> None:
    path.write_bytes(b"short")


def change(path: Path) -> None:
    path.write_bytes(file_of(9))


@pytest.mark.parametrize(("spoil", "again"), [(shorten, 1), (change, 1), (Path.unlink, 1), (Path.touch, 0)])
def test_a_damaged_file_is_fetched_again(
    tmp_path: Path, fetches: Fetches, spoil: Callable[[Path], None], again: int
) -> None:
    spoil(fetches.get(ObjectCache(tmp_path, None), 1))
    fetches.get(ObjectCache(tmp_path, None), 1)
    assert len(fetches.done) == 1 + again


def test_a_broken_fetch_leaves_nothing(tmp_path: Path, fetches: Fetches) -> None:
    cache = ObjectCache(tmp_path, 2 * KIB)
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            cache.get(digest_of(file_of(1)), KIB, break_off)
    assert held(tmp_path) == 0
    fetches.get(cache, 1)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with refused("data.cache", tmp_path / "cache"):
        ObjectCache(tmp_path / "cache", None)


def test_a_full_disk_is_refused(tmp_path: Path) -> None:
    def fetch(target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with refused("data.cache", tmp_path, says="No space left"):
        ObjectCache(tmp_path, None).get(digest_of(file_of(1)), KIB, fetch)
