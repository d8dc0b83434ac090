"""Stages in the user's files: the guide's one against rounds written out, what they keep, and what is refused."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.errors import refused
from support.needs import needs
from support.plain_fedavg import sgd_step
from support.same_bits import assert_same_runs

from shoal.engine.config.config import Config, parse_config
from shoal.engine.rounds.server import Server
from shoal.engine.rounds.state import FederationState
from shoal.engine.runs.plan import RunPlan

Start = Callable[..., Server]
LR = 0.5
# Softmax regression on the features, by one step of plain SGD a visit.
PLAIN = {"model.name": "sgc", "propagation.hops": 0, "train.optimizer": "sgd", "train.lr": LR, "train.epochs": 1}
PLAIN |= {"train.dropout": 0.0, "train.weight_decay": 0.0, "algorithm.weight": "train", "rounds": 4}


@pytest.fixture
def sketch(tmp_path: Path) -> str:
    """The stage of the guide."""
    text = (Path(__file__).parents[4] / "docs" / "extending.md").read_text()
    source = text.split("## A stage")[1].split("```python\n")[1].split("```")[0]
    assert len(source.splitlines()) <= 30
    (tmp_path / "sketch.py").write_text(source)
    return f"{tmp_path / 'sketch.py'}:Sketch"


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], list[dict[str, Any]]]:
    """Writes the body of a stage `Mine`, and returns the value of `stages`."""

    def write(body: str, above: str = "") -> list[dict[str, Any]]:
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        (tmp_path / "mine.py").write_text(f"import torch\nimport shoal\n{above}\nclass Mine(shoal.Stage):\n{lines}\n")
        return [{"name": f"{tmp_path / 'mine.py'}:Mine"}]

    return write


@pytest.mark.parametrize("feedback", [True, False])
def test_stage_of_the_guide_is_as_worked_by_hand(start: Start, sketch: str, feedback: bool) -> None:
    server = start({**PLAIN, "stages": [{"name": sketch, "feedback": feedback}]})
    w = server.state.server["w"].numpy().copy()
    left = {i: np.zeros_like(w) for i in range(6)}
    for _ in range(3):
        line = server.round()
        rows, sizes = [], []
        for client in range(6):
            after, size = sgd_step(server, client, w, LR)
            change = after - w + left[client]
            coded = np.sign(change) * np.abs(change).mean()
            left[client] = change - coded if feedback else left[client]
            rows.append(w + coded)
            sizes.append(size)
        w = np.average(rows, axis=0, weights=sizes).astype(np.float32)
        np.testing.assert_allclose(server.state.server["w"], w, rtol=0, atol=5e-6)
        assert line["bytes_up"] == 6 * (len(w) // 8 + 8)
    kept = {i: tree for i, tree in server.state.clients.items() if tree}
    assert len(kept) == (6 if feedback else 0)
    for client, tree in kept.items():
        np.testing.assert_allclose(tree["stage/sketch.py:Sketch/w"], left[client], rtol=0, atol=5e-6)


def test_state_of_a_stage_is_no_model_of_a_client(start: Start, sketch: str) -> None:
    """It is not evaluated, stays in checkpoints, and a method does not see it."""
    keys = {**PLAIN, "stages": [{"name": sketch}], "evaluation.every": 1}
    whole, other = start(keys), start(keys)
    for _ in range(4):
        whole.round()
        other.round()
        other = start(keys, state=FederationState.from_tensors(*other.state.to_tensors()))
    assert_same_runs(whole, other)
    lines = [start({**PLAIN, "evaluation.every": 1}).round(), start(keys).round()]
    assert lines[0]["scopes"].keys() == lines[1]["scopes"].keys()


def test_text_and_options_of_a_stage_tell_runs_apart(make_config: Callable[..., Config], sketch: str) -> None:
    def folder(stages: Sequence[Any] = ()) -> Path:
        return RunPlan.of(parse_config({**make_config().plain(), "stages": stages}, "test")).folder

    plain, first = folder(), folder([{"name": sketch}])
    off = folder([{"name": sketch, "feedback": False}])
    file = Path(sketch.rpartition(":")[0])
    file.write_text(file.read_text().replace("change.abs().mean()", "change.abs().max()"))
    assert len({plain, first, off, folder([{"name": sketch}])}) == 4


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("def at_client(self, upload, at): return upload.entries", "line 4: at_client gives a dict, expected"),
        ("def at_client(self, upload, at): return shoal.Upload({}, {})", "expected tensors as of the upload"),
        (
            "def at_client(self, upload, at):\n    at.received['w'].zero_()\n    return upload",
            "at_client writes into 'w', which others read; take a copy first",
        ),
        (
            "def at_client(self, upload, at):\n    upload.entries['w'].zero_()\n    return upload",
            "at_client writes into 'w', which others read; take a copy first",
        ),
        ("def at_client(self, upload, at): return upload.entries['b']", "line 5: KeyError: 'b'"),
        ("def at_client(self, upload, at):\n    at.kept['n'] = 3\n    return upload", "at.kept"),
        ("def before(self, phase): return 3", "before gives a int, expected shoal.ToHosts, or None"),
        ("def before(self, phase): return shoal.ToHosts(note=torch.ones(2))", "a note that is no plain value"),
        ("def before(self, phase): return shoal.ToHosts(added={'s': shoal.Reduce.MEAN})", "set adds = True in"),
        ("def after(self, replies, phase): return None", "after gives None, expected shoal.Replies"),
        ("def after(self, replies, phase): return shoal.Replies([], {}, {}, {})", "after gives replies without 'w'"),
        (
            "def at_client(self, upload, at):\n    e = {n: t + torch.rand(()) for n, t in upload.entries.items()}\n"
            "    return shoal.Upload(e, upload.weight, upload.upload_bytes)",
            "FedAvg (mine.py:Mine) is not deterministic",
        ),
    ],
)  # fmt: skip
def test_what_a_stage_gives_has_its_form(
    start: Start, write: Callable[[str], Any], body: str, says: str, capsys: Any
) -> None:
    server = start({**PLAIN, "stages": write(body)})
    with refused(says=says):
        server.round()


@pytest.mark.parametrize(
    ("keys", "place", "says"),
    [
        ({"stages": [{"name": "nowhere.py:Mine"}]}, "stages", "cannot be read"),
        ({"algorithm.name": "local"}, "stages", "with uploads"),
        ({"schedule.name": "fedbuff"}, "stages", "synchronous"),
    ],
)
def test_runs_that_a_stage_cannot_act_in_are_refused(
    start: Start, sketch: str, keys: dict[str, Any], place: str, says: str
) -> None:
    with refused(place, says=says):
        start({**PLAIN, "stages": [{"name": sketch}], **keys})


def test_classes_that_are_no_stage_and_wrong_options_are_refused(
    make_config: Callable[..., Config], write: Callable[..., Any], sketch: str, tmp_path: Path
) -> None:
    (tmp_path / "other.py").write_text("class Other: pass")
    (tmp_path / "plain.py").write_text("import shoal\nclass Plain(shoal.Stage): pass")
    for stages, says in (
        ([{"name": f"{tmp_path / 'other.py'}:Other"}], "does not derive from shoal.Stage"),
        ([{"name": sketch, "feedbak": True}], "unknown; it has feedback"),
        ([{"name": sketch, "feedback": "much"}], "found 'much'"),
        ([{"name": sketch}, {"name": sketch}], "is there twice"),
        (write("def on_data(self, client): return {}"), "on_data is for stages of Shoal alone"),
        ([{"name": f"{tmp_path / 'plain.py'}:Plain", "size": 3}], "has no options; write @dataclass above its class"),
    ):
        with refused(says=says):
            RunPlan.of(parse_config({**make_config().plain(), "stages": stages}, "test"))


def test_note_of_the_server_reaches_hosts(start: Start, write: Callable[[str], Any]) -> None:
    body = """
adds = True
def before(self, phase):
    return shoal.ToHosts(note=phase.round, added={"seen": shoal.Reduce.MEAN})
def at_client(self, upload, at):
    (note,) = at.cell.stages.notes.values()
    return shoal.Upload({**upload.entries, "seen": torch.tensor(float(note))}, upload.weight, upload.upload_bytes)
def after(self, replies, phase):
    phase.columns["seen"] = float(replies.entries.pop("seen"))
    return replies
"""
    server = start({**PLAIN, "stages": write(body.strip())})
    assert [server.round()["seen"] for _ in range(3)] == [1.0, 2.0, 3.0]


def test_whole_stage_of_the_guide_is_a_median(start: Start, tmp_path: Path) -> None:
    text = (Path(__file__).parents[4] / "docs" / "extending.md").read_text()
    source = text.split("## A stage")[1].split("```python\n")[2].split("```")[0]
    assert len(source.splitlines()) <= 30
    (tmp_path / "median.py").write_text(source)
    server = start({**PLAIN, "stages": [{"name": f"{tmp_path / 'median.py'}:Median"}], "participation.count": 5})
    w = server.state.server["w"].numpy().copy()
    for _ in range(3):
        line = server.round()
        w = np.median([sgd_step(server, client, w, LR)[0] for client in line["cohort"]], axis=0).astype(np.float32)
        np.testing.assert_allclose(server.state.server["w"], w, rtol=0, atol=5e-6)


@needs("privacy", "secure")
def test_no_stage_sees_what_privacy_or_masks_hide(start: Start, write: Callable[[str], Any]) -> None:
    """Outcomes, notes and added entries are ways around noise and masks."""
    hidden = ({"privacy.unit": "client", "privacy.noise": 1.0}, {"secure.kind": "masks"})
    for keys in hidden:
        body = """
def at_client(self, upload, at):
    at.notes["raw"] = upload.entries["w"].clone()
    return upload
def after(self, replies, phase):
    phase.columns["raw"] = [sorted(outcome.notes) for outcome in phase.outcomes]
    return replies
"""
        server = start({**PLAIN, "stages": write(body.strip()), **keys})
        assert server.round()["raw"] == []
    with refused("stages", says="adds entries to uploads, which the second does not bound"):
        start({**PLAIN, "stages": write("adds = True"), **hidden[0]})
    for keys in hidden:
        with refused("stages", says="needs every upload" if "secure.kind" in keys else "reduces uploads"):
            start({**PLAIN, "stages": write("whole = True"), **keys})
