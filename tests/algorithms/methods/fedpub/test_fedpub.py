"""Fed-PUB in whole rounds written out, its proxy graph and rows, and what it is without its parts."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components
from support.dense_graphs import smoothing
from support.fixtures import Keys, ModuleOf, Start, Views
from support.plain_clients import EPOCHS, PlainClient
from support.plain_fedavg import row_counts
from support.small_fedgkc import answer
from support.written_rounds import require_mean_loss
from torch import Tensor, nn

from shoal.algorithms.methods.fedpub.fedpub import proxy_graph
from shoal.algorithms.models.build import build
from shoal.algorithms.rng import key

KEYS: dict[str, Any] = {"algorithm.name": "fedpub", "train.dropout": 0.5}


def test_the_proxy_graph_is_five_random_blocks() -> None:
    a, x = dense_proxy(3, 40)
    assert (a == a.T).all()
    assert not a.diagonal().any()
    count, block = connected_components(csr_array(a))
    assert count == 5
    assert (block.reshape(5, 100) == block[::100, None]).all()
    assert abs(a.sum() / (5 * 100 * 99) - 0.1) < 0.01
    assert x.shape == (500, 40)
    assert x.dtype == np.float32
    assert abs(x.mean()) < 0.03
    assert abs(x.std() - 1) < 0.03
    for found, again, other in zip(*(proxy_graph(seed, 40) for seed in (3, 3, 4))):
        np.testing.assert_array_equal(found, again)
        assert found.shape != other.shape or (found != other).any()


@pytest.mark.parametrize("ratio", [1.0, 0.5])
def test_without_its_parts_it_is_local_to_the_last_bit(run: Start, ratio: float) -> None:
    keys = {"train.dropout": 0.5, "participation.ratio": ratio, "engine.trainer": "autograd"}
    local = run({**keys, "algorithm.name": "local"})
    off = {"masks": False, "proximal": 0.0, "tau": 1e12}
    alone = run({**keys, "algorithm.name": "fedpub", **{f"algorithm.{k}": v for k, v in off.items()}})
    trained = {i for i, kept in local.state.clients.items() if "model.w" in kept}
    assert alone.state.inboxes.keys() == trained
    for i in trained - {5}:
        assert torch.equal(alone.state.inboxes[i]["w"], local.state.clients[i]["model.w"])
        for scope in ("trained", "deployed"):
            np.testing.assert_array_equal(alone.state.scores[scope][i], local.state.scores[scope][i])


def test_moments_of_masks_are_kept_or_reset(run: Start) -> None:
    kept = run(KEYS, rounds=2).state.clients[0]
    moments = {name for name in kept if name.startswith("mask.opt.")}
    assert moments == {"mask.opt.step", "mask.opt.exp_avg", "mask.opt.exp_avg_sq"}
    assert float(kept["mask.opt.step"]) == 6
    reset = run({**KEYS, "train.opt_state": "reset"}, rounds=2).state.clients[0]
    assert set(reset) == {"mask"}


@dataclass
class Masked(PlainClient):
    """A client with a mask for every weight matrix of its module, Adam on both."""

    has_masks: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        matrices = {name: p for name, p in self.module.named_parameters() if p.dim() == 2}
        self.masks = {name: nn.Parameter(torch.ones_like(p)) for name, p in matrices.items()}
        self.penalised = list(self.masks.values()) if self.has_masks else []
        self.optimizer = self.make_optimizer([*self.module.parameters(), *self.penalised])

    def effective(self, threshold: float = 0.0) -> dict[str, Tensor]:
        found = dict(self.module.named_parameters())
        for name, mask in self.masks.items():
            found[name] = found[name] * torch.where(mask.abs() < threshold, torch.zeros(()), mask)
        return found

    def out(self, hops: list[Tensor], threshold: float = 0.0) -> Any:
        return torch.func.functional_call(self.module, self.effective(threshold), (hops,))

    def train(  # type: ignore[override]
        self, round_number: int, near: Tensor | None, l1: float, proximal: float, batch: int
    ) -> float:
        torch.manual_seed(key(0, round_number, self.number, "train"))
        self.module.train()
        for _ in range(EPOCHS):
            total = 0.0
            order = torch.randperm(len(self.y)) if batch < len(self.y) else torch.arange(len(self.y))
            for chosen in order.split(batch):
                self.optimizer.zero_grad()
                out = self.out([self.view.hop(k)[self.view.train[chosen]] for k in self.module.inputs])  # type: ignore
                loss = F.cross_entropy(out.logits_NC, self.y[chosen])
                for mask in self.penalised:
                    loss = loss + l1 * mask.abs().sum()
                if near is not None:
                    flat = torch.cat([p.flatten() for p in self.module.parameters()])
                    loss = loss + proximal * (flat - near).square().sum()
                loss.backward()
                self.optimizer.step()
                total += float(loss.detach()) * len(chosen) / len(self.y)
        return total

    def sketch(self, hops: list[Tensor], threshold: float) -> np.ndarray:
        self.module.eval()
        with torch.no_grad():
            return self.out(hops, threshold).embedding_NH.double().mean(0).numpy()

    def counts(self, threshold: float) -> np.ndarray:
        self.module.eval()
        with torch.no_grad():
            hops = [self.view.hop(k) for k in self.module.inputs]  # type: ignore
            predicted = self.out(hops, threshold).logits_NC.argmax(1).tolist()
        return row_counts(self.view, predicted)


def dense_proxy(seed: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Gives the edges of the proxy graph as a dense matrix, and its features."""
    starts, columns, x = proxy_graph(seed, features)
    return csr_array((np.ones(len(columns)), columns, starts), (len(x), len(x))).toarray(), x


def hops_of(seed: int, features: int, hops: int) -> list[Tensor]:
    """Computes hops of the proxy graph."""
    a, x = dense_proxy(seed, features)
    hop, powers = x.astype(np.float64), [torch.from_numpy(x)]
    for _ in range(hops):
        hop = smoothing(a) @ hop
        powers.append(torch.from_numpy(hop).float())
    return powers


def naive_rows(sketches: list[np.ndarray], counts: list[bool], tau: float) -> np.ndarray:
    rows = np.zeros((len(sketches), len(sketches)))
    for i, own in enumerate(sketches):
        for j, other in enumerate(sketches):
            cosine = own @ other / (np.linalg.norm(own) * np.linalg.norm(other))
            rows[i, j] = math.exp(tau * cosine) if counts[j] else 0
        rows[i] = rows[i] / rows[i].sum() if any(counts) else np.eye(len(sketches))[i]
    return rows


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {
            "algorithm.tau": 40.0,
            "algorithm.l1": 0.05,
            "algorithm.threshold": 0.9,
            "model": {"name": "gamlp", "hidden": 8},
        },
        {"algorithm.proximal": 0.4, "train.batch_size": 3, "model": {"name": "sgc", "layers": 2, "hidden": 6}},
        {"algorithm.proximal": 0.4, "algorithm.masks": False, "algorithm.tau": 0.0},
    ],
    ids=["defaults", "masks", "proximal, batches", "no masks"],
)
def test_rounds_written_out(
    start: Start,
    patchy: Keys,
    views: Views,
    module_of: ModuleOf,
    more: dict[str, Any],
) -> None:
    plain = {name: value for name, value in patchy.items() if name != "model.name"}
    server = start({**plain, "algorithm.name": "fedpub", "model": {"name": "mlp", "hidden": 8}, **more})
    tau, l1, proximal, threshold, has_masks = (
        more.get(f"algorithm.{name}", default)
        for name, default in (("tau", 10.0), ("l1", 0.0), ("proximal", 1e-3), ("threshold", 1e-3), ("masks", True))
    )
    clients = [Masked(i, view, module_of(server, server._initial), has_masks) for i, view in enumerate(views(server))]
    proxy = hops_of(int(server.state.server["proxy"]), 5, 2)
    read = [proxy[k] for k in clients[0].module.inputs]  # type: ignore
    inboxes: dict[int, Tensor] = {}
    met: set[int] = set()
    for number in range(1, 8):
        line, cohort = server.round(), server.cohort(number)
        losses: dict[int, float] = {}
        for i in cohort:
            client = clients[i]
            client.load(inboxes.get(i, server._initial))
            if len(client.y):
                batch = more.get("train.batch_size", 100)
                losses[i] = client.train(number, inboxes.get(i), l1, proximal, batch)
            np.testing.assert_array_equal(server.state.scores["trained"][i], client.counts(threshold))
        sketches = [clients[i].sketch(read, threshold) for i in cohort]
        rows = naive_rows(sketches, [len(clients[i].y) > 0 for i in cohort], tau)
        mixed = torch.from_numpy(rows) @ torch.stack([clients[i].w.double() for i in cohort])
        inboxes.update({i: row.float() for i, row in zip(cohort, mixed)})
        assert server.state.inboxes.keys() == inboxes.keys()
        for i, row in inboxes.items():
            torch.testing.assert_close(server.state.inboxes[i]["w"], row, rtol=1e-3, atol=1e-4)
        for i, kept in server.state.clients.items():
            trained_masks = has_masks and len(clients[i].y) > 0
            assert ("mask" in kept) == trained_masks
            if trained_masks:
                mask = torch.cat([m.detach().flatten() for m in clients[i].masks.values()])
                torch.testing.assert_close(kept["mask"], mask, rtol=1e-3, atol=1e-4)
            clients[i].load(inboxes[i])
            np.testing.assert_array_equal(server.state.scores["deployed"][i], clients[i].counts(threshold))
        require_mean_loss(line, losses, [client.view for client in clients])
        newcomers = set(cohort) - met
        met |= newcomers
        p, h = len(server._initial), len(sketches[0])
        assert line["bytes_up"] == len(cohort) * 4 * (p + h)
        assert line["bytes_down"] == len(cohort) * (4 * p + 8) + len(newcomers) * 4 * p
        assert line["notes"]["own weight"] == pytest.approx(rows.diagonal().mean(), rel=1e-2)
        assert line["notes"]["contributors"] == pytest.approx((1 / (rows**2).sum(1)).mean(), rel=1e-2)


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("name", ["gcn", "gcnii", "sage"])
def test_the_sketch_of_a_model_that_passes_messages(start: Start, recorded: Any, name: str) -> None:
    """By PyG's layers on a dense proxy graph, nothing dropped and small masks left out."""
    keys = {"algorithm.name": "fedpub", "model": {"name": name, "hidden": 8}, "algorithm.threshold": 0.98}
    server = start({**keys, "train.dropout": 0.5}, pool=recorded.on)
    server.round()
    seed = int(server.state.server["proxy"])
    a_NN, x = map(torch.from_numpy, dense_proxy(seed, 5))
    for i in range(6):
        module = build(name, 5, 4, 2, 0.5, {"hidden": 8})
        kept, sent = server.state.clients[i], recorded.uploads[i]
        nn.utils.vector_to_parameters(sent["w"].clone(), module.parameters())
        if "mask" in kept:
            pruned = torch.where(kept["mask"].abs() < 0.98, torch.zeros(()), kept["mask"])
            assert 0 < (pruned == 0).float().mean() < 1
            for p in module.parameters():
                if p.dim() == 2:
                    p.data *= pruned[: p.numel()].view_as(p)
                    pruned = pruned[p.numel() :]
        with torch.no_grad():
            expected = answer(module.eval(), a_NN, x).embedding_NH.mean(0)
        torch.testing.assert_close(sent["sketch"], expected, rtol=1e-3, atol=1e-5)
