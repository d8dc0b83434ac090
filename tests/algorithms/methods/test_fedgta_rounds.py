"""FedGTA in whole rounds, against equations 3 to 7 in NumPy, and against Local and FedAvg where it should be one."""

import copy
import itertools
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import CountsOf, PlainClients, Start, Views
from support.plain_fedgta import DEFAULTS, equations_3_to_5
from torch import Tensor

from shoal.algorithms.base import Client, Received, Upload
from shoal.algorithms.methods.fedgta.fedgta import FedGTA, mixing_rows
from shoal.algorithms.rng import key

near = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)


def naive_rows(m: np.ndarray, h: np.ndarray, eps: float) -> np.ndarray:
    rows = np.zeros((len(h), len(h)))
    for i in range(len(h)):
        for j in range(len(h)):
            cosine = m[i] @ m[j] / (np.linalg.norm(m[i]) * np.linalg.norm(m[j]))
            if i == j or cosine >= eps:
                rows[i, j] = h[j]
        rows[i] /= rows[i].sum()
    return rows


def test_a_cosine_equal_to_the_threshold_admits() -> None:
    m, h = torch.tensor([[1.0, 0], [2, 0], [0, 1]]), torch.tensor([1.0, 3, 1])
    assert torch.equal(mixing_rows(m, h, 1.0), torch.tensor([[0.25, 0.75, 0], [0.25, 0.75, 0], [0, 0, 1]]))


def test_no_cosine_leaves_its_range_by_rounding() -> None:
    vectors = torch.randn(200, 40, generator=torch.Generator().manual_seed(0)).mul(3).softmax(1)
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    above = vectors[[int((unit @ unit.T).diagonal().argmax())]]
    same, opposite = torch.cat([above, above]), torch.cat([above, -above])
    assert torch.equal(mixing_rows(same, torch.ones(2), 1.0000001), torch.eye(2))
    assert torch.equal(mixing_rows(opposite, torch.ones(2), -1.0), torch.full((2, 2), 0.5))


def test_an_empty_sketch_and_no_confidence_still_give_rows() -> None:
    rows = mixing_rows(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), torch.tensor([1e-12, 1e-12]), 0.5)
    assert torch.equal(rows, torch.eye(2))


@dataclass(frozen=True)
class Flaky(FedGTA):
    """FedGTA in which client 3, a newcomer, fails in round 2 and client 1 in round 3, after they trained."""

    def upload(self, client: Client, received: Received, phase: str) -> Upload:
        if client.random("train") in (key(0, 2, 3, "train"), key(0, 3, 1, "train")):
            raise RuntimeError("no luck")
        return super().upload(client, received, phase)


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"eps": 0.913},
        {**FedGTA.forms["paper"], "eps": 0.935},
        {**FedGTA.forms["code"], "eps": 0.9},
        {"eps": 0.92, "moments": "raw", "moment_steps": "last", "lp_steps": 2, "lp_seed_weight": 0.2, "orders": 3},
        {"eps": 0.913, "confidence": "normalized", "cold_start": "init", "orders": 4},
        {"eps": 0.915, "confidence": "uniform", "lp_steps": 1},
        {"eps": 0.913, "sketch_every": 2},
    ],
    ids=lambda changes: " ".join(map(str, changes.values())) or "defaults",
)
def test_whole_rounds(
    start: Start,
    unequal: dict[str, Any],
    recorded: Any,
    torch_clients: PlainClients,
    counts_of: CountsOf,
    changes: dict[str, Any],
) -> None:
    keys = {"algorithm.name": f"{__file__}:Flaky", "engine.on_client_error": "skip"}
    server = start({**unequal, **keys, **{f"algorithm.{k}": v for k, v in changes.items()}}, pool=recorded.on)
    clients, options = torch_clients(server), {**DEFAULTS, **changes}
    warm = server._initial.double()
    inboxes: dict[int, Tensor] = {}
    sketches: dict[int, list[tuple[float, np.ndarray]]] = {}
    sizes: list[tuple[int, int]] = []
    for number in range(1, server.plan.rounds + 1):
        line = server.round()
        ids = [i for i in server.cohort(number) if (number, i) not in ((2, 3), (3, 1))]
        assert recorded.uploads.keys() == set(ids)
        w: list[Tensor] = []
        h: list[float] = []
        m: list[np.ndarray] = []
        for i in server.cohort(number):
            sent = recorded.downloads[i]
            assert sent.keys() == (set() if i in inboxes else {"w"})
            if i not in inboxes:
                near(sent["w"].double(), warm)
            moments_before = copy.deepcopy(clients[i].optimizer.state_dict())
            clients[i].load(inboxes.get(i, warm))
            clients[i].train(number)
            if i not in ids:
                clients[i].optimizer.load_state_dict(moments_before)
                continue
            now, sent_before = (
                equations_3_to_5(clients[i].view, clients[i].probabilities(), options),
                sketches.get(i, []),
            )
            h_i, m_i = sent_before[-1] if len(sent_before) % options["sketch_every"] else now
            sketches[i] = [*sent_before, (h_i, m_i)]
            w, h, m = [*w, clients[i].w], [*h, h_i], [*m, m_i]
            near(recorded.uploads[i]["w"].double(), w[-1])
            np.testing.assert_allclose(recorded.uploads[i]["h"], h_i, rtol=1e-4)
            np.testing.assert_allclose(recorded.uploads[i]["m"], m_i, rtol=1e-3, atol=1e-6)
            clients[i].require_kept(server.state.clients[i])
            scored = counts_of(server, clients[i].view, recorded.uploads[i]["w"])
            np.testing.assert_array_equal(server.state.scores["trained"][i], scored)
        rows = naive_rows(np.array(m), np.array(h), options["eps"])
        sizes += [(admitted, len(ids)) for admitted in (rows > 0).sum(1)]
        inboxes.update(zip(ids, torch.from_numpy(rows) @ torch.stack(w)))
        if options["cold_start"] == "warm":
            warm = torch.from_numpy(np.array(h) / sum(h)) @ torch.stack(w)
        assert server.state.inboxes.keys() == inboxes.keys()
        assert torch.equal(server.state.server["met"], torch.tensor([i in inboxes for i in range(6)]))
        near(server.state.server["warm"].double(), warm)
        for i, client in enumerate(clients):
            if i in inboxes:
                near(server.state.inboxes[i]["w"].double(), inboxes[i])
            deployed = server.state.inboxes[i]["w"] if i in inboxes else server._initial
            np.testing.assert_array_equal(server.state.scores["deployed"][i], counts_of(server, client.view, deployed))
        assert line["notes"] == pytest.approx(
            {
                "set size": (rows > 0).sum(1).mean(),
                "contributors": (1 / (rows**2).sum(1)).mean(),
                "own weight": rows.diagonal().mean(),
            },
            rel=1e-3,
        )
    assert max(map(len, sketches.values())) > options["sketch_every"]
    if "eps" in changes:
        assert any(1 < admitted < all_of_them for admitted, all_of_them in sizes), "no threshold to test"


NAMES = ("lp_seed", "rows", "moments", "moment_steps", "confidence")
FORMS = [
    dict(zip(NAMES, form))
    for form in itertools.product(
        ("labels", "predictions"),
        ("stochastic", "raw"),
        ("raw", "central", "hybrid"),
        ("all", "last"),
        ("paper", "normalized", "uniform"),
    )
    if form[1::3] != ("raw", "normalized")
]


@pytest.mark.exhaustive(8)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: " ".join(form.values()))
def test_upload_equals_the_equations(start: Start, views: Views, recorded: Any, form: dict[str, str]) -> None:
    options = {**DEFAULTS, "lp_steps": 3, "lp_seed_weight": 0.3, "orders": 3, **form}
    keys = {"name": "fedgta", **options}
    server = start({"model.name": "sgc", **{f"algorithm.{k}": v for k, v in keys.items()}}, pool=recorded.on)
    server.round()
    for i, view in enumerate(views(server)):
        sent = recorded.uploads[i]
        w = sent["w"].double().numpy()
        weight, bias = w[: 4 * 5].reshape(4, 5), w[4 * 5 :]
        logits = view.hop(2).double().numpy() @ weight.T + bias
        h, m = equations_3_to_5(view, np.exp(logits) / np.exp(logits).sum(1, keepdims=True), options)
        np.testing.assert_allclose(sent["h"], h, rtol=1e-5)
        np.testing.assert_allclose(sent["m"], m, rtol=1e-4, atol=1e-6)


def test_messages_have_the_sizes_of_the_paper(start: Start) -> None:
    server = start({"algorithm.name": "fedgta", "participation.ratio": 0.5, "algorithm.lp_steps": 3})
    p, q = len(server._initial), 3 * 2 * 6 * 4
    met: set[int] = set()
    for _ in range(4):
        line = server.round()
        newcomers = set(line["cohort"]) - met
        met |= newcomers
        assert line["bytes_up"] == 3 * 4 * (p + q + 1)
        assert line["bytes_down"] == 4 * p * (3 + len(newcomers))
