"""One command by several processes at the same moment."""

import json
from collections.abc import Sequence
from pathlib import Path

from support.forked import start

# Forks a process for each command, all at once, after it has imported everything; prints their statuses and messages.
STARTER = """
import json, os, sys
from importlib import import_module
import scipy.sparse
import shoal.cli.cli, shoal.engine.runs.run
from shoal.cli.main import main

folder, number, words, modules = map(json.loads, sys.argv[1:])
for module in modules:
    import_module(module)
children = []
for place in range(number):
    child = os.fork()
    if child == 0:
        for stream in (1, 2):
            os.dup2(os.open(f"{folder}/said-{place}-{stream}", os.O_WRONLY | os.O_CREAT), stream)
        sys.argv[1:] = words
        status = 1
        try:
            main()
            status = 0
        except SystemExit as ended:
            status = ended.code or 0
        finally:
            sys.stderr.flush()
            os._exit(status)
    children.append(child)
statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
print(json.dumps([[status, open(f"{folder}/said-{place}-2").read()] for place, status in enumerate(statuses)]))
"""


def start_at_once(
    folder: Path, number: int, words: Sequence[str], modules: Sequence[str] = ()
) -> list[tuple[int, str]]:
    """Runs `shoal` with the words so many times at once; gives the status and the messages of each.

    What they print lies in the folder; `modules` are what the command imports besides.
    """
    arguments = [json.dumps(argument) for argument in (str(folder), number, words, modules)]
    process = start(STARTER, *arguments, printed=folder / "started")
    process.join(300)
    assert process.exitcode == 0, (folder / "started").read_text()
    return [(status, said) for status, said in json.loads((folder / "started").read_text())]
