"""Every benchmark runs, in its smallest form; of what a test cannot run whole, the arguments are read.

Numbers of such runs mean nothing: what is tested is that a benchmark still fits the code that it measures.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from support.benchmark_runs import BENCHMARKS, run_benchmark

# Arguments by script; FOLDER is a new one. Graphs that a benchmark reads are replaced by one that is in a package.
SMALLEST: dict[str, Sequence[str]] = {
    "asynchronous.py": ["--rounds=6", "--turns=1", "--graph=digits", "--only", "Cora, 50 clients, SGC"],
    "attack.py": ["--cases=2", "--processes=1", "--only", "configs"],
    "cluster.py": ["--clients=40", "--hosts=0", "--at-once=2"],
    "computed_hops.py": ["quickstart", "data.root=FOLDER", "--methods=fedavg", "--rounds=1", "--clients=2"],
    "copilots.py": ["--nodes=60", "--repeats=1", "--hidden=8"],
    "fast_paths.py": ["--graphs=digits", "--pairs=1", "--only=gcn", "--folder=FOLDER"],
    "five_tasks.py": ["node", "--sides=ours", "--graph=digits", "--seeds=1", "--rounds=2", "--out=FOLDER/five.csv"],
    "fggp_visit.py": ["--nodes=60", "--repeats=1", "--hidden=8"],
    "many_clients.py": ["--clients=50", "--cohort=5", "--classes=3"],
    "method_visits.py": ["--graphs=digits", "--methods=fedavg", "--rounds=2", "--repeats=1"],
    "methods.py": ["--clients=3", "--nodes=20", "--rounds=4", "--runs=FOLDER", "--methods=fedproto"],
    "page_figures.py": ["FOLDER"],
    "peer_clocks.py": ["shoal"],
    "planted_faults.py": ["--graph=digits", "--faults=1", "--equal=0", "--rounds=3", "--clients=3"],
    "propagation.py": ["--quick", "--nodes=2000", "--repeats=1", "--features=8"],
    "prototypes.py": ["--nodes=2000", "--repeats=1", "--hidden=8"],
    "secure.py": ["--models=1.4k", "--clients=2", "--turns=1", "--kinds", "none", "masks"],
    "servers.py": ["--clients", "2", "3", "--classes=4", "--methods", "fedavg", "fedtgp", "gcfl_plus"],
    "small_clients.py": ["--models=sgc", "--clients=4", "--nodes=20", "--features=8", "--rounds=1"],
    "split.py": ["--clients=2", "--graphs=40", "--rounds=1", "--backends=local"],
    "spmm.py": ["--repeats=1"],
    "uploads.py": ["--nodes=400", "--degree=5", "--repeats=1"],
    "visits.py": ["--clients=4", "--rows=5", "--hidden=0", "--optimizers=sgd", "--rounds=1"],
}
# These take more than three seconds even so.
LONG = ("asynchronous.py", "attack.py", "cluster.py", "computed_hops.py", "copilots.py", "fast_paths.py", "split.py")
OF_MANY = {script: pytest.mark.slow if script in LONG else pytest.mark.exhaustive(3) for script in SMALLEST}
# Each starts processes, which import and compile for themselves and take longer than a test may.
OF_PROCESSES: dict[str, Sequence[str]] = {
    "floor.py": ["--only=linear-20", "--pairs=1", "--folder=FOLDER"],
    "neighbours.py": ["--rows", "300", "--once", "--contenders=exact"],
    "partitioners.py": ["--graphs=2k", "--clients=5", "--methods=metis", "--folder=FOLDER"],
    "prepare.py": ["--scales=0.0001", "--clients=2", "--folder=FOLDER"],
    "ray_rounds.py": ["--clients=2", "--turns=1", "--rounds=10"],
    "rounds.py": ["--models=tiny", "--clients=2", "--against=local", "--pairs=1", "--folder=FOLDER"],
    "stores.py": ["--graphs=digits", "--layouts=dense", "--hops=0", "--folder=FOLDER"],
}
# `gpu.py` runs in `test_gpu.py`, with its stages and what these import.
ELSEWHERE = {"gpu.py": "test_gpu.py", "gpu_stages.py": "test_gpu.py"}
# Downloads packages.
OF_NETWORK = {"wheels.py"}


def run_smallest(script: str, arguments: Sequence[str], folder: Path, seconds: float) -> None:
    made = [argument.replace("FOLDER", str(folder)) for argument in arguments]
    status, printed = run_benchmark(script, made, folder, seconds)
    assert status == 0, printed[-3000:]
    assert printed or script == "page_figures.py"


@pytest.mark.slow
def test_methods_beside_local(tmp_path: Path) -> None:
    """A method that refuses the setting is left out."""
    arguments = ["--graphs=digits", "--rounds=4", "--repeats=1", "--methods", "fedprox", "fedgcn"]
    status, printed = run_benchmark("methods.py", arguments, tmp_path, 60)
    assert status == 0, printed[-3000:]
    assert "fedprox" in printed
    assert "left out: fedgcn: data.cross_edges" in printed


@pytest.mark.parametrize("script", [pytest.param(script, marks=mark) for script, mark in OF_MANY.items()])
def test_a_benchmark_runs_in_its_smallest_form(script: str, tmp_path: Path) -> None:
    run_smallest(script, SMALLEST[script], tmp_path, 120.0)


@pytest.mark.slow
@pytest.mark.parametrize("script", OF_PROCESSES)
def test_a_benchmark_that_starts_processes_runs_in_its_smallest_form(script: str, tmp_path: Path) -> None:
    run_smallest(script, OF_PROCESSES[script], tmp_path, 600.0)


@pytest.mark.parametrize("script", [*OF_PROCESSES, *OF_NETWORK, "gpu.py"])
def test_a_benchmark_that_is_not_run_here_reads_its_arguments(script: str, tmp_path: Path) -> None:
    status, printed = run_benchmark(script, ["--help"], tmp_path)
    assert (status, printed[:6]) == (0, "usage:")
    used = {argument.partition("=")[0] for argument in OF_PROCESSES.get(script, []) if argument.startswith("--")}
    assert not {argument for argument in used if argument not in printed}


def test_no_benchmark_is_left_out() -> None:
    scripts = {path.name for path in BENCHMARKS.glob("*.py") if "__main__" in path.read_text()} | {"peer_clocks.py"}
    assert scripts == {*SMALLEST, *OF_PROCESSES, *ELSEWHERE, *OF_NETWORK}
