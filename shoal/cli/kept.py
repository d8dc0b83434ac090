"""The commands on what runs leave: lists, exports, predictions of another graph."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from shoal.cli.completion import complete_listed, complete_run
from shoal.cli.names import KINDS, describe_names, table_of_names
from shoal.cli.past import AsJson, possible_path
from shoal.engine.screen.output import put, put_json
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import is_address
from shoal.storage.suggestions import did_you_mean

if TYPE_CHECKING:
    from shoal.kept.listing import Kept

Best = Annotated[
    Literal["deployed", "global"] | None,
    typer.Option(help="A scope whose best validation round is meant, not the last."),
]


def list_command(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KIND|FOLDER]...",
            help=f"{', '.join(KINDS)}; or folders, by default runs, and stores.",
            autocompletion=complete_listed,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List stores, runs and sweeps, with results, the newest last; or what a config can name, as methods."""
    from shoal.tables.table_output import on_screen

    asked = what or []
    if kinds := [word for word in asked if word in KINDS]:
        if other := [word for word in asked if word not in KINDS]:
            raise ShoalError(other[0], f"is none of {', '.join(KINDS)}; list folders alone")
        if as_json:
            put_json({kind: describe_names(kind) for kind in kinds})
        else:
            put("\n".join(on_screen(table_of_names(kind)) for kind in kinds), end="")
        return
    from shoal.kept.listing import make_tables, plain_list

    folders = _kept(asked)
    if as_json:
        put_json(plain_list(folders))
        return
    put("\n".join(map(on_screen, make_tables(folders))), end="")


def _kept(places: Sequence[str]) -> "list[Kept]":
    """Lists what Shoal wrote in folders and at addresses; without any, where runs and stores usually are.

    Raises ShoalError: a place is no folder.
    """
    from shoal.engine.preparing.overlay import ROOT
    from shoal.kept.listing import kept_in
    from shoal.storage.datasets.sources.source import data_root

    if not places:
        usual = [Path("runs"), data_root(None) / "stores", Path(ROOT).expanduser()]
        return [kept for folder in usual for kept in kept_in(folder)]
    folders: list[Kept] = []
    for place in places:
        if is_address(place):
            from shoal.kept.at_address import kept_at

            folders += kept_at(place)
        elif (folder := possible_path(place)).is_dir():
            folders += kept_in(folder)
        else:
            raise ShoalError(
                folder,
                f"{did_you_mean(place, KINDS)}no such folder; shoal list shows runs and stores, or {', '.join(KINDS)}",
            )
    return folders


def export_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A finished run.", autocompletion=complete_run)],
    best: Best = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Beside every predicted class the probabilities of all.")
    ] = False,
    bundle: Annotated[
        Path | None, typer.Option(help="Also a .zip file of them, and of config, scores, page and versions.")
    ] = None,
) -> None:
    """Write final models and the prediction of every item: safetensors and Arrow."""
    if bundle is not None:
        from shoal.pages.bundle import require_zip

        require_zip(bundle)
    from shoal.engine.runs.export import export
    from shoal.engine.screen.tables import console

    path = possible_path(run)
    written = export(path, best, probabilities)
    if bundle is not None:
        from shoal.pages.bundle import write_bundle

        write_bundle(path, written, bundle)
        written = bundle
    console.print(f"written: {written}", soft_wrap=True)


def predict_command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A finished run.", autocompletion=complete_run)],
    graph: Annotated[str, typer.Argument(metavar="GRAPH", help="Files of a graph, as data.path takes them.")],
    client: Annotated[
        str | None, typer.Option(help="A client whose model predicts, or all; by default the server's does.")
    ] = None,
    best: Best = None,
    out: Annotated[Path, typer.Option(help="File to write: .csv, .parquet or .npz.")] = Path("predictions.csv"),
) -> None:
    """Predict the nodes of a graph of yours by a run's model: node, class and its probability."""
    from shoal.engine.records.outputs import require_form

    require_form(out)
    if client not in (None, "all") and not client.isdecimal():
        raise ShoalError("--client", f"expected the number of a client, or all, got {client!r}")
    # It loads what trains, which takes seconds.
    from shoal.engine.runs.predict import open_graph, table_of, write_table

    other = open_graph(possible_path(run), graph, best, graph, "--client")
    clients = range(other.opened.store.clients) if client == "all" else [None if client is None else int(client)]
    write_table(table_of(other, clients), out)
    put(f"written: {out}")
