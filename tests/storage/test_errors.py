import pickle
from pathlib import Path

from shoal.storage.errors import ShoalError


def test_error_with_a_file_and_a_key_names_both() -> None:
    error = ShoalError(Path("a.yaml"), "data.path", "expected a folder, got 3", detail="a traceback")
    assert str(error) == "a.yaml: data.path: expected a folder, got 3"
    assert (error.file, error.key, error.detail) == (Path("a.yaml"), "data.path", "a traceback")


def test_error_from_another_process_keeps_its_places() -> None:
    error = pickle.loads(pickle.dumps(ShoalError(Path("a.arrow"), "damaged", detail="there")))
    assert (error.line, error.file, error.detail) == ("a.arrow: damaged", Path("a.arrow"), "there")
