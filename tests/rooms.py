"""The rooms of the code, who imports whom, and whether an arrow runs up: `python tests/rooms.py` draws them.

A room is a folder of a package. `ORDER` has the rooms of every package from the top; a room imports only rooms below
it, and what other packages it may import is in `PACKAGES`.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = {
    "shoal": {"engine", "algorithms", "partition", "storage"},
    "engine": {"algorithms", "partition", "storage"},
    "algorithms": {"storage"},
    "partition": {"storage"},
    "storage": set(),
}
# What a feature declares of itself is below all that reads it: the config, which is composed of all sections, for one.
DECLARED = {"section.py": "engine/sections", "feature.py": "shoal/features"}
# The room named after a package is what lies in the folder itself.
LISTED = {
    "shoal": """
        attacks bisect board clock evaluator influence pooled search shifts unlearning values shoal cli past pages
        scaling sweeps kept tables study features
    """,
    "engine": """
        engine runs preparing/cross_edges preparing/noise preparing cluster screen callbacks hosts hosts/devices
        newcomers targets
        stages/hostile stages/robust stages/privacy stages/secure stages/compression stages/digests stages/users
        stages records schedules/asynchronous schedules/availability schedules/selection schedules
        rounds scores simulation messages config sections
    """,
    "algorithms": """
        methods/feddep methods/adafgl methods/fedgpl methods/fedpub methods/fedsage_plus methods/fedtad methods/fggp
        methods/gcfl_plus methods/s2fgl methods/fedspray methods/fediih methods/fedlog methods/fedgm methods
        methods/fedgta methods/fedpg methods/shared methods/registry training/batched training training/analytic losses
        graphs models algorithms models/compiled models/prompts models/decoupled models/user models/edges models/gnn
        models/items models/layers models/inputs
    """,
    "partition": "partition out_of_core methods",
    "storage": """
        adapters datasets datasets/synthetic datasets/readers datasets/user datasets/sources out_of_core
        datasets/features store shards user_code graph/edges graph options files kernels storage
    """,
}
ORDER = {
    package: [name if name == package else f"{package}/{name}" for name in names.split()]
    for package, names in LISTED.items()
}


@dataclass(frozen=True)
class Arrow:
    """An import of the room `target` in a file, a path below the root, of the room `source`."""

    file: Path
    source: str
    target: str

    @property
    def allowed(self) -> bool:
        """Whether it runs down."""
        package, other = (room.split("/")[0] for room in (self.source, self.target))
        if package != other:
            return other in PACKAGES[package]
        if self.source == self.target:
            return True
        return ORDER[package].index(self.source) < ORDER[package].index(self.target)


def modules() -> dict[str, Path]:
    """Every module of the packages by its dotted name; files below the root."""
    paths = [path.relative_to(ROOT) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    # Every package lies below `shoal`.
    parts = {path: path.with_suffix("").parts for path in paths}
    below = {path: names if names[0] == "shoal" else ("shoal", *names) for path, names in parts.items()}
    return {".".join(names).removesuffix(".__init__"): path for path, names in below.items()}


def room_of(path: Path) -> str:
    """Returns the room of a file: its folder, or of what a feature declares of itself that of all these."""
    return DECLARED.get(path.name, path.parent.as_posix())


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a file's syntax; several tests read those of all files."""
    return list(ast.walk(ast.parse((ROOT / path).read_text())))


def imported(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, wherever in it; of `from a import b` both `a` and `a.b`."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
            yield node.module or ""


@cache
def all_imports() -> dict[Path, set[Path]]:
    """The files that every file of the product imports."""
    return imports(modules())


def imports(known: dict[str, Path]) -> dict[Path, set[Path]]:
    """The files that every file imports."""
    found: dict[Path, set[Path]] = {}
    for path in known.values():
        names = set(imported(path))
        # `from package import module` is an import of the module, not of the package.
        parents = {name.rpartition(".")[0] for name in names if name in known}
        found[path] = {known[name] for name in names & known.keys() if name not in parents or name in _own(path, known)}
    return found


def _own(path: Path, known: dict[str, Path]) -> set[str]:
    """Packages of which a file imports something that is no module: these it imports themselves."""
    nodes = [node for node in nodes_of(path) if isinstance(node, ast.ImportFrom)]
    return {str(n.module) for n in nodes if any(f"{n.module}.{alias.name}" not in known for alias in n.names)}


def arrows(found: dict[Path, set[Path]]) -> list[Arrow]:
    """All imports between different rooms, and where they stand."""
    every = [Arrow(file, room_of(file), room_of(target)) for file, targets in found.items() for target in targets]
    return [arrow for arrow in every if arrow.source != arrow.target]


def circles(found: dict[Path, set[Path]]) -> list[list[Path]]:
    """Files that import one another, in turn; each circle once."""
    result: list[list[Path]] = []
    done: set[Path] = set()

    def visit(path: Path, above: list[Path]) -> None:
        if path in above:
            result.append([*above[above.index(path) :], path])
        elif path not in done:
            for target in sorted(found[path]):
                visit(target, [*above, path])
            done.add(path)

    for path in sorted(found):
        visit(path, [])
    return result


# What a round runs through whatever its features, and words of these in conditions.
CORE = ("engine/rounds", "engine/hosts", "engine/messages")
FEATURES = re.compile(
    r"privacy|attack|hostile|backdoor|trigger|aggregation|robust|secure|mask|homomorphic|compress|communication|topk"
    r"|fedbuff|fedasync|tiers|asynchronous|availability|selection|deadline|newcomer|welcome|cross|boundar|digests|door"
    r"|clipped_rows|clip\b",
    flags=re.I,
)


def measure_core() -> list[str]:
    """Lists sizes of the core: lines, files, conditions that name a feature, fields, arguments."""
    files = [path for room in CORE for path in sorted((ROOT / room).glob("*.py")) if path.stem != "__init__"]
    lines, branches, fields = 0, list[str](), dict[str, int]()
    for path in files:
        text = path.read_text()
        lines += text.count("\n")
        for node in ast.walk(ast.parse(text)):
            conditions: list[ast.expr] = []
            if isinstance(node, ast.If | ast.IfExp | ast.While):
                conditions = [node.test]
            elif isinstance(node, ast.comprehension):
                conditions = node.ifs
            elif isinstance(node, ast.ClassDef) and node.name in ("Job", "Cell"):
                fields[node.name] = sum(isinstance(part, ast.AnnAssign) for part in node.body)
            elif isinstance(node, ast.ClassDef) and node.name == "Exchange":
                (start,) = (part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__")
                fields["Exchange()"] = len(start.args.args) - 1
            source = (f"{path.stem}.py:{each.lineno}" for each in conditions if FEATURES.search(ast.unparse(each)))
            branches += source
    sizes = {path.name: path.read_text().count("\n") for path in files if path.name in ("host.py", "server.py")}
    return [
        f"core: {lines} lines in {len(files)} files; {len(branches)} branches on features: {', '.join(branches)}",
        "sizes: " + ", ".join(f"{name} {count}" for name, count in {**fields, **sizes}.items()),
    ]


def main() -> None:
    """Prints rooms with their files, arrows, arrows that run up, circles, and the sizes of the core."""
    known = modules()
    if unlisted := {room_of(path) for path in known.values()} - {*chain(*ORDER.values())}:
        sys.exit(f"expected every folder in LISTED, from the top down; missing: {', '.join(sorted(unlisted))}")
    found = imports(known)
    between = arrows(found)
    for room in chain(*ORDER.values()):
        files = sorted(path.stem for path in known.values() if room_of(path) == room and path.stem != "__init__")
        targets = sorted({arrow.target for arrow in between if arrow.source == room})
        print(f"{room}: {', '.join(files)}\n    -> {', '.join(targets) or 'nothing'}")
    up = [arrow for arrow in between if not arrow.allowed]
    print("arrows that run up:", "; ".join(f"{a.file} -> {a.target}" for a in up) or "none")
    rings = circles(found)
    print("circles:", "; ".join(" -> ".join(map(str, ring)) for ring in rings) or "none")
    print("\n".join(measure_core()))
    sys.exit(bool(up or rings))


if __name__ == "__main__":
    main()
