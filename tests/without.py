"""Deletes one feature from a copy of the checkout, and tries the rest: `python tests/without.py FEATURE`.

A feature is a folder of `engine/stages/`, its two lines in `engine/sections/sections.py`, and its tests. The rest must
be imported, pass mypy, and pass the tests of rounds, of hosts and of all other stages.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECTIONS = Path("engine/sections/sections.py")
STAGES = Path("engine/stages")
# Tests of what is left, in the order of their cost.
TESTS = (
    "tests/engine/stages/test_every_stage.py",
    "tests/engine/rounds/test_server.py",
    "tests/engine/hosts/test_host.py",
)
IMPORT_ALL = """
import importlib, pathlib, sys
for root in ("engine", "shoal", "storage", "partition", "algorithms"):
    for path in sorted(pathlib.Path(root).rglob("*.py")):
        if not any(parent.is_symlink() for parent in path.parents) and path.stem != "__main__":
            parts = path.with_suffix("").parts
            name = ".".join(parts if parts[0] == "shoal" else ("shoal", *parts)).removesuffix(".__init__")
            importlib.import_module(name)
"""


def list_features() -> list[str]:
    """Lists the folders of features."""
    return sorted(path.parent.name for path in (ROOT / STAGES).glob("*/section.py"))


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


def delete_feature(checkout: Path, feature: str) -> None:
    """Deletes the folder of a feature, its lines in the list of sections, and its tests."""
    shutil.rmtree(checkout / STAGES / feature)
    shutil.rmtree(checkout / "tests" / STAGES / feature, ignore_errors=True)
    file = checkout / SECTIONS
    text = file.read_text()
    (name,) = re.findall(rf"^from shoal\.engine\.stages\.{feature}\.section import (\w+)\n", text, flags=re.M)
    text = re.sub(rf"^from shoal\.engine\.stages\.{feature}\.section import \w+\n", "", text, flags=re.M)
    file.write_text(re.sub(rf"\b{name}, |, {name}\b", "", text))


def main() -> None:
    """Deletes a feature, and runs the checks; the exit code is that of the first that fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("feature", choices=list_features())
    parser.add_argument("--only-imports", action="store_true", help="import all modules, and leave mypy and tests out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(folder)
        copy_checkout(checkout)
        delete_feature(checkout, args.feature)
        commands = [[sys.executable, "-c", IMPORT_ALL]]
        if not args.only_imports:
            commands += [
                [sys.executable, "-m", "mypy"],
                [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *TESTS],
            ]
        for command in commands:
            print(f"without {args.feature}: {' '.join(command[1:])[:60].strip()}", flush=True)
            done = subprocess.run(command, cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)})
            if done.returncode:
                sys.exit(done.returncode)
    print(f"without {args.feature}: all of it holds")


if __name__ == "__main__":
    main()
