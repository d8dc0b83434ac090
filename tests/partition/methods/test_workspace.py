import pytest
from support.errors import refused

from shoal.partition.methods.workspace import Workspace


@pytest.mark.parametrize("fails", [False, True])
def test_the_folder_is_removed(tmp_path, fails):
    try:
        with Workspace(tmp_path).scratch() as folder:
            (folder / "file").write_text("x")
            assert folder.parent == tmp_path
            if fails:
                raise ValueError
    except ValueError:
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    missing = Workspace(tmp_path / "missing").scratch()
    with refused(tmp_path / "missing"):
        missing.__enter__()


def test_a_full_disk_is_one_line(tmp_path):
    def fill():
        with Workspace(tmp_path).scratch() as folder:
            (folder / "full").symlink_to("/dev/full")
            (folder / "full").write_bytes(b"x" * 100_000)

    with refused(tmp_path, says="No space left on device"):
        fill()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_cleared(tmp_path):
    killed = Workspace(tmp_path).scratch()
    (killed.__enter__() / "edges").write_text("x")
    (tmp_path / "assignment.npy").write_text("x")
    Workspace(tmp_path).clear()
    assert list(tmp_path.iterdir()) == [tmp_path / "assignment.npy"]
    Workspace().clear()
