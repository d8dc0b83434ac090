"""Methods that take a model apart, where its classifier passes messages."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from support.errors import refused
from support.fixtures import Start

NAMES = ("gcn", "sage", "gat", "gin", "gcnii")
# Parameters of the last layer for each, five features, four classes, width 8.
SIZES = {"gcn": 36, "gcnii": 36, "sage": 36 + 32, "gat": 36 + 8, "gin": 36 + 64 + 8 + 1}


def model(name: str) -> Mapping[str, Any]:
    return {"name": name, "hidden": 8, "head": "conv", **({"heads": 2} if name == "gat" else {})}


@pytest.mark.parametrize("name", NAMES)
def test_lg_fedavg_shares_the_whole_last_layer(run: Start, start: Start, name: str) -> None:
    keys = {"algorithm.name": "lg_fedavg", "model": model(name)}
    first = start(keys)
    assert len(first.state.server["w"]) == SIZES[name]
    server = run(keys, rounds=2)
    bodies, tops = [], []
    for client in range(5):
        flat = server._built["model"][0].flat
        w = server.state.clients[client]["model.w"]
        flat.load(w)
        top = {key for key, _ in flat.module.named_parameters() if key.startswith("head.")}
        tops.append(torch.cat([p.detach().flatten() for key, p in flat.module.named_parameters() if key in top]))
        bodies.append(torch.cat([p.detach().flatten() for key, p in flat.module.named_parameters() if key not in top]))
    torch.testing.assert_close(server.state.server["w"], torch.stack(tops).mean(0))
    assert not torch.equal(bodies[0], bodies[1])


@pytest.mark.parametrize(("method", "keeps"), [("gcfl_plus", "classifier"), ("fggp", "head")])
@pytest.mark.parametrize("name", ["sage", "gat", "gin"])
def test_classifiers_kept_by_clients_are_whole(run: Start, method: str, keeps: str, name: str) -> None:
    more = {"algorithm.head_mode": "personal", "algorithm.gkic": "off"} if method == "fggp" else {}
    server = run({"algorithm.name": method, "model": model(name), **more}, rounds=2)
    kept = [tree[keeps] for tree in server.state.clients.values() if keeps in tree]
    assert kept
    assert {len(top) for top in kept} == {SIZES[name]}
    assert not torch.equal(kept[0], kept[1])


@pytest.mark.parametrize("method", ["fednh", "fedgen"])
@pytest.mark.parametrize("name", NAMES)
def test_methods_that_read_a_classifier_s_weight(start: Start, method: str, name: str) -> None:
    keys = {"algorithm.name": method, "model": model(name)}
    if name in ("gcn", "gcnii"):
        start(keys).round()
        return
    with refused("model.head", says=f"a {name} with head: conv"):
        start(keys)


def test_classifiers_of_one_size_are_averaged(start: Start) -> None:
    models = [model("gcn"), {"name": "gin", "hidden": 8}, model("gcnii")]
    start({"algorithm.name": "lg_fedavg", "model": models}).round()
    with refused("model.head", says="that of gcn has 36 parameters and that of sage 68"):
        start({"algorithm.name": "lg_fedavg", "model": [model("gcn"), model("sage")]})
