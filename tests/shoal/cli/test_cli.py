"""The command as a user types it: each way that ends well, and how the others end."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from rooms import ROOT
from support.fixtures import Check, Refused, Status
from support.needs import needs
from support.shards import flip
from support.small_runs import small_run
from support.toy_method import NAME as TOY

from shoal.cli import doctor as doctor_module
from shoal.cli.doctor import OPTIONAL, REQUIRED, machine, show_doctor
from shoal.cli.main import way_out
from shoal.engine.config.config import parse_config
from shoal.engine.preparing.identity import store_path
from shoal.engine.preparing.prepare import prepare
from shoal.engine.records.metrics import read_metrics
from shoal.engine.screen.tables import console

Capture = pytest.CaptureFixture[str]


# What takes seconds to load stays away from commands that read names and numbers alone.
WHAT_IS_LOADED = """
import sys
from typer.testing import CliRunner
from shoal.cli import cli
for command in {asked}:
    ended = CliRunner().invoke(cli.app, command, catch_exceptions=False)
    print(command, ended.exit_code or "loaded:", sorted({{"torch", "numba", "ray", "scipy"}} & sys.modules.keys()))
"""


def test_every_command_one_after_another(tiny: Path, printed: Refused) -> None:
    folder, store = tiny.parent, tiny.parent / "store"
    assert "dry run of tiny" in printed("run", tiny, "--dry-run")
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml"]
    assert "120 nodes, 8 features" in printed("prepare", tiny)
    assert f"{store}: " in printed("verify", store)
    assert "4, of " in printed("inspect", store)
    text = printed("run", tiny)
    (run,) = (folder / "runs").iterdir()
    assert "fedavg on sbm (synthetic): 4 clients, 2 rounds, sgc" in text
    assert f"folder: {run} next: shoal report {run} shoal sweep {run} algorithm=local,fedavg seeds=3" in text
    assert [line["round"] for line in read_metrics(run)] == [1, 2]
    text = printed("inspect", run)
    assert "2 rounds logged" in text
    assert "fedavg on sbm (synthetic)" in text
    assert printed("export", run) == f"written: {run / 'export'}"
    assert (run / "export" / "predictions.arrow").exists()
    text = printed("sweep", tiny, "train.lr=0.01,0.1", "--no-report")
    assert "learning rate test accuracy (%)" in text
    assert len(list((folder / "runs").glob("tiny-*"))) == 2
    (sweep,) = (folder / "runs" / "sweeps").iterdir()
    assert f"folder: {sweep} next: shoal report {sweep}" in text
    assert "to run" not in printed("sweep", tiny, "train.lr=0.01,0.1", "--dry-run")
    inspected = printed("inspect", sweep)
    assert inspected.startswith("config: train.lr=0.01,0.1")
    assert all(f"finished {path}" in inspected for path in (folder / "runs").glob("tiny-*"))
    assert "learning rate test accuracy (%)" in inspected
    table = printed("table", sweep, "--figure", "deployed.best.test", "--columns", "train.lr", "--format", "markdown")
    assert "| 0.01 | 0.1 |" in table
    assert printed("report", sweep) == f"written: {sweep / 'report' / 'index.html'}"
    assert {path.suffix for path in (sweep / "report" / "figures").iterdir()} == {".svg", ".png"}
    assert '.pdf">PDF</a>' not in (sweep / "report" / "index.html").read_text()
    assert "equal" in printed("compare", run, run)
    inspects = [["inspect", path] for path in (run, store, sweep)]
    asked = [inspects[2], ["list", folder / "runs", folder], ["doctor"], ["table", sweep]]
    asked += [["compare", run, run], ["verify", store], ["reproduce"], ["table", "--help"]]
    # Of a store and a run the spectra of clients are computed.
    asked += inspects[:2]
    code = WHAT_IS_LOADED.format(asked=[[str(word) for word in command] for command in asked])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.count("loaded: []") == len(asked) - 2, done.stdout
    assert done.stdout.count("loaded: ['scipy']") == 2, done.stdout
    for command in (["list", folder], *inspects, ["table", sweep], ["doctor"]):
        assert json.loads(printed(*command, "--json"))
    listed = printed("list", folder / "runs", folder)
    assert all(name in listed for name in (run.name, sweep.name, "store"))
    assert f"removed: {run}" not in printed("remove", "--yes", sweep)
    assert [path.name for path in (folder / "runs").iterdir()] == ["sweeps"]


def test_overrides_and_fresh(tiny: Path, shoal: Check) -> None:
    shoal("run", tiny, "rounds=1", "seed=7")
    (run,) = (tiny.parent / "runs").iterdir()
    (line,) = read_metrics(run)
    assert "seed: 7" in (run / "config.yaml").read_text()
    # It is finished, and stays as it is, unless asked.
    stamp = (run / "metrics.jsonl").stat().st_mtime_ns
    shoal("run", tiny, "rounds=1", "seed=7")
    assert (run / "metrics.jsonl").stat().st_mtime_ns == stamp
    shoal("run", tiny, "rounds=1", "seed=7", "--fresh")
    assert (run / "metrics.jsonl").stat().st_mtime_ns != stamp
    assert read_metrics(run)[0]["loss"] == line["loss"]


def test_a_run_pauses_after_a_round_and_goes_on(tiny: Path, shoal: Check, printed: Refused) -> None:
    paused = printed("run", tiny, "rounds=3", "--until", "2")
    (run,) = (tiny.parent / "runs").iterdir()
    assert "paused after round 2" in paused
    assert [line["round"] for line in read_metrics(run)] == [1, 2]
    shoal("run", run, "--resume")
    assert [line["round"] for line in read_metrics(run)] == [1, 2, 3]
    assert (run / "summary.json").exists()


@pytest.mark.parametrize("options", [["--trials", "3"], ["--space", "train.lr=0.1:0.2"], ["--price", "2"]])
def test_options_of_a_search_or_forecast_alone_are_refused(
    tiny: Path, status: Status, capsys: Capture, options: list[str]
) -> None:
    assert status("sweep", tiny, "seed=0,1", *options) == 2
    place = "--price" if options[0] == "--price" else "--search"
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"shoal: {place}: ")
    assert not (tiny.parent / "runs").exists()


@needs("search")
def test_a_search_says_its_plan_and_needs_optuna(
    tiny: Path, printed: Refused, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("sweep", tiny, "--search", "optuna", "--space", "train.lr=0.1:0.2", "--trials", "5", "--dry-run")
    assert "5 trials over train.lr, 2 seeds, to round " in printed(*words)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert refused(*words).startswith("shoal: the package optuna is not installed; pip install optuna, or ")


def test_a_run_that_is_refused_names_and_leaves_no_folder(
    tmp_path: Path, status: Status, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    graph = tmp_path / "graph"
    graph.mkdir()
    (graph / "nodes.csv").write_text("id,label,f\n1,a,0.5\n2,b,1\n")
    (graph / "edges.csv").write_text("src,dst\n1,2\n")
    config = tmp_path / "own.yaml"
    config.write_text(
        f"{{name: own, data: {{dataset: files, path: {graph}, root: {tmp_path}}}, algorithm: fedavg, rounds: 1, "
        "partition: {method: random, clients: 1}, engine: {backend: local}, run: {root: new}}"
    )
    assert status("run", config) == 2
    said = capsys.readouterr()
    assert said.err.splitlines()[-1].startswith(f"shoal: {graph}/edges.csv: did you mean 'source' and 'target' by ")
    assert "folder" not in said.out + said.err
    assert not (tmp_path / "new").exists()
    # The run of another, which was there before, and its root stay.
    (tmp_path / "new" / "other").mkdir(parents=True)
    assert status("run", config) == 2
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["other"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("key", ["engine.device=cuda", "resources.server_gpus=1"])
def test_a_run_without_its_gpu_names_and_leaves_no_folder(
    tiny: Path, status: Status, capsys: Capture, key: str
) -> None:
    before = sorted(tiny.parent.rglob("*"))
    assert status("run", tiny, "run.root=elsewhere", key, "engine.backend=local") == 2
    said = capsys.readouterr()
    assert "finds no GPU on this host; install a torch built for CUDA" in said.err.splitlines()[-1]
    assert "folder" not in said.out + said.err
    assert not Path("elsewhere").exists()
    assert status("run", tiny, "engine.backend=local") == 0
    assert "folder" in capsys.readouterr().err
    assert before != sorted(tiny.parent.rglob("*"))


@pytest.mark.parametrize("place", ["before", "after"])
def test_debug_shows_the_traceback(tiny: Path, status: Status, capsys: Capture, place: str) -> None:
    wrong = ("run", tiny, "rounds=0")
    assert status(*wrong) == 2
    errors = capsys.readouterr().err
    assert errors.splitlines() == ["shoal: command line: rounds: expected at least 1, found 0"]
    assert status(*(("--debug", *wrong) if place == "before" else (*wrong, "--debug"))) == 2
    debugged = capsys.readouterr().err
    assert "Traceback (most recent call last)" in debugged
    assert ", in parse_config" in debugged
    assert debugged.splitlines()[-1] == errors.strip()


def test_debug_shows_the_error_of_a_client(tiny: Path, status: Status, capsys: Capture) -> None:
    assert status("--debug", "run", tiny, f"algorithm.name={TOY}") == 2
    errors = capsys.readouterr().err
    assert "RuntimeError: no luck" in errors
    last, _, log = errors.splitlines()[-1].rpartition("; more in ")
    assert last.startswith("shoal: round 1, client 2: ")
    assert re.search(r"toy_method\.py, line \d+, in upload\(\): RuntimeError: no luck$", last)
    assert 'raise RuntimeError("no luck")\n' in Path(log).read_text()


def test_an_interruption_ends_with_130(tiny: Path, status: Status, capsys: Capture) -> None:
    """As after a Ctrl-C: the run ends after its round, since its time is over, and says how to go on."""
    assert status("run", tiny, "run.max_seconds=1e-6") == 130
    errors = capsys.readouterr().err
    (run,) = (tiny.parent / "runs").iterdir()
    assert f"stopped after round 1; continue with: shoal run {run} --resume" in errors
    assert "Traceback" not in errors
    assert status("run", run, "run.max_seconds=null", "--resume") == 0
    assert [line["round"] for line in read_metrics(run)] == [1, 2]


def without(module: str, *words: object) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own that cannot import a module: what this one has imported stays."""
    blocked = f"import sys; sys.modules[{module!r}] = None; from shoal.cli.main import main; main()"
    command = [sys.executable, "-c", blocked, *map(str, words)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize(
    ("module", "package", "change", "instead"),
    [
        ("ray", "ray", "engine.backend=ray", "engine.backend=local"),
        ("tensorboard.compat.proto", "tensorboard", "run.tensorboard=true", "run.tensorboard=false"),
    ],
)
def test_a_package_that_is_missing(tiny: Path, module: str, package: str, change: str, instead: str) -> None:
    done = without(module, "run", tiny, change)
    assert done.returncode == 2, done.stderr
    line = f"shoal: the package {package} is not installed; pip install {package}, or do without it: {instead}"
    assert done.stderr.splitlines()[-1].startswith(line)


def test_models_need_no_pyg(tiny: Path) -> None:
    done = without("torch_geometric", "run", tiny, "model.name=gat")
    assert done.returncode == 0, done.stderr
    assert "algorithm=local,fedavg seeds=3" in done.stdout


def test_missing_package_is_named_as_pip_installs_it() -> None:
    line = way_out(ModuleNotFoundError("No module named 'sklearn'", name="sklearn.datasets"))
    assert line is not None
    assert "pip install scikit-learn, or do without it: another dataset or metric" in line
    line = way_out(ModuleNotFoundError("No module named 'torch_geometric'", name="torch_geometric.data"))
    assert line is not None
    assert "pip install torch-geometric, or do without it: data of your own files, or the synthetic ones" in line
    assert way_out(ModuleNotFoundError("No module named 'engine.nothing'", name="engine.nothing")) is None
    assert way_out(ModuleNotFoundError("none")) is None


def test_paths_that_hold_nothing(tmp_path: Path, refused: Refused) -> None:
    assert "is a folder without config.yaml, so no run" in refused("export", tmp_path)
    for command in ("verify", "inspect"):
        assert "manifest.json" in refused(command, tmp_path)
    (tmp_path / "manifest.json").mkdir()
    for command in ("verify", "inspect"):
        assert f"{tmp_path}/manifest.json: cannot be read: Is a directory" in refused(command, tmp_path)


@pytest.mark.parametrize("command", ["inspect", "verify", "export", "run", "prepare"])
def test_a_path_that_no_file_can_have(refused: Refused, command: str) -> None:
    assert "a name in it 255" in refused(command, "a" * 256)
    assert "a path has at most 4095 bytes" in refused(command, "a/" * 2100)


@pytest.fixture
def store(tiny: Path, shoal: Check) -> Path:
    """A store with the whole graph as one client below it."""
    shoal("prepare", tiny, "algorithm.name=global")
    return tiny.parent / "store"


def test_a_sound_store(store: Path, shoal: Check, capsys: Capture) -> None:
    stray = store / "clients" / "00007.arrow"
    stray.touch()
    capsys.readouterr()
    shoal("verify", store)
    assert f"{stray}: nothing names this file, and no run reads it\n" in capsys.readouterr().out
    stray.unlink()
    shoal("verify", store)
    # Shards, splits and hops of four clients, a table of each, and the assignment; then the one of the whole graph.
    said = capsys.readouterr().out
    assert said == f"{store}: 7 files, all as they were written\n{store}/whole: 6 files, all as they were written\n"


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", ["manifest.json", "progress.jsonl", "clients/*.arrow", "tables/clients.arrow"])
def test_verify_names_damaged_files(store: Path, refused: Refused, whole: bool, name: str) -> None:
    (path,), other = (store / "whole" if whole else store).glob(name), store / "assignment.npy"
    flip(path, path.stat().st_size // 2)
    assert refused("verify", store).startswith(f"shoal: {path}: ")
    if name.startswith("clients"):
        flip(other, other.stat().st_size // 2)
        line = "(and 1 more); delete the damaged files and run `shoal prepare` again"
        assert refused("verify", store).endswith(line)


TWIN = ("synthesize", "products-like", "--scale", "0.001", "--homophily", "0.7", "--seed", "3")


def test_store_is_called_synthetic(tmp_path: Path, shoal: Check, capfd: Capture) -> None:
    shoal(*TWIN, "--root", tmp_path)
    output = capfd.readouterr()
    assert f"written: {tmp_path / 'ogbn_products'}" in output.out
    assert "edges: 61859/61859 rows" in output.err
    assert "features: 2449/2449 rows" in output.err
    data = {"dataset": "ogbn-products", "split": "public", "options": {}}
    config = parse_config(small_run(tmp_path, data=data, partition={"method": "random", "clients": 2}), "test")
    store = prepare(config)
    assert store.manifest.synthetic
    assert store.manifest.name == "products-like"
    made = store.manifest.identity["dataset"]["synthetic"]
    assert (made["scale"], made["homophily"], made["seed"]) == (0.001, 0.7, 3)
    (tmp_path / "ogbn_products" / "SYNTHETIC.json").unlink()
    assert store_path(config) != store.path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("products",), "twin: must be one of arxiv-like, products-like, papers100m-like, found 'products'"),
        (("arxiv-like", "--scale", "0"), "scale: 0.0 must be more than 0"),
        (("arxiv-like", "--scale", "1e-6"), "scale: 1e-06 must be at least"),
        (("arxiv-like", "--homophily", "1.5"), "homophily: 1.5 must be in 0..1"),
        (("arxiv-like", "--seed", "-1"), "seed: -1 must be at least 0"),
    ],
)
def test_refuses_options(tmp_path: Path, refused: Refused, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused("synthesize", *arguments, "--root", tmp_path)
    assert not list(tmp_path.iterdir())
    # In a root with the original.
    file = tmp_path / "ogbn_products" / "raw" / "edge.csv.gz"
    file.parent.mkdir(parents=True)
    file.touch()
    assert refused(*TWIN, "--root", tmp_path).startswith(f"shoal: {file}: is there, and not synthetic")


def doctor() -> list[str]:
    with console.capture() as captured:
        show_doctor()
    return captured.get().splitlines()


def row(lines: list[str], name: str) -> list[str]:
    (cells,) = [cells for line in lines if (cells := [cell.strip() for cell in line.split("│")])[1:2] == [name]]
    return cells[2:-1]


def test_every_required_package_has_its_version() -> None:
    lines = doctor()
    for name in REQUIRED:
        assert row(lines, name)[0] == importlib.metadata.version(name)
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {re.split(r"[~>=<]", line)[0] for line in wanted} == set(REQUIRED)


def test_doctor_missing_package_names_what_it_disables(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"ray", "dgl"}
    distribution = importlib.metadata.distribution

    def absent(name: str) -> importlib.metadata.Distribution:
        if name in missing:
            raise importlib.metadata.PackageNotFoundError(name)
        return distribution(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    lines = doctor()
    assert row(lines, "ray") == ["missing", "required: pip install -e ."]
    version, use = row(lines, "dgl")
    assert version == "missing"
    assert use.startswith("without it: no DGLGraph in and out")
    assert missing & OPTIONAL.keys()


def test_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_DATA", "/not/there")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    lines = doctor()
    cores = len(os.sched_getaffinity(0))
    assert row(lines, "processor") == [f"{cores} cores" if cores > 1 else "1 core"]
    assert row(lines, "cores at work") == [f"{cores} in a run on Ray (engine.hosts), 1 with engine.backend=local"]
    assert row(lines, "Ray") == ["joins 10.0.0.1:6379 with ray.address=auto"]
    assert "from SHOAL_DATA" in " ".join(lines)
    assert row(lines, "free disk there")[0].endswith("iB")
    if (known := torch.cpu.get_capabilities()).get("architecture") == "x86_64":
        expected = ", ".join(name for name in ("amx_bf16", "avx512_bf16") if known[name]) or "no instructions for it"
        slower = "" if known["amx_bf16"] else "; slower than float32 without amx_bf16"
        assert " ".join(row(lines, "bfloat16")[0].split()) == expected + slower
    if not torch.cuda.is_available():
        assert row(lines, "GPUs")[0].startswith("none that torch can use")
    monkeypatch.delenv("RAY_ADDRESS")
    assert row(doctor(), "Ray") == ["starts on this machine when a run begins"]


def test_gpus_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As torch and a driver show them."""
    monkeypatch.setattr(doctor_module, "DRIVERS", (str(tmp_path),))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda number: f"H{number}")
    rows = machine()
    assert rows["GPUs"] == "H0, H1"
    assert rows["GPUs at work"].startswith("2 in a run on Ray with engine.device=cuda, a host on each; 1 with ")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    rows = machine()
    assert rows["GPUs"].startswith("none that torch can use")
    assert "GPUs at work" not in rows
