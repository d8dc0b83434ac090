"""What is built and shipped of the repository: one package, `shoal`, whose linked folders became real ones.

It works in a folder whose own modules have the names of its folders: none of them is imported.
"""

import csv
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path, PurePosixPath
from statistics import fmean

import pytest
from ray._private.runtime_env.packaging import create_package
from rooms import PACKAGES, ROOT, modules
from support.errors import refused

from shoal.engine.cluster.cluster import _package
from shoal.engine.cluster.open_backend import require_own_package

SHORT = [
    *("rounds=1", "data.root=data", "data.dataset=sbm", "data.options.nodes=500", "partition.method=random"),
    *("run.tensorboard=false", "resources.cpus_per_host=0.4"),
]
# Files of projects are links to `docs` and `examples`.
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "configs", "docs", "examples", *sorted(PACKAGES))
BUILT = {name.replace(".", "/") for name in modules()}
FILES = [path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*") if path.is_file()]
CONFIGS = {f"shoal/config_files/{path}" for path in FILES}


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Builds a `wheel` or an `sdist` of a copy of the repository, as a frontend does without isolation."""
    copy = tmp_path_factory.mktemp("copy")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, copy / name)

    def build(kind: str) -> Path:
        output(f"from setuptools import build_meta; build_meta.build_{kind}('dist')", copy, unwanted="absent from the")
        (found,) = (copy / "dist").glob("*.whl" if kind == "wheel" else "*.tar.gz")
        return found

    return build


def modules_in(names: list[str]) -> set[str]:
    """Modules among files, packages by their folder; code of projects is copied and never imported."""
    paths = [PurePosixPath(name) for name in names if name.endswith(".py") and "/config_files/" not in f"/{name}"]
    return {str(path.parent if path.stem == "__init__" else path.with_suffix("")) for path in paths}


def output(program: str, folder: Path, unwanted: str = "Traceback") -> str:
    """What a program prints in a folder; it says nothing `unwanted`."""
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert unwanted not in done.stderr, done.stderr
    return done.stdout.strip()


COMMANDS = [
    ["init", "own-method"],
    ["run", "quickstart", "--dry-run"],
    ["reproduce", "fedgta", "table3", "--smallest", "--dry-run"],
]
# Several commands in a process that imports Shoal once.
IN_TURN = """
import sys, shoal
from shoal.cli.main import command
print(shoal.__file__)
for words in COMMANDS:
    sys.argv = ["shoal", *words]
    try:
        command()
    except SystemExit as end:
        assert not end.code, words
"""


def fresh_environment(folder: Path) -> Path:
    """A virtual environment without Shoal, with the dependencies that are installed here; gives its programs."""
    venv.create(folder, symlinks=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    # What .pth files in these folders name, as an editable Shoal, is not followed.
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return folder / "bin"


def test_wheel_holds_shoal_alone(build: Callable[[str], Path]) -> None:
    with zipfile.ZipFile(build("wheel")) as built:
        names = built.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"shoal"}
    assert modules_in(names) == BUILT
    assert "shoal/py.typed" in names
    assert {name for name in names if name.startswith("shoal/config_files/")} == CONFIGS


@pytest.mark.slow
def test_wheel_works_in_a_fresh_environment(build: Callable[[str], Path], tmp_path: Path) -> None:
    """Dependencies are those of the tests; their own Shoal is not among them."""
    wheel = build("wheel")
    python = fresh_environment(tmp_path / "fresh") / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    (tmp_path / "elsewhere").mkdir()
    env = {**os.environ, "SHOAL_DATA": str(tmp_path / "data"), "OMP_NUM_THREADS": "1"}
    for command in ([python.parent / "shoal", "--help"], [python, "-c", f"COMMANDS = {COMMANDS}\n{IN_TURN}"]):
        done = subprocess.run(command, cwd=tmp_path / "elsewhere", env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "fresh"))
    made = tmp_path / "elsewhere" / "own-method" / "method.py"
    assert not made.is_symlink()
    assert made.read_text() == (ROOT / "examples" / "method.py").read_text()


@pytest.mark.slow
def test_steps_of_the_image_work_in_a_fresh_environment(build: Callable[[str], Path], tmp_path: Path) -> None:
    """Without an engine of containers: lines one after another in a copy of the clone, with the packages of here."""
    here = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    path = f"{fresh_environment(tmp_path / 'fresh')}:{os.environ['PATH']}"
    env = {**os.environ, **here, "SHOAL_DATA": f"{tmp_path}/data", "PATH": path}
    folder, ran = build("sdist").parent.parent, 0
    for step, words in re.findall(r"(?m)^(WORKDIR|RUN) (.*)$", (ROOT / "docs" / "Dockerfile").read_text()):
        if step == "WORKDIR":
            folder = folder if words == "/shoal" else tmp_path
            continue
        done = subprocess.run(words, shell=True, cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, f"{words}\n{done.stderr}"
        ran += 1
    assert ran == 2


def test_sdist_links_are_real_folders_that_build_the_same_wheel(build: Callable[[str], Path], tmp_path: Path) -> None:
    with tarfile.open(build("sdist")) as sdist:
        assert not [member.name for member in sdist.getmembers() if member.issym() or member.islnk()]
        sdist.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    names = [path.relative_to(unpacked).as_posix() for path in (unpacked / "shoal").rglob("*.py")]
    assert modules_in(names) == BUILT
    output("from setuptools import build_meta; build_meta.build_wheel('dist')", unpacked)
    (wheel,) = (unpacked / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as built:
        assert modules_in(built.namelist()) == BUILT
        assert set(built.namelist()) >= CONFIGS


def test_package_shipped_by_ray_holds_the_linked_folders(tmp_path: Path) -> None:
    """As `ray.init(runtime_env={"py_modules": [...]})` packs it."""
    package = tmp_path / "package.zip"
    create_package(_package(), package, include_gitignore=True, include_parent_dir=True)
    with zipfile.ZipFile(package) as shipped:
        assert modules_in(shipped.namelist()) == BUILT


def test_import_from_the_parent_of_a_clone_named_shoal_is_the_package(tmp_path: Path) -> None:
    """The clone is no package and must not be taken for a namespace of the name."""
    (tmp_path / "shoal").mkdir()
    (tmp_path / "shoal" / "shoal").symlink_to(ROOT / "shoal")
    imported = output("import shoal, shoal.cli.cli; print(shoal.__file__)", tmp_path)
    assert Path(imported).resolve() == ROOT / "shoal" / "__init__.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder; every module and package in it raises as soon as it is imported."""
    folder = tmp_path_factory.mktemp("user")
    raises = "raise RuntimeError(f'imported {__file__}')\n"
    for name in sorted(PACKAGES.keys() - {"shoal"}):
        (folder / f"{name}.py").write_text(raises)
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(raises)
    # A module of a package and a module alone are both found in the working directory.
    shutil.rmtree(folder / "storage")
    return folder


def shoal(folder: Path, *arguments: str) -> str:
    """Runs the command in a folder and gives what it prints."""
    config = str(ROOT / "configs" / "quickstart.yaml")
    command = [sys.executable, "-m", "shoal", arguments[0], config, *arguments[1:], *SHORT]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_user_folder_modules_of_our_names_raise(folder: Path) -> None:
    for name in PACKAGES.keys() - {"shoal"}:
        done = subprocess.run([sys.executable, "-c", f"import {name}"], cwd=folder, capture_output=True, text=True)
        assert f"RuntimeError: imported {folder / name}" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "runs"),
    [
        (["run", "engine.backend=ray"], 1),
        (["sweep", "seed+engine.backend=0+ray,1+local", "--at-once", "2"], 2),
    ],
    ids=["on Ray", "at once"],
)
def test_user_folder_runs(folder: Path, words: list[str], runs: int) -> None:
    """With a model of the user's own, which the host reads from the run's folder."""
    model = [f"model.name={ROOT / 'examples' / 'model.py'}:Residual", "algorithm.name=fedavg", "engine.hosts=1"]
    shoal(folder, *words, f"run.root={words[0]}", *model)
    assert len(list((folder / words[0]).glob("quickstart-*/summary.json"))) == runs


@pytest.mark.parametrize("name", ["shoal.py", "shoal/__init__.py", "shoal/notes.txt"])
def test_user_file_of_our_own_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Processes of Ray would import it; a folder that is no package stands in nobody's way."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    with refused(tmp_path / name) if name.endswith(".py") else nullcontext():
        require_own_package()
    monkeypatch.chdir(ROOT)
    require_own_package()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="not in a clone")
def test_five_commands_of_a_fresh_clone_lead_to_a_curve_that_rises(tmp_path: Path) -> None:
    """As README and tutorial have them: `make run`, its last line, a sweep, its page, a table; without a network."""
    subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", str(tmp_path / "clone")], check=True)
    programs = fresh_environment(tmp_path / "clone" / ".venv")
    (programs / "pip").write_text(f'#!/bin/sh\nexec {programs}/python -m pip "$@"\n')
    (programs / "pip").chmod(0o755)
    here = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    outside = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    env = {**outside, **here, "SHOAL_DATA": str(tmp_path / "data"), "OMP_NUM_THREADS": "1"}
    # The environment that runs the tests has a command of the same name.
    env["PATH"] = os.pathsep.join(part for part in env["PATH"].split(os.pathsep) if ".venv" not in part)
    made = subprocess.run(["make", "run"], cwd=tmp_path / "clone", env=env, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    tutorial = (ROOT / "docs" / "tutorials" / "figure.md").read_text()
    lines = [made.stdout.splitlines()[-1], *re.findall(r"(?m)^(?:shoal|ls) .*$", tutorial)]
    assert len(lines) == 4
    done = subprocess.run(
        ["bash", "-ec", "\n".join(lines)], cwd=tmp_path / "clone", env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (sweep,) = (path for path in (tmp_path / "clone" / "runs" / "sweeps").iterdir() if path.is_dir())
    assert len(list((sweep / "report" / "figures").glob("*-by-participation-ratio.svg"))) == 1
    with (sweep / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    scores: dict[float, list[float]] = {0.2: [], 0.5: [], 1.0: []}
    for row in rows:
        if row["algorithm"] == "fedavg":
            scores[float(row["participation.ratio"])].append(float(row["global.best.test"]))
    reached = [fmean(of_rate) for of_rate in scores.values()]
    assert reached == sorted(reached)
    assert "\\toprule" in (tmp_path / "clone" / "table.tex").read_text()
