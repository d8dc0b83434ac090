"""A table in a terminal of some width, and where there is none."""

import fcntl
import os
import struct
import subprocess
import sys
import termios
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# Prints a table for each line that it is sent.
PRINTER = """
import sys
from shoal.engine.studies.study_table import on_screen
from shoal.engine.studies.text_table import TextTable
heads = ("algorithm", *(f"figure number {number}" for number in range(6)))
rows = tuple((name, *(f"{number}.25 ± 0.{number}" for number in range(6))) for name in ("fedavg", "fedgta"))
for _ in sys.stdin:
    print(on_screen(TextTable(heads, rows, 1)), end="", flush=True)
    print("end", flush=True)
"""
CELLS = [f"{number}.25 ± 0.{number}" for number in range(6)]


def widest(text: str) -> int:
    assert all(text.count(cell) == 2 for cell in CELLS), "no cell is cut or lost"
    return max(map(len, text.splitlines()))


def test_as_wide_as_the_terminal_or_as_the_table() -> None:
    command = [sys.executable, "-c", PRINTER]
    piped = subprocess.run(command, cwd=ROOT, input="\n", capture_output=True, text=True, check=True).stdout
    whole = widest(piped)
    assert whole > 80
    ours, theirs = os.openpty()
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=theirs, text=True, bufsize=1
    )
    assert process.stdin is not None
    lines = os.fdopen(ours, encoding="utf-8", newline="\n")
    found = {}
    for columns in (60, 80, 200):
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        process.stdin.write("\n")
        text = ""
        while (line := lines.readline().rstrip("\r\n")) != "end":
            text += line + "\n"
        found[columns] = widest(text)
    process.stdin.close()
    assert process.wait(60) == 0
    assert found[60] <= 60 < found[80] <= 80 < found[200] == whole
