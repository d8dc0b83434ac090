"""A scaling study: the same run with other numbers of clients and hosts."""

from collections.abc import Sequence
from pathlib import Path

from engine.commands.sweep import Sweep
from engine.settings.config import Config, load_config
from engine.studies.study import Study
from storage.dataset_names import TWINS
from storage.errors import ShoalError

# Options by which a dataset grows.
BY_NODES, BY_SCALE = ("sbm",), tuple(TWINS.values())


def scaling_sweep(config: str, overrides: Sequence[str], clients: str, hosts: str, weak: bool) -> Sweep:
    """The sweep of a scaling study.

    Args:
        config: A config or a run folder.
        overrides: `key=value`.
        clients: Numbers of clients, with commas; empty: that of the config.
        hosts: Numbers of hosts, with commas; empty: that of the config.
        weak: The graph grows with the clients: of so many nodes or of such a scale as the config has for its number.

    Raises:
        ShoalError: A number is none, the dataset cannot grow, or any of the runs would be refused.
    """
    base = load_config(config, overrides)
    of_clients, of_hosts = _numbers("--clients", clients), _numbers("--hosts", hosts)
    if not of_clients and not of_hosts:
        raise ShoalError("--clients, --hosts: name what grows, as in --clients 50,100,200 --hosts 1,2")
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
        raise ShoalError(f"--weak: {dataset} has the size it has; take one of {known}, or --strong")
    key = "nodes" if dataset in BY_NODES else "scale"
    start = float(options.get(key, 10000 if key == "nodes" else 1.0)) / base.partition.clients
    sizes = [start * number for number in clients]
    values = [f"{round(size)}" if key == "nodes" else f"{size:.6g}" for size in sizes]
    joined = ",".join(f"{number}+{value}" for number, value in zip(clients, values))
    return f"partition.clients+data.options.{key}={joined}"


def _numbers(option: str, text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if wrong := next((part for part in parts if not part.isdecimal() or int(part) < 1), None):
        raise ShoalError(f"{option}: must be whole numbers above 0 with commas between them, found {wrong!r}")
    return sorted({int(part) for part in parts})
