"""Texts of nodes as features: hashed words as scikit-learn has them, and embeddings that are made once, by blocks."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.feature_extraction.text import HashingVectorizer
from support.errors import refused
from support.small_runs import small_run

from shoal import Run
from shoal.engine.config.config import parse_config
from shoal.engine.records.summary import read_summary
from shoal.engine.runs.run import run
from shoal.storage.datasets.registry import fingerprint
from shoal.storage.datasets.sources.source import DataSource
from shoal.storage.datasets.user import texts
from shoal.storage.datasets.user.files import load_files
from shoal.storage.graph.graph import Graph

TEXTS = ("A graph of papers", "", "papers on graphs, papers on nets", "Ein Text \u00fcber Graphen; papers")
ENCODER = """
import numpy as np

def encode(texts):
    with open({calls!r}, "a") as file:
        file.write(f"{{len(texts)}}\\n")
    return np.array([[len(text), text.count("papers")] for text in texts], dtype=float)
"""


def write(folder: Path, rows: Any = TEXTS, number: bool = True) -> Path:
    graph = folder / "graph"
    graph.mkdir(exist_ok=True)
    (graph / "edges.csv").write_text("source,target\n0,1\n1,2\n2,3\n")
    heads = "id,label,year,abstract,title" if number else "id,label,abstract,title"
    lines = [f'{i},{i % 2},{f"{i}.5," * number}"{text}",title {i}' for i, text in enumerate(rows)]
    (graph / "nodes.csv").write_text("\n".join([heads, *lines]) + "\n")
    return graph


def load(folder: Path, **options: Any) -> Graph:
    source = {"root": str(folder / "root"), "path": str(folder / "graph"), "text": ("abstract", "title")}
    return load_files("files", DataSource("files", **{**source, **options}))


def encoder(folder: Path, text: str = ENCODER) -> str:
    (folder / "mine.py").write_text(text.format(calls=str(folder / "calls.txt")))
    return f"{folder / 'mine.py'}:encode"


def test_hashed_words_stand_behind_the_numbers(tmp_path: Path) -> None:
    """Those of several columns are joined; a text of a megabyte and an empty one are texts, too."""
    rows = [*TEXTS[:3], "long words " * 100_000]
    write(tmp_path, rows)
    graph = load(tmp_path, text=("title", "abstract"), text_width=64)
    expected = HashingVectorizer(n_features=64, ngram_range=(1, 2)).transform(
        [f"title {i} {text}" for i, text in enumerate(rows)]
    )
    assert sp.issparse(graph.x)
    np.testing.assert_allclose(graph.x.toarray()[:, 1:], expected.toarray(), atol=1e-7)
    assert graph.x.toarray()[:, 0].tolist() == [0.5, 1.5, 2.5, 3.5]
    assert graph.vocabulary is not None
    assert graph.vocabulary[:3].tolist() == ["year", "text 0", "text 1"]
    write(tmp_path, number=False)
    assert load(tmp_path, text_width=8).x.shape == (4, 8)


def test_embeddings_are_made_once_and_mapped(tmp_path: Path) -> None:
    write(tmp_path)
    name = encoder(tmp_path)
    for _ in range(2):
        graph = load(tmp_path, encoder=name)
        assert isinstance(graph.x, np.memmap)
        assert graph.x.dtype == np.float32
        expected = [[i + 0.5, len(f"{text} title {i}"), text.count("papers")] for i, text in enumerate(TEXTS)]
        assert graph.x.tolist() == expected
    assert (tmp_path / "calls.txt").read_text() == "4\n"
    write(tmp_path, ["other", *TEXTS[1:]])
    load(tmp_path, encoder=name)
    assert (tmp_path / "calls.txt").read_text() == "4\n4\n"


def test_what_was_embedded_before_an_end_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "IN_BLOCK", 2)
    write(tmp_path)
    # It fails at its second call, as if the machine went down there.
    fails = """    if len(open({calls!r}).read().split()) == 2:
        raise OSError("ended")
    return"""
    name = encoder(tmp_path, ENCODER.replace("    return", fails))
    with refused("data.options.encoder", f"{tmp_path / 'mine.py'}, line 8"):
        load(tmp_path, encoder=name)
    assert len(list((tmp_path / "root/texts").glob("*/block-*.npy"))) == 1
    assert load(tmp_path, encoder=name).x.shape == (4, 3)
    assert (tmp_path / "calls.txt").read_text() == "2\n2\n2\n"


@pytest.mark.parametrize(
    ("gives", "says"),
    [
        ("np.ones(len(texts))", "gives float64 [4] for 4 texts, expected numbers [4, width]"),
        ("np.ones((2, 3))", "gives float64 [2, 3] for 4 texts"),
        ("np.full((len(texts), 2), np.nan)", "gives numbers that are not finite"),
        ("np.full((len(texts), 2), 1e6)", "not finite, or too large for float16"),
        ("[['a']] * len(texts)", "gives <U1 [4, 1] for 4 texts"),
    ],
)
def test_an_encoder_that_gives_something_else(tmp_path: Path, gives: str, says: str) -> None:
    write(tmp_path)
    name = encoder(tmp_path, f"import numpy as np\ndef encode(texts):\n    return {gives}\n")
    with refused("data.options.encoder", says=says):
        load(tmp_path, encoder=name)


def test_encoders_and_columns_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = write(tmp_path)
    with refused("data.options.encoder", says="expected ngrams, sentences:MODEL or my_file.py:encode, got 'bert'"):
        load(tmp_path, encoder="bert")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with refused("data.options.encoder", says="needs sentence-transformers; pip install 'shoal[text]', or take ngrams"):
        load(tmp_path, encoder="sentences:all-MiniLM-L6-v2")
    with refused(graph / "nodes.csv", says="no column 'body' of texts; found id, label, year, abstract, title"):
        load(tmp_path, text="body")
    np.savez(tmp_path / "graph.npz", edge_index=np.zeros((2, 1), int), x=np.ones((2, 2)), y=[0, 1])
    with refused("data.options.text", says="texts are columns of a table nodes"):
        load(tmp_path, path=str(tmp_path / "graph.npz"))


def test_embeddings_alone_are_of_half_precision(tmp_path: Path) -> None:
    """Beside numbers, which float16 would round, they are not."""
    write(tmp_path, number=False)
    name = encoder(tmp_path)
    assert load(tmp_path, encoder=name).x.dtype == np.float16
    nodes = (write(tmp_path) / "nodes.csv").read_text().replace("0.5,", "70001,")
    (tmp_path / "graph/nodes.csv").write_text(nodes)
    assert load(tmp_path, encoder=name).x[0, 0] == 70001


def test_keys_without_effect_are_refused(tmp_path: Path) -> None:
    plain = {"path": str(write(tmp_path)), "root": str(tmp_path)}
    with refused("data.options.encoder", says="is for columns of texts; name them in data.options.text"):
        fingerprint(DataSource("files", **plain, encoder="mine.py:encode"))  # type: ignore[arg-type]
    for options in ({}, {"text": "abstract", "encoder": encoder(tmp_path)}):
        with refused("data.options.text_width", says="is for texts by ngrams; leave it out"):
            fingerprint(DataSource("files", **plain, **options, text_width=8))  # type: ignore[arg-type]
    with refused("data.options.invalid", says="is for a table of molecules"):
        fingerprint(DataSource("files", **plain, invalid="drop"))  # type: ignore[arg-type]


def test_graph_that_is_gone_is_told_by_its_texts_too(tmp_path: Path) -> None:
    source = DataSource("files", path=str(write(tmp_path)), root=str(tmp_path), text="abstract")
    before = fingerprint(source)
    shutil.rmtree(tmp_path / "graph")
    assert fingerprint(replace(source, noted=before["files"])) == before
    assert fingerprint(replace(source, noted=before["files"], text="title")) != before


def test_encoder_is_part_of_what_a_store_is_made_of(tmp_path: Path) -> None:
    write(tmp_path)
    name = encoder(tmp_path)
    plain = {"path": str(tmp_path / "graph"), "root": str(tmp_path)}
    made = [
        fingerprint(DataSource("files", **plain, **options))  # type: ignore[arg-type]
        for options in ({}, {"text": "abstract"}, {"text": "title"}, {"text": "abstract", "encoder": name})
    ]
    encoder(tmp_path, ENCODER + "# changed\n")
    made.append(fingerprint(DataSource("files", **plain, text="abstract", encoder=name)))  # type: ignore[arg-type]
    assert all(made.count(one) == 1 for one in made)


@pytest.mark.parametrize("chosen", ["ngrams", "own"])
def test_run_learns_from_texts(tmp_path: Path, chosen: str) -> None:
    """Two classes, which a word tells."""
    graph = tmp_path / "graph"
    graph.mkdir()
    (graph / "edges.csv").write_text("source,target\n" + "".join(f"{i},{(i + 1) % 90}\n" for i in range(90)))
    rows = [f"{i},{i % 2},about {'papers' if i % 2 else 'nets'} no {i % 7}" for i in range(90)]
    (graph / "nodes.csv").write_text("\n".join(["id,label,abstract", *rows]) + "\n")
    options: dict[str, Any] = {"text": "abstract", "text_width": 256}
    if chosen == "own":
        options = {"text": "abstract", "encoder": encoder(tmp_path)}
    data = {"dataset": "files", "path": str(graph), "options": options}
    plain = small_run(tmp_path, data=data, rounds=20, train={"lr": 0.1, "dropout": 0.0}, partition={"clients": 2})
    plain["data"]["options"] = options
    folder = run(parse_config(plain, "texts"))
    assert read_summary(folder)["scopes"]["global"]["final"]["test"]["nodes"] > 0.9
    # Texts of another graph are read likewise.
    other = tmp_path / "other"
    other.mkdir()
    (other / "edges.csv").write_text("source,target\n0,1\n1,2\n2,3\n3,0\n")
    words = [f"{i},about {'nets' if i % 2 else 'papers'} no {i}" for i in range(4)]
    (other / "nodes.csv").write_text("\n".join(["id,abstract", *words]) + "\n")
    assert Run(folder).predict(str(other))["predicted"].to_pylist() == [1, 0, 1, 0]
