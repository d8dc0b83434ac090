"""Rounds of hidden uploads against plain ones: equal sums, with dropouts, and nothing plain at the server."""

import pickle
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tenseal
import torch
from support.errors import refused
from support.methods import MENDED
from support.toy_method import NAME as TOY
from torch import Tensor

from shoal.algorithms.methods.registry.names import METHODS
from shoal.algorithms.protocol import Reduce, Tree, Upload
from shoal.engine.config.config import Config
from shoal.engine.messages.cell import Cell, Outcome, PartialSum
from shoal.engine.rounds.costs import Pool
from shoal.engine.rounds.reduction import Sums
from shoal.engine.rounds.server import Server
from shoal.engine.runs.plan import plan_of
from shoal.engine.stages.secure.homomorphic import Homomorphic, KeyHolder
from shoal.engine.stages.secure.masks import Masks
from shoal.engine.stages.secure.section import SecureOptions
from shoal.engine.stages.secure.secure import BITS, Secure

Start = Callable[..., Server]
MASKED = {"secure.kind": "masks"}
KINDS = [MASKED, {"secure.kind": "homomorphic"}]
UP = {"w": Reduce.MEAN}
ROOT = Path(__file__).parents[4]


class Watched:
    """A pool that keeps what comes to the server."""

    def __init__(self, pool: Pool) -> None:
        self._pool, self.seen = pool, list[Outcome]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def run_cells(self, cells: Sequence[Cell], shared: Tree) -> Iterator[tuple[int, Outcome]]:
        for position, outcome in self._pool.run_cells(cells, shared):
            self.seen.append(replace(outcome, sums={places: replace(of) for places, of in outcome.sums.items()}))
            yield position, outcome


def secured(kind: str, clients: Sequence[int], threshold: float = 0.5) -> Secure:
    options = SecureOptions(kind, threshold)
    if kind == "masks":
        return Masks(options, tuple(clients), (5, 1, "train", 1))
    holder = KeyHolder()
    return Homomorphic(options, tuple(clients), holder.public, holder)


def watched(start: Start, **keys: Any) -> tuple[Server, list[Outcome]]:
    pools: list[Watched] = []

    def watch(pool: Pool) -> Pool:
        pools.append(Watched(pool))
        return pools[0]

    return start({"engine.cell_size": 1, **keys}, pool=watch), pools[0].seen


def numbers(outcome: Outcome) -> list[Tensor]:
    """All tensors in an outcome of one client."""
    parts = [
        torch.as_tensor(t) for part in outcome.sums.values() for t in (*part.total.values(), *part.weight.values())
    ]
    return [*parts, *outcome.tensors.values(), *(t for of in outcome.lists.values() for t in of)] + [
        t for of in outcome.states.values() for t in of.values()
    ]


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedproto"])
def test_rounds_are_the_plain_ones_to_the_rounding_and_equal(start: Start, method: str) -> None:
    plain, masked, encrypted = (start({"algorithm.name": method, **keys}) for keys in ({}, *KINDS))
    before = {name: t.clone() for name, t in plain.state.server.items()}
    for server in (plain, masked, encrypted):
        server.round()
    assert any(not torch.equal(before.get(name, torch.empty(0)), t) for name, t in plain.state.server.items())
    for name, t in plain.state.server.items():
        torch.testing.assert_close(masked.state.server[name], t, rtol=1e-6, atol=2e-7)
        assert torch.equal(encrypted.state.server[name], masked.state.server[name])


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_that_arrives_at_the_server_is_like_a_plain_upload(start: Start, kind: dict[str, str]) -> None:
    keys = {"train.optimizer": "sgd", "train.momentum": 0.0}
    plain, uploads = watched(start, **keys)
    masked, seen = watched(start, **keys, **kind)
    plain.round()
    masked.round()
    sent = [outcome for outcome in seen if outcome.sums]
    assert len(sent) == len(masked.cohort(1)) > 2
    of_client = {o.ids[0]: next(iter(o.sums.values())).total["w"].double() for o in uploads if o.sums}
    for outcome in sent:
        assert not outcome.states.get(outcome.ids[0])
        found = numbers(outcome)
        shape = len(of_client[outcome.ids[0]])
        assert [t.tolist() for t in found[1:]] == [[1, shape]]
        hidden = found[0]
        if kind == MASKED:
            assert (hidden.dtype, len(hidden)) == (torch.int64, shape + 1)
            assert int(hidden[-1].abs()) > 2**40
            assert len(hidden.unique()) == shape + 1
        else:
            assert (hidden.dtype, len(hidden) > 81920) == (torch.uint8, True)
        for w in of_client.values():
            plain = (w * 2**BITS).round().long()
            assert plain.numpy().tobytes() not in hidden.numpy().tobytes()
            # Five deviations of the correlation of independent numbers; a client without training items sends zeros.
            of_one = hidden[:shape] if kind == MASKED else hidden[2000 : 2000 + shape]
            assert not w.any() or abs(np.corrcoef(of_one.double(), w)[0, 1]) < 5 / len(w) ** 0.5


def test_two_exchanges_and_two_rounds_draw_other_masks() -> None:
    one = Upload({"w": torch.zeros(64)}, {})
    streams = [(0, 1, "train", 1), (0, 1, "train", 2), (0, 2, "train", 1), (1, 1, "train", 1)]
    drawn = [Masks(SecureOptions("masks"), (0, 1), stream).hidden(0, one, UP).entries["w"] for stream in streams]
    for place, first in enumerate(drawn):
        assert all(not bool((first == second).any()) for second in drawn[place + 1 :])


@pytest.mark.parametrize("lost", [[], [3], [0, 4, 7], list(range(2, 9))])
@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("kind", ["masks", "homomorphic"])
def test_sums_of_survivors_are_within_the_bound(lost: list[int], by_row: bool, kind: str) -> None:
    rng = np.random.default_rng(0)
    secure = secured(kind, range(9), threshold=0.2)
    values, weights = rng.normal(size=(9, 4, 3)), rng.uniform(0, 9, (9, 4, 1) if by_row else 9)
    survivors = [client for client in secure.clients if client not in lost]
    sums = Sums(secure)
    for client in survivors:
        upload = Upload({"w": torch.tensor(values[client])}, {"w": torch.tensor(weights[client])})
        sent = secure.hidden(client, upload, UP)
        sums.take(range(client, client + 1), PartialSum(client, sent.entries, dict(sent.weight)))
        # One ciphertext holds all numbers, twice 40 bits for each of 4096.
        sizes = range(8 * (12 + weights[client].size), 8 * (12 + weights[client].size) + 1)
        assert sent.upload_bytes["w"] in (sizes if kind == "masks" else range(81920, 110000))
    whole = sums.whole
    secure.read(whole, survivors)
    bound = len(survivors) * 2.0 ** -(BITS + 1) + 1e-12
    exact = sum(values[client] * weights[client] for client in survivors)
    assert np.abs(whole.total["w"].numpy() - exact).max() <= bound
    assert np.abs(np.asarray(whole.weight["w"]) - sum(weights[client] for client in survivors)).max() <= bound


@pytest.mark.parametrize("answered", [5, 4, 2])
def test_rounds_with_dropouts_are_those_of_the_survivors(start: Start, answered: int) -> None:
    keys = {"algorithm.name": TOY, "algorithm.client": -1, "algorithm.first": answered}
    keys |= {"engine.on_client_error": "skip"}
    plain, *hidden = (start({**keys, **more}) for more in ({}, *({**kind, "secure.threshold": 0.1} for kind in KINDS)))
    for server in (plain, *hidden):
        assert server.round()["cohort"] == list(range(answered))
    for server in hidden:
        torch.testing.assert_close(server.state.server["w"], plain.state.server["w"], rtol=1e-6, atol=2e-7)


def test_rounds_on_hops_over_cut_edges_in_hidden_sums(start: Start) -> None:
    keys = {"data.cross_edges": "hops", "data.cross_hidden": True, "propagation.hops": 2, "model": "sgc"}
    plain, hidden = start(keys), start({**keys, **MASKED})
    assert plain.round()["loss"] == hidden.round()["loss"]
    torch.testing.assert_close(hidden.state.server["w"], plain.state.server["w"], rtol=1e-6, atol=2e-7)
    with refused("secure.kind", says="drop, or data.cross_hidden true"):
        start({**keys, **MASKED, "data.cross_hidden": False})


@pytest.mark.parametrize(("kind", "limit"), [("masks", 2.0**37), ("homomorphic", 2.0**33)])
def test_numbers_that_do_not_fit_are_refused_and_others_are_exact(kind: str, limit: float) -> None:
    secure = secured(kind, (0, 1))
    for value, weight, says in (
        (limit, 1.0, f"numbers below {limit:.3g} in size are added up"),
        (1.0, 2.0**-26, "weights are rounded to 2^-24"),
    ):
        with refused(says=says):
            secure.hidden(0, Upload({"w": torch.tensor([value])}, {"w": weight}), UP)
    # More than one ciphertext, at the ends of what they hold.
    values = torch.full((5000,), limit - 2.0**-15, dtype=torch.float64)
    sums = Sums(secure)
    for client in (0, 1):
        sent = secure.hidden(client, Upload({"w": -values}, {"w": 1.0}), UP)
        sums.take(range(client, client + 1), PartialSum(client, sent.entries, dict(sent.weight)))
    secure.read(sums.whole, (0, 1))
    assert torch.equal(sums.whole.total["w"], -2 * values)


def test_keys_stay_at_the_holder_and_damaged_ciphertexts_are_refused() -> None:
    secure = secured("homomorphic", (0, 1))
    away = pickle.loads(pickle.dumps(secure))
    assert away.holder is None
    assert not tenseal.context_from(secure.public).is_private()
    sent = away.hidden(0, Upload({"w": torch.ones(7)}, {}), UP)
    for damage, says in (("cut", "what a client sent is no ciphertext"), ("bit", "the sum of 'w' is no ciphertext")):
        data = sent.entries["w"].clone()
        data[len(data) // 2] ^= 4
        part = PartialSum(0, {"w": data[:-9] if damage == "cut" else data}, dict(sent.weight))
        with refused("secure.kind", says=says):
            secure.read(part, (0, 1))
    with pytest.raises(ValueError, match="secret"):
        tenseal.bfv_vector_from(tenseal.context_from(secure.public), sent.entries["w"].numpy().tobytes()).decrypt()


def test_without_tenseal_the_extra_is_named(
    make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tenseal", None)
    with refused("secure.kind", says="pip install 'shoal[homomorphic]'"):
        plan_of(make_config(secure__kind="homomorphic"))


def test_shapes_that_differ_are_refused() -> None:
    for kind in ("masks", "homomorphic"):
        secure, parts = secured(kind, (3, 4)), []
        for client, size in ((3, 5), (4, 6)):
            sent = secure.hidden(client, Upload({"w": torch.ones(size)}, {}), UP)
            parts.append(PartialSum(client, sent.entries, dict(sent.weight)))
        with refused(says="upload() gives 'w' as [5] at client 3 and as [6] at client 4"):
            secure.join(*parts)


# Of methods that need another model than that of the run.
NEED: dict[str, dict[str, Any]] = {
    "fedgkc": {"algorithm.copilot": {"name": "gcn", "hidden": 8}},
    "fggp": {"model.name": "gcn"},
    **{name: {"model.name": "sage", "algorithm.generator_rounds": 2} for name in MENDED},
    "fedgcn": {"model.name": "gcn", "algorithm.hops": 0},
    "fediih": {"model": {"name": "disengcn", "hidden": 8}},
    "feddep": {"model": {"name": "sage", "hidden": 8}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_catalogue_names_the_methods_that_cannot_hide_what_they_send(start: Start, kind: dict[str, str]) -> None:
    text = (ROOT / "docs" / "catalogue.md").read_text()
    (line,) = re.findall(r"`secure` refuses ([^:]*):", text, re.DOTALL)
    refuses = set(re.findall(r"`(\w+)`", line))
    # `fedgpl` and `fedstar` are for graphs; the others send nothing.
    for name in METHODS.keys() - {"local", "global", "fedgpl", "fedstar"}:
        keys = {**kind, "algorithm.name": name, **NEED.get(name, {})}
        if name in refuses:
            with refused("secure.kind", says="adds up means, and "):
                start(keys).round()
        else:
            start(keys).round()
