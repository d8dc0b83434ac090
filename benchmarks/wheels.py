"""Wheels to carry to a machine without a network that has torch, to run Shoal in one process there.

    python benchmarks/wheels.py --out DIR [--there numpy scipy …] [--python 3.11] [--platform manylinux_2_28_x86_64]

Downloads into DIR what `engine.backend: local` needs, without Ray, partitioners and drawings, and prints the size of
every wheel. `--there` names packages that the machine has, or that nothing asks for there: models that read hops do
without torch-geometric. There:

    pip install --no-index --find-links DIR --no-deps DIR/*.whl
    pip install --no-deps --editable FOLDER_OF_SHOAL
"""

import argparse
import subprocess
import sys
import tomllib
from pathlib import Path

from figures import print_figures, target
from rich.console import Console
from rich.table import Table

from shoal.cli.main import SPARED

PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
# Models that pass messages need it.
KEPT = "torch-geometric"
LEFT_OUT = {"torch", *(package for package, _ in SPARED.values())} - {KEPT}
MIB = 2**20
GOAL = 60


def needed(there: set[str]) -> list[str]:
    """Requirements of the project but those that are left out or there."""
    wanted = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    return [line for line in wanted if name_of(line) not in LEFT_OUT | there]


def name_of(requirement: str) -> str:
    """The name of a package in a requirement or, with underscores, in the file of a wheel."""
    name = next((requirement[:i] for i, c in enumerate(requirement) if c in "<>=~!["), requirement)
    return name.strip().lower().replace("_", "-")


def download(out: Path, there: set[str], python: str | None, platform: str | None) -> dict[str, int]:
    """Bytes of every wheel, by package, the largest first."""
    where = [*(["--python-version", python] if python else []), *(["--platform", platform] if platform else [])]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--dest", str(out)]
    # What is left out is no dependency of what is needed, and torch is there.
    subprocess.run([*command, "--only-binary", ":all:", *where, *needed(there)], check=True)
    found = {name_of(path.name.split("-")[0]): path.stat().st_size for path in out.glob("*.whl")}
    for path in out.glob("*.whl"):
        if name_of(path.name.split("-")[0]) in there | {"torch"}:
            path.unlink()
    kept = {name: size for name, size in found.items() if name not in there | {"torch"}}
    return dict(sorted(kept.items(), key=lambda pair: -pair[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="an empty folder")
    parser.add_argument("--there", nargs="*", default=[], help="packages to leave out beside torch")
    parser.add_argument("--python", help="its version of Python; by default this one's")
    parser.add_argument("--platform", help="its platform, as pip names it; by default this one's")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if any(args.out.iterdir()):
        raise SystemExit(f"{args.out}: is not empty; name a new folder")
    sizes = download(args.out, {name_of(name) for name in args.there}, args.python, args.platform)
    table = Table(title=f"wheels in {args.out}")
    table.add_column("package")
    table.add_column("MiB", justify="right")
    for name, size in sizes.items():
        table.add_row(name, f"{size / MIB:.1f}")
    total = sum(sizes.values()) / MIB
    table.add_row("all", f"{total:.1f}")
    Console().print(table)
    print_figures({"MiB": round(total, 1)}, {"wheels, MiB": target(total, GOAL, True)})


if __name__ == "__main__":
    main()
