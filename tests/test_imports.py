"""Imports run one way, from room to room; Ray and what draws on a screen only in the engine."""

import ast

from rooms import ORDER, PACKAGES, all_imports, arrows, circles, imported, modules, nodes_of, room_of

# Who imports a library of clusters, commands or screens.
OF_ROOMS = {"ray": {"engine"}, "omegaconf": {"engine"}, "typer": {"engine", "shoal"}, "rich": {"engine", "shoal"}}
KNOWN = modules()


def test_folders_are_the_rooms() -> None:
    rooms = {room_of(path) for path in KNOWN.values()}
    assert rooms == set().union(*ORDER.values())


def test_imports_run_down() -> None:
    between = arrows(all_imports())
    assert len(between) > 100
    assert not [arrow for arrow in between if not arrow.allowed]


def test_imports_have_no_circle() -> None:
    assert not circles(all_imports())


def test_libraries_of_clusters_commands_and_screens_are_imported_by_few() -> None:
    for path in KNOWN.values():
        for name in {name.split(".")[0] for name in imported(path)} & OF_ROOMS.keys():
            assert path.parts[0] in OF_ROOMS[name], path


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
