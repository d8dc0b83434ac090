"""Shoal on a prepared store: `shoal_rounds.py TASK CONFIG`, the config a JSON file of the whole run."""

import json
import sys
from pathlib import Path

from task import Rounds, Turns, by_rows, read

from shoal.algorithms.protocol import MODEL
from shoal.engine.cluster.open_backend import open_backend
from shoal.engine.config.config import parse_config
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.costs import unwatched
from shoal.engine.runs.plan import plan_of


def main() -> None:
    task = read(sys.argv[1], Rounds)
    turns = Turns(task.a_turn)
    config = parse_config(json.loads(Path(sys.argv[2]).read_text()), "benchmark")
    store = prepare(config)
    job = make_job(config, store, "rounds")
    backend = open_backend(config)
    backend.open(job, plan_of(config), None)
    (kind,) = job.build_models(store, job.algorithm())[MODEL]
    done = 0
    while done < len(task.cohorts):
        turns.wait()
        end = done + task.a_turn - done % task.a_turn
        lines = list(backend.rounds(unwatched, min(end, task.compared) if done < task.compared else end))
        assert [line["cohort"] for line in lines] == task.cohorts[done : done + len(lines)]
        for line in lines:
            turns.finished(training=line["seconds"]["train"])
        done += len(lines)
        if done == task.compared:
            kind.flat.load(backend.state().server["w"])
            task.finish(by_rows(kind.flat.module))
    backend.close()
