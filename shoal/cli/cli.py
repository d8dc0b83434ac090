"""The command `shoal`."""

import importlib.metadata
import re
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from shoal.cli.completion import (
    complete_config,
    complete_explained,
    complete_key,
    complete_override,
    complete_paper,
    complete_project,
    complete_run,
)
from shoal.cli.kept import export_command, list_command, predict_command
from shoal.cli.past import (
    AsJson,
    fork_command,
    possible_path,
    present_path,
    privacy_command,
    read_command,
    replay_command,
)
from shoal.cli.sweep import continued_by, sweep_command
from shoal.cli.usage import OneLineGroup
from shoal.engine.screen.output import put, put_json
from shoal.engine.sections.section import load
from shoal.features.feature import Feature
from shoal.features.features import FEATURES
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import is_address

if TYPE_CHECKING:
    from shoal.engine.config.config import Config

# Groups of `shoal --help`, and how long its lines may be.
GROUPS = {
    "Run": ("init", "run", "submit", "sweep", "reproduce", "scale", "pretrain"),
    "Look": ("explain", "table", "report", "compare", "list", "inspect", "doctor"),
    "Data": ("prepare", "synthesize", "verify", "remove", "export", "predict"),
    "Look back": ("replay", "fork", "privacy", "read"),
}
WIDEST_HELP = 64

app = typer.Typer(
    cls=OneLineGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated graph learning at scale: real partitions, hundreds of clients, Ray.",
)

ConfigPath = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG", help="A YAML config, one of Shoal's by name, or a run.", autocompletion=complete_config
    ),
]
Labels = Annotated[
    list[str] | None, typer.Option(help="Show a value, key or figure as, for one, mine.py:X=Ours; can be repeated.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY.SUB=VALUE]...", help="Keys to override.", autocompletion=complete_override),
]


def _config(path: str, overrides: list[str] | None) -> "Config":
    """Reads a config and checks its keys and names, before what trains is loaded, which takes seconds."""
    from shoal.engine.config.config import load_config, require_names

    resolved = load_config(possible_path(path) if is_address(path) else path, overrides or ())
    require_names(resolved)
    return resolved


def _show_version(asked: bool) -> None:
    if asked:
        put(f"shoal {importlib.metadata.version('shoal')}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Options of every command; `--debug` is read where errors are printed."""


@app.command("init")
def init_command(
    project: Annotated[
        str | None,
        typer.Argument(metavar="[PROJECT]", help="Its name; without it, a list.", autocompletion=complete_project),
    ] = None,
    folder: Annotated[str | None, typer.Argument(metavar="[FOLDER]", help="New or empty; by default PROJECT.")] = None,
) -> None:
    """Write a small commented project: a config, code where it needs some, and what to run next."""
    from shoal.cli.projects import list_projects, start_project

    lines = list_projects() if project is None else start_project(project, possible_path(folder or project))
    put("\n".join(lines))


@app.command("explain")
def explain_command(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="[KEY]",
            help="As train.lr, a section, a method, a model, or scores.",
            autocompletion=complete_explained,
        ),
    ] = None,
) -> None:
    """Say what a key of a config does: type, bounds, default, meaning, and with what else it has an effect."""
    from shoal.cli.explain import explanation

    put("\n".join(explanation(key)))


@app.command("prepare")
def prepare_command(config: ConfigPath, overrides: Overrides = None) -> None:
    """Turn a dataset into a store: partition, shards, splits, hops. Interrupted, it resumes."""
    resolved = _config(config, overrides)
    from shoal.engine.runs.plan import RunPlan
    from shoal.engine.screen.tables import show_store

    store = RunPlan.of(resolved, trains=False).prepare()
    show_store(store.remote or store.path, store.manifest)


@app.command("run")
def run_command(
    config: ConfigPath,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what the run would take, and stop.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with an unfinished run, or one of fewer rounds.")
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over, whatever the run folder holds.")] = False,
    until: Annotated[
        int | None, typer.Option(min=1, help="Pause after this round with a checkpoint; --resume goes on.")
    ] = None,
    page: Annotated[
        bool | None, typer.Option("--report/--no-report", help="Write the page of the run; by default on a terminal.")
    ] = None,
) -> None:
    """Run a config to its end; prepares its store first if needed."""
    resolved = _config(config, overrides)
    if dry_run:
        from shoal.engine.runs.dry_run import show_plan

        show_plan(resolved)
        return
    from shoal.engine.screen.head import show_head

    show_head(resolved)
    # It loads what trains, which takes seconds.
    from shoal.engine.records.run_folder import finished, run_place
    from shoal.engine.runs.run import run
    from shoal.engine.screen.tables import show_next, show_run

    folder = run(resolved, resume=resume, fresh=fresh, until=until)
    if not finished(folder):
        place = shlex.quote(str(run_place(resolved, folder)))
        put(f"paused after round {until}; continue with: shoal run {place} --resume")
        return
    show_run(folder)
    if sys.stdout.isatty() if page is None else page:
        from shoal.pages.report import report

        # Its other files take most of the time.
        report([folder], None, kinds=("svg",))
    show_next(resolved, run_place(resolved, folder))


@app.command("submit")
def submit_command(
    config: ConfigPath,
    overrides: Overrides = None,
    address: Annotated[str, typer.Option(help="Dashboard of the cluster, as http://HEAD:8265.")] = "",
) -> None:
    """Run a config as a job of a Ray cluster; submitted again, it resumes."""
    resolved = _config(config, overrides)
    from shoal.engine.cluster.submit import submit
    from shoal.engine.runs.plan import RunPlan

    plan = RunPlan.of(resolved)
    job = submit(resolved, plan.folder.name, address)
    put(f"submitted {job}; its run folder is {plan.place}" + ("" if isinstance(plan.place, str) else " on the head"))
    put(f"follow: ray job logs --address {address} --follow {job}")
    put(f"stop, with a checkpoint: ray job stop --address {address} {job}")
    put("resume: the same shoal submit again")


app.command("sweep")(sweep_command)


@app.command("reproduce")
def reproduce_command(
    paper: Annotated[
        str | None,
        typer.Argument(metavar="[PAPER]", help="Name of a paper; without it, a list.", autocompletion=complete_paper),
    ] = None,
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TABLE|KEY=VALUE]...", help="Some tables; keys over all configs.", autocompletion=complete_override
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Blocks, columns and rows by name, as Cora,GCN,FedAvg; can be repeated.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions; by default as the table says.")] = None,
    smallest: Annotated[bool, typer.Option("--smallest", help="First block and column, three rounds.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show runs, time and missing data, and stop.")] = False,
    at_once: Annotated[int, typer.Option(min=1, help="Runs at a time; several do not share hosts.")] = 1,
) -> None:
    """Run the tables of a paper, what is not finished, and set ours beside the paper's figures."""
    from shoal.tables.papers import paper_names, read_paper

    if paper is None:
        for name in paper_names():
            shipped = read_paper(name)
            put(f"{name}: {shipped.title}: {', '.join(shipped.tables)}")
        return
    read = read_paper(paper)
    from shoal.pages.reproduce import named_in, reproduce, show_reproduction
    from shoal.pages.table_runs import Asked

    names = [name for name in tables or () if "=" not in name]
    keys = [name for name in tables or () if "=" in name]
    asked = Asked(named_in(read, names, only or ()), seeds, smallest, keys)
    if dry_run:
        show_reproduction(read, names, asked)
        return
    with continued_by("the same shoal reproduce", lambda: None):
        page, complete = reproduce(read, names, asked, at_once)
    if page is not None:
        put(f"page: {page}; beside it tables.md, and a CSV of each table")
    if not complete:
        raise typer.Exit(1)


@app.command("scale")
def scale_command(
    config: ConfigPath,
    overrides: Overrides = None,
    clients: Annotated[str, typer.Option(help="Numbers of clients, as 50,100,200,500.")] = "",
    hosts: Annotated[str, typer.Option(help="Numbers of hosts, as 1,2,4.")] = "",
    weak: Annotated[bool, typer.Option("--weak/--strong", help="The graph grows with the clients.")] = False,
    graph: Annotated[str, typer.Option(help="Nodes of sbm, or scales of a twin, as 0.01,0.1.")] = "",
    repeat: Annotated[int, typer.Option(min=1, help="How often every combination runs.")] = 1,
    warmup: Annotated[int, typer.Option(min=0, help="First rounds that seconds leave out.")] = 1,
    link: Annotated[str, typer.Option(help="Speed of the server's link, which bounds the useful hosts.")] = "10Gbit",
) -> None:
    """Run a config with several numbers of clients and hosts: seconds by part, memory, bytes, useful hosts, a page."""
    from shoal.pages.report import report
    from shoal.scaling.scaling import scaling_sweep, scaling_table, scores_differ
    from shoal.tables.table_output import on_screen

    sweep = scaling_sweep(config, overrides or (), clients, hosts, weak, graph, repeat, warmup, link)
    with continued_by("the same shoal scale", lambda: put(on_screen(scaling_table(sweep.rows)), end="")):
        complete = sweep.go()
    put(on_screen(scaling_table(sweep.rows)), end="")
    if any(row.figures for row in sweep.rows):
        put(f"page: {report([sweep.folder], None)}")
    if wrong := scores_differ(sweep.rows):
        raise ShoalError(wrong)
    if not complete:
        raise typer.Exit(1)


@app.command("table")
def table_command(
    paths: Annotated[list[str], typer.Argument(metavar="RUN|SWEEP...", autocompletion=complete_run)],
    figure: Annotated[
        list[str] | None, typer.Option(help="As deployed.best.test, the default, or any number of a summary.")
    ] = None,
    wide: Annotated[
        bool, typer.Option("--wide", help="Test and validation of trained, deployed and global models, and costs.")
    ] = False,
    rows: Annotated[str | None, typer.Option(help="Keys that name a row, with commas; by default the method.")] = None,
    columns: Annotated[
        str | None, typer.Option(help="A key whose values are the columns.", autocompletion=complete_key)
    ] = None,
    statistic: Annotated[Literal["mean", "median"], typer.Option(help="Over seeds.")] = "mean",
    against: Annotated[
        str, typer.Option(help="Show differences from this method, or from values as train.lr=0.1, with p.")
    ] = "",
    mean: Annotated[
        Literal["nodes", "rows", "clients"] | None,
        typer.Option(help="Of scores over clients; by default as the table says."),
    ] = None,
    ties: Annotated[
        Literal["shown", "exact"], typer.Option(help="What shares a mark: equal as shown, or exact.")
    ] = "shown",
    not_worse: Annotated[
        float | None, typer.Option(help="Mark with the best what a paired test at this level finds not worse, as 0.05.")
    ] = None,
    label: Labels = None,
    form: Annotated[
        Literal["terminal", "markdown", "latex", "html", "csv"] | None,
        typer.Option("--format", help="By default as --out ends: .md, .tex, .html, .csv; else terminal."),
    ] = None,
    caption: Annotated[str, typer.Option(help="Title of the table; with latex, in LaTeX.")] = "",
    latex_label: Annotated[str, typer.Option(help="Label of a LaTeX table, as tab:cora.")] = "",
    out: Annotated[Path | None, typer.Option(help="File to write.")] = None,
    as_json: AsJson = False,
) -> None:
    """Put any runs into a table of methods and settings: spreads over seeds, the best two marked, paired tests."""
    from shoal.tables.table_output import layout_of, write_table

    layout = layout_of(figure or (), rows, columns, statistic, against, mean, ties, not_worse, wide, label or ())
    folders = [possible_path(path) for path in paths]
    if out is not None or not as_json:
        write_table(folders, layout, form, out, caption, latex_label, silent=as_json)
    if as_json:
        from shoal.study.sweep_folder import rows_of, table_of_runs

        put_json(table_of_runs(rows_of(folders)).to_pylist())


@app.command("report")
def report_command(
    paths: Annotated[list[str], typer.Argument(metavar="RUN|SWEEP...", autocompletion=complete_run)],
    out: Annotated[
        Path | None, typer.Option(help="Folder to write, or an .html file; by default `report` in the first.")
    ] = None,
    label: Labels = None,
    against: Annotated[
        str, typer.Option(help="The reference of the headline, as `shoal table` has it; by default FedAvg, else Local.")
    ] = "",
    pdf: Annotated[bool, typer.Option("--pdf", help="Write the figures as PDF, too, which takes a while.")] = False,
) -> None:
    """Write one page of figures and tables that needs no network, and the figures as SVG and PNG."""
    from shoal.engine.records.outputs import KINDS, USUAL_KINDS
    from shoal.pages.report import report
    from shoal.study.plain_names import label_pairs

    folders = [possible_path(path) for path in paths]
    put(f"written: {report(folders, out, label_pairs(label or ()), KINDS if pdf else USUAL_KINDS, against)}")


@app.command("compare")
def compare_command(
    left: Annotated[str, typer.Argument(metavar="RUN", autocompletion=complete_run)],
    right: Annotated[str, typer.Argument(metavar="RUN", autocompletion=complete_run)],
    as_json: AsJson = False,
) -> None:
    """Show what differs between two runs: config, inputs, environment, results."""
    from shoal.kept.listing import compare
    from shoal.tables.table_output import on_screen, plain_rows

    tables = compare(possible_path(left), possible_path(right))
    if as_json:
        notes = [note for table in tables for note in table.notes]
        put_json({**{table.heads[0]: plain_rows(table.csv()) for table in tables}, "notes": notes})
    else:
        put("\n".join(map(on_screen, tables)), end="")


app.command("list")(list_command)


@app.command("remove")
def remove_command(
    paths: Annotated[list[str], typer.Argument(metavar="STORE|RUN|SWEEP...", autocompletion=complete_run)],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove stores, runs and sweeps, after saying what they are and what else uses them."""
    from shoal.kept.removal import remove

    def ask(question: str) -> bool:
        return yes or typer.confirm(question)

    folders, addresses = ([path for path in paths if is_address(path) == there] for there in (False, True))
    removed = not folders or remove([possible_path(path) for path in folders], ask)
    if removed and addresses:
        from shoal.kept.at_address import remove_at

        removed = remove_at(addresses, ask)
    if not removed:
        raise typer.Exit(1)


@app.command("inspect")
def inspect_command(
    place: Annotated[str, typer.Argument(metavar="STORE|RUN|SWEEP", autocompletion=complete_run)],
    edges: Annotated[bool, typer.Option("--edges", help="Count a store's edges by classes of their ends.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a store, a run folder or a sweep holds."""
    from shoal.engine.records.metrics import METRICS
    from shoal.engine.records.run_folder import CONFIG, SUMMARY, failure_of
    from shoal.engine.screen.tables import show_class_pairs, show_rounds, show_run, show_store
    from shoal.storage.store.manifest import read_manifest
    from shoal.study.sweep_folder import is_sweep
    from shoal.tables.table_output import show_sweep

    path = present_path(place)
    if path.is_file():
        raise ShoalError(path, "is a file, neither a store, a run nor a sweep; give a folder; shoal list shows them")
    if edges and (as_json or is_address(place) or not read_manifest(path).boundaries):
        raise ShoalError("--edges", f"is for a table of a store on disk with edges between clients, got {place}")
    if as_json:
        from shoal.kept.listing import plain_content

        put_json(plain_content(path))
    elif is_sweep(path):
        show_sweep(path)
    elif (path / METRICS).exists():
        show_rounds(path)
        if (path / SUMMARY).exists():
            show_run(path, details=True)
        elif failure := failure_of(path):
            put(failure)
    elif (path / CONFIG).exists() and (failure := failure_of(path)):
        put(failure)
    else:
        show_store(place.partition("?")[0] if is_address(place) else path, read_manifest(path))
        if edges:
            from shoal.engine.sections.sections import load_crossing
            from shoal.storage.store.store import Store

            store = Store(path)
            show_class_pairs({name: load_crossing().class_pairs(store, name) for name in store.manifest.boundaries})
    if not as_json and not is_address(place) and not is_sweep(path):
        _show_inspected(path)


def _show_inspected(path: Path) -> None:
    """Shows what features tell of a store or a run in a folder."""
    from shoal.engine.sections.section import load
    from shoal.features.features import FEATURES
    from shoal.tables.table_output import on_screen

    for feature in FEATURES:
        shown = load(feature.inspected)(path) if feature.inspected else None
        if isinstance(shown, str):
            put(shown)
        elif shown is not None:
            put(on_screen(shown), end="")


@app.command("verify")
def verify_command(
    place: Annotated[str, typer.Argument(metavar="STORE|RUN|BOARD", autocompletion=complete_run)],
    visits: Annotated[
        int | None, typer.Option(min=1, help="Of a board: draw so many visits an entry, and trust checkpoints.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Draws the visits; by default a number that nobody knows.")] = None,
) -> None:
    """Check every byte of a store or every file of a run; make the runs of a board again and name what differs."""
    from shoal.engine.runs.verify import verify_folder

    path = place if is_address(place) else present_path(place)
    for feature in FEATURES:
        if feature.verifies and isinstance(path, Path) and (path / feature.verifies[0]).exists():
            load(feature.verifies[1])(path, visits, seed)
            return
    if visits is not None or seed is not None:
        raise ShoalError(
            "--visits" if visits is not None else "--seed", f"draws visits of a board, and {place} is none"
        )
    if isinstance(path, str):
        from shoal.kept.at_address import verify_at

        verify_at(path)
    else:
        verify_folder(path)


app.command("replay")(replay_command)
app.command("fork")(fork_command)
app.command("privacy")(privacy_command)
app.command("read", context_settings={"ignore_unknown_options": True})(read_command)


app.command("export")(export_command)
app.command("predict")(predict_command)


@app.command("pretrain")
def pretrain_command(
    config: ConfigPath,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", help="File to write, for model.pretrained.")] = Path("gnn.safetensors"),
    epochs: Annotated[int, typer.Option("--epochs", help="Passes over all graphs.")] = 100,
    batch: Annotated[int, typer.Option("--batch", help="Graphs a step, at most.")] = 16,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate of Adam.")] = 1e-3,
    temperature: Annotated[float, typer.Option("--temperature", help="Of the loss.")] = 0.5,
    drop_nodes: Annotated[float, typer.Option("--drop-nodes", help="Share that a first view is without.")] = 0.2,
    perturb_edges: Annotated[float, typer.Option("--perturb-edges", help="Share that is another in a second.")] = 0.2,
    parts: Annotated[int, typer.Option("--parts", help="Of one large graph, which are its items.")] = 200,
    all_graphs: Annotated[bool, typer.Option("--all-graphs", help="Of many: those for tests, too.")] = False,
) -> None:
    """Train a config's GNN without labels (GraphCL), all data in one place, for runs to start from."""
    from shoal.engine.config.config import load_config
    from shoal.engine.runs.pretrain import options_of, pretrain
    from shoal.engine.screen.tables import console

    values = {"epochs": epochs, "batch": batch, "lr": lr, "temperature": temperature}
    options = options_of({**values, "drop_nodes": drop_nodes, "perturb_edges": perturb_edges})
    resolved = load_config(config, overrides or ())
    written = pretrain(resolved, possible_path(str(out)), options, parts, "all" if all_graphs else "train")
    console.print(f"written: {written}; a run starts from it with model.pretrained={written}", soft_wrap=True)


@app.command("synthesize")
def synthesize_command(
    twin: Annotated[
        Literal["arxiv-like", "products-like", "papers100m-like"],
        typer.Argument(metavar="TWIN", case_sensitive=False, help="The graph that it resembles."),
    ],
    root: Annotated[Path, typer.Option("--root", help="Data root that gets the files, for data.root.")],
    scale: Annotated[float, typer.Option("--scale", help="Counts over those of the original.")] = 1.0,
    homophily: Annotated[float | None, typer.Option("--homophily", help="Share of edges within a class.")] = None,
    signal: Annotated[float | None, typer.Option("--signal", help="What a class adds to features.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of everything random.")] = 0,
    compress: Annotated[bool, typer.Option("--compress", help="Deflate .npz files.")] = False,
) -> None:
    """Write a synthetic twin of an OGB graph: in the files of its original, and what reads them calls it synthetic."""
    from shoal.engine.screen.progress import watch
    from shoal.storage.datasets.sources.source import DataSource
    from shoal.storage.datasets.synthetic.ogb_layout import write_ogb_layout
    from shoal.storage.datasets.synthetic.twin import Twin
    from shoal.storage.progress import watched_by

    options = DataSource(twin, scale=scale, homophily=homophily, signal=signal, seed=seed)
    with watched_by(watch):
        folder = write_ogb_layout(possible_path(str(root)).expanduser().resolve(), Twin.of(twin, options), compress)
    put(f"written: {folder}")


@app.command("doctor")
def doctor_command(as_json: AsJson = False) -> None:
    """Say what is installed, what is missing and what that disables, and what the machine has."""
    from shoal.cli.doctor import machine, packages, show_doctor

    if as_json:
        put_json({"packages": packages(), "machine": machine()})
    else:
        show_doctor()


def _add_command(feature: Feature) -> None:
    """Adds the command of a feature behind that which it follows."""
    app.command(feature.command)(load(feature.runs))
    added, place = app.registered_commands.pop(), [command.name for command in app.registered_commands]
    app.registered_commands.insert(place.index(feature.behind) + 1, added)


for _feature in FEATURES:
    if _feature.command:
        _add_command(_feature)


def _group_commands() -> None:
    """Puts commands into the groups of `shoal --help`, each with the first clause of what it does: all fit a screen."""
    panel = ""
    for command in app.registered_commands:
        # The command of a feature is in the group of the one that it follows.
        panel = next((name for name, commands in GROUPS.items() if command.name in commands), panel)
        command.rich_help_panel = panel
        does = " ".join((command.callback.__doc__ or "").split("\n\n")[0].split()) if command.callback else ""
        clause = re.split("[:;]", does)[0].rstrip(".")
        command.short_help = clause if len(clause) <= WIDEST_HELP else clause.partition(", ")[0]
    order = list(GROUPS)
    app.registered_commands.sort(key=lambda command: order.index(str(command.rich_help_panel)))


_group_commands()
