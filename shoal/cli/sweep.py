"""The command that runs a grid or a search, and the last lines of such commands when they end or are interrupted."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from shoal.cli.completion import complete_config, complete_key, complete_override
from shoal.cli.past import possible_path
from shoal.engine.screen.output import put
from shoal.storage.errors import ShoalError
from shoal.storage.options.types import is_address
from shoal.sweeps.searching import Pruner, Sampler, list_searches

if TYPE_CHECKING:
    from shoal.study.study import Study
    from shoal.sweeps.searching import Searching
    from shoal.sweeps.sweep import Sweep


def sweep_command(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG|STUDY",
            help="A config, or a file with the keys config, axes.",
            autocompletion=complete_config,
        ),
    ],
    axes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=A,B,C]...", help="Keys and their values.", autocompletion=complete_override),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Repetitions of each combination: the axis seeds=N.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show all runs and the time to expect, and stop.")] = False,
    choose: Annotated[
        str | None,
        typer.Option(help="A key whose value validation chooses, with the first seeds.", autocompletion=complete_key),
    ] = None,
    choose_seeds: Annotated[int, typer.Option(min=1, help="How many seeds choose.")] = 2,
    choose_by: Annotated[
        Literal["main", "trained", "deployed", "global", "domains"],
        typer.Option(help="The scope whose validation chooses; `shoal explain main` says which main is."),
    ] = "main",
    fork_at: Annotated[
        int | None, typer.Option(min=1, help="Train so many first rounds once a seed; combinations are forks of them.")
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Runs at a time; several do not share hosts.")] = 1,
    search: Annotated[
        str | None,
        typer.Option(
            metavar="optuna",
            autocompletion=list_searches,
            help="optuna: draw options from --space, and report the best.",
        ),
    ] = None,
    space: Annotated[
        list[str] | None, typer.Option(help="KEY=LOW:HIGH, KEY=LOW:HIGH:log, KEY=A,B,C, or a file; can be repeated.")
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Of a search: draws, for each combination of the axes.")] = 64,
    rounds_budget: Annotated[
        int | None, typer.Option(min=1, help="Of a search: rounds of all trials and seeds, for each combination.")
    ] = None,
    sampler: Annotated[Sampler, typer.Option(help="Of a search: what draws.")] = "tpe",
    prune: Annotated[Pruner, typer.Option(help="Of a search: what stops trials early.")] = "none",
    forecast: Annotated[
        bool,
        typer.Option("--forecast", help="Train the first rounds of each combination, say what all take, and stop."),
    ] = False,
    price: Annotated[float, typer.Option(min=0, help="Of a forecast: money of an hour.")] = 0.0,
    page: Annotated[bool, typer.Option("--report/--no-report", help="Write the page of the sweep at its end.")] = True,
) -> None:
    """Run a grid or a search on warm hosts; finished runs are skipped, unfinished resumed, a failed one is a row."""
    from shoal.study.study import read_study

    config = str(possible_path(config)) if is_address(config) else config
    axes = [*(axes or ()), *([] if seeds is None else [f"seeds={seeds}"])]
    study = read_study(config, axes, choose, choose_seeds, choose_by, search is not None)
    study = replace(study, fork_at=fork_at or study.fork_at)
    if forecast and (search is not None or dry_run):
        raise ShoalError("--forecast", "is for a sweep of axes alone, without --search and --dry-run")
    if study.fork_at and forecast:
        raise ShoalError("--fork-at", "is for a sweep of axes alone, without --search and --forecast")
    if price and not forecast:
        raise ShoalError("--price", "is of a forecast; add --forecast")
    if search is None:
        _show_head_of_study(study)
    # These modules load what trains, which takes seconds.
    from shoal.past.forked_sweep import sweep_of
    from shoal.sweeps.searching import SearchOptions
    from shoal.sweeps.sweep import Sweep, show_sweep_plan

    options = SearchOptions(space or (), trials, rounds_budget, sampler, prune)
    sweep = sweep_of(study, at_once, search, options)
    if not isinstance(sweep, Sweep):
        _show_head_of_study(study, sweep.folder)
        if dry_run:
            put("\n".join(sweep.lines()))
        else:
            _go(sweep, page)
    elif dry_run:
        show_sweep_plan(sweep)
    elif forecast:
        from shoal.sweeps.forecast import forecast as expected
        from shoal.tables.table_output import on_screen

        put(on_screen(expected(sweep, price)), end="")
    else:
        _go(sweep, page)


def _go(sweep: "Sweep | Searching", page: bool) -> None:
    with continued_by(sweep.command, lambda: _show_sweep(sweep, page)):
        complete = sweep.go()
    _show_sweep(sweep, page)
    if not complete:
        raise typer.Exit(1)


@contextmanager
def continued_by(command: str, show: Callable[[], None]) -> Iterator[None]:
    """Shows, after an interruption inside of the block, what is finished, and the command that continues."""
    from shoal.engine.screen.interrupt import says_last
    from shoal.engine.screen.progress import say

    line = f"continue with: {command}"
    with says_last(line):
        try:
            yield
        except KeyboardInterrupt:
            show()
            say(line)
            raise


def _show_head_of_study(study: "Study", folder: Path | None = None) -> None:
    # The study is read, and refused if it is wrong, before anything that takes long is loaded.
    config, combinations = study.configs[0], len(study.choices)
    from shoal.engine.screen.head import show_head_of_study
    from shoal.study.groups import varied_in
    from shoal.study.sweep_folder import root_of

    runs = f"{study.runs} run{'s' * (study.runs > 1)}"
    runs += f" of {combinations} combinations" if study.runs < combinations else ""
    show_head_of_study(config, varied_in(study.choices), runs, folder or study.folder(root_of(config), config.name))


def _show_sweep(sweep: "Sweep | Searching", page: bool) -> None:
    """Prints the table of what is finished, the folder, and where the page is or how to write it."""
    from shoal.engine.screen.head import shown_path
    from shoal.sweeps.sweep import Sweep
    from shoal.tables.study_table import Layout
    from shoal.tables.table_output import on_screen, show_rows

    if not isinstance(sweep, Sweep):
        put(on_screen(sweep.chosen()), end="")
    if sweep.rows:
        show_rows(sweep.rows, Layout())
    folder = shown_path(sweep.folder)
    put(f"folder: {folder}")
    if page and any(row.figures for row in sweep.rows):
        from shoal.pages.report import report

        report([sweep.folder], None)
    written = folder / "report" / "index.html"
    put(f"page: {written}" if written.exists() else f"next: shoal report {shlex.quote(str(folder))}")
