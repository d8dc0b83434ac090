"""Deletes one feature from a copy of the checkout, and tries the rest: `python tests/without.py FEATURE`.

`FEATURES` says what belongs to each feature. Its folders go, with their tests; so do its pages, and what names it in
lists. The rest must be imported, pass mypy, and pass the tests of rounds, hosts, the config, commands and all other
features.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECTIONS, AROUND = "engine/sections/sections.py", "shoal/features/features.py"
# Pages in the menu of the site, and rooms in their order, are lists, too.
MENU, ROOMS = "mkdocs.yml", "tests/rooms.py"
MYPY = ".mypy_cache"
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--durations=5")


@dataclass(frozen=True)
class Feature:
    """The files of a feature.

    Attributes:
        code: Folders and files, below the root. The tests of a folder have its path below `tests`, those of a file
            `name.py` are `test_name.py`.
        lists: Files from which their imports are dropped, with the imported names, and lines that name their modules.
        says: Words of a command that ask for it, which then must be refused.
        words: Patterns of further lines that are dropped from `lists`.
        tests: Tests that belong to it and are elsewhere.
        pages: Pages of the documentation that are about it.
    """

    code: tuple[str, ...]
    lists: tuple[str, ...]
    says: str
    words: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()


def _stage(name: str, key: str, *pages: str) -> Feature:
    return Feature((f"engine/stages/{name}",), (SECTIONS,), f"run quickstart {key}", pages=pages)


def _schedule(name: str, key: str, *pages: str) -> Feature:
    return Feature((f"engine/schedules/{name}",), (SECTIONS,), f"run quickstart {key}", pages=pages)


def _around(name: str, says: str, *pages: str) -> Feature:
    return Feature((f"shoal/{name}",), (AROUND,), says, pages=pages)


FEATURES = {
    "asynchronous": _schedule("asynchronous", "schedule=fedbuff", "docs/asynchronous.md"),
    "attacks": _around("attacks", "read RUN membership"),
    "availability": _schedule("availability", "participation.dropout=0.5"),
    "bisect": _around("bisect", "read RUN bisect --other=RUN"),
    "board": _around("board", "board runs"),
    "clock": _around("clock", "read RUN clock", "docs/clock.md"),
    "compression": _stage("compression", "communication.upload=int8"),
    "cross_edges": Feature(("engine/preparing/cross_edges",), (SECTIONS,), "run quickstart data.cross_edges=hops"),
    "digests": _stage("digests", "run.keep_digests=true"),
    "evaluator": _around("evaluator", "read RUN ogb"),
    "hostile": _stage("hostile", "attack=sign_flip"),
    "influence": _around("influence", "read RUN influence"),
    "newcomers": Feature(("engine/newcomers",), (SECTIONS,), "run quickstart data.newcomers=0.3"),
    "noise": Feature(("engine/preparing/noise",), (SECTIONS,), "run quickstart data.noise.labels=0.2"),
    "pooled": _around("pooled", "read RUN pooled"),
    "privacy": _stage("privacy", "privacy.unit=client", "docs/privacy.md"),
    "robust": _stage("robust", "aggregation=median"),
    "search": _around("search", "sweep quickstart --search=optuna --space=train.lr=0.1,0.2"),
    "selection": _schedule("selection", "participation.selection=power_of_choice"),
    "secure": _stage("secure", "secure=masks"),
    "shifts": _around("shifts", "read RUN shifts"),
    "unlearning": _around("unlearning", "read RUN unlearn --client=0"),
    "values": _around("values", "read RUN values"),
    "targets": Feature(("engine/targets",), (SECTIONS,), "run quickstart target=regression"),
    "users": _stage("users", "stages=[mine.py:Mine]"),
}

# Tests of what is left, by the package in which a feature is.
COMMON = ("tests/test_imports.py", "tests/shoal/cli/test_readers.py", "tests/shoal/past/test_ledger.py")
TESTS = {
    "engine": (
        *COMMON,
        "tests/engine/config/test_effects.py",
        "tests/engine/config/test_overrides.py",
        "tests/engine/config/test_sections.py",
        "tests/engine/runs/test_plan.py",
        "tests/engine/rounds/test_server.py",
        "tests/engine/hosts/test_host.py",
        "tests/engine/stages/test_every_stage.py",
    ),
    "shoal": (
        *COMMON,
        "tests/shoal/features",
        "tests/shoal/cli/test_cli.py",
        "tests/shoal/pages/test_report.py",
        "tests/shoal/sweeps/test_started_twice.py",
    ),
}
# Imports all modules, and has a command refused in one line, which asks for what is gone.
IMPORT_ALL = """
import contextlib, importlib, io, pathlib, sys
for root in ("engine", "shoal", "storage", "partition", "algorithms"):
    for path in sorted(pathlib.Path(root).rglob("*.py")):
        if not any(parent.is_symlink() for parent in path.parents) and path.stem != "__main__":
            parts = path.with_suffix("").parts
            name = ".".join(parts if parts[0] == "shoal" else ("shoal", *parts)).removesuffix(".__init__")
            importlib.import_module(name)
from shoal.cli.main import command
said, code = io.StringIO(), 0
with contextlib.redirect_stderr(said):
    try:
        command()
    except SystemExit as ended:
        code = ended.code
lines = [line for line in said.getvalue().splitlines() if line.startswith("shoal: ")]
assert code == 2 and len(lines) == 1, (code, said.getvalue())
print(lines[0])
"""


def copy_checkout(to: Path) -> None:
    """Copies the files of the checkout that git knows, or does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        source, target = ROOT / name, to / name
        if source.is_symlink() or source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)


def delete_feature(checkout: Path, feature: Feature) -> None:
    """Deletes what belongs to a feature, and what names it in lists."""
    of_code = [Path(name) for name in feature.code]
    with_tests = ["tests" / path.parent / f"test_{path.name}" if path.suffix else "tests" / path for path in of_code]
    for path in (*of_code, *with_tests, *map(Path, (*feature.tests, *feature.pages))):
        if (checkout / path).is_dir():
            shutil.rmtree(checkout / path)
        else:
            (checkout / path).unlink(missing_ok=path in with_tests)
    for name in feature.lists:
        file = checkout / name
        file.write_text(_drop(file.read_text(), of_code, feature.words))
    menu, order = checkout / MENU, checkout / ROOMS
    pages = {name.removeprefix("docs/") for name in feature.pages}
    lines = menu.read_text().splitlines(keepends=True)
    menu.write_text("".join(line for line in lines if line.split(": ")[-1].strip() not in pages))
    before, listed, behind = re.split(r"(?s)(?<=\nLISTED = )(.*?\n\})", order.read_text(), maxsplit=1)
    for path in of_code:
        room = re.escape(path.as_posix().partition("/")[2])
        listed = re.sub(rf"(?<=[\" ]){room} |(?<=[\w\"]) {room}\b", "", listed)
    order.write_text(before + listed + behind)


def _drop(text: str, code: list[Path], words: tuple[str, ...]) -> str:
    """Drops from a list the imports of modules of some code, the names that these give it, and lines that name them."""
    for path in code:
        parts = path.with_suffix("").parts
        module = re.escape(".".join(parts if parts[0] == "shoal" else ("shoal", *parts)))
        importing = re.compile(rf"^from {module}(?:\.[\w.]+)? import (.+)\n", flags=re.M)
        for name in ", ".join(importing.findall(text)).split(", "):
            # A list has a line for each name, or all in one.
            named = re.compile(rf"^ +{name},\n|\b{name}\b, |, \b{name}\b", re.M)
            text = named.sub("", importing.sub("", text)) if name else text
        text = re.sub(rf'^.*"{module}[.:].*\n', "", text, flags=re.M)
    for word in words:
        text = re.sub(rf"^.*{word}.*\n", "", text, flags=re.M)
    return text


def main() -> None:
    """Deletes a feature, and runs the checks; the exit code is that of the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("feature", choices=sorted(FEATURES))
    parser.add_argument("--only-imports", action="store_true", help="import all modules, and leave mypy and tests out")
    parser.add_argument("--keep", type=Path, help="a new folder for the copy, which is then not removed")
    args = parser.parse_args()
    feature = FEATURES[args.feature]
    with tempfile.TemporaryDirectory() as folder:
        checkout = args.keep or Path(folder)
        copy_checkout(checkout)
        delete_feature(checkout, feature)
        steps = {"imports": [sys.executable, "-c", IMPORT_ALL, *feature.says.split()]}
        if not args.only_imports:
            packages = dict.fromkeys(Path(name).parts[0] for name in feature.code)
            chosen = dict.fromkeys(name for package in packages for name in TESTS.get(package, COMMON))
            tests = [name for name in chosen if (checkout / name).exists()]
            # With the cache of the checkout mypy reads again what has changed alone.
            if (ROOT / MYPY).exists():
                shutil.copytree(ROOT / MYPY, checkout / MYPY)
            steps["types"] = [sys.executable, "-m", "mypy"]
            steps["tests"] = [sys.executable, *PYTEST, *tests]
        for step, command in steps.items():
            print(f"without {args.feature}: {step}", flush=True)
            done = subprocess.run(command, cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)})
            if done.returncode:
                sys.exit(done.returncode)
    print(f"without {args.feature}: all of it holds")


if __name__ == "__main__":
    main()
