"""The method's generator: what it is given, and what it may not make: NaN on the server is named, nothing committed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from shoal.algorithms.base import Client, Context, Mix, Received, Requests, Tree, Upload
from shoal.algorithms.methods.fedavg import FedAvg
from shoal.algorithms.protocol import Ask, Reduce
from shoal.engine.rounds.server import Exchange, Server
from shoal.storage.errors import ShoalError

Start = Callable[..., Server]
NAN = float("nan")


@dataclass(frozen=True)
class Poisons(FedAvg):
    """FedAvg that mixes, too, and makes NaN on the server in round 2, in one place."""

    where: str = ""
    # A number as text: a config holds no NaN.
    value: str = "nan"

    def setup(self, ctx: Context) -> Tree:
        return {"w": ctx.initial, "c": torch.zeros(2)}

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        def bad(where: str) -> float:
            return float(self.value) if ctx.round == 2 and where == self.where else 1.0

        shared = {"w": server["w"], "c": torch.tensor([1.0, bad("shared")])}
        private = {cohort[1]: {"own": torch.tensor(bad("private"))}}
        got = yield Ask("train", {"w": Reduce.MEAN, "z": Reduce.MIX}, shared, private)
        # The state is changed before the mixing fails.
        server["w"] = got["w"]
        rows = torch.ones(len(cohort), len(cohort))
        rows[0, 0] = bad("rows")
        yield Mix("z", rows * (2e38 if bad("result") != 1 else 1), dst=cohort)
        server["c"] = torch.tensor([1.0, bad("state")])

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        client.state["visits"] = client.state.get("visits", torch.zeros(())) + 1
        sent = super().upload(client, received, phase)
        return Upload({**sent.entries, "z": torch.ones(3)}, sent.weight)


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("shared", "the download 'c'"),
        ("private", r"the download of client 1, 'own'"),
        ("rows", "the matrix of Mix 'z'"),
        ("result", "the result of Mix 'z'"),
        ("state", "the server's state 'c'"),
    ],
)
@pytest.mark.parametrize("value", [NAN, float("inf")])
def test_nan_made_on_the_server_is_named_and_not_committed(start: Start, where: str, value: float, line: str) -> None:
    server = start({"algorithm.name": f"{__file__}:Poisons", "algorithm.where": where, "algorithm.value": str(value)})
    server.round()
    state = server.state
    before = {name: t.clone() for name, t in state.to_tensors()[0].items()}
    plain = state.to_tensors()[1]
    for _ in range(2):
        with pytest.raises(ShoalError, match=f"^round 2: Poisons: {line} holds NaN or infinity; the round is not comm"):
            server.round()
    assert server.state is state
    tensors, plain_after = state.to_tensors()
    assert plain_after == plain
    assert tensors.keys() == before.keys()
    assert all(torch.equal(t, before[name]) for name, t in tensors.items())
    assert (state.round, float(state.clients[3]["visits"])) == (1, 1)


def test_sound_numbers_pass(start: Start) -> None:
    server = start({"algorithm.name": f"{__file__}:Poisons"})
    for _ in range(3):
        server.round()
    assert server.state.server["c"].tolist() == [1, 1]
    assert server.state.inboxes[4]["z"].tolist() == [6, 6, 6]


@dataclass(frozen=True)
class Talks(FedAvg):
    """Two phases and two products; keeps what it saw of them."""

    def round(self, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        seen = {"cohort": torch.tensor(list(cohort))}
        first = yield Ask("first", {"size": Reduce.STACK, "many": Reduce.GATHER}, train=False)
        few = [i for i in cohort if i % 2]
        second = yield Ask("second", {"size": Reduce.MEAN, "mixed": Reduce.MIX}, train=False, to=few)
        product = yield Mix("mixed", torch.ones(len(second.ids)))
        seen |= {"ids": torch.tensor(first.ids), "sizes": first["size"], "lengths": lengths(first.lists["many"])}
        seen |= {"few": torch.tensor(second.ids), "mean": second["size"], "weight": second.weights["size"]}
        server.update(seen, product=product)

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        i = client.info.client
        size = torch.tensor(float(i if phase == "first" else 10 * i))
        entries = {"size": size, "many": torch.ones(i + 1), "mixed": torch.full((2,), float(i))}
        return Upload(entries, {"size": 1.0 + i})


def lengths(tensors: list[Tensor]) -> Tensor:
    return torch.tensor([len(t) for t in tensors])


def test_answers_of_phases_and_products_reach_the_generator(start: Start, exchange_of: Callable[..., Exchange]) -> None:
    server = start({"algorithm.name": f"{__file__}:Talks"})
    exchange = exchange_of(server, [0, 1, 3, 4])
    server.run_method(exchange, server._context(1), lambda client: False)
    state = {name: t.tolist() for name, t in exchange.next_state.server.items() if name != "w"}
    assert state == {
        "cohort": [0, 1, 3, 4],
        "ids": [0, 1, 3, 4],
        "sizes": [0, 1, 3, 4],
        "lengths": [1, 2, 4, 5],
        "few": [1, 3],
        "mean": pytest.approx((2 * 10 + 4 * 30) / 6),
        "weight": 6.0,
        "product": [4.0, 4.0],
    }
    # What the server committed last is not touched.
    assert server.state.server.keys() == {"w"}


def test_the_server_computes_on_its_device(
    start: Start, exchange_of: Callable[..., Exchange], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen on `meta`: what the generator is given and makes lies there, what clients are sent on the processor."""
    meta = torch.device("meta")
    devices: dict[str, torch.device] = {}

    def round_there(self: Talks, server: Tree, ctx: Context, cohort: Sequence[int]) -> Requests:
        got = yield Ask("first", {"size": Reduce.STACK, "many": Reduce.GATHER, "mixed": Reduce.MIX}, train=False)
        product = yield Mix("mixed", torch.ones(len(got.ids), device="cpu"))
        devices.update(state=server["w"].device, kept=got["size"].device, product=product.device)
        devices.update(list=got.lists["many"][0].device, made=torch.ones(2).device)
        # Tensors without memory cannot come back to the processor, where the state is kept.
        server.clear()

    server = start({"algorithm.name": f"{__file__}:Talks"})
    monkeypatch.setattr(type(server.algorithm), "round", round_there)
    context = replace(server._context(1), device=meta)
    server.run_method(exchange_of(server, [0, 1]), context, lambda client: False)
    assert devices == dict.fromkeys(("state", "kept", "product", "list", "made"), meta)
