"""Wrong configs without end: the repository's own, with keys, values, structure or bytes changed at random."""

import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rooms import ROOT

from attack import line_of
from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.methods.registry.names import METHODS
from shoal.engine.config.config import device_choice, load_config
from shoal.engine.config.key_reference import config_keys
from shoal.engine.messages.models import require_mixable, require_supported
from shoal.engine.preparing.checks import require_known
from shoal.engine.preparing.identity import store_path
from shoal.engine.records.run_folder import run_path
from shoal.engine.runs.plan import plan_of

REAL = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "configs").glob("*.yaml"))]
NAN, INF = float("nan"), float("inf")

# Values that may come to stand at any key.
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 3, 10**12, 2**31, 2**63, -(2**63) - 1, 10**40, 0.5, -0.0, NAN, INF, -INF, 1e308,
    1e-320, "", " ", "3", "true", "nan", "auto", "a" * 256, "a/" * 3000, "a\0b", "\u2028", "\ud800", "ä" * 130,
    "/dev/zero", "/dev/null/x", "..", "~nobody/x", "1e400GiB", "-1GiB", "8 gigs", "cora", "files", "gcn", "fedavg",
    "global", "x.py:Y", [], [[]], [1, 2], [NAN, 0.1, 0.1], ["a", None], [0] * 300, [{"name": "gcn"}], {},
    {"name": "sgc"}, {"a": {"b": 1}}, {"name": None}, {"name": ["x"]}, {"hidden": 10**12}, "${seed}",
    "${nowhere.at.all}", "${oc.env:NOWHERE}", "???",
]  # fmt: skip
# Texts that may stand in the place of a value, and need not be YAML.
RAW = [
    "!!int abc", "!!float x", "!!binary x", "!!timestamp x", "!!python/object:os.system {}", "!!set {a}", "!own 3",
    "*gone", "&a [*a]", "[" * 5000, "[" * 200 + "]" * 200, "{a: " * 300, "'", '"', '"\\x00"', "|\n  a\n  b", ">-",
    "- a\n  - b", "0x" + "f" * 5000, "9" * 5000, "1e999", ".nan", "1:30", "0o17", "1_000", "2001-01-01", "<<", "=",
    "? a", "a: b: c", "${" * 200, "${seed}${seed}", "${oc.create:{a:1}}", "${oc.env:HOME,${seed}}", "\t", "#", "---",
    "...\n---\n- a", "{1: 2}", "{[a]: b}", "{a: 1, a: 2}", "~", "\x07", "\ufffe",
]  # fmt: skip
OPTIONS = {
    "data.options": "nodes classes features blocks degree seed scale scratch neighbors homophily degree_cap graphs "
    "base samples width smallest largest padding shots node_attributes",
    "model": "hidden layers heads fanouts alpha attention prompt head",
    "algorithm": "name eps orders lam hops",
    "callbacks.0": "name patience",
}
KEYS = [
    *(key.name for key in config_keys()),
    *(f"{section}.{name}" for section, names in OPTIONS.items() for name in names.split()),
    "model", "train.schedule.name", "unknown", "data.unknown", "a.b.c", "",
]  # fmt: skip
NAMES = {
    "task": ["node", "edge", "graph"],
    "data.dataset": [
        "cora", "sbm", "digits", "files", "arxiv-like", "papers100m-like", "Reddit", "photo", "nci1", "collab",
        "ogbg-molhiv", "ogbg-molpcba", "induced-edge", "sbm-graphs",
    ],
    "evaluation.metrics": ["accuracy", "roc_auc", "average_precision"],
    "model.name": [
        "gcn", "disengcn", "gat", "gcnii", "gin", "sage", "sgc", "mlp", "gamlp", "sign", "s2gc",
        "gbp", "transformer",
    ],
    "algorithm.name": [*METHODS],
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A config file's bytes, and what is put over it on the command line."""

    content: bytes
    overrides: tuple[str, ...]


def cases(seed: int) -> Iterator[Case]:
    """Cases without end; the same for the same seed."""
    rng = random.Random(seed)
    while True:
        tree = yaml.safe_load(yaml.safe_dump(rng.choice(REAL)))
        for _ in range(rng.choice((0, 1, 1, 2))):
            _change(tree, rng)
        text = yaml.dump(tree, Dumper=yaml.SafeDumper, allow_unicode=rng.random() < 0.5)
        if rng.random() < 0.25:
            text = _spoil(text, rng)
        content = text.encode("utf-8", "surrogatepass")
        if rng.random() < 0.15:
            content = _damage(content, rng)
        count = rng.choice((0, 0, 0, 1, 1, 3))
        yield Case(content, tuple(_override(rng) for _ in range(count)))


def attack(seed: int) -> str | None:
    """Reads one case as `shoal run` does before it works: the line that refuses it, None if it is accepted."""
    case = next(cases(seed))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_bytes(case.content)
        return line_of(lambda: _look_at(file, case.overrides))


def _look_at(file: Path, overrides: tuple[str, ...]) -> None:
    config = load_config(file, overrides)
    if not config.algorithm.name.endswith(".py:Y"):
        method = load(describe(config.algorithm.name, config.algorithm.options))
        require_supported(config, method)
        require_mixable(config, method)
        plan_of(config, method.centralized)
    device_choice(config)
    require_known(config)
    assert config.data.split_name
    assert store_path(config)
    assert len(run_path(config).name) <= 255


def _change(tree: Any, rng: random.Random) -> None:
    """Changes one key of a config."""
    key = rng.choice(KEYS)
    value = rng.choice(NAMES[key]) if key in NAMES and rng.random() < 0.7 else rng.choice(VALUES)
    *sections, last = key.split(".")
    for name in sections:
        inner = tree.get(name)
        if isinstance(inner, list) and inner and isinstance(inner[0], dict):
            inner = rng.choice(inner)
        elif not isinstance(inner, dict):
            inner = tree[name] = {}
        tree = inner
    way = rng.random()
    if way < 0.1:
        tree.pop(last, None)
    elif way < 0.2:
        tree[rng.choice((3, None, True, 1.5, "a b", "ä", last.upper()))] = value
    else:
        tree[last] = value


def _spoil(text: str, rng: random.Random) -> str:
    """Changes the text of a config line by line."""
    lines = text.splitlines()
    at = rng.randrange(len(lines))
    way = rng.randrange(6)
    if way == 0:
        lines[at] = f"{lines[at].partition(':')[0]}: {rng.choice(RAW)}"
    elif way == 1:
        lines.insert(at, lines[rng.randrange(len(lines))])
    elif way == 2:
        lines[at] = " " * rng.randint(1, 9) + lines[at]
    elif way == 3:
        lines.insert(at, f"{rng.choice(KEYS) or 'x'}: {rng.choice(RAW)}")
    elif way == 4:
        lines[at:] = [rng.choice(RAW)]
    else:
        names = "bcdefghij"
        laughs = [f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in zip("a" + names, names)]
        lines += ["a: &a [x]", *laughs]
    return "\n".join(lines)


def _damage(content: bytes, rng: random.Random) -> bytes:
    """Changes the bytes of a config."""
    changed = bytearray(content)
    way = rng.randrange(6)
    at = rng.randrange(len(changed))
    if way == 0:
        changed[at] ^= 1 << rng.randrange(8)
    elif way == 1:
        del changed[at:]
    elif way == 2:
        changed[at:at] = rng.randbytes(rng.randint(1, 30))
    elif way == 3:
        changed[at:at] = bytes([rng.randrange(256)]) * rng.choice((3, 300, 30000))
    elif way == 4:
        return content.decode("utf-8", "replace").encode(
            rng.choice(("utf-16", "utf-32", "utf-8-sig", "cp037")), "replace"
        )
    else:
        first = rng.randrange(at + 1)
        changed[at:at] = changed[first:at]
    return bytes(changed)


def _override(rng: random.Random) -> str:
    key = rng.choice([*KEYS, "model.0.hidden", "model.7.name", "a..b", "x" * 300])
    way = rng.random()
    if way < 0.3 and key in NAMES:
        return f"{key}={rng.choice(NAMES[key])}"
    if way < 0.6:
        return f"{key}={rng.choice(RAW)}"
    return f"{key}{rng.choice(('=', '=', '=', '', '==', ' = '))}{rng.choice(VALUES)}"
