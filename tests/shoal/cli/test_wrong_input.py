"""The most dangerous input given to the real command: one line, status 2, in seconds and in little memory."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from support.forked import limited

# Of addresses: torch alone maps some gigabytes that it never touches.
MOST_ADDRESSES = 10 << 30


# In place of what the config has for another dataset.
USUAL = ["data.options.nodes=10000", "data.options.features=32", "data.options.classes=10"]


def graph_with_an_absurd_label(folder: Path) -> list[str]:
    y = np.array([0, 1, 2**31 - 1, 1])
    # Without names classes are the numbers that occur.
    arrays = {"edge_index": [[0, 1], [1, 2]], "x": np.ones((4, 2), np.float32), "y": y}
    np.savez(folder / "g.npz", **arrays, label_names=np.array(["a", "b"]))
    return [*USUAL, "data.dataset=files", f"data.path={folder}/g.npz"]


def graph_with_a_boastful_header(folder: Path) -> list[str]:
    graph_with_an_absurd_label(folder)
    with np.load(folder / "g.npz") as file:
        for name in file.files:
            np.save(folder / f"{name}.npy", file[name])
    text = repr({"descr": "<i8", "fortran_order": False, "shape": (2**40,)}).ljust(117) + "\n"
    (folder / "y.npy").write_bytes(b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text.encode())
    return [*USUAL, "data.dataset=files", f"data.path={folder}"]


def nested(folder: Path) -> list[str]:
    (folder / "config.yaml").write_text("[" * 500)
    return []


def pipe(folder: Path) -> list[str]:
    os.mkfifo(folder / "split.npy")
    return ["data.split=file", f"data.split_file={folder}/split.npy"]


def given(*overrides: str) -> Callable[[Path], list[str]]:
    return lambda folder: list(overrides)


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize(
    ("attack", "says"),
    [
        (graph_with_an_absurd_label, "row 2 has label 2147483647"),
        (graph_with_a_boastful_header, "y.npy: cannot be read"),
        (nested, "nested more than 32 deep"),
        (pipe, "split.npy: data.split_file cannot be read (Is no file)"),
        (given("partition.clients=1000000000000"), "partition.clients"),
        (given("model.name=mlp", "model.layers=3", "model.hidden=16000000"), "parameters take"),
        (given("data.options.nodes=2000000000"), "data.nodes: 2000000000 of 8 features: it needs"),
        (given("propagation.hops=1000000000000"), "propagation.hops"),
    ],
)
def test_wrong_input_prints_one_line_with_status_2(
    tiny: Path, tmp_path: Path, attack: Callable[[Path], list[str]], says: str
) -> None:
    overrides = attack(tmp_path)
    status, errors = limited("run", tiny, *overrides, limit="RLIMIT_AS", most=MOST_ADDRESSES)
    assert status == 2, errors
    *head, line = errors.splitlines()
    assert line.startswith("shoal: ")
    assert says in line
    # Before it, at most what the command was about to do.
    assert {text.split()[0] for text in head} <= {"run", "data", "where", "folder", "graph"}
