"""The first lines of a command: what runs, on which data, and where."""

from collections.abc import Collection, Mapping
from pathlib import Path

from shoal.algorithms.methods.registry.names import display_name
from shoal.engine.config.config import Config, device_choice
from shoal.engine.config.names import shown_name
from shoal.engine.config.sizes import machine_cores
from shoal.engine.screen.progress import say
from shoal.engine.sections.sections import SECTIONS
from shoal.storage.options.dataset_names import NOT_IN_MEMORY
from shoal.storage.options.types import is_address

MADE = tuple(name for module, names in NOT_IN_MEMORY if module.startswith("synthetic.") for name in names)


def show_head(config: Config) -> None:
    """Prints method, model, data and place of a run; needs nothing that takes long to load."""
    what = f"{config.name}: {_method(config)} with {_models(config)}, {config.rounds} rounds, seed {config.seed}"
    show({"run": what, "data": _data(config), "where": _where(config)})


def show_head_of_study(config: Config, varied: Mapping[str, Collection[str]], runs: str, folder: Path) -> None:
    """Prints the keys that vary in a study with their values, and what its runs share, as in one of their configs."""
    rows = {"sweep": f"{config.name}: {runs}"}
    rows |= {f"  {key}": ", ".join(map(shown_name, values)) for key, values in varied.items()}
    sections = {key.partition(".")[0] for key in varied}
    shared = [
        *([] if "algorithm" in sections else [_method(config)]),
        *([] if "model" in sections else [_models(config)]),
        *([] if "rounds" in sections else [f"{config.rounds} rounds"]),
    ]
    if shared:
        rows["run"] = ", ".join(shared)
    if not sections & {"data", "partition"}:
        rows["data"] = _data(config, "participation" not in sections)
    if not sections & {"engine", "resources", "ray"}:
        rows["where"] = _where(config)
    show({**rows, "folder": str(shown_path(folder))})


def show(rows: Mapping[str, str]) -> None:
    """Prints names and texts below one another."""
    widest = max(map(len, (*rows, "folder")))
    for name, text in rows.items():
        say(f"{name:{widest}}  {text}")


def show_folder(place: Path | str) -> None:
    """Prints the folder of a run, or its address."""
    show({"folder": str(place if isinstance(place, str) else shown_path(place))})


def shown_path(path: Path) -> Path:
    """Shortens a path: relative to the working directory if it is below that."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _method(config: Config) -> str:
    return display_name(config.algorithm.name)


def _models(config: Config) -> str:
    return ", ".join(dict.fromkeys(shown_name(model.name) for model in config.models()))


def _data(config: Config, cohort: bool = True) -> str:
    data, part = config.data, config.partition
    names = [data.dataset] if isinstance(data.dataset, str) else data.dataset
    graph = data.name or "+".join(shown_name(name) for name in names)
    made = " (synthetic)" if any(name.lower() in MADE for name in names) else ""
    if config.algorithm.name == "global":
        return f"{graph}{made}: the whole graph as one client"
    clients = f"{graph}{made}: {part.clients:,} clients by {shown_name(part.method)}"
    if not cohort:
        return clients
    words = "".join(section.takes_part(config) for section in SECTIONS if section.is_on(config))
    if not config.schedule.synchronous:
        return f"{clients}, {words or shown_name(config.schedule.name)}"
    count = config.participation.size(part.clients)
    return f"{clients}, {'all' if count == part.clients else f'{count:,}'}{words} in each round"


def _where(config: Config) -> str:
    engine, device, cores = config.engine, device_choice(config), machine_cores()
    store = f", store {config.data.store}" if config.data.store and is_address(str(config.data.store)) else ""
    of_cores = "1 core" if cores == 1 else f"{cores:,} cores"
    if engine.backend == "local":
        return f"this process, on 1 of {of_cores}, {device}{store}"
    if address := config.ray.address:
        place, of_cores = f"at {address}", "its free cores"
    else:
        place = "on this machine"
    if engine.hosts == "auto":
        share = config.resources.gpus_per_host or 1.0
        of_each = f"one for each of {of_cores}" if device == "cpu" else f"{int((1 + 1e-9) / share)} on each GPU"
        return f"Ray hosts {place}, {of_each}, {device}{store}"
    return f"{engine.hosts:,} Ray host{'s' if engine.hosts > 1 else ''} {place}, {device}{store}"
