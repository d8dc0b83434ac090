"""The README is true: its shell blocks run, its links and names exist."""

import csv
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import jsonschema
import pytest
import ray
import yaml
from formulas import draw
from pages import DOCS, PAGES
from picture import GALLERY, WIDTH, take
from PIL import Image
from rooms import ORDER
from support.browser import BROWSER, browser
from support.fixtures import Check
from support.small_runs import shortened, small_run

from shoal.algorithms.base import mixes_models
from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.methods.registry.names import METHODS
from shoal.algorithms.models.names import BACKBONES, OF_GRAPHS, PROMPTS
from shoal.engine.config.config import load_config, parse_config
from shoal.engine.records.metrics import read_metrics
from shoal.engine.runs.run import run
from shoal.partition.methods.options import Methods
from shoal.storage.options.dataset_names import DATASETS

ROOT = Path(__file__).resolve().parent.parent
# The tests give commands other data, so that this is read before them.
CORA = Path(os.environ.get("SHOAL_DATA", "/")) / "planetoid" / "Cora"
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
# Blocks that install or run the tests would run themselves.
COMMANDS = [
    line.split("#")[0].strip()
    for block in BLOCKS
    if "pip install" not in block and "make" not in block
    for line in block.splitlines()
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, which is empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path / "data"))
    return tmp_path


def test_readme_is_short() -> None:
    assert len(README.splitlines()) <= 90
    assert len(README.split()) <= 700


@pytest.mark.parametrize("changed", [shortened, pytest.param(str, marks=pytest.mark.slow)])
def test_commands_run(here: Path, shoal: Check, changed: Callable[[str], str]) -> None:
    """The first as a shell does it; by default with fewer rounds."""
    os.symlink(ROOT / "configs", here / "configs")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    first, *rest = COMMANDS
    assert len(rest) >= 2
    result = subprocess.run(first, shell=True, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    assert result.returncode == 0, f"{first}\n{result.stderr}"
    for command in rest:
        name, *words = shlex.split(changed(command))
        assert name == "shoal"
        shoal(*words)


def test_pages_are_short() -> None:
    """Words of guides, outside of code, and of all pages; a table whose rows nobody reads through is a CSV file."""
    menu = (ROOT / "mkdocs.yml").read_text()
    guides = re.findall(r": (\S+\.md)", menu.split("  - Guides:\n")[1].split("\n  - ")[0])
    texts = {str(path.relative_to(DOCS)): path.read_text() for path in DOCS.rglob("*.md")}
    assert len(guides) > 10
    assert sum(len(re.sub(r"(?s)```.*?```", "", texts[guide]).split()) for guide in guides) <= 12_000
    assert sum(len(text.split()) for text in texts.values()) <= 45_000


def test_guide_for_agents_runs(here: Path, shoal: Check, capsys: pytest.CaptureFixture[str]) -> None:
    """Every command of it, the example of a method as it stands, and the program; every folder is there."""
    text = (ROOT / "AGENTS.md").read_text()
    (method,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (here / "mine.py").write_text(method)
    blocks = re.findall(r"```bash\n(.*?)```", text, flags=re.DOTALL)
    commands = [line.split("#")[0] for block in blocks for line in block.splitlines()]
    assert len(commands) == 5
    for command in commands:
        name, *words = shlex.split(command)
        assert name == "shoal"
        shoal(*words)
    capsys.readouterr()
    (program,) = re.findall(r"`(import shoal; .*?)`", text)
    exec(program)
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    places = [name for line in rows for name in re.findall(r"`([\w/.]+)`", line)]
    assert len(places) > 8
    bases = (ROOT, ROOT / "algorithms/methods", ROOT / "configs")
    assert all(any((base / name).exists() for base in bases) for name in places)


def test_pages_of_the_list_for_language_models_exist() -> None:
    links = re.findall(r"\]\(([\w/-]+\.md)\)", (ROOT / "docs" / "llms.txt").read_text())
    assert len(links) > 10
    assert all((ROOT / "docs" / link).exists() for link in links)
    assert f"{len(METHODS)} methods" in (ROOT / "docs" / "llms.txt").read_text()


def test_make_targets_exist() -> None:
    targets = ["run", "test", "test-all", "lint", "help"]
    subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.slow
def test_results_come_out(here: Path, shoal: Check) -> None:
    """Means over seeds of each column of the table, to half a point on another processor."""
    if not CORA.exists():
        pytest.skip(f"{CORA} is missing: set SHOAL_DATA to a folder of published files")
    os.symlink(ROOT / "configs", here / "configs")
    (here / "data" / "planetoid").mkdir(parents=True)
    os.symlink(CORA, here / "data" / "planetoid" / "Cora")
    (of_cora,) = re.findall(r"`(shoal sweep cora [^`]*)`", README)
    shown = re.findall(r"(?m)^\| (\w+) \| \W*([\d.]+) ± [\d.*]+ \| \W*([\d.]+) ± [\d.*]+ \|$", README)
    assert len(shown) == 3
    for place, command in enumerate((COMMANDS[-1], of_cora), 1):
        shoal(*command.split()[1:], "--no-report")
        (table,) = here.glob(f"runs/sweeps/{'cora' if place == 2 else 'quickstart'}-*/table.csv")
        with table.open(newline="") as file:
            rows = [
                (row["algorithm.name" if "algorithm.name" in row else "algorithm"], row) for row in csv.DictReader(file)
            ]
        for method, *values in shown:
            scores = [100 * float(row["deployed.best.test"]) for name, row in rows if name == method.lower()]
            assert fmean(scores) == pytest.approx(float(values[place - 1]), abs=0.5), (command, method)


def test_make_run_ends_with_the_line_that_makes_shoal_a_command(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    venv.create(tmp_path / ".venv")
    installed = tmp_path / ".venv" / "bin" / "shoal"
    installed.write_text("#!/bin/sh\necho ran\n")
    installed.chmod(0o755)
    (tmp_path / ".venv" / "installed").touch()
    # A make that runs the tests says of those below it which folder they are in.
    outside = {key: value for key, value in os.environ.items() if not key.startswith(("MAKE", "MFLAGS"))}
    made = subprocess.run(["make", "run"], cwd=tmp_path, env=outside, check=True, capture_output=True, text=True)
    assert "ran" in made.stdout.splitlines()
    line = made.stdout.splitlines()[-1]
    found = subprocess.run(["bash", "-c", f"{line} && command -v shoal"], cwd=tmp_path, capture_output=True, text=True)
    assert found.stdout.strip() == str(installed), found.stderr


def test_links_exist() -> None:
    for document in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")):
        for link, place in re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", document.read_text()):
            target = document.parent / link if link else document
            assert "://" in link or target.exists(), f"{document.name}: {link}"
            if place and "://" not in link:
                assert place in headings(target), f"{document.name}: {link}#{place}"


def headings(document: Path) -> list[str]:
    """Headings as links name them."""
    found = re.findall(r"(?m)^#+ (.*)$", document.read_text())
    return [re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in found]


def test_files_that_are_named_exist() -> None:
    for document in (*ROOT.glob("*.md"), ROOT / "pyproject.toml", *(ROOT / "docs").rglob("*.md")):
        rooms = "shoal|engine|algorithms|storage|partition|tests|benchmarks|configs|examples"
        for path in re.findall(rf"(?<![\w./])(?:{rooms})/[\w/.-]*\w", document.read_text()):
            assert (ROOT / path).exists(), f"{document.name}: {path}"


def test_the_job_for_kubernetes_sets_keys_that_exist() -> None:
    job = yaml.safe_load((ROOT / "docs" / "kuberay.yaml").read_text())
    words = job["spec"]["entrypoint"].split()
    assert words[:4] == ["python", "-m", "shoal", "run"]
    config = load_config(ROOT / "configs" / "quickstart.yaml", [word for word in words[5:] if "=" in word])
    assert config.ray.address == "auto"
    assert config.engine.hosts == job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"]


def strict(schema: Any) -> Any:
    """A schema of Kubernetes that refuses unknown fields, as `kubectl create` does."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    closed = {name: strict(one) for name, one in schema.items()}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed


@pytest.mark.skipif("SHOAL_KUBERAY_CRD" not in os.environ, reason="$SHOAL_KUBERAY_CRD: KubeRay's ray.io_rayjobs.yaml")
def test_the_job_for_kubernetes_has_the_form_that_kuberay_asks_for() -> None:
    job = yaml.safe_load((ROOT / "docs" / "kuberay.yaml").read_text())
    crd = yaml.safe_load(Path(os.environ["SHOAL_KUBERAY_CRD"]).read_text())
    versions = {
        f"{crd['spec']['group']}/{one['name']}": one["schema"]["openAPIV3Schema"] for one in crd["spec"]["versions"]
    }
    schema = strict(versions[job["apiVersion"]])
    jsonschema.validate(job, schema)
    group = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    for place in (job["spec"], group, group["template"]["spec"]["containers"][0]):
        place["unknown"] = 1
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(job, schema)
        del place["unknown"]


def test_the_cluster_on_demand_has_the_form_that_ray_asks_for() -> None:
    config = yaml.safe_load((ROOT / "docs" / "autoscaler.yaml").read_text())
    schema = json.loads(Path(ray.__file__).with_name("autoscaler").joinpath("ray-schema.json").read_text())
    jsonschema.validate(config, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**config, "max_hosts": 8}, schema)


def test_catalogue_is_complete_and_lists_methods_by_models_and_weights() -> None:
    catalogue = (ROOT / "docs" / "catalogue.md").read_text()
    datasets = (ROOT / "docs" / "formats.md").read_text()
    for name in DATASETS:
        # `twitch-de` `-en`: the name, or its end.
        ends = [name, *(name[place:] for place, letter in enumerate(name) if letter == "-")]
        assert any(f"`{end}`" in datasets for end in ends), name
    for name in (*METHODS, *BACKBONES, *OF_GRAPHS, *PROMPTS, *get_args(Methods)):
        assert f"`{name}`" in catalogue, name
    lists, one, weights = (catalogue.index(words) for words in ("A list of models", "the other methods", "refused by"))
    end = catalogue.index("`secure` refuses")
    methods = {name: type(load(describe(name, {}))) for name in METHODS}
    several = {name for name, method in methods.items() if mixes_models(method)}
    unweighted = {name for name, method in methods.items() if "weighted" not in method.supports}
    assert set(re.findall(r"`(\w+)`", catalogue[lists:one])) == several
    assert set(re.findall(r"`(\w+)`", catalogue[weights:end])) == unweighted


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_current(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name](), "python tests/pages.py --write"


def test_formulas_are_set_as_formulas() -> None:
    """No page writes one in plain letters, outside of code: with subscripts, powers, roots or arrows."""
    plain = re.compile(r"\b[A-Za-z]{1,2}_[a-z]\b|\w\^|√|(?<=\w) <- |\bexp\(")
    for document in (ROOT / "docs").rglob("*.md"):
        prose = re.sub(r"(?s)```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$]*\$", "", document.read_text())
        assert not plain.findall(prose), document.name


of_the_site = pytest.mark.skipif(not (find_spec("mkdocs") and find_spec("latex2mathml")), reason="see `make docs`")


@of_the_site
def test_formula_becomes_mathml() -> None:
    row = r"<mfrac><mrow><mn>1</mn></mrow><mrow><mi>m</mi></mrow></mfrac><msub><mi>w</mi><mi>i</mi></msub>"
    assert row in draw(r"\frac{1}{m} w_i", alone=True)
    for unknown in (r"\nothing x", r"\mathcal L"):
        with pytest.raises(AssertionError, match="latex2mathml"):
            draw(unknown, alone=False)


@of_the_site
def test_site_draws_formulas_and_loads_nothing_from_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `make docs` builds it with the address of a repository, without the pictures of the gallery."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config as load_site

    monkeypatch.setenv("SHOAL_REPOSITORY", "https://example.org/shoal")
    hook = str(ROOT / "tests" / "formulas.py")
    build(load_site(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"), hooks=[hook], strict=True))
    drawn = 0
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text()
        assert not re.findall(r"""<(?:script|img|iframe)[^>]* src=["']?https?:|<link[^>]* href=["']?https?:""", text)
        assert 'class="arithmatex">\\' not in text, page
        assert 'href="https://example.org/shoal"' in text or page.name == "404.html", page
        drawn += text.count("<math")
    assert drawn > 100
    assert not any("http" in path.read_text() for path in (tmp_path / "site" / "assets").glob("site.*"))
    if BROWSER is not None:
        with browser(tmp_path / "profile") as window:
            window.open(tmp_path / "site" / "methods" / "index.html", 1280)
            assert len(window.requests) > 3
            assert all(address.startswith(("file:", "data:")) for address in window.requests)
            window.open(tmp_path / "site" / "concepts" / "index.html", 390)
            assert window.value("document.documentElement.scrollWidth") <= 390
            assert window.value("""document.querySelector("img[src$='concepts.svg']").width""") >= 800


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_pictures_of_the_gallery_are_taken(tmp_path: Path) -> None:
    """Each command of it runs, and each picture is as wide as a page; those of Cora only where its files are."""
    taken = take([picture for picture in GALLERY if CORA.exists() or not picture.of_cora], tmp_path)
    assert {Image.open(path).width for path in taken.values()} == {WIDTH}


def test_architecture_page_has_every_room() -> None:
    """Folders of the packages; those inside a room may stand in its line."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    for package, rooms in ORDER.items():
        for room in {name.split("/")[1] for name in rooms if name != package}:
            assert f"`{package}/{room}/`" in text or (package == "partition" and f"`{room}/`" in text), room


def test_tables_of_results_are_listed_and_square() -> None:
    folder = ROOT / "docs" / "results"
    for path in (folder / "sources.csv", *(folder / "data").glob("*.csv")):
        with open(path, newline="") as file:
            head, *rows = csv.reader(file)
        assert all(head), path.name
        assert {len(row) for row in rows} == {len(head)}, path.name
    with open(folder / "sources.csv", newline="") as file:
        listed = list(csv.DictReader(file))
    assert sorted(row["file"] for row in listed) == sorted(path.name for path in (folder / "data").glob("*.csv"))
    assert not [row["page"] for row in listed if not (folder / row["page"]).exists()]


def test_pages_are_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    for document in (ROOT / "docs").rglob("*.md"):
        assert f": {document.relative_to(ROOT / 'docs')}\n" in navigation, document.name


def test_method_of_the_readme_is_fedavg(tmp_path: Path) -> None:
    """By training rows, to the bit."""
    (source,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    (tmp_path / "mine.py").write_text(source)
    assert losses_of({"name": f"{tmp_path / 'mine.py'}:Average"}, tmp_path / "mine") == losses_of(
        {"name": "fedavg", "weight": "train"}, tmp_path / "ours"
    )


def test_method_of_the_documentation_runs(tmp_path: Path) -> None:
    """mu = 0 is FedAvg by autograd to the bit, and mu > 0 is not."""
    text = (ROOT / "docs" / "writing-methods.md").read_text()
    source, _ = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "fedprox.py").write_text(source)
    name = f"{tmp_path / 'fedprox.py'}:FedProx"
    fedavg = losses_of({"name": "fedavg"}, tmp_path / "fedavg")
    assert losses_of({"name": name, "mu": 0.0}, tmp_path / "none") == fedavg
    assert losses_of({"name": name, "mu": 0.5}, tmp_path / "some") != fedavg


def test_method_of_prototypes_of_the_documentation_is_fedproto(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "writing-methods.md").read_text()
    _, source = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (tmp_path / "prototypes.py").write_text(source)
    ours = losses_of({"name": "fedproto", "lam": 0.5}, tmp_path / "ours")
    mine = losses_of({"name": f"{tmp_path / 'prototypes.py'}:Prototypes", "lam": 0.5}, tmp_path / "mine")
    assert mine == pytest.approx(ours, rel=1e-5)
    assert losses_of({"name": "local"}, tmp_path / "local") != pytest.approx(ours, rel=1e-5)


def losses_of(algorithm: dict[str, Any], root: Path) -> list[float]:
    """Losses of three rounds of a method, by autograd."""
    data = {"dataset": "digits", "options": {}}
    plain = small_run(root, data=data, algorithm=algorithm, engine={"trainer": "autograd"})
    return [line["loss"] for line in read_metrics(run(parse_config(plain, "test")))]


def test_example_of_the_documentation_runs(here: Path, shoal: Check, capsys: pytest.CaptureFixture[str]) -> None:
    """Every client of it comes out, together all nodes of the club; `shoal prepare` makes the same of its folder."""
    (source,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "data.md").read_text(), flags=re.DOTALL)
    (here / "example.py").write_text(source + "print(sum(shard.nodes for shard in map(store.shard, range(2))))\n")
    (here / "karate.yaml").write_text(
        "name: karate\n"
        "data: {dataset: files, path: karate, fractions: [0.5, 0.2, 0.3]}\n"
        "partition: {method: metis, clients: 2}\n"
        "algorithm: fedavg\n"
    )
    capsys.readouterr()
    runpy.run_path("example.py")
    *clients, total = capsys.readouterr().out.splitlines()
    assert [line.split("(")[0] for line in clients] == ["Data", "Data"]
    assert total == "34"
    shoal("prepare", "karate.yaml")
    assert len(list((here / "data" / "stores").iterdir())) == 1
