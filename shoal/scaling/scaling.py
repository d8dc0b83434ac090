"""Scaling of seconds, memory and bytes of a round with clients, graph and hosts, and how many hosts are of use."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import floor, isclose, log10
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from shoal.engine.config.config import Config, load_config
from shoal.engine.config.sections import SCORING
from shoal.engine.config.sizes import machine_cores, size
from shoal.engine.records.metrics import read_metrics
from shoal.engine.records.run_folder import read_summary
from shoal.engine.records.summary import seconds_by_part
from shoal.engine.screen.progress import say
from shoal.storage.errors import ShoalError
from shoal.storage.options.dataset_names import TWINS
from shoal.study.groups import Group, Key, Row, group_runs, others_of, spread_of
from shoal.study.means import is_share
from shoal.study.plain_names import KEYS
from shoal.study.study import MOST_RUNS, Selection, Study
from shoal.tables.text_table import TextTable

if TYPE_CHECKING:
    from shoal.sweeps.sweep import Sweep

CLIENTS, HOSTS, REPEAT = "partition.clients", "engine.hosts", "repeat"
NODES, SCALE = "data.options.nodes", "data.options.scale"
# Every run of a scaling study has these columns beside keys that vary: rounds left out, and the link of the server.
WARMUP, LINK = "warmup", "link"
# Tables and figures have one time of a round, the mean of the rounds after the warm-up, which is the sum of its parts.
ROUND, SERVER, RAY = "seconds.round", "seconds.server", "seconds.ray"
ON_HOSTS = ("train", "upload", "evaluate")
PARTS = (*ON_HOSTS, "server", "waiting")
SPEED_UP = "; speed-up, efficiency: against the fewest hosts"
OF_RAY = "Ray: the part of the waiting in which neither the busiest host nor the server works"
BITS = {"M": 1e6, "G": 1e9, "T": 1e12}


def scaling_groups(rows: Sequence[Row]) -> list[Group]:
    """Groups the finished runs of a scaling study by graph, clients and hosts, ascending; repeats are a group.

    `rounds`, `seconds.*` and `bytes.*` count the rounds after the warm-up alone. `seconds.round` is their mean;
    `seconds.server` is the server's own work, the method's and scoring; `seconds.ray`, which only hosts on Ray have, is
    the time in which neither the busiest host nor the server worked; `hosts` is their number; `cells`,
    `cells.of_phase` and `cohort` are means a round: all cells, those of the phase with most, and clients.
    """
    measured = [replace(row, figures=row.figures | _after_warmup(row)) for row in rows if row.figures]
    return sorted(group_runs(measured), key=lambda group: (_graph(group), _clients(group), _hosts(group)))


def _after_warmup(row: Row) -> dict[str, float]:
    lines = read_metrics(row.path)[int(row.columns.get(WARMUP, "0")) :]
    seconds = [line["seconds"] for line in lines]
    figures = {f"seconds.{part}": spent for part, spent in seconds_by_part(seconds).items()}
    figures[SERVER] = figures["seconds.aggregate"] + figures[f"seconds.{SCORING}"]
    figures |= {f"bytes.{way}": float(sum(line[f"bytes_{way}"] for line in lines)) for way in ("up", "down")}
    whole = sum(of_round["round"] for of_round in seconds)
    figures |= {"rounds": float(len(lines)), "seconds.rounds": whole, ROUND: whole / len(lines)}
    if all(line["hosts"].get("busy") for line in lines):
        at_work = [line["hosts"]["busy"].values() for line in lines]
        figures["hosts"] = float(max(map(len, at_work)))
        busiest = sum(of_round["round"] * max(shares) for of_round, shares in zip(seconds, at_work))
        figures[RAY] = max(whole - busiest - figures[SERVER], 0.0)
    if all("cells" in line["hosts"] for line in lines):
        figures["cells"] = fmean(sum(line["hosts"]["cells"].values()) for line in lines)
        # Evaluations belong to no phase.
        phases = [{**line["hosts"]["cells"], "": 0} for line in lines]
        figures["cells.of_phase"] = fmean(max(of_phase.values()) for of_phase in phases)
    return figures | {"cohort": fmean(len(line["cohort"]) for line in lines)}


def parts_of_round(group: Group) -> dict[str, float]:
    """Returns mean seconds of a round by part; they sum to the round's.

    Work on hosts is the mean over hosts. Work of the server counts as far as hosts do none meanwhile. What is left is
    waiting: of hosts for each other and for the server, for messages and for Ray.
    """
    parts = {part: _a_round(group, f"seconds.{part}") / _hosts(group) for part in ON_HOSTS}
    left = max(_mean(group, ROUND) - sum(parts.values()), 0.0)
    server = min(_a_round(group, SERVER), left)
    return {**parts, "server": server, "waiting": left - server}


def scaling_table(rows: Sequence[Row]) -> TextTable:
    """Makes a table with a row for every graph, number of clients and hosts; its notes say what the numbers are."""
    groups = scaling_groups(rows)
    graph = next((key for key in (NODES, SCALE) if len({group.columns.get(key) for group in groups}) > 1), None)
    on_ray = any(group.values(RAY) for group in groups)
    # With one number of hosts a speed-up against the fewest says nothing.
    has_speed_up = len(set(map(_hosts, groups))) > 1
    seconds, table = _decimals(groups), []
    for group in groups:
        base = min((other for other in groups if _work(other) == _work(group)), key=_hosts)
        speed_up = _mean(base, ROUND) / _mean(group, ROUND)
        sped_up = f"{speed_up:.2f} ({100 * speed_up * _hosts(base) / _hosts(group):.0f} %)"
        ray = [_a_round(group, RAY)] if on_ray else []
        table.append((
            str(_clients(group)), *([group.columns[graph]] if graph else []), str(_hosts(group)),
            _with_spread(group, seconds),
            _three_digits(1e3 * _mean(group, ROUND) / max(_mean(group, "cohort"), 1)),
            *([sped_up] if has_speed_up else []),
            *(f"{spent:.{seconds}f}" for spent in (*parts_of_round(group).values(), *ray)),
            size(_mean(group, "peak_memory_bytes")), size(_a_round(group, "bytes.up") + _a_round(group, "bytes.down")),
        ))  # fmt: skip
    keys = ("clients", *([KEYS[graph]] if graph else []), "hosts")
    against = ["speed-up (efficiency)"] if has_speed_up else []
    of_a_row = ("s a round", "ms a client", *against, *PARTS, *(["Ray"] if on_ray else []), "memory", "bytes")
    return TextTable((*keys, *of_a_row), tuple(table), len(keys), notes=tuple(_notes(rows, groups)))


def _notes(rows: Sequence[Row], groups: Sequence[Group]) -> list[str]:
    if not groups:
        return ["no run is finished"]
    notes = [
        f"s a round: {seconds_are(groups)}" + (SPEED_UP if len(set(map(_hosts, groups))) > 1 else ""),
        "its parts, which sum to it: train, upload, evaluate: mean over hosts; server: its own work, as far as it is "
        "not beside that of hosts; waiting: the rest, in which hosts wait for each other, the server and messages",
        *([OF_RAY] if any(group.values(RAY) for group in groups) else []),
        "memory: peak of all processes; bytes: a round, both ways",
    ]
    notes += [line for line in (_weak(groups), *map(_useful_hosts, _most_hosts(groups)), scores_differ(rows)) if line]
    return notes


def scaling_headline(groups: Sequence[Group]) -> tuple[str, str]:
    """Returns a number that stands for a study, and a text: the speed-up of most hosts, else a round of most clients.

    Of several works the one of most clients on the largest graph stands for all.
    """
    by_work: dict[Key, list[Group]] = {}
    for group in groups:
        by_work.setdefault(_work(group), []).append(group)
    if shared := [several for several in by_work.values() if len(several) > 1]:
        several = max(shared, key=lambda of_work: (_clients(of_work[0]), _graph(of_work[0])))
        base, most = min(several, key=_hosts), max(several, key=_hosts)
        speed_up = _mean(base, ROUND) / _mean(most, ROUND)
        share = f"{100 * speed_up * _hosts(base) / _hosts(most):.0f} % of the ideal"
        times = f"as fast on {_hosts_text(_hosts(most))} as on {_hosts_text(_hosts(base))}"
        return f"{speed_up:.2f} times", f"{times} with {_clients(most):,} clients, {share}"
    if not groups:
        return "", ""
    base, most = (end(groups, key=lambda group: (_clients(group), _graph(group))) for end in (min, max))
    times = f"{_mean(most, ROUND) / _mean(base, ROUND):.2f} times that of {_clients(base):,} clients"
    text = f"a round of {_clients(most):,} clients" + (f", {times}" if _clients(most) > _clients(base) else "")
    return f"{_three_digits(_mean(most, ROUND))} s", text


def seconds_are(groups: Sequence[Group]) -> str:
    """Returns a text that says which mean the seconds of a round are."""
    left_out, repeats = int(groups[0].columns.get(WARMUP, "0")), max(group.finished for group in groups)
    spread = f", ± sample standard deviation over {repeats} repeats" if repeats > 1 else ""
    return f"mean of the rounds from {left_out + 1} on{spread}"


def _weak(groups: Sequence[Group]) -> str:
    """Returns a note with the efficiency if clients and graph grow with the hosts."""
    first = min(groups, key=lambda group: (_hosts(group), _clients(group)))
    by_hosts = {_hosts(first): first}
    for group in groups:
        times = _hosts(group) / _hosts(first)
        # Sizes of graphs are rounded; one of 0 stays.
        grown = bool(_graph(first)) and isclose(_graph(group), _graph(first) * times, rel_tol=1e-3)
        if times > 1 and grown and _clients(group) == _clients(first) * times:
            by_hosts[_hosts(group)] = group
    seconds = _mean(first, ROUND)
    several = [
        f"{100 * seconds / _mean(group, ROUND):.0f} % with {_clients(group)} clients on {_hosts_text(hosts)}"
        for hosts, group in list(by_hosts.items())[1:]
    ]
    base = f"{_clients(first)} clients on {_hosts_text(_hosts(first))}"
    return f"weak scaling: {', '.join(several)}, of 100 % with {base}" if several else ""


def _hosts_text(hosts: int) -> str:
    return f"{hosts:,} host{'s' if hosts > 1 else ''}"


def _most_hosts(groups: Sequence[Group]) -> list[Group]:
    """Returns, for equal clients and graph, the group with the most hosts."""
    return list({_work(group): group for group in groups}.values())


def _useful_hosts(group: Group) -> str:
    """Returns a note with the number of hosts that are of use: min(cells, scheduling, link), as this group measured."""
    cells = _mean(group, "cells")
    if not cells:
        return ""
    run = next(row.path for row in group.rows if row.figures)
    apart, counted = _mean(group, "cells.of_phase"), "cells a round"
    if load_config(run).engine.cell_size == "auto" and "batched" not in read_summary(run)["paths"]:
        apart, counted = _mean(group, "cohort"), "clients a round, one a cell"
    of_cell = sum(_a_round(group, f"seconds.{part}") for part in ON_HOSTS) / cells
    of_server = (_a_round(group, SERVER) + _a_round(group, "seconds.transfer")) / cells
    sent, link = (
        (_a_round(group, "bytes.up") + _a_round(group, "bytes.down")) / cells,
        group.columns.get(LINK, "10Gbit"),
    )
    by_server, by_link = of_cell / max(of_server, 1e-9), of_cell * bytes_a_second(link) / max(sent, 1.0)
    return (
        f"{_clients(group)} clients: up to {_hosts_text(max(int(min(apart, by_server, by_link)), 1))} of use: "
        f"{apart:,.0f} {counted}; scheduling would allow {by_server:,.1f} ({1e3 * of_cell:.1f} ms of a host and "
        f"{1e3 * of_server:.1f} ms of the server a cell), a link of {link}/s {by_link:,.0f} ({size(sent)} a cell)"
    )


def scores_differ(rows: Sequence[Row]) -> str:
    """Returns a warning if runs that differ in hosts or repeats alone have other scores, which must be equal."""
    first_of: dict[Key, Row] = {}
    for row in (row for row in rows if row.figures):
        first = first_of.setdefault(others_of(row, HOSTS), row)
        for figure, value in row.figures.items():
            if is_share(figure) and value != first.figures.get(figure):
                other = first.figures.get(figure)
                return (
                    f"WRONG: {figure} is {value!r} in {row.run} and {other!r} in {first.run}, which differ in hosts or "
                    "repeats alone; on equal processors scores must be equal to the last bit: report it"
                )
    return ""


def bytes_a_second(link: str) -> float:
    """Reads a speed as `10Gbit`, in bytes a second. Raises ShoalError: it has another form."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([MGT])bit(?:/s)?", link)
    if match is None or not float(match[1]):
        raise ShoalError("--link", f"must be a speed as 10Gbit or 100Mbit, found {link!r}")
    return float(match[1]) * BITS[match[2]] / 8


def ideal(groups: Sequence[Group], key: str) -> tuple[list[float], list[float], list[float]]:
    """Returns values of a key, seconds of a round, and ideal seconds without overhead, from the first group on.

    Hosts share all work. More clients of one graph each hold less of it, so that a round is as long with many as with
    few; where the graph grows along with them, this is what it costs. The groups differ in the key alone.
    """
    ordered = sorted(groups, key=lambda group: float(group.columns[key]))
    x = [float(group.columns[key]) for group in ordered]
    seconds = [_mean(group, ROUND) for group in ordered]
    if key == HOSTS:
        return x, seconds, [seconds[0] * x[0] / value for value in x]
    return x, seconds, [seconds[0]] * len(x)


def _clients(group: Group) -> int:
    return int(_mean(group, "clients"))


def _hosts(group: Group) -> int:
    """Returns the hosts of a group; where their number is no axis, those that its runs had."""
    return int(group.columns.get(HOSTS) or max(_mean(group, "hosts"), 1))


def _graph(group: Group) -> float:
    return float(group.columns.get(NODES) or group.columns.get(SCALE) or 0)


def _work(group: Group) -> Key:
    """Returns the columns that groups share if their hosts together do the same work."""
    return others_of(group.rows[0], HOSTS)


def _mean(group: Group, figure: str) -> float:
    spread = spread_of(group.values(figure), "mean")
    return 0.0 if spread is None else spread.middle


def _a_round(group: Group, figure: str) -> float:
    return _mean(group, figure) / _mean(group, "rounds")


def _decimals(groups: Sequence[Group]) -> int:
    """Returns the decimals of seconds in a table: the shortest round has three digits."""
    shortest = min((_mean(group, ROUND) for group in groups), default=1.0)
    return min(max(3, 2 - floor(log10(max(shortest, 1e-9)))), 6)


def _three_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:#.3g}"


def _with_spread(group: Group, decimals: int) -> str:
    spread = spread_of(group.values(ROUND), "mean")
    assert spread is not None
    return f"{spread.middle:.{decimals}f}" + (f" ± {spread.low:.{decimals}f}" if spread.low is not None else "")


# Datasets that grow by an option, and the option's default.
GROWS = {"sbm": (NODES, 10000.0), **dict.fromkeys(TWINS.values(), (SCALE, 1.0))}


@dataclass(frozen=True)
class ScalingStudy(Study):
    """A study whose runs are given: those of one combination differ in their names alone."""

    selections: tuple[Selection, ...] = ()
    name: str = ""

    @cached_property
    def choices(self) -> list[Selection]:
        """All runs."""
        return list(self.selections)

    def folder(self, root: Path, name: str) -> Path:
        """Names the folder as other studies do, but without the names of runs."""
        return super().folder(root, f"{self.name}-scaling")


def scaling_sweep(
    config: str, overrides: Sequence[str], clients: str, hosts: str, weak: bool,
    graph: str = "", repeat: int = 1, warmup: int = 1, link: str = "10Gbit",
) -> "Sweep":  # fmt: skip
    """Makes the sweep of a scaling study: numbers of `clients` and `hosts`, with commas; empty: those of the config.

    `graph` has numbers of nodes of `sbm` or scales of a twin. With `weak` the graph grows with the clients: it has that
    size for the config's number of clients. Every combination runs `repeat` times; tables leave out the first `warmup`
    rounds. Raises ShoalError: an option is wrong.
    """
    base = load_config(config, overrides)
    of_clients, of_hosts = _numbers("--clients", clients), _numbers("--hosts", hosts)
    if not of_clients and not of_hosts and not graph:
        raise ShoalError("--clients, --hosts, --graph: name what grows, as in --clients 50,100,200 --hosts 1,2")
    if of_hosts and base.engine.backend == "local":
        raise ShoalError("--hosts", "engine.backend local has no hosts; set it to ray, or leave --hosts out")
    if warmup >= base.rounds:
        raise ShoalError("--warmup", f"leaves none of {base.rounds} rounds; set rounds to more than {warmup}")
    bytes_a_second(link)
    _warn_of_cores(base, of_hosts)
    key, sizes = _sizes(base, graph, weak)
    shape = [values or [0] for values in (of_hosts, of_clients, range(1, repeat + 1))]
    if len(sizes) * len(shape[0]) * len(shape[1]) * repeat > MOST_RUNS:
        raise ShoalError("--clients, --hosts, --graph, --repeat", f"a study has at most {MOST_RUNS:,} runs; give fewer")
    selections, usual = [], base.partition.clients
    # Runs with equal hosts come one after another, so that these stay warm.
    for h, nodes, n, k in product(shape[0], sizes, *shape[1:]):
        values = {CLIENTS: str(n)} if n else {}
        if key:
            grown = nodes * n / usual if weak and n and isinstance(usual, int) else nodes
            values[key] = f"{round(grown)}" if key == NODES else f"{grown:.6g}"
        values |= {HOSTS: str(h)} if h else {}
        # Hosts and repeats change no number, so that no name of a run would have them.
        name = base.name + (f"-{h}-host{'s' if h > 1 else ''}" if h else "") + (f"-repeat-{k}" if k > 1 else "")
        plain = [f"{axis}={value}" for axis, value in values.items()]
        columns = {**values, REPEAT: str(k), WARMUP: str(warmup), LINK: link}
        selections.append(Selection(columns, (*overrides, *plain, f"name={name}")))
    several = {
        axis: dict.fromkeys(selection.columns[axis] for selection in selections) for axis in selections[0].columns
    }
    axes = (f"{axis}={','.join(values)}" for axis, values in several.items())
    # Pages of studies, which run nothing, read this file, too; sweeps load torch.
    from shoal.sweeps.sweep import Sweep

    study = ScalingStudy(str(Path(config)), (*axes, *overrides), selections=tuple(selections), name=base.name)
    return Sweep(study)


def _warn_of_cores(base: Config, hosts: Sequence[int]) -> None:
    cores, wanted = machine_cores(), max(hosts, default=0)
    if base.ray.address is None and wanted > cores:
        say(f"warning: {max(hosts)} hosts share {cores} cores; more hosts than cores show no speed-up")


def _sizes(base: Config, graph: str, weak: bool) -> tuple[str, list[float]]:
    """Returns the option by which the graph grows, and its values; no option if the graph stays."""
    if not graph and not weak:
        return "", [0.0]
    dataset, options = str(base.data.dataset), base.data.options
    if dataset not in GROWS:
        option, way = ("--graph", "leave it out") if graph else ("--weak", "--strong")
        raise ShoalError(option, f"{dataset} has the size it has; take one of {', '.join(GROWS)}, or {way}")
    key, usual = GROWS[dataset]
    if not graph:
        return key, [float(options.get(key.rpartition(".")[2], usual))]
    parts = [part.strip() for part in graph.split(",") if part.strip()]
    form = r"\d+" if key == NODES else r"\d*\.?\d+"
    if wrong := next((part for part in parts if not re.fullmatch(form, part) or not float(part)), None):
        raise ShoalError("--graph", f"must be {KEYS[key]} above 0 with commas between them, found {wrong!r}")
    return key, sorted({float(part) for part in parts})


def _numbers(option: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if wrong := next((part for part in parts if not part.isdecimal() or int(part) < 1), None):
        raise ShoalError(option, f"must be whole numbers above 0 with commas between them, found {wrong!r}")
    return sorted({int(part) for part in parts})
