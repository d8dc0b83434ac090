"""Methods that are wrong, each in one place: their text, and what the line about it must say.

The line of the text that must be named ends in `# here`. `{file}` stands for the method's file.
"""

import re
from dataclasses import dataclass
from pathlib import Path

HEAD = """import sys
from dataclasses import dataclass
import numpy as np
import torch
from shoal.algorithms.base import Algorithm, Ask, Mix, Upload
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import Reduce

"""
CLASS = "@dataclass(frozen=True)\nclass Wrong(FedAvg):\n"
HERE = " # here"


@dataclass(frozen=True)
class Wrong:
    """One wrong method: the text of its file, below the imports, and parts of the line."""

    text: str
    words: tuple[str, ...]


def indented(text: str, depth: int = 1) -> str:
    return "".join(f"{'    ' * depth}{line}\n" for line in text.splitlines())


ARGUMENTS = {
    "models": "self",
    "setup": "self, ctx",
    "global_model": "self, server",
    "receive": "self, client, down",
    "train": "self, client, received, trainer, phase",
    "loss": "self, out, y, w, received",
    "upload": "self, client, received, phase",
    "predict": "self, client, received, part",
    "round": "self, server, ctx, cohort",
}


def hook(name: str, body: str, *words: str, where: str = "") -> Wrong:
    """FedAvg with a hook of its own; `where` is its first line's end."""
    return Wrong(f"{CLASS}    def {name}({ARGUMENTS[name]}):{where}\n{indented(body, 2)}", words)


def upload(body: str, *words: str) -> Wrong:
    """FedAvg whose client 2 uploads something wrong; of the hook as a whole, if of no line in it."""
    text = f"sent = super().upload(client, received, phase)\nif client.info.client == 2:\n{indented(body)}return sent"
    return hook("upload", text, "round 1, client 2: ", *words, where="" if HERE in body else HERE)


def write(statement: str, words: str) -> Wrong:
    """FedAvg whose client 2 writes into the data that it reads."""
    text = f"data = client.data\nif client.info.client == 2:\n    {statement}\n"
    return hook("upload", f"{text}return super().upload(client, received, phase)", "round 1, client 2", words)


RAISES = f"raise RuntimeError('no luck'){HERE}"
# Others are tests of `registry/load.py`.
FILES = {
    "syntax": (f"x = 1\ny = 2 +* 3{HERE}\n", "fails while it is read: SyntaxError"),
    "exits": (f"sys.exit(0){HERE}\n", "fails while it is read: SystemExit: 0"),
    "absent": ("class Right: pass\n", "{file}: has no class Wrong; it has Right"),
    "no method": (f"@dataclass(frozen=True)\nclass Wrong:{HERE}\n    pass\n", "class Wrong is not a method"),
    "mutable": (f"@dataclass(frozen=True){HERE}\nclass Wrong(FedAvg):\n    a: list = []\n", "mutable default"),
    "options": (f"{CLASS}    def __post_init__(self):\n        self.gone{HERE}\n", "__post_init__(): AttributeError"),
    "arguments": (f"{CLASS}    def upload(self, client):{HERE}\n        pass\n", "called as upload(self, client, "),
}
# What a hook raises, by the line that raises.
RAISED = {
    ("models", RAISES): "in models(): RuntimeError: no luck",
    ("setup", RAISES): "in setup(): RuntimeError: no luck",
    ("setup", f"sys.exit(0){HERE}"): "in setup(): SystemExit: 0",
    ("receive", RAISES): "round 1, client 0: ",
    ("train", RAISES): "in train(): RuntimeError",
    ("train", f"sys.exit(){HERE}"): "SystemExit",
    ("loss", RAISES): "client 0: ",
    ("train", f"return trainer.fit(client, received, term=lambda: torch.ones(2)){HERE}"): "gives [2], expected a",
    ("upload", f"return self.upload(client, received, phase){HERE}"): "Rec",
    ("predict", RAISES): "in predict(): RuntimeError: no luck",
    ("global_model", RAISES): "in round(): Run",
    ("round", f"{RAISES}\nyield"): "in round(): RuntimeError: no luck",
    ("round", f"sys.exit(0){HERE}\nyield"): "in round(): SystemExit: 0",
    ("round", f"raise KeyboardInterrupt{HERE}\nyield"): "in round(): KeyboardInterrupt",
}
# What a hook gives, by the hook.
GIVEN = {
    ("models", "pass"): "in models(): models() must name 'model'",
    ("models", "return {'model': None, 'a': 3}"): "models()['a']: give a word",
    ("setup", "pass"): "in setup(): the server's state is None",
    ("setup", "return {'w': [1]}"): "state 'w' is a list",
    ("setup", "return {1: ctx.initial}"): "has the name 1",
    ("setup", "return {'w': ctx.initial.mul_(2)}"): "writes into ctx.initial",
    ("train", "pass"): "expected the loss as",
    ("train", "return trainer.fit(client, received, term=3)"): "or None, got a int",
    ("loss", "return out.logits_NC"): "expected a scalar tensor",
    ("loss", "return 1.0"): "gives float",
    ("loss", "return torch.ones(())"): "without a g",
    ("predict", "return torch.ones(2, 2)"): "expected scores",
    ("predict", "pass"): "gives None for",
    ("round", "pass"): "gives None, expected a generator",
    ("round", "return [Ask('a', {})]"): "gives a list",
}
# What is found wrong later, by client and entry.
FOUND = {
    ("global_model", "pass"): "is None, expected a dict",
    ("global_model", "server['w'] = server['w'] + 1\nreturn server"): "changes 'w' of the server's state",
    ("predict", "return super().predict(client, received, part) > 0"): "in predict(): gives bool [",
    (
        "upload",
        "import os\nreturn Upload({'w': client.model.w + os.urandom(4)[0]})",
    ): "deterministic: upload 'w'",
    ("train", "import time\nreturn float(time.time_ns())"): "deterministic: the loss differs",
    ("train", "return float('inf')"): "round 1, client 0: the training loss is infinite",
    ("loss", "return out.logits_NC.sum() * float('nan')"): "round 1, client 0: the training loss is NaN",
    ("upload", "return Upload({'w': client.model.w}, {'w': float('nan')})"): "client 0: upload() gives NaN or infinity",
    ("receive", "down['w'].mul_(0.9)\nreturn super().receive(client, down)"): "writes into the download 'w'",
    ("predict", "return super().predict(client, received, part) * float('nan')"): ": predictions of 'val' are NaN",
}
ASKS_W = "yield Ask('train', {'w': Reduce.MIX})"
STEPS = {
    f"yield{HERE}": "yields None",
    f"yield Ask('train', {{'w': Reduce.MEAN}})\nyield 3{HERE}": "yields a int",
    f"yield Ask(3, {{}}){HERE}": "Ask(phase=3)",
    f"yield Ask('', {{}}){HERE}": "Ask(phase='')",
    f"yield Ask('train', ['w']){HERE}": "Ask(up) is a list",
    f"yield Ask('train', {{'w': 'sum'}}){HERE}": "Ask(up) has 'w': 'sum'",
    f"yield Ask('train', {{}}, shared={{'w': [1.0]}}){HERE}": "(shared) 'w' is a list",
    f"yield Ask('train', {{}}, private={{60: {{}}}}){HERE}": "Ask(private) names client 60",
    f"yield Ask('train', {{}}, private={{1: 3}}){HERE}": "Ask(private) of client 1 is a int",
    f"yield Ask('train', {{}}, to=[0, -1]){HERE}": "Ask(to) names client -1",
    f"yield Ask('train', {{}}, to=3){HERE}": "Ask(to) is a int",
    f"yield Mix('w', [1.0]){HERE}": "Mix(rows) is a list",
    f"yield Mix('w', torch.ones(6)){HERE}": "Mix('w') before any Ask uploaded it",
    f"{ASKS_W}\nyield Mix('w', torch.eye(6), [9] * 6){HERE}": "client 9",
    f"{ASKS_W}\nyield Mix('w', torch.eye(2)){HERE}": "is [2, 2], expected [6]",
    "yield Ask('train', {})\nserver['n'] = 3": "the server's state 'n' is a int",
    "yield Ask('train', {})\nctx.notes['n'] = 'x'": "ctx.notes['n'] is a str",
    "yield Ask('train', {})\nctx.notes['n'] = 10**400": "ctx.notes['n'] is a int",
    "yield Ask('train', {})\nctx.initial.zero_()": "writes into ctx.initial",
    f"got = yield Ask('train', {{'w': Reduce.MEAN}})\ngot['v']{HERE}": "in round(): KeyError: 'v'",
}
UPLOADS = {
    "return None": "in upload(): gives None",
    "return {'w': client.model.w}": "gives a dict",
    "return Upload([client.model.w])": "gives Upload(entries) as a list",
    "return Upload({'w': [1.0]})": "the entry 'w' is a list",
    "return Upload({'w': sent.entries['w'].to_sparse()})": "the entry 'w' is a sparse tensor",
    "return Upload({'w': sent.entries['w'].long()})": "gives 'w' as int64",
    "return Upload({'w': sent.entries['w'].double()})": "gives 'w' as float64 [",
    "return Upload({'w': sent.entries['w'][:3]})": "gives 'w' as float32 [3]",
    "return Upload({})": "in upload(): gives no 'w'",
    "return Upload(sent.entries, {'w': -1.0})": "weighs 'w' by a negative number, -1.0",
    "return Upload(sent.entries, {'w': torch.ones(3)})": "weighs 'w' by float32 [3]",
    "return Upload(sent.entries, {'w': 'much'})": "weighs 'w' by a str",
    "return Upload(sent.entries, {}, {'w': -4})": "gives -4 as the bytes of 'w'",
    "client.state['n'] = 3": "client.state 'n' is a int",
    "client.state = None": "client.state is None",
    "client.state['n'] = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)": "client.state 'n' is a qint8",
    "client.state['n'] = torch.ones(3, device='meta')": "client.state 'n' is a meta tensor",
    "client.state['model.w'] = torch.ones(3)": "gives 'model.w' as float32 [3]",
    f"client.model.load(torch.ones(1)){HERE}": "ValueError: parameters of shape [1]",
}
WRITES = {
    "data.x.zero_()": "x",
    "data.x.numpy().fill(0)": "x",
    "data.x.data.zero_()": "x",
    "data.x[3].add_(1)": "x",
    "data.x.zero_(); 1 / 0": "x",
    "data.hop(1).mul_(2)": "hop(1)",
    "data.label.zero_()": "label",
    "data.train_label.zero_()": "train_label",
    "data.train.sub_(1)": "train",
    # Behind torch's back.
    "data.x.data[3].add_(1)": "x",
    "data.label.numpy().fill(0)": "label",
    "data.train_label.numpy().fill(0)": "train_label",
    "data.train.numpy().fill(0)": "train",
    "data.adjacency.values().numpy().fill(2)": "adjacency",
    "data.edges[1].numpy().fill(0)": "csr",
    "data.degree.zero_()": "degree",
    "data.adjacency.values().zero_()": "adjacency",
    "data.edges[1].zero_()": "edges",
    "data.cache('mine', lambda: torch.ones(3)).zero_()": "mine",
}
READ_ONLY = {
    "data.csr[1].fill(0)": "ValueError: assignment destination is read-only",
    "data.node[0] = 5": "ValueError: assignment destination is read-only",
    "data.train = data.train[:1]": "AttributeError: the data of a client is read-only: train",
}
WRONG = {
    **{f"file: {name}": Wrong(text, (words,)) for name, (text, words) in FILES.items()},
    **{f"{name}: {body}": hook(name, body, words) for (name, body), words in {**RAISED, **FOUND}.items()},
    **{f"{name}: {body}": hook(name, body, words, where=HERE) for (name, body), words in GIVEN.items()},
    **{f"round: {body}": hook("round", body, words, "round 1: ") for body, words in STEPS.items()},
    **{f"client 2: {body}": upload(body, words) for body, words in UPLOADS.items()},
    **{f"data: {body}": write(body, f"writes into client.data.{name}, which is") for body, name in WRITES.items()},
    **{f"data: {body}": write(body + HERE, words) for body, words in READ_ONLY.items()},
}


def write_method(folder: Path, text: str, *words: str) -> tuple[str, list[str]]:
    """Name of the method, and what its line must say."""
    file = folder / "wrong.py"
    file.write_text(HEAD + text)
    wanted = [part.replace("{file}", str(file)) for part in words]
    here = [number for number, line in enumerate(file.read_text().splitlines(), 1) if line.endswith("# here")]
    return f"{file}:Wrong", wanted + [f"{file}, line {number}" for number in here]


def require_line(line: str, words: list[str]) -> None:
    assert "\n" not in line
    assert len(line) < 700
    for part in words:
        # Line 1 is not line 10.
        assert re.search(re.escape(part) + (r"(?!\d)" if part[-1].isdigit() else ""), line)
