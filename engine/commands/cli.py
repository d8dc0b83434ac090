"""The command `shoal`."""

from pathlib import Path
from typing import Annotated

import typer

from storage.errors import ShoalError
from storage.option_types import path_fault

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Federated graph learning at scale: real partitions, hundreds of clients, Ray.",
)

ConfigPath = Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML config, or a run folder.")]
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY.SUB=VALUE]...", help="Keys to override.")]


def _possible(path: Path) -> Path:
    """A path that the system can look up.

    Raises:
        ShoalError: No file can have it, or its folder cannot be read.
    """
    if fault := path_fault(str(path)):
        raise ShoalError(f"{path}: no such file or folder: {fault}")
    try:
        path.exists()
    except OSError as error:
        raise ShoalError(f"{path}: cannot be read: {error.strerror}") from error
    return path


@app.callback()
def _options(debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False) -> None:
    """Options of every command; `--debug` is read where errors are printed."""


@app.command("prepare")
def prepare_command(config: ConfigPath, overrides: Overrides = None) -> None:
    """Turn a dataset into a store: partition, shards, splits, hops. Interrupted, it resumes."""
    from algorithms.methods.loading import describe, load
    from engine.preparing.prepare import prepare
    from engine.screen.report import show_store
    from engine.settings.config import load_config

    resolved = load_config(config, overrides or ())
    method = load(describe(resolved.algorithm.name, resolved.algorithm.options))
    store = prepare(resolved, whole=method.whole_graph)
    show_store(store.path, store.manifest)


@app.command("run")
def run_command(
    config: ConfigPath,
    overrides: Overrides = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what the run would take, and stop.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over, whatever the run folder holds.")] = False,
) -> None:
    """Run a config to its end; prepares its store first if needed."""
    from engine.screen.report import show_next, show_run
    from engine.settings.config import load_config

    resolved = load_config(config, overrides or ())
    if dry_run:
        from engine.commands.dry_run import show_plan

        show_plan(resolved)
        return
    from engine.commands.run import run

    show_run(run(resolved, resume=resume, fresh=fresh))
    show_next(config, resolved.task, len(resolved.models()))


@app.command("sweep")
def sweep_command(
    config: ConfigPath,
    grid: Annotated[list[str], typer.Argument(metavar="KEY=A,B,C...", help="Keys and their values; a grid of runs.")],
) -> None:
    """Run a grid on the same store and warm hosts; finished runs are skipped, unfinished ones resumed."""
    from engine.commands.sweep import sweep
    from engine.screen.report import show_sweep

    show_sweep(sweep(config, grid))


@app.command("inspect")
def inspect_command(path: Annotated[Path, typer.Argument(metavar="STORE|RUN")]) -> None:
    """Show what a store or a run folder holds."""
    from engine.records.metrics import METRICS
    from engine.records.run_folder import SUMMARY
    from engine.screen.report import show_rounds, show_run, show_store
    from storage.store import Store

    if (_possible(path) / METRICS).exists():
        show_rounds(path)
        if (path / SUMMARY).exists():
            show_run(path)
    else:
        store = Store(path)
        show_store(path, store.manifest)


@app.command("verify")
def verify_command(path: Annotated[Path, typer.Argument(metavar="STORE|RUN")]) -> None:
    """Check every byte of a store against its manifest and its journal, or every file of a run."""
    from engine.commands.verify import verify_folder

    verify_folder(_possible(path))


@app.command("export")
def export_command(run: Annotated[Path, typer.Argument(metavar="RUN", help="A finished run folder.")]) -> None:
    """Write the final models (safetensors) and the prediction of every item (Arrow)."""
    from engine.commands.export import export
    from engine.screen.report import console

    console.print(f"written: {export(_possible(run))}", soft_wrap=True)


@app.command("pretrain")
def pretrain_command(
    config: ConfigPath,
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", help="The file, for model.pretrained.")] = Path("gnn.safetensors"),
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
    from engine.commands.pretrain import options_of, pretrain
    from engine.screen.report import console
    from engine.settings.config import load_config

    values = {"epochs": epochs, "batch": batch, "lr": lr, "temperature": temperature}
    options = options_of({**values, "drop_nodes": drop_nodes, "perturb_edges": perturb_edges})
    resolved = load_config(config, overrides or ())
    written = pretrain(resolved, _possible(out), options, parts, "all" if all_graphs else "train")
    console.print(f"written: {written}; a run starts from it with model.pretrained={written}", soft_wrap=True)


@app.command("synthesize")
def synthesize_command(
    twin: Annotated[str, typer.Argument(metavar="TWIN", help="arxiv-like, products-like or papers100m-like.")],
    root: Annotated[Path, typer.Option("--root", help="Data root that gets the files, for data.root.")],
    scale: Annotated[float, typer.Option("--scale", help="Counts over those of the original.")] = 1.0,
    homophily: Annotated[float | None, typer.Option("--homophily", help="Share of edges within a class.")] = None,
    signal: Annotated[float | None, typer.Option("--signal", help="What a class adds to features.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of everything random.")] = 0,
    compress: Annotated[bool, typer.Option("--compress", help="Deflate .npz files.")] = False,
) -> None:
    """Write a synthetic twin of an OGB graph in the files of its original; what reads them calls it synthetic."""
    from engine.commands.synthesize import synthesize
    from engine.screen.report import console
    from storage.datasets import DataSource

    options = DataSource(twin, scale=scale, homophily=homophily, signal=signal, seed=seed)
    console.print(f"written: {synthesize(options, _possible(root), compress)}", soft_wrap=True)


@app.command("doctor")
def doctor_command() -> None:
    """Say what is installed, what is missing and what that disables, and what the machine has."""
    from engine.commands.doctor import show_doctor

    show_doctor()
