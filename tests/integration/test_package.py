"""What is built and shipped of the repository: one package, `shoal`, whose linked folders became real ones."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import pytest
from ray._private.runtime_env.packaging import create_package
from rooms import PACKAGES, ROOT, modules

from shoal.engine.cluster.cluster import _package

SOURCES = ("pyproject.toml", "README.md", "LICENSE", *sorted(PACKAGES))
BUILT = {f"{name.replace('.', '/')}" for name in modules()}


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
        program = f"from setuptools import build_meta; build_meta.build_{kind}('dist')"
        done = subprocess.run([sys.executable, "-c", program], cwd=copy, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        (found,) = (copy / "dist").glob("*.whl" if kind == "wheel" else "*.tar.gz")
        return found

    return build


def modules_in(names: list[str]) -> set[str]:
    """Modules among files, packages by their folder."""
    paths = [PurePosixPath(name) for name in names if name.endswith(".py")]
    return {str(path.parent if path.stem == "__init__" else path.with_suffix("")) for path in paths}


def require_import(folder: Path, elsewhere: Path) -> None:
    """Imports every module of a room that others import least, from a folder that is not the repository."""
    program = "import shoal, shoal.engine.cli.cli, shoal.engine.cluster.ray_backend; print(shoal.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=elsewhere, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(folder / "shoal" / "__init__.py")


def test_wheel_holds_shoal_alone(build: Callable[[str], Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(build("wheel")) as wheel:
        names = wheel.namelist()
        wheel.extractall(tmp_path / "site")
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"shoal"}
    assert modules_in(names) == BUILT
    assert "shoal/py.typed" in names
    (tmp_path / "elsewhere").mkdir()
    require_import(tmp_path / "site", tmp_path / "elsewhere")


def test_sdist_links_are_real_folders_that_build_the_same_wheel(build: Callable[[str], Path], tmp_path: Path) -> None:
    with tarfile.open(build("sdist")) as sdist:
        assert not [member.name for member in sdist.getmembers() if member.issym() or member.islnk()]
        sdist.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    names = [path.relative_to(unpacked).as_posix() for path in (unpacked / "shoal").rglob("*.py")]
    assert modules_in(names) == BUILT
    program = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    subprocess.run([sys.executable, "-c", program], cwd=unpacked, check=True, capture_output=True)
    (wheel,) = (unpacked / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as built:
        assert modules_in(built.namelist()) == BUILT


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
    program = "import shoal, shoal.engine.cli.cli; print(shoal.__file__)"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).resolve() == ROOT / "shoal" / "__init__.py"
