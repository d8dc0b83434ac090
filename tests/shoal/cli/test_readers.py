"""`shoal read` runs readers of ours and of users by name; each names what is wrong, and where."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from rooms import ROOT
from support.errors import refused
from support.small_runs import small_run

from shoal.cli.readers import READERS, options_in, read_run
from shoal.engine.config.config import parse_config
from shoal.engine.records.metrics import read_metrics
from shoal.engine.runs.run import run

HEAD = "from dataclasses import dataclass\n@dataclass\nclass Mine:\n    top: int = 1\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four rounds, two of four clients each."""
    plain = small_run(tmp_path_factory.mktemp("read"), participation={"ratio": 0.5}, rounds=4)
    return run(parse_config(plain, "a small run"))


def test_reader_of_the_guide_counts_the_cohorts(
    finished: Path, tmp_path: Path, shoal: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "docs" / "extending.md").read_text()
    (example,) = (block for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL) if "PastRun" in block)
    assert len(example.splitlines()) <= 30
    (tmp_path / "cohorts.py").write_text(example)
    out = tmp_path / "cohorts.csv"
    shoal("read", finished, f"{tmp_path / 'cohorts.py'}:Cohorts", "--most", "2", "--out", out)
    times = Counter(client for line in read_metrics(finished) for client in line["cohort"])
    rows = [line.split(",") for line in out.read_text().splitlines()[1:]]
    assert len(rows) == 2
    assert all(times[int(client)] == int(number) for client, number in rows)
    assert int(rows[0][1]) == max(times.values())
    assert "asked most often of 4 clients" in capsys.readouterr().out


def test_a_reader_of_ours_by_its_name_is_its_command(
    finished: Path, shoal: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    for name, words in (
        ("membership", ["attack", finished]),
        ("properties", ["attack", finished, "--kind", "properties", "--round", 2]),
        ("ledger", ["privacy", finished, "--round", 2]),
        ("replay", ["replay", finished, "--round", 2, "--client", read_metrics(finished)[1]["cohort"][0]]),
    ):
        if name not in READERS:
            continue
        shoal(*words)
        said = capsys.readouterr().out
        client = ["--client", words[-1]] if name == "replay" else []
        shoal("read", finished, name, *(["--round", 2] if name != "membership" else []), *client)
        assert capsys.readouterr().out == said


@pytest.mark.parametrize("name", READERS)
def test_every_reader_of_ours_has_options_with_names_and_types(finished: Path, name: str) -> None:
    with refused("--nothing", says="unknown"):
        read_run(name, {"nothing": 1}, finished)


def test_several_tables_are_files_of_a_folder(finished: Path, tmp_path: Path, shoal: Callable[..., None]) -> None:
    shoal("read", finished, "ledger", "--out", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["clients.csv", "entries.csv"]


def test_words_are_options_with_values_of_yaml() -> None:
    words = ["--top", "5", "--not-worse=0.5", "--on", "true", "--some", "[1, 2]", "--name", "a b"]
    assert options_in(words) == {"top": 5, "not_worse": 0.5, "on": True, "some": [1, 2], "name": "a b"}
    with refused("top", says="expected an option of the reader"):
        options_in(["top"])
    with refused("--top", says="needs a value"):
        options_in(["--top"])


@pytest.mark.parametrize(
    ("text", "options", "line", "says"),
    [
        (f"{HEAD}    def read(self, past):\n        return 1 // 0\n", {}, 6, "ZeroDivisionError"),
        (f"{HEAD}    def read(self, past):\n        return past.line\n", {}, 6, "AttributeError"),
        (f"{HEAD}    def read(self, past):\n        return 5\n", {}, 3, "gives int"),
        (HEAD, {}, 3, "is no reader"),
        ("class Mine:\n    def read(self, past):\n        pass\n", {}, 1, "is no reader"),
    ],
)
def test_errors_of_a_users_reader_name_file_and_line(
    finished: Path, tmp_path: Path, text: str, options: dict[str, int], line: int, says: str
) -> None:
    (tmp_path / "mine.py").write_text(text)
    with refused("READER", f"{tmp_path / 'mine.py'}, line {line}", says=says):
        read_run(f"{tmp_path / 'mine.py'}:Mine", options, finished)


def test_options_and_names_that_are_wrong_are_refused(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"{HEAD}    def read(self, past):\n        return 5\n")
    mine = f"{tmp_path / 'mine.py'}:Mine"
    with refused("--top", says="found 'many'"):
        read_run(mine, {"top": "many"}, finished)
    with refused("--tops", says="did you mean 'top'"):
        read_run(mine, {"tops": 1}, finished)
    with refused("--round", says="missing"):
        read_run("replay", {"client": 0}, finished)
    with refused("READER", says="'ledgr' is unknown"):
        read_run("ledgr", {}, finished)
    with refused(tmp_path, says="no run is here"):
        read_run("ledger", {}, tmp_path)
