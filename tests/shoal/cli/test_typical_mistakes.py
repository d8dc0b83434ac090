"""Typical mistakes of new users: each ends in one line with the way out, in an instant, and nothing is left behind."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

# Commands as they are typed, and the last line that they print, as far as it does not name all that is known.
MISTAKES = [
    # Keys.
    ("run quickstart lr=0.1", "command line: lr: did you mean 'train.lr'? unknown key; known here: name, seed, "),
    ("run quickstart train.learning_rate=0.1", "command line: train.learning_rate: did you mean 'train.lr'? unknown"),
    ("run quickstart num_clients=20", "command line: num_clients: did you mean 'partition.clients'? unknown key; "),
    ("run quickstart batch_size=32", "command line: batch_size: did you mean 'train.batch_size'? unknown key; "),
    ("run quickstart method=fedavg", "command line: method: did you mean 'algorithm'? unknown key; known here: "),
    ("run quickstart dataset=cora", "command line: dataset: did you mean 'data.dataset'? unknown key; known here: "),
    ("run quickstart hidden=64", "command line: hidden: did you mean 'model.hidden'? unknown key; known here: "),
    ("run quickstart trian.lr=0.1", "command line: trian: did you mean 'train'? unknown key; known here: name, "),
    ("run quickstart seeds=3", "command line: seeds: did you mean 'seed'? several are for shoal sweep; unknown key; "),
    # Values.
    (
        "run quickstart participation=0.1",
        "command line: participation: write participation.ratio=0.1; expected keys of its own, found 0.1",
    ),
    ("run quickstart data=cora", "command line: data: write data.dataset=cora; expected keys of its own, found 'cora'"),
    ("run quickstart train.lr=fast", "command line: train.lr: expected a number, found 'fast'"),
    (
        "run quickstart train.lr=0,1",
        "command line: train.lr: expected a number, found '0,1'; several values are for shoal sweep, and decimals",
    ),
    (
        "run quickstart seed=0..2",
        "seed: expected a whole number, found '0..2'; several values are for shoal sweep, ",
    ),
    ("run quickstart rounds=1.5", "command line: rounds: expected a whole number, found 1.5"),
    ("run quickstart participation.ratio=10", "command line: participation.ratio: expected at most 1, found 10"),
    ("run quickstart train.optimizer=rmsprop", "train.optimizer: expected 'adam' or 'sgd', found 'rmsprop'"),
    ("run quickstart engine.device=gpu", "engine.device: expected 'auto', 'cpu' or 'cuda', found 'gpu'"),
    ("run quickstart partition.method=dirichlett", "partition.method: did you mean 'dirichlet'? expected 'metis', "),
    ("run quickstart attack=signflip", "attack.kind: did you mean 'sign_flip'? expected none, label_flip, backdoor, "),
    ("run quickstart evaluation.every=never", "evaluation.every: expected a whole number, found 'never'"),
    (
        "run quickstart participation.clients=3",
        "participation.clients: did you mean 'participation.count'? unknown key; known here: ratio, count, ",
    ),
    ("run quickstart train.rounds=3", "train.rounds: did you mean 'rounds'? unknown key; known here: epochs, "),
    ("run quickstart ray.num_cpus=4", "ray.num_cpus: did you mean 'engine.hosts'? unknown key; known here: address, "),
    ("run quickstart output=out", "output: did you mean 'run.root'? unknown key; known here: name, seed, "),
    ("run quickstart callbacks=wandb", "callbacks: expected a list, found {'name': 'wandb'}; write callbacks=[wandb]"),
    (
        "run quickstart participation=all",
        "participation: give participation.ratio, participation.count, participation.draw or another of its keys; ",
    ),
    (
        "run quickstart data.fractions=0.6,0.2,0.2",
        "data.fractions: expected a list, found '0.6,0.2,0.2'; write data.fractions=[0.6,0.2,0.2]",
    ),
    (
        "run quickstart model.hidden=64,64",
        "model.hidden: must be a whole number, found '64,64'; several values are for shoal sweep",
    ),
    (
        "sweep quickstart algorithm=[fedavg,fedgta]",
        "algorithm: expected a name, or keys with a name among them, found [{'name': 'fedavg'}, {'name': 'fedgta'}]; "
        "several values are for shoal sweep, with commas and without brackets",
    ),
    # Names.
    ("run quickstart algorithm=fedavgg", "algorithm.name: did you mean 'fedavg'? 'fedavgg' is unknown; there are "),
    ("run quickstart algorithm=FedSage+", "algorithm.name: did you mean 'fedsage_plus'? 'FedSage+' is unknown; "),
    ("run quickstart algorithm=mine.py", "algorithm.name: write mine.py:MyMethod, the class in the file; 'mine.py' "),
    ("run quickstart algorithm=fedavg,local", "algorithm.name: several values are for shoal sweep; 'fedavg,local' is"),
    ("run quickstart model=graphsage", "model.name: did you mean 'sage'? there is no 'graphsage'; choose one of "),
    ("run quickstart data.dataset=arxiv", "data.dataset: did you mean 'ogbn-arxiv'? unknown dataset 'arxiv'; known"),
    ("run quickstart data.dataset=./graph", "data.dataset: write data.dataset=files data.path=./graph; unknown "),
    ("run quickstart algorithm=./mine.Mine", "algorithm.name: write ./mine.py:Mine; './mine.Mine' is unknown; "),
    # Words in place of key=value, and options in place of keys.
    ("run quickstart lr 0.1", "lr: write train.lr=0.1; an override has the form key.sub=value"),
    ("run quickstart fedavg", "fedavg: write algorithm=fedavg; an override has the form key.sub=value"),
    ("run quickstart 'train.lr = 0.1'", "train.lr = 0.1: write train.lr=0.1; an override has the form key.sub=value"),
    ("run quickstart --clients 20", "--clients: write partition.clients=20; shoal run has no such option; see shoal "),
    ("run quickstart --seeds 3", "--seeds: write seed=0,1,2 with shoal sweep quickstart; shoal run has no such option"),
    ("run quickstart --dryrun", "--dryrun: did you mean --dry-run? shoal run has no such option; see shoal run --help"),
    ("run --config quickstart", "--config: write shoal run quickstart; shoal run has no such option; see shoal run "),
    ("run data.dataset=cora", "data.dataset=cora: is an override; a config comes before it, as in quickstart KEY=VALU"),
    (
        "sweep quickstart algorithm=fedavg, fedgta",
        "fedgta: write algorithm=fedgta; an axis of a sweep has the form key.sub=a,b,c",
    ),
    # Commands.
    ("help run", "help: did you mean shoal run --help? no such command; see shoal --help"),
    ("verify nothing", "nothing: no such folder; shoal list shows stores and runs"),
    ("table old", "old: neither a run nor a sweep; give old/*, the runs in it"),
    ("run", "shoal run: CONFIG is missing, as in shoal run quickstart; see shoal run --help"),
    ("resume runs/x", "resume: did you mean shoal run runs/x --resume? no such command; see shoal --help"),
    ("datasets", "datasets: did you mean shoal list datasets? no such command; see shoal --help"),
    ("quickstart", "quickstart: did you mean shoal run quickstart? no such command; see shoal --help"),
    ("sweep quickstart", "quickstart: name what varies, as in seed=0,1,2; a file of a study has the key axes"),
    ("report runs/x", "runs/x: neither a run nor a sweep; give folders that shoal run or shoal sweep wrote"),
    # Files.
    (
        "run mine.py",
        "mine.py: is no config; a config names code of yours, as in shoal run quickstart algorithm=mine.py:",
    ),
    (
        "run ./graph",
        "./graph: is a folder without config.yaml, so no run; a config names the folder of a graph by data.",
    ),
    (
        "run graph/nodes.csv",
        "graph/nodes.csv: is no config; a config names the folder of a graph by data.path, as shoa",
    ),
    (
        "run quickstart algorithm=mine.py:Mine engine.backend=local",
        "mine.py, line 6: Mine has no round(self, server, ctx, cohort), the server's part of a round",
    ),
    ("run quikstart", "quikstart: did you mean 'quickstart'? no such config or run; shoal list shows runs; by name "),
    ("run mine.yaml", "mine.yaml: data: write data: {dataset: cora}; expected keys of its own, found 'cora'"),
    ("run empty.yaml", "empty.yaml: name: missing; write name: mine"),
    (
        "run tabs.yaml",
        "tabs.yaml: not a config: line 3: found character that cannot start any token; indent by spaces, not by tabs",
    ),
    (
        "run own.yaml",
        "HERE/graph: 2 faults: (1) nodes.csv: did you mean 'id' and 'label' by 'node_id' and 'y'? rename them; no ",
    ),
    (
        "run own.yaml data.path=graph/nodes.csv",
        "HERE/graph/nodes.csv: is one table; data.path is the folder of edges and nodes, HERE/graph",
    ),
]
FILES = {
    "mine.yaml": "name: mine\ndata: cora\nalgorithm: fedavg\n",
    "empty.yaml": "",
    "tabs.yaml": "name: tabs\ndata:\n\tdataset: cora\nalgorithm: fedavg\n",
    "own.yaml": "{name: own, data: {dataset: files, path: graph}, partition: {clients: 2}, algorithm: fedavg, "
    "engine: {backend: local}}",
    "graph/nodes.csv": "node_id,y,age\n1,a,30\n2,b,40\n",
    "graph/edges.csv": "src,dst\n1,2\n",
    "old/one-01234567/config.yaml": "",
    "mine.py": """from dataclasses import dataclass

import shoal

@dataclass(frozen=True)
class Mine(shoal.Algorithm):
    def setup(self, ctx):
        return {"n": [info.train for info in ctx.clients]}
""",
}


def test_there_are_sixty_six() -> None:
    assert len(MISTAKES) == len({command for command, _ in MISTAKES}) == 66


@pytest.mark.parametrize(("command", "line"), MISTAKES, ids=[command for command, _ in MISTAKES])
def test_a_typical_mistake_ends_in_one_line_with_the_way_out(
    command: str,
    line: str,
    tmp_path: Path,
    status: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path / "data"))
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert status(*shlex.split(command)) == 2
    said = capsys.readouterr()
    *head, last = said.err.splitlines()
    assert last.startswith("shoal: ")
    assert line.replace("HERE", str(tmp_path)) in last
    assert "Traceback" not in said.err
    assert not said.out
    # Before it, at most what the command was about to do, and what an override leaves out.
    assert {text.split()[0] for text in head} <= {"run", "data", "where", "shoal:"}
    assert not (tmp_path / "runs").exists()
    # No word of a library that reads values or commands.
    assert not any(word in last for word in ("Input should", "instance of", "dictionary", "Error", "Options"))
