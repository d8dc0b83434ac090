"""Wrong methods of a user's own end with one line that names the file, the line in it, and the client."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from integration.server_here import OnHosts
from support.errors import refused
from support.fixtures import Configure, Start

from attack.wrong_methods import WRONG, hook, require_line, write_method
from shoal.cli.main import command as main
from shoal.engine.messages.job import make_job
from shoal.engine.preparing.prepare import prepare
from shoal.engine.rounds.costs import unwatched
from shoal.engine.rounds.server import Server
from shoal.engine.runs.plan import plan_of
from shoal.storage.errors import ShoalError

MODEL = {"model.name": "mlp", "train.epochs": 1, "rounds": 1}
FROM_A_HOST = [
    "train: sys.exit() # here",
    "client 2: return Upload({'w': sent.entries['w'].long()})",
    "predict: return super().predict(client, received, part) * float('nan')",
    "data: data.x.zero_()",
]


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_method_in_process_is_one_line(start: Start, tmp_path: Path, name: str) -> None:
    method, words = write_method(tmp_path, WRONG[name].text, *WRONG[name].words)
    with pytest.raises(ShoalError) as caught:
        start({**MODEL, "algorithm.name": method}).round()
    require_line(caught.value.line, words)


@pytest.mark.parametrize("name", FROM_A_HOST)
def test_wrong_method_on_a_host_is_the_same_line(
    configure: Configure, hosts: list[Any], tmp_path: Path, name: str
) -> None:
    """On a server that is an actor, see tests/engine/runs/test_driver.py."""
    method, words = write_method(tmp_path, WRONG[name].text, *WRONG[name].words)
    config = configure({**MODEL, "engine.backend": "ray", "algorithm.name": method})
    backend = OnHosts(hosts)
    backend.open(make_job(config, prepare(config), tmp_path.name), plan_of(config), None)
    with pytest.raises(ShoalError) as caught:
        backend.round(unwatched)
    require_line(caught.value.line, words)


def test_host_after_a_write_is_clean_in_the_next_run(start: Start, tmp_path: Path) -> None:
    server = start(
        {**MODEL, "algorithm.name": write_method(tmp_path, WRONG["data: data.adjacency.values().zero_()"].text)[0]}
    )
    for _ in range(2):
        with refused(says="writes into client.data.adjacency"):
            server.round()


@pytest.mark.parametrize(
    "name",
    [
        "client 2: return None",
        "client 2: return Upload({'w': sent.entries['w'].long()})",
        "loss: return out.logits_NC.sum() * float('nan')",
        "predict: return super().predict(client, received, part) * float('nan')",
    ],
)
def test_failing_client_is_left_out_and_logged(start: Start, tmp_path: Path, name: str) -> None:
    text = WRONG[name].text
    if name.startswith("predict"):
        text = text.replace("float('nan')", "(float('nan') if client.info.client == 2 else 1.0)")
    elif name.startswith("loss"):
        text = text.replace("float('nan')", "(float('nan') if received['bad'] else 1.0)")
        text += (
            "    def receive(self, client, down):\n"
            "        return {**super().receive(client, down), 'bad': client.info.client == 2}\n"
        )
    method = write_method(tmp_path, text)[0]
    line = start({**MODEL, "algorithm.name": method, "engine.on_client_error": "skip"}).round()
    assert line["cohort"] == [0, 1, 3, 4, 5]
    assert list(line["failures"]) == ["2"]
    assert line["loss"] is not None


@pytest.fixture
def start_with(start: Start, tmp_path: Path) -> Start:
    """Starts FedAvg with one hook of its own."""

    def start_with(name: str, body: str) -> Server:
        return start({**MODEL, "algorithm.name": write_method(tmp_path, hook(name, body).text)[0]})

    return start_with


def test_round_ignoring_replies_runs(start_with: Start) -> None:
    server = start_with("round", "yield Ask('train', {'w': Reduce.MEAN})")
    before = server.state.server["w"].clone()
    server.round()
    assert torch.equal(server.state.server["w"], before)


def test_note_not_finite_is_null_in_metrics(start_with: Start) -> None:
    notes = "ctx.notes.update(a=float('nan'), b=np.float32(2), c=3)"
    line = start_with("round", f"{notes}\nyield from super().round(server, ctx, cohort)").round()
    assert line["notes"] == {"a": None, "b": 2.0, "c": 3.0}


def test_predict_minus_infinity_rules_a_class_out(start_with: Start) -> None:
    scores = "scores = super().predict(client, received, part).clone()"
    line = start_with("predict", f"{scores}\nscores[:, 1:] = -float('inf')\nreturn scores").round()
    assert 0 < line["scopes"]["deployed"]["test"]["rows"] < 1


def test_keyboard_interrupt_in_a_method_interrupts(start_with: Start) -> None:
    server = start_with("upload", "import signal\nsignal.raise_signal(signal.SIGINT)")
    with pytest.raises(KeyboardInterrupt):
        server.round()


@pytest.mark.parametrize("name", ["file: exits", "setup: sys.exit(0) # here", "round: sys.exit(0) # here\nyield"])
def test_command_of_a_wrong_method_ends_with_status_2(
    tmp_path: Path,
    configure: Configure,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    method, words = write_method(tmp_path, WRONG[name].text, *WRONG[name].words)
    config = configure({**MODEL, "algorithm.name": method, "run.root": str(tmp_path), "run.tensorboard": False})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.plain()))
    monkeypatch.setattr("sys.argv", ["shoal", "run", str(tmp_path / "config.yaml")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("shoal: ")
    require_line(last, words)
