"""Shoal on a prepared store: `shoal.py TASK CONFIG`, the config a JSON file of the whole run."""

import json
import sys
from pathlib import Path

from task import Turns, read

from engine.commands.run import plan_of
from engine.hosts.federation import open_session
from engine.preparing.prepare import prepare
from engine.settings.config import parse_config
from engine.wire.job import make_job
from engine.wire.live import unwatched


def main() -> None:
    task, turns = read(sys.argv[1]), Turns()
    config = parse_config(json.loads(Path(sys.argv[2]).read_text()), "benchmark")
    job = make_job(config, prepare(config), "rounds")
    session = open_session(config)
    federation = session.federation(job, plan_of(config), None)
    for cohort in task.cohorts:
        turns.wait()
        line = federation.round(unwatched)
        turns.finished(training=line["seconds"]["train"])
        assert line["cohort"] == cohort
    task.finish(federation.state().server["w"])
    session.close()
