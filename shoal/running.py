"""Prepare and run, from a program."""

from pathlib import Path
from typing import Any

from shoal.configs import Source, load_config
from shoal.engine.runs import run as run_command
from shoal.engine.runs.plan import RunPlan
from shoal.kept_run import Run


def prepare(config: Source, **overrides: Any) -> Path:
    """Makes the store of a config: partition, shards, splits, hops. Interrupted, it resumes; a second one does nothing.

    Args:
        config: The config, as `load_config` takes it, and so its `overrides`.

    Returns:
        Folder of the store; of one at an address, a folder with its manifests.

    Raises:
        ShoalError: Bad input, or the store cannot be written.
    """
    return RunPlan.of(load_config(config, **overrides), trains=False).prepare().path


def run(config: Source, *, resume: bool = False, fresh: bool = False, **overrides: Any) -> Run:
    """Runs a config to its end; prepares its store first if needed. A run that is finished is not run again.

    Args:
        config: The run, as `load_config` takes it; with `engine.backend` `local` all of it happens in this process,
            without Ray.
        resume: Go on with an unfinished run from its newest checkpoint, or with one that had fewer `rounds`.
        fresh: Start over, whatever the run folder holds.
        overrides: As `load_config` takes them: `algorithm="fedgta"`, `train={"lr": 0.1}`, `data=graph`.

    Raises:
        ShoalError: Bad input, or a failure that a resume can go on from.
        KeyboardInterrupt: The user stopped it; a checkpoint is written.
    """
    return Run(run_command.run(load_config(config, **overrides), resume=resume, fresh=fresh))
