"""Everything that is to be shown on a GPU, in one command: a process a stage, tables and figures after each.

    python benchmarks/gpu.py --out DIR [--device cuda | cpu] [--stages versions ceilings ...] [--minutes 8] [--smallest]

DIR gets `gpu.json` and `gpu.txt`, written anew after every stage, so that a run that is cut off leaves what it has. A
stage that fails or takes longer than its limit is named with its reason, and the next one starts. Where torch finds no
GPU all of it runs on the processor, and says so; figures are then of the processor. `--smallest` is for a test of the
command: sizes that show nothing.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu_stages import STAGES
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent


def write(out: Path, found: dict[str, Any]) -> None:
    """What was found so far, as JSON and as tables."""
    (out / "gpu.json").write_text(json.dumps(found, indent=1))
    with open(out / "gpu.txt", "w") as file:
        console = Console(file=file, width=150)
        console.print(found["note"])
        for name, stage in found["stages"].items():
            console.print(f"\n{name}: {stage['state']}, {stage['seconds']:.1f} s")
            rows = stage.get("rows", [])
            if not rows:
                continue
            columns = list(dict.fromkeys(column for row in rows for column in row))
            table = Table(*columns)
            for row in rows:
                table.add_row(*(shown(row.get(column, "")) for column in columns))
            console.print(table)


def shown(value: Any) -> str:
    """A figure of a table."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def play(name: str, device: str, smallest: bool, limit: float) -> dict[str, Any]:
    """One stage in a process of its own; what it had when it was ended stays."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder, "rows.json")
        command = [sys.executable, str(HERE / "gpu_stages.py"), name, device, str(int(smallest)), str(rows)]
        with open(Path(folder, "printed"), "w+") as printed:
            try:
                code = subprocess.run(command, stdout=printed, stderr=printed, timeout=limit).returncode
                state = "done" if code == 0 else f"failed with status {code}"
            except subprocess.TimeoutExpired:
                state = f"cut off after {limit:.0f} s"
            printed.seek(0)
            lines = printed.read().strip().splitlines()
        found = json.loads(rows.read_text()) if rows.exists() else []
    if state.startswith("failed") and lines:
        state = f"{state}: {lines[-1][:200]}"
    return {"state": state, "seconds": time.perf_counter() - began, "rows": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), help="by default a GPU, where torch finds one")
    parser.add_argument("--stages", nargs="*", choices=STAGES, default=list(STAGES))
    parser.add_argument("--minutes", type=float, default=8.0, help="limit of all stages together")
    parser.add_argument("--smallest", action="store_true", help="a test of the command itself")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    device, note = args.device, "on the device that was asked for"
    if device is None:
        probe = "import torch, sys; sys.exit(not torch.cuda.is_available())"
        device = "cpu" if subprocess.run([sys.executable, "-c", probe]).returncode else "cuda"
        note = "on a GPU" if device == "cuda" else "torch finds no GPU here: all figures are of the processor"
    found: dict[str, Any] = {"device": device, "note": note, "smallest": args.smallest, "stages": {}}
    print(note)
    end = time.monotonic() + 60 * args.minutes
    for name in args.stages:
        left = end - time.monotonic()
        if left < 1:
            found["stages"][name] = {"state": "left out: no time left", "seconds": 0.0}
        else:
            found["stages"][name] = play(name, device, args.smallest, min(left, STAGES[name].seconds))
        stage = found["stages"][name]
        print(f"{name}: {stage['state']}, {stage['seconds']:.1f} s", flush=True)
        write(args.out, found)


if __name__ == "__main__":
    main()
