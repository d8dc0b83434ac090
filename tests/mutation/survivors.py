"""What could be changed in a file without a test that notices? `make mutants FILE=algorithms/methods/fedgta/fedgta.py`

mutmut's own runner is of no use here: it forks after torch has computed, and its children wait for threads that only
their parent had. Ours forks from a process that has imported all that does not need the file, and computed nothing; a
child imports the changed file from memory and stops at the first test that fails.

`equivalent.txt` has the changes that no test can notice, `file | before -> after | why`, as they are printed here but
without the line's number. An entry that fits no mutant, or whose mutant is noticed, is an error.
"""

import argparse
import contextlib
import gc
import importlib
import os
import pickle
import random
import select
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from mutants import mutants_of

ROOT = Path(__file__).resolve().parents[2]
EQUIVALENT = Path("tests/mutation/equivalent.txt")
FOLDERS = ("fggp", "gcfl_plus", "fedpg", "adafgl", "fedsage_plus", "fedpub")
IN_ONE_TEST = ("fedtad", "s2fgl", "fedspray", "fediih", "fedlog", "fedgm", "feddep")
OF_PROTOTYPES = ("fedproto", "fedproc", "feddistill", "fedtgp", "class_means", "shared/class_prototypes")
# Tests below tests/ beside <folder>/test_<file>.py, for all paths that begin so.
TESTS = {
    "algorithms/base.py": "algorithms/test_protocol.py",
    "algorithms/client.py": "algorithms/training/test_local_training.py algorithms/test_client_model.py",
    "algorithms/context.py": "algorithms/test_protocol.py",
    "algorithms/rng.py": "algorithms/training/test_local_training.py",
    "algorithms/protocol.py": "algorithms/test_protocol.py",
    "algorithms/models/": "algorithms/models",
    "algorithms/models/layers/dropout.py": "algorithms/training/batched/test_batched_training.py",
    "algorithms/training/analytic/": "algorithms/training/analytic",
    "algorithms/methods/": "algorithms/methods/test_every_method.py",
    "algorithms/methods/local.py": "algorithms/methods/test_fedavg.py algorithms/methods/registry/test_load.py",
    "algorithms/losses/finch.py": "algorithms/methods/test_fpl.py",
    "algorithms/methods/fedgta/": "algorithms/methods/test_fedgta_rounds.py algorithms/methods/fedgta",
    "algorithms/methods/fedgkc.py": "algorithms/methods/fedgkc",
    **{f"algorithms/methods/{name}/": f"algorithms/methods/{name}" for name in FOLDERS},
    **{f"algorithms/methods/{name}/": f"algorithms/methods/test_{name}.py" for name in IN_ONE_TEST},
    **{f"algorithms/methods/{name}.py": "algorithms/methods/test_fedproto.py" for name in OF_PROTOTYPES},
    **{f"algorithms/methods/{name}.py": "algorithms/methods/test_fedavg.py" for name in ("fedprox", "fedopt", "moon")},
    **{f"algorithms/methods/{name}.py": "algorithms/methods/test_fml.py" for name in ("fedkd", "shared/copilot")},
    "algorithms/methods/feddc.py": "algorithms/methods/test_scaffold.py",
    "algorithms/methods/shared/mean_gradient.py": "algorithms/methods/test_scaffold.py",
    "engine/rounds/evaluation.py": "engine/rounds/test_domains.py engine/records/test_metrics.py",
    "engine/rounds/reduction.py": "engine/rounds/test_exchange.py",
    "engine/rounds/state.py": "engine/rounds/test_server.py engine/records/test_checkpoint.py",
    "engine/rounds/server.py": "engine/rounds/test_exchange.py",
}


class Import(SourceFileLoader):
    """Imports the file from `source`, or fails while there is none."""

    source: str | None = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        if self.source is None:
            raise ImportError(f"{name} is kept back")
        return spec_from_file_location(name, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        return compile(self.source or "", self.path, "exec", dont_inherit=True)


# pytest asks plugins for their hash where tests lie in folders with a conftest of their own.
@dataclass(eq=False)
class Report:
    """A plugin of pytest: puts tests in order and keeps what comes of them."""

    order: Sequence[str]
    status: int | str = "broke down"
    failed: str | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    modules: list[str] = field(default_factory=list)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        place = {test: position for position, test in enumerate(self.order)}
        items.sort(key=lambda item: place.get(item.nodeid, -1))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.seconds[report.nodeid] = report.duration
        if report.failed and self.failed is None:
            self.failed = report.nodeid


class Tests:
    """Runs the tests of a file on any source of it."""

    def __init__(self, file: Path, chosen: Sequence[str], folder: str) -> None:
        options = ["-x", "-q", "-p", "no:cacheprovider", "--tb=no", "-m", "not slow", "--hypothesis-profile=mutants"]
        self.options = [*options, f"--basetemp={folder}/pytest", *chosen]
        self.order: list[str] = []
        self.limit = 3600.0
        linked = file if file.parts[0] == "shoal" else "shoal" / file  # imported through the links in shoal/
        self.importer = Import(".".join(linked.with_suffix("").parts).removesuffix(".__init__"), str(ROOT / linked))
        sys.meta_path.insert(0, self.importer)

    def prepare(self, source: str) -> Report:
        """Imports what the tests need, and puts the quick ones first; they must pass in that order, too."""
        first = self.run(source)
        for name in first.modules:
            if not name.startswith("tests"):
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        # pytest collects garbage several times a run, and none is in what was imported.
        gc.freeze()
        self.order = sorted(first.seconds, key=first.seconds.__getitem__)
        start = time.monotonic()
        report = self.run(source)
        self.limit = 30 + 10 * (time.monotonic() - start)
        self.order = sorted(report.seconds, key=report.seconds.__getitem__)
        return report

    def run(self, source: str) -> Report:
        """Runs the tests in a child, up to the first that fails, which is the first one next time."""
        report = Report(self.order)
        reader, writer = os.pipe()
        if not (child := os.fork()):
            os.setpgid(0, 0)
            for stream in range(3):
                os.dup2(os.open(os.devnull, os.O_RDWR), stream)
            with contextlib.suppress(BaseException), open(writer, "wb") as file:
                self.importer.source = source
                report.status = int(pytest.main(self.options, [report]))
                report.modules = list(sys.modules)
                pickle.dump(report, file)
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as file:
            if not select.select([file], [], [], self.limit)[0]:
                report.status = "timeout"
            elif answer := file.read():
                report = pickle.loads(answer)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if report.failed in self.order:
            self.order.remove(report.failed)
            self.order.insert(0, report.failed)
        return report


def tests_of(file: Path) -> list[str]:
    own = Path("tests") / file.parent / f"test_{file.stem}.py"
    beside = [test for begin, tests in TESTS.items() if str(file).startswith(begin) for test in tests.split()]
    return [str(own)] * own.exists() + [f"tests/{test}" for test in beside]


def equivalent_of(file: Path) -> set[str]:
    entries = [line.partition(" | ") for line in EQUIVALENT.read_text().splitlines()]
    return {rest.rpartition(" | ")[0] for path, _, rest in entries if path == str(file)}


def main() -> str | None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("tests", nargs="*", help="tests beside the file's own")
    parser.add_argument("--sample", type=int, help="try as many mutants, drawn at a fixed seed; all by default")
    args = parser.parse_args()
    file = args.file.resolve().relative_to(ROOT)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
    os.environ["PYTHONPATH"] = str(ROOT)
    warnings.simplefilter("ignore")
    quick = {"phases": [Phase.explicit, Phase.generate], "suppress_health_check": list(HealthCheck)}
    settings.register_profile("mutants", database=None, deadline=None, derandomize=True, **quick)

    source = file.read_text()
    every, known = mutants_of(source), equivalent_of(file)
    drawn = random.Random(0).sample(range(len(every)), min(args.sample or len(every), len(every)))
    wrong = [f"fits no mutant: {change}" for change in known - {mutant.change for mutant in every}]
    chosen = list(dict.fromkeys(tests_of(file) + args.tests))
    if not chosen:
        return f'{file}: no tests are known; name some: TESTS="tests/..."'
    fates = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        tests = Tests(file, chosen, folder)
        plain = tests.prepare(source)
        if plain.status != 0:
            return f"{file}: a test fails before anything is changed: {plain.failed or plain.status}"
        print(f"{len(plain.seconds)} tests, {sum(plain.seconds.values()):.1f} s: {' '.join(chosen)}", flush=True)
        for mutant in (every[i] for i in sorted(drawn)):
            report = tests.run(mutant.source)
            fate = "killed" if report.status != 0 else "equivalent" if mutant.change in known else "survived"
            fates.update([fate, str(report.status)])
            if fate == "survived":
                print(f"{file}:{mutant.line} | {mutant.change}", flush=True)
            elif fate == "killed" and mutant.change in known:
                wrong.append(f"noticed by {report.failed or report.status}: {mutant.change}")
    number = f"{len(drawn)} of " * (len(drawn) < len(every)) + f"{len(every)}"
    counts = ", ".join(f"{fates[fate]} {fate}" for fate in ("killed", "survived", "equivalent", "timeout"))
    score = fates["killed"] / max(fates["killed"] + fates["survived"], 1)
    print(f"{number} mutants, {counts}, score {score:.1%}")
    return "\n".join(f"{EQUIVALENT}: {file}: {line}" for line in wrong) or None


if __name__ == "__main__":
    sys.exit(main())
