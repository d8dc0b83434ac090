"""What is small as text and large, deep or endless as values is refused in a moment; ordinary YAML is not."""

import os
import re
import time
from pathlib import Path

import pytest
from support.errors import refused

from shoal.engine.config.config import load_config
from shoal.engine.config.config_text import MOST_VALUES, require_small
from shoal.storage.errors import ShoalError

PLAIN = "name: text\ndata: {dataset: sbm}\nalgorithm: fedavg\n"
LAUGHS = "a: &a [x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n" for before, after in zip("abcdefghij", "bcdefghijk")
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def line_of(file: Path, content: str | bytes, *overrides: str) -> str:
    """The line that a config is refused with, in less than a second."""
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    began = time.perf_counter()
    with pytest.raises(ShoalError) as error:
        load_config(file, overrides)
    assert time.perf_counter() - began < 2
    line = str(error.value)
    assert line.isprintable()
    assert len(line) < 1100
    return line


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("name: " + "[" * 500 + "]" * 500, "line 1: nested more than 32 deep"),
        ("a: " + "{a: " * 500, "line 1: nested more than 32 deep"),
        # Some versions of libyaml refuse these themselves.
        ("[" * 100_000, "nested more than 32 deep|exceeded maximum nesting depth"),
        ("a: " + "{a: " * 100_000, "nested more than 32 deep|exceeded maximum nesting depth"),
        (LAUGHS, "more than 200,000 values"),
        ("a: &a [*a]", "names nothing before it"),
        (PLAIN + "rounds: !!int abc", r"line 4: a tag \(tag:yaml.org,2002:int\); write the value without it"),
        (PLAIN + "rounds: !!timestamp x", "line 4: a tag"),
        (PLAIN + "rounds: !!binary x", "line 4: a tag"),
        (PLAIN + "rounds: !!python/object:os.system x", "line 4: a tag"),
        (PLAIN + "rounds: 3\nrounds: 4", "duplicate key rounds"),
        (PLAIN + "3: 4", "3: a key must be a text"),
        (PLAIN + "rounds: " + "9" * 5000, "not a config: Exceeds the limit"),
        (PLAIN + "rounds: 0x" + "f" * 5000, "found a number of thousands of digits"),
        (PLAIN + "rounds: ${nowhere.at}", r"\$\{nowhere.at\}: there is no such key"),
        (PLAIN + "rounds: ${rounds}", r"must name one value, which is no \$\{…\} itself"),
        (PLAIN + "rounds: ${data}", "must name one value"),
        (PLAIN + "rounds: ${" * 100, "none within another"),
        (PLAIN + "rounds: ${oc.env:NO_SUCH_VARIABLE}", "not a config: .*NO_SUCH_VARIABLE"),
        (b"\xff\xfe\x00n", "not a config"),
        (b"name: a\0b", "not a config"),
        (b"#" * (5 << 20), "larger than 4 MiB"),
        (PLAIN.replace("text", "a" * 201), "name: .*at most 200 characters"),
    ],
)
def test_load_config_bad_text_is_one_line(file: Path, content: str | bytes, says: str) -> None:
    line = line_of(file, content)
    assert line.startswith(f"{file}: ")
    assert re.search(says, line), line


@pytest.mark.parametrize(
    "override",
    ["rounds=3\nseed: 4", "rounds=3\0", "seed=" + "[" * 100_000, "seed=!!int abc", "seed=*a", "x" * 300 + "=1", "seed"],
)
def test_an_override_is_no_way_around_it(file: Path, override: str) -> None:
    line = line_of(file, PLAIN, override)
    assert line.startswith(override[:4])


def test_load_config_without_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/null")):
        with refused(place, says="not a config: Is no file"):
            load_config(place)
    with refused(says="no such config: a path has at most 4095 bytes, and a name in it 255"):
        load_config("a" * 256)


def test_ordinary_yaml(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_TEST_NAME", "from-outside")
    text = "\ufeffname: ${oc.env:SHOAL_TEST_NAME}-${seed}\nseed: &s 3\ndata: {dataset: sbm, split_seed: '${seed}'}\n"
    file.write_text(text + "algorithm: fedavg\npartition: {seed: *s}\n")
    config = load_config(file, ["heterogeneity.seed=${seed}"])
    assert (config.name, config.data.split_seed, config.partition.seed) == ("from-outside-3", 3, 3)
    assert config.heterogeneity.seed == 3


def test_the_longest_list() -> None:
    require_small("a: [" + "0," * (MOST_VALUES - 10) + "]")
    with pytest.raises(ValueError, match="more than 200,000 values"):
        require_small("a: [" + "0," * MOST_VALUES + "]")
