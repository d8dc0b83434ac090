"""Imports run one way, from room to room; Ray and what draws on a screen only in the engine."""

import ast
import json
import subprocess
import sys
from pathlib import Path

from rooms import ORDER, PACKAGES, arrows, circles, imported, imports, modules, nodes_of, room_of
from support.small_runs import small_run

# Who imports a library of clusters, commands or screens.
OF_ROOMS = {"ray": {"engine"}, "omegaconf": {"engine"}, "typer": {"engine", "shoal"}, "rich": {"engine", "shoal"}}
KNOWN = modules()
IMPORTS = imports(KNOWN)


def test_folders_are_the_rooms() -> None:
    rooms = {room_of(path) for path in KNOWN.values()}
    assert rooms == set().union(*ORDER.values())


def test_imports_run_down() -> None:
    between = arrows(IMPORTS)
    assert len(between) > 100
    assert not [arrow for arrow in between if not arrow.allowed]


def test_imports_have_no_circle() -> None:
    assert not circles(IMPORTS)


def test_libraries_of_clusters_commands_and_screens_are_imported_by_few() -> None:
    for path in KNOWN.values():
        for name in {name.split(".")[0] for name in imported(path)} & OF_ROOMS.keys():
            assert path.parts[0] in OF_ROOMS[name], path


# Runs a config where no room above the engine can be imported.
ALONE = """
import json, sys
sys.modules.update(dict.fromkeys(json.loads(sys.argv[2])))
from shoal.engine.config.config import parse_config
from shoal.engine.runs.run import run
folder = run(parse_config(json.loads(sys.argv[1]), "alone"))
print(json.dumps([str(folder), *(name in sys.modules for name in ("torch", "ray"))]))
"""


def test_engine_runs_without_the_rooms_above_it_and_a_local_run_without_ray(tmp_path: Path) -> None:
    above = [name for name, path in KNOWN.items() if path.parts[0] == "shoal" and name != "shoal"]
    assert not [
        path for path in IMPORTS if path.parts[0] == "engine" and {"shoal"} & {p.parts[0] for p in IMPORTS[path]}
    ]
    words = [json.dumps(small_run(tmp_path, rounds=1)), json.dumps(above)]
    done = subprocess.run([sys.executable, "-c", ALONE, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    folder, torch_is_loaded, ray_is_loaded = json.loads(done.stdout)
    assert (Path(folder) / "summary.json").exists()
    assert (torch_is_loaded, ray_is_loaded) == (True, False)


def test_engine_names_no_method() -> None:
    from shoal.algorithms.methods.registry.names import METHODS

    assert PACKAGES["engine"]
    for path in (path for path in KNOWN.values() if path.parts[0] == "engine"):
        # `local` and `global` are also names of a backend and of an evaluation scope.
        strings = {
            word.strip("`.,;:()'\"")
            for node in nodes_of(path)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            for word in node.value.replace("=", " ").replace(",", " ").split()
        }
        assert not strings & (METHODS.keys() - {"local", "global"}), path
