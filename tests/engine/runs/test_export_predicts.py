"""Every method's predictions follow from its export, by plain torch, dense matrices and the arrays of the store."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from support.fixtures import Keys, Make
from support.methods import FEDDEP, GCN, GRAPH_ONLY, MENDED, NEEDS
from support.shards import adjacency
from support.small_fedsage_plus import augmented, sage
from torch import Tensor

from shoal.algorithms.methods.registry.load import describe, load
from shoal.algorithms.methods.registry.names import METHODS
from shoal.engine.preparing.prepare import prepare
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run
from shoal.kept.removal import remove
from shoal.storage.shards.shard import Shard

Named = dict[str, Tensor]
GENERATOR = {"generator_rounds": 1, "hidden": 6}, {"name": "sage", "hidden": 8, "head": "linear"}
MINE: dict[str, tuple[Keys, Any]] = {
    **dict.fromkeys(MENDED, GENERATOR),
    "fggp": ({"hidden": 6, "head_mode": "personal"}, GCN),
    "adafgl": ({"shared_rounds": 2, "hidden": 6}, GCN),
    "feddep": (FEDDEP, GENERATOR[1]),
}
# Others predict by their models alone; those of graphs are tested beside their methods.
OF_ITS_OWN = ("fedavg", "fednh", "fggp", "adafgl", "fedlog", "feddep", *MENDED)
OTHERS = [name for name in METHODS if name not in (*OF_ITS_OWN, *GRAPH_ONLY)]


def below(tensors: Mapping[str, Tensor], prefix: str) -> Named:
    """Those whose names begin so, without the prefix."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def smoothing(a: np.ndarray) -> Tensor:
    loops = a + np.eye(len(a))
    root = loops.sum(1) ** -0.5
    return torch.from_numpy(root[:, None] * loops * root).float()


def gcn(p: Named, s: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Embeddings, and scores by a linear classifier."""
    z = F.relu(s @ x @ p["convs.0.lin.weight"].t() + p["convs.0.bias"])
    z = s @ z @ p["convs.1.lin.weight"].t() + p["convs.1.bias"]
    return z, z @ p["head.linears.0.weight"].t() + p["head.linears.0.bias"]


def by_bank(z: Tensor, bank: Tensor, classes: Tensor) -> Tensor:
    """The class of the nearest prototype (FGGP)."""
    cosine = F.normalize(F.relu(z)) @ F.normalize(bank).t()
    return classes[cosine.argmax(1)]


def perceptron(flat: list[Tensor], widths: list[int], x: Tensor) -> Tensor:
    """The next linear layers of a flat vector, with one PReLU for all; what is left of the vector stays in the list."""
    for number, (n_in, n_out) in enumerate(pairwise(widths)):
        weight, bias, flat[0] = flat[0].split([n_in * n_out, n_out, len(flat[0]) - n_in * n_out - n_out])
        slope = flat[0][sum(a * b + b for a, b in pairwise(widths[number + 1 :]))]
        x = x @ weight.view(n_out, n_in).t() + bias
        x = torch.where(x > 0, x, slope * x) if number + 2 < len(widths) else x
    flat[0] = flat[0][1:]
    return x


def by_branches(state: Named, logits: Tensor, a: np.ndarray, x: Tensor) -> Tensor:
    """AdaFGL's second phase with its default options, hidden width 6."""
    p, loops, alpha, beta = logits.softmax(1), torch.eye(len(a)), 0.5, 0.2
    unit = F.normalize(p)
    similar = (unit @ unit.t() > 0.999) * (1 - loops)
    mixed = alpha * torch.from_numpy(a).float() + (1 - alpha) * similar + loops
    root = mixed.sum(1).rsqrt()
    hops = [x]
    for _ in range(3):
        hops.append((root[:, None] * mixed * root) @ hops[-1])
    wide, c, flat = torch.cat(hops, 1), p.shape[1], [state["branches"]]
    f, w = x.shape[1], wide.shape[1]
    homo = perceptron(flat, [w, 6, c], wide)
    own = perceptron(flat, [f, 6, 6, c], x)
    smooth = perceptron(flat, [w, 6, 6, c], wide)
    y = perceptron(flat, [w, 6, 6, c], wide)
    assert not len(flat[0])
    of_y = F.normalize(y.softmax(1))
    r = beta * similar + (1 - beta) * (of_y @ of_y.t()) * (1 - loops)
    mean = r.sum() / (len(r) * (len(r) - 1))
    weights = torch.where(r > mean, (r - mean) / (r.max() - mean), (r - mean) / mean) * (1 - loops) + loops
    message = (y + (weights.clamp_min(0) @ y).softmax(1) - (-weights).clamp_min(0).matmul(y).softmax(1)) / 2
    hetero = (own.softmax(1) + smooth.softmax(1) + message.softmax(1)) / 3
    return state["homophily"] * (homo.softmax(1) + p) / 2 + (1 - state["homophily"]) * hetero


def by_condensed(state: Named, p: Named, z: Tensor, degree: Tensor) -> Tensor:
    """The probabilities by the prototypes of FedLoG's two branches, with a threshold of 3."""
    nodes = state["nodes"]
    proto = gcn(p, torch.eye(nodes[..., 0].numel()), nodes.flatten(0, 2))[0].unflatten(0, nodes.shape[:3]).mean(2)
    normed = torch.stack([F.layer_norm(z, z.shape[1:], *norm) for norm in state["norms"]])
    high, low = (-torch.cdist(normed, proto).square()).softmax(2)
    share = torch.sigmoid(degree - 4)[:, None]
    return share * high + (1 - share) * low


def generated(state: Named, noise: str, a: np.ndarray, x: Tensor, width: int) -> tuple[list[int], Tensor]:
    """Counts neighbours that nodes miss by a generator of width 6, and makes five of each, `[N, 5, …]`."""
    f, h, parts, flat = x.shape[1], 6, {}, state["generator"]
    heads = (("encoder.head.linears.0.", 1, h), ("maker.linears.0.", h, h), ("maker.linears.1.", 5 * width, h))
    shapes = [(f"{at}{name}", of) for at, *of in heads for name in ("weight", "bias")]
    layers = (("encoder.convs.0.", h, f), ("encoder.convs.1.", h, h))
    # The encoder's head comes first, then its layers, then the maker.
    shapes[2:2] = [(f"{at}{name}", of) for at, *of in layers for name in ("lin_l.weight", "lin_l.bias", "lin_r.weight")]
    for name, of in shapes:
        shape = of[:1] if name.endswith("bias") else of
        size = int(np.prod(shape))
        parts[name], flat = flat[:size].view(*shape), flat[size:]
    missing, z = sage(parts, "encoder.", a, x)
    z = z + torch.randn(z.shape, generator=torch.Generator().manual_seed(int(state[noise])))
    deep = F.relu(z @ parts["maker.linears.0.weight"].t() + parts["maker.linears.0.bias"])
    made = (deep @ parts["maker.linears.1.weight"].t() + parts["maker.linears.1.bias"]).view(len(x), 5, width)
    return missing[:, 0].round().clamp(0, 5).long().tolist(), made


def with_generated(state: Named, a: np.ndarray, x: Tensor) -> tuple[np.ndarray, Tensor]:
    """The graph with the neighbours that FedSage+'s generator makes for its nodes."""
    count, made = generated(state, "mended", a, x, x.shape[1])
    return augmented(a, x, [list(of_node[:n]) for of_node, n in zip(made, count)])


def with_embeddings(p: Named, state: Named, fusion: Tensor | None, a: np.ndarray, x: Tensor) -> Tensor:
    """Scores by two layers of width 8 that add what FedDEP generated for their nodes."""
    e = torch.zeros(len(x), 6)
    if "noise" in state:
        count, made = generated(state, "noise", a, x, 6)
        e = torch.stack([torch.tanh(of_node[:n]).sum(0) / 5 for of_node, n in zip(made, count)])
    table = torch.from_numpy(a / np.maximum(a.sum(1, keepdims=True), 1)).float()
    for layer, u in enumerate(torch.zeros(2, 8, 6) if fusion is None else fusion.view(2, 8, 6)):
        x, of = F.relu(x) if layer else x, f"convs.{layer}."
        x = table @ x @ p[of + "lin_l.weight"].t() + p[of + "lin_l.bias"] + x @ p[of + "lin_r.weight"].t() + e @ u.t()
    return x @ p["head.linears.0.weight"].t() + p["head.linears.0.bias"]


def of_nodes(name: str, p: Named, state: Named, down: Named, shard: Shard, train: list[int]) -> Tensor:
    """Predicted classes of a client's nodes, of which some train."""
    a, x = adjacency(shard).toarray(), torch.from_numpy(np.array(shard.x))
    if name.startswith("fedsage_plus"):
        wide, features = with_generated(state, a, x) if "mended" in state else (a, x)
        return sage(p, "", wide, features)[0][: shard.nodes].argmax(1)
    if name == "feddep":
        return with_embeddings(p, state, down.get("fusion"), a, x).argmax(1)
    z, logits = gcn(p, smoothing(a), x)
    if name == "fednh":
        return (F.normalize(z) @ F.normalize(p["head.linears.0.weight"]).t()).argmax(1)
    if "norms" in state:
        return by_condensed(state, p, z, torch.from_numpy(a.sum(1))).argmax(1)
    if name == "fggp":
        if "bank" not in down and train:
            # Who never took part has the means of its own classes.
            y = torch.from_numpy(shard.label[train])
            down = {"bank.class": y.unique()}
            down["bank"] = torch.stack([F.relu(z[train])[y == c].mean(0) for c in down["bank.class"]])
        return by_bank(z, down["bank"], down["bank.class"]) if down else torch.zeros(len(z))
    if "branches" in state:
        logits = by_branches(state, logits, a, x)
    return logits.argmax(1)


@pytest.mark.parametrize("name", [*OF_ITS_OWN, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in OTHERS)])
def test_predictions_follow_from_the_export(configure: Make, tmp_path: Path, name: str) -> None:
    options, model = MINE.get(name) or NEEDS.get(name, ({}, GCN))
    keys: dict[str, Any] = {"algorithm": {"name": name, **options}, "model": model, "participation.ratio": 0.5}
    keys |= {"rounds": 3, "evaluation.every": 3, "run.root": str(tmp_path), "run.tensorboard": False}
    config = configure(keys)
    out = export(run(config))
    models = load_file(out / "models.safetensors")
    beside = load_file(out / "beside.safetensors") if (out / "beside.safetensors").exists() else {}
    batch = pa.ipc.open_file(out / "predictions.arrow").get_batch(0)
    column = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in batch.schema.names}
    store = prepare(config, load(describe(name, options)).centralized)
    assert "deployed" in column
    train = column["part"] == "train"
    for client in range(store.clients):
        mine = column["client"] == client
        own, round_ = f"client/{client:05d}/", f"round/{int(beside['round'][client]) if beside else 0:06d}/"
        state = below(beside, f"{own}state/")
        found = {"global": (below(models, "global/"), {}, below(beside, "global/download/"))}
        for prefix, of in ((own, models), (own, beside), (round_, beside), ("global/", models)):
            if "convs.0.bias" in (p := below(of, prefix)) or "convs.0.lin_l.bias" in p:
                found["deployed"] = p, state, below(beside, f"{round_}download/")
                break
        for scope in {"deployed", "global"} & column.keys():
            predicted = of_nodes(name, *found[scope], store.shard(client), train[mine].nonzero()[0].tolist())
            np.testing.assert_array_equal(column[scope][mine], predicted.numpy(), err_msg=scope)
    assert remove([out.parent], lambda _: True)
    assert not out.parent.exists()
