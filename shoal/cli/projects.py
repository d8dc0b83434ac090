"""The projects of `shoal init`: small ones, which lie in the package as folders with a README.

The first line of a README says what its project is, and its block of commands what comes next.
"""

import re
import shlex
import shutil
from pathlib import Path

from shoal.engine.config.config import SHIPPED
from shoal.storage.errors import ShoalError
from shoal.storage.suggestions import did_you_mean

PROJECTS = SHIPPED / "projects"
README = "README.md"


def list_projects() -> list[str]:
    """Returns a line for each project: its name, and what it is."""
    names = project_names()
    width = max(map(len, names))
    return [*(f"{name:{width}}  {_readme(name).splitlines()[0].lstrip('# ')}" for name in names), "shoal init PROJECT"]


def start_project(name: str, folder: Path) -> list[str]:
    """Copies a project into a new or empty folder; gives lines for the user: files, and the commands to run next.

    Raises ShoalError: there is no such project, or the folder is not empty or cannot be written.
    """
    names = project_names()
    if name not in names:
        raise ShoalError(name, f"{did_you_mean(name, names)}there is no such project; choose one of {', '.join(names)}")
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ShoalError(folder, f"is there and not empty; name another folder: shoal init {name} FOLDER")
        folder.mkdir(parents=True, exist_ok=True)
        files = sorted(path for path in (PROJECTS / name).iterdir() if path.is_file())
        for file in files:
            # The content of a file that is a link is copied.
            shutil.copyfile(file, folder / file.name)
    except OSError as error:
        raise ShoalError(folder, f"cannot be written: {error.strerror}") from error
    commands = _commands(name)
    written = f"written: {', '.join(str(folder / file.name) for file in files)}"
    return [written, "next:", *(f"  {line}" for line in (f"cd {shlex.quote(str(folder))}", *commands))]


def project_names() -> list[str]:
    """Returns the names of all projects."""
    return sorted(path.parent.name for path in PROJECTS.glob(f"*/{README}"))


def _readme(name: str) -> str:
    return (PROJECTS / name / README).read_text()


def _commands(name: str) -> list[str]:
    """Returns the commands of a project's README."""
    block = re.search(r"(?s)```bash\n(.*?)```", _readme(name))
    return block[1].splitlines() if block else []
