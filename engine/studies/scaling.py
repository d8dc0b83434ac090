"""Scaling of seconds, memory and bytes of a round with clients and hosts, and the ideal scaling."""

from collections.abc import Sequence
from pathlib import Path

from shoal.engine.config.config import Config, load_config
from shoal.engine.config.sizes import size
from shoal.engine.records.summary import PARTS
from shoal.engine.studies.groups import Group, Row, grouped, spread_of
from shoal.engine.studies.study import Study
from shoal.engine.studies.sweep import Sweep
from shoal.engine.studies.text_table import TextTable
from shoal.storage.errors import ShoalError
from shoal.storage.options.dataset_names import TWINS

CLIENTS, HOSTS = "partition.clients", "engine.hosts"
ROUND = "seconds.round_median"


def scaling_table(rows: Sequence[Row]) -> TextTable:
    """A row for every number of clients and hosts; its notes say what the numbers are."""
    groups = [group for group in grouped(rows) if group.values(ROUND)]
    table = []
    for group in groups:
        seconds = _mean(group, ROUND)
        base = min((other for other in groups if _clients(other) == _clients(group)), key=_hosts)
        speed_up = _mean(base, ROUND) / seconds
        table.append((
            str(_clients(group)), str(_hosts(group)), f"{seconds:.3f}", f"{1e3 * seconds / _clients(group):.2f}",
            f"{speed_up:.2f}", f"{100 * speed_up * _hosts(base) / _hosts(group):.0f} %",
            *(f"{_mean(group, f'seconds.{part}') / _mean(group, 'rounds'):.3f}" for part in PARTS),
            size(_mean(group, "peak_memory_bytes")),
            size((_mean(group, "bytes.up") + _mean(group, "bytes.down")) / _mean(group, "rounds")),
        ))  # fmt: skip
    of_a_row = ("s a round", "ms a client", "speed-up", "efficiency", *PARTS, "memory", "bytes a round")
    notes = (
        "s a round: median; parts: mean seconds a round, those of hosts summed over hosts;",
        "speed-up and efficiency: against the fewest hosts; memory: peak of all processes",
    )
    return TextTable(("clients", "hosts", *of_a_row), tuple(table), 2, notes=notes)


def ideal(groups: Sequence[Group], key: str) -> tuple[list[float], list[float], list[float]]:
    """Values of a key, seconds of a round, and what these would be without overhead, from the first on.

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
    return int(group.columns.get(HOSTS, 1))


def _mean(group: Group, figure: str) -> float:
    found = spread_of(group.values(figure), "mean")
    return 0.0 if found is None else found.middle


# Options by which a dataset grows.
BY_NODES, BY_SCALE = ("sbm",), tuple(TWINS.values())


def scaling_sweep(config: str, overrides: Sequence[str], clients: str, hosts: str, weak: bool) -> Sweep:
    """The sweep of a scaling study: numbers of `clients` and `hosts`, with commas; empty: those of the config.

    With `weak` the graph grows with the clients: of so many nodes or of such a scale as the config has for its number.
    """
    base = load_config(config, overrides)
    of_clients, of_hosts = _numbers("--clients", clients), _numbers("--hosts", hosts)
    if not of_clients and not of_hosts:
        raise ShoalError("--clients, --hosts: name what grows, as in --clients 50,100,200 --hosts 1,2")
    if of_hosts and base.engine.backend == "local":
        raise ShoalError("--hosts", "engine.backend local has no hosts; set it to ray, or leave --hosts out")
    axes = [f"{key}={value}" for key, _, value in (override.partition("=") for override in overrides)]
    if of_clients:
        axes.append(_of_clients(base, of_clients, weak))
    if of_hosts:
        # The number of hosts changes no number, and is in no name of a run.
        named = ",".join(f"{n}+{base.name}-{n}-host{'s' if n > 1 else ''}" for n in of_hosts)
        axes.append(f"engine.hosts+name={named}")
    return Sweep(Study(str(Path(config)), tuple(axes)))


def _of_clients(base: Config, clients: Sequence[int], weak: bool) -> str:
    if not weak:
        return f"partition.clients={','.join(map(str, clients))}"
    dataset, options = str(base.data.dataset), base.data.options
    if dataset not in (*BY_NODES, *BY_SCALE):
        known = ", ".join((*BY_NODES, *BY_SCALE))
        raise ShoalError("--weak", f"{dataset} has the size it has; take one of {known}, or --strong")
    key = "nodes" if dataset in BY_NODES else "scale"
    start = float(options.get(key, 10000 if key == "nodes" else 1.0)) / base.partition.clients
    sizes = [start * number for number in clients]
    values = [f"{round(size)}" if key == "nodes" else f"{size:.6g}" for size in sizes]
    joined = ",".join(f"{number}+{value}" for number, value in zip(clients, values))
    return f"partition.clients+data.options.{key}={joined}"


def _numbers(option: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if wrong := next((part for part in parts if not part.isdecimal() or int(part) < 1), None):
        raise ShoalError(option, f"must be whole numbers above 0 with commas between them, found {wrong!r}")
    return sorted({int(part) for part in parts})
