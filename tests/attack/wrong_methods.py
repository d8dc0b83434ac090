"""Methods that are wrong, each in one place: their text, and what the line about it must say.

The line of the text that must be named ends in `# here`. `{file}` stands for the method's file.
"""

from dataclasses import dataclass

HEAD = """import sys
from dataclasses import dataclass
import numpy as np
import torch
from shoal.algorithms.base import Algorithm, Ask, Mix, Upload
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import Reduce

"""
CLASS = "@dataclass(frozen=True)\nclass Wrong(FedAvg):\n"


@dataclass(frozen=True)
class Wrong:
    """One wrong method.

    Attributes:
        name: Of the case.
        text: Of the file, below its imports.
        words: Parts of the line.
    """

    name: str
    text: str
    words: tuple[str, ...]


def file(name: str, text: str, *words: str) -> Wrong:
    """A file that is wrong when it is read."""
    return Wrong(name, text, words)


def hook(name: str, body: str, *words: str) -> Wrong:
    """FedAvg with hooks of its own."""
    return Wrong(name, CLASS + "".join(f"    {line}\n" for line in body.splitlines()), words)


def steps(name: str, body: str, *words: str) -> Wrong:
    """FedAvg with a `round` of its own."""
    lines = "".join(f"\n    {line}" for line in body.splitlines())
    return hook(name, f"def round(self, server, ctx, cohort):{lines}", *words)


def upload(name: str, body: str, *words: str) -> Wrong:
    """FedAvg whose client 2 uploads something wrong."""
    lines = "".join(f"\n        {line}" for line in body.splitlines())
    text = (
        f"def upload(self, client, received, phase):{' # here' if '# here' not in body else ''}\n"
        f"    sent = super().upload(client, received, phase)\n    if client.info.client == 2:{lines}\n    return sent"
    )
    return hook(name, text, "round 1, client 2: ", *words)


def data(name: str, statement: str, words: str) -> Wrong:
    """FedAvg whose client 2 writes into what it was lent."""
    text = (
        "def upload(self, client, received, phase):\n    data = client.data\n    if client.info.client == 2:\n"
        f"        {statement}\n    return super().upload(client, received, phase)"
    )
    return hook(name, text, "round 1, client 2", words)


RAISES = "raise RuntimeError('no luck') # here"
FILES = [
    file("syntax", "x = 1\ny = 2 +* 3 # here\n", "fails while it is read: SyntaxError"),
    file("exits", "sys.exit(0) # here\n", "fails while it is read: SystemExit: 0"),
    file("raises", RAISES, "fails while it is read: RuntimeError: no luck"),
    file("interrupts", "raise KeyboardInterrupt # here\n", "KeyboardInterrupt"),
    file("generator exit", "raise GeneratorExit # here\n", "GeneratorExit"),
    file("recursion", "def f():\n    f() # here\nf()\n", "RecursionError"),
    file("import", "import not_there # here\n", "ModuleNotFoundError"),
    file("absent", "class Right: pass\n", "{file}: has no class Wrong; it has Right"),
    file("number", "Wrong = 3\n", "{file}: int is not a method"),
    file("no method", "@dataclass(frozen=True)\nclass Wrong: # here\n    pass\n", "class Wrong is not a method"),
    file("no dataclass", "class Wrong(FedAvg): # here\n    pass\n", "Wrong is not a frozen dataclass"),
    file("thawed", "@dataclass\nclass Wrong(Algorithm): # here\n    pass\n", "Wrong is not a frozen dataclass"),
    file("no round", "@dataclass(frozen=True)\nclass Wrong(Algorithm): # here\n    pass\n", "Wrong has no round("),
    file(
        "hints", "@dataclass(frozen=True)\nclass Wrong(FedAvg): # here\n    a: 'Gone' = 1\n", "NameError: name 'Gone'"
    ),
    file(
        "default", "@dataclass(frozen=True)\nclass Wrong(FedAvg): # here\n    a: int = 'x'\n", "the default of Wrong.a"
    ),
    file("mutable", "@dataclass(frozen=True) # here\nclass Wrong(FedAvg):\n    a: list = []\n", "mutable default"),
    hook("options", "def __post_init__(self):\n    self.gone # here", "in __post_init__(): AttributeError"),
    hook(
        "arguments", "def upload(self, client): # here\n    pass", "cannot be called as upload(self, client, received"
    ),
    hook("no function", "round = 3", "Wrong.round cannot be called as round(self, server, ctx, cohort)"),
]
RAISING = [
    hook("models raises", f"def models(self):\n    {RAISES}", "in models(): RuntimeError: no luck"),
    hook("models gives none", "def models(self): # here\n    pass", "in models(): models() must name 'model'"),
    hook(
        "models gives odd", "def models(self): # here\n    return {'model': None, 'a': 3}", "models()['a']: give a word"
    ),
    hook("setup raises", f"def setup(self, ctx):\n    {RAISES}", "in setup(): RuntimeError: no luck"),
    hook("setup exits", "def setup(self, ctx):\n    sys.exit(0) # here", "in setup(): SystemExit: 0"),
    hook("setup gives none", "def setup(self, ctx): # here\n    pass", "in setup(): the server's state is None"),
    hook(
        "setup gives a list",
        "def setup(self, ctx): # here\n    return {'w': [1]}",
        "state 'w' is a list, expected a tensor",
    ),
    hook(
        "setup gives numbers",
        "def setup(self, ctx): # here\n    return {1: ctx.initial}",
        "has the name 1, expected a text",
    ),
    hook(
        "setup writes", "def setup(self, ctx): # here\n    return {'w': ctx.initial.mul_(2)}", "writes into ctx.initial"
    ),
    hook("global_model raises", f"def global_model(self, server):\n    {RAISES}", "round 1: ", "in round(): Run"),
    hook(
        "global_model gives none",
        "def global_model(self, server):\n    pass",
        "round 1: ",
        "is None, expected a dict",
    ),
    hook(
        "receive raises",
        f"def receive(self, client, down):\n    {RAISES}",
        "round 1, client 0: ",
        "in receive(): Run",
    ),
    hook(
        "train raises",
        f"def train(self, client, received, trainer, phase):\n    {RAISES}",
        "in train(): RuntimeError",
    ),
    hook("train exits", "def train(self, client, received, trainer, phase):\n    sys.exit() # here", "SystemExit"),
    hook(
        "train gives none",
        "def train(self, client, received, trainer, phase): # here\n    pass",
        "expected the loss as",
    ),
    hook(
        "train gives infinity",
        "def train(self, client, received, trainer, phase):\n    return float('inf')",
        "round 1, client 0: the training loss is infinite",
    ),
    hook("loss raises", f"def loss(self, out, y, w, received):\n    {RAISES}", "client 0: ", "no luck"),
    hook(
        "loss is no scalar",
        "def loss(self, out, y, w, received): # here\n    return out.logits_NC",
        "expected a scalar tensor",
    ),
    hook(
        "loss is a number",
        "def loss(self, out, y, w, received): # here\n    return 1.0",
        "gives float, expected a sc",
    ),
    hook(
        "loss has no gradient",
        "def loss(self, out, y, w, received): # here\n    return torch.ones(())",
        "without a g",
    ),
    hook(
        "loss is NaN",
        "def loss(self, out, y, w, received):\n    return out.logits_NC.sum() * float('nan')",
        "round 1, client 0: the training loss is NaN",
    ),
    hook(
        "term is odd",
        "def train(self, client, received, trainer, phase): # here\n    return trainer.fit(client, received, term=3)",
        "expected a function that gives the term, or None, got a int",
    ),
    hook(
        "term is no scalar",
        "def train(self, client, received, trainer, phase):\n"
        "    return trainer.fit(client, received, term=lambda: torch.ones(2)) # here",
        "gives [2], expected a scalar tensor",
    ),
    hook(
        "upload recurses",
        "def upload(self, client, received, phase):\n    return self.upload(client, received, phase) # here",
        "Rec",
    ),
    hook(
        "receive writes",
        "def receive(self, client, down):\n    down['w'].mul_(0.9)\n    return super().receive(client, down)",
        "Wrong writes into the download 'w', which is read-only",
    ),
    hook(
        "predict raises",
        f"def predict(self, client, received, part):\n    {RAISES}",
        "in predict(): RuntimeError: no luck",
    ),
    hook(
        "predict of odd shape",
        "def predict(self, client, received, part): # here\n    return torch.ones(2, 2)",
        "expected scores",
    ),
    hook("predict gives none", "def predict(self, client, received, part): # here\n    pass", "gives NoneType for"),
    hook(
        "predict is NaN",
        "def predict(self, client, received, part):\n    return super().predict(client, received, part) * float('nan')",
        "round 1, client ",
        ": predictions of 'val' are NaN or infinite",
    ),
    hook(
        "odd message",
        "def upload(self, client, received, phase):\n    class Odd(BaseException):\n        def __str__(self):\n"
        "            1 / 0\n    raise Odd # here",
        "Odd: (its message cannot be read)",
    ),
]
STEPS = [
    steps("raises", f"{RAISES}\nyield", "round 1: ", "in round(): RuntimeError: no luck"),
    steps("exits", "sys.exit(0) # here\nyield", "round 1: ", "in round(): SystemExit: 0"),
    steps("interrupts", "raise KeyboardInterrupt # here\nyield", "round 1: ", "in round(): KeyboardInterrupt"),
    hook("no generator", "def round(self, server, ctx, cohort): # here\n    pass", "gives None, expected a generator"),
    hook(
        "a list",
        "def round(self, server, ctx, cohort): # here\n    return [Ask('a', {})]",
        "gives a list, expected a gen",
    ),
    steps("yields none", "yield # here", "yields None, expected an Ask or a Mix"),
    steps(
        "yields odd", "yield Ask('train', {'w': Reduce.MEAN})\nyield 3 # here", "yields a int, expected an Ask or a Mix"
    ),
    steps("phase", "yield Ask(3, {}) # here", "Ask(phase=3), expected the name of a phase"),
    steps("no phase", "yield Ask('', {}) # here", "Ask(phase=''), expected the name of a phase"),
    steps("up", "yield Ask('train', ['w']) # here", "Ask(up) is a list"),
    steps(
        "how",
        "yield Ask('train', {'w': 'sum'}) # here",
        "Ask(up) has 'w': 'sum', expected a name and one of Reduce",
    ),
    steps("shared", "yield Ask('train', {}, shared={'w': [1.0]}) # here", "(shared) 'w' is a list, expected a tensor"),
    steps(
        "private", "yield Ask('train', {}, private={60: {}}) # here", "Ask(private) names client 60, there are 0 to 5"
    ),
    steps("private tree", "yield Ask('train', {}, private={1: 3}) # here", "Ask(private) of client 1 is a int"),
    steps("to", "yield Ask('train', {}, to=[0, -1]) # here", "Ask(to) names client -1, there are 0 to 5"),
    steps("to odd", "yield Ask('train', {}, to=3) # here", "Ask(to) is a int, expected numbers of clients"),
    steps("unread ask", "yield Ask('train') # here", "in round(): TypeError"),
    steps("mix rows", "yield Mix('w', [1.0]) # here", "Mix(rows) is a list, expected a tensor"),
    steps("mix entry", "yield Mix('w', torch.ones(6)) # here", "Mix('w') before any Ask uploaded it"),
    steps("mix dst", "yield Ask('train', {'w': Reduce.MIX})\nyield Mix('w', torch.eye(6), [9] * 6) # here", "client 9"),
    steps(
        "mix shape",
        "yield Ask('train', {'w': Reduce.MIX})\nyield Mix('w', torch.eye(2)) # here",
        "is [2, 2], expected [6]",
    ),
    steps("state", "yield Ask('train', {})\nserver['n'] = 3", "round 1: ", "the server's state 'n' is a int"),
    steps(
        "notes", "yield Ask('train', {})\nctx.notes['n'] = 'x'", "round 1: ", "ctx.notes['n'] is a str, expected a num"
    ),
    steps("initial", "yield Ask('train', {})\nctx.initial.zero_()", "round 1: ", "writes into ctx.initial"),
    steps(
        "no such entry", "got = yield Ask('train', {'w': Reduce.MEAN})\ngot['v'] # here", "in round(): KeyError: 'v'"
    ),
]
UPLOADS = [
    upload("none", "return None", "in upload(): gives None, expected an Upload"),
    upload("a dict", "return {'w': client.model.w}", "gives a dict, expected an Upload"),
    upload("no dict", "return Upload([client.model.w])", "gives Upload(entries) as a list"),
    upload("no tensor", "return Upload({'w': [1.0]})", "the entry 'w' is a list, expected a tensor"),
    upload("sparse", "return Upload({'w': sent.entries['w'].to_sparse()})", "the entry 'w' is a sparse tensor"),
    upload("int", "return Upload({'w': sent.entries['w'].long()})", "gives 'w' as int64, a sum needs floats"),
    upload("complex", "return Upload({'w': sent.entries['w'].cfloat()})", "gives 'w' as complex64, a sum needs floats"),
    upload(
        "double", "return Upload({'w': sent.entries['w'].double()})", "gives 'w' as float64 [", "parameters are float32"
    ),
    upload(
        "half", "return Upload({'w': sent.entries['w'].half()})", "gives 'w' as float16 [", "parameters are float32"
    ),
    upload("short", "return Upload({'w': sent.entries['w'][:3]})", "gives 'w' as float32 [3], the model's parameters"),
    upload("missing", "return Upload({})", "in upload(): gives no 'w', which the round asks for"),
    upload("negative", "return Upload(sent.entries, {'w': -1.0})", "weighs 'w' by a negative number, -1.0"),
    upload(
        "wide weight", "return Upload(sent.entries, {'w': torch.ones(3)})", "weighs 'w' by float32 [3], which does not"
    ),
    upload("odd weight", "return Upload(sent.entries, {'w': 'much'})", "weighs 'w' by a str, expected a number"),
    hook(
        "NaN weight",
        "def upload(self, client, received, phase):\n    return Upload({'w': client.model.w}, {'w': float('nan')})",
        "round 1, client 0: upload() gives NaN or infinity in 'w'",
    ),
    upload("upload_bytes", "return Upload(sent.entries, {}, {'w': -4})", "gives -4 as the bytes of 'w'"),
    upload("state", "client.state['n'] = 3", "client.state 'n' is a int, expected a tensor"),
    upload("no state", "client.state = None", "client.state is None, expected a dict"),
    upload(
        "model", "client.state['model.w'] = torch.ones(3)", "gives 'model.w' as float32 [3], the model's parameters"
    ),
    upload("load", "client.model.load(torch.ones(1)) # here", "ValueError: parameters of shape [1], the model has ["),
]
DATA = [
    data("x", "data.x.zero_()", "writes into client.data.x, which is read-only"),
    data("a row of x", "data.x[3].add_(1)", "writes into client.data.x, which is read-only"),
    data("x behind torch's back", "data.x.numpy().fill(0)", "writes into client.data.x, which is read-only"),
    data("the data of x", "data.x.data.zero_()", "writes into client.data.x, which is read-only"),
    data("a hop", "data.hop(1).mul_(2)", "writes into client.data.hop(1), which is read-only"),
    data("labels", "data.label.zero_()", "writes into client.data.label, which is read-only"),
    data("training labels", "data.train_label.zero_()", "writes into client.data.train_label, which is read-only"),
    data("rows", "data.train.flip(0) if False else data.train.sub_(1)", "writes into client.data.train, which is"),
    data("degrees", "data.degree.zero_()", "writes into client.data.degree, which is read-only"),
    data("the adjacency", "data.adjacency.values().zero_()", "writes into client.data.adjacency, which is read-only"),
    data("edges", "data.edges[1].zero_()", "writes into client.data.edges, which is read-only"),
    data(
        "an entry", "data.cache('mine', lambda: torch.ones(3)).zero_()", "writes into client.data.mine, which is read"
    ),
    data("columns", "data.csr[1].fill(0) # here", "ValueError: assignment destination is read-only"),
    data("ids", "data.node[0] = 5 # here", "ValueError: assignment destination is read-only"),
    data(
        "an attribute", "data.train = data.train[:1] # here", "AttributeError: the data of a client is read-only: train"
    ),
    data("x before it raises", "data.x.zero_(); 1 / 0", "writes into client.data.x, which is read-only"),
]
WRONG = {
    f"{kind}: {case.name}": case
    for kind, cases in (("file", FILES), ("hook", RAISING), ("round", STEPS), ("upload", UPLOADS), ("data", DATA))
    for case in cases
}
