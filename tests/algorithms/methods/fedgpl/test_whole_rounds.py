"""FedGPL in whole rounds against one process that holds prompts, heads and the GNN, and differentiates end to end."""

from collections.abc import Callable
from itertools import pairwise
from math import ceil, floor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from support.fixtures import Keys, Make, Start, Views
from support.plain_dropout import dropped
from support.plain_fedavg import row_counts
from support.pyg_clients import graphs_of
from support.same_bits import assert_same_runs
from support.small_graphs import CLASSES, FEATURES, WITHOUT_TRAIN
from support.written_rounds import cohorts_of, require_mean_loss
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from shoal.algorithms.methods.fedgpl import fedgpl
from shoal.algorithms.rng import key
from shoal.engine.rounds.server import Server
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run as run_config
from shoal.storage.options.split_codes import TRAIN
from shoal.storage.shards.view import View

HIDDEN, EPOCHS, BATCH, DROPOUT, LR, SERVER_LR, KEPT_NODES, KEPT_EDGES = 6, 2, 2, 0.5, 0.05, 0.01, 0.6, 0.8
# Client 3 comes in round 2 alone, client 5 has nothing to train on.
ONLINE = [[0, 1, 5], [0, 1, 2, 3, 4, 5], [1, 4, 5]]
KEYS = {
    "model": {
        "name": "gcn",
        "hidden": HIDDEN,
        "head_dropout": False,
        "prompt": {"name": "vpg", "nodes": KEPT_NODES, "edges": KEPT_EDGES},
    },
    "algorithm.name": "fedgpl",
    "algorithm.server_lr": SERVER_LR,
    "train.lr": LR,
    "train.weight_decay": 0.01,
    "train.epochs": EPOCHS,
    "train.batch_size": BATCH,
    "train.dropout": DROPOUT,
}
Prompted = list[tuple[Tensor, list[tuple[int, int]]]]


class Net(nn.Module):
    """The GNN as PyG has it: two layers, ReLU and dropout between them, a mean over nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([GCNConv(FEATURES, HIDDEN), GCNConv(HIDDEN, HIDDEN)])

    def forward(self, graphs: Prompted) -> Tensor:
        """Of graphs behind one another, `[G, H]`."""
        sizes = [len(x) for x, _ in graphs]
        first = np.cumsum([0, *sizes])
        both = [(a + s, b + s) for (_, pairs), s in zip(graphs, first) for p, q in pairs for a, b in ((p, q), (q, p))]
        index = torch.tensor(both, dtype=torch.int64).reshape(-1, 2).t()
        z = F.relu(self.convs[0](torch.cat([x for x, _ in graphs]), index))
        z = self.convs[1](dropped(z, DROPOUT, self.training), index)
        return torch.stack([z[a:b].mean(0) for a, b in pairwise(first)])


def prompted(
    p: Tensor, x: Tensor, pairs: list[tuple[int, int]], candidates: Tensor | None = None
) -> tuple[Tensor, list[tuple[int, int]]]:
    """VPG on one graph (FedGPL, section 4): nodes, then edges, by how much they mean; a choice has no gradient.

    With candidates it is the paper's: they are joined to nodes unlike them, and both shares are of the graph without
    them; an edge is chosen among all, and goes if one of its nodes does.
    """
    nodes, edges = len(x), len(pairs)
    if candidates is not None:
        new = [(i, nodes + c) for i in range(nodes) for c, f in enumerate(candidates) if torch.sigmoid(x[i] @ f) < 0.5]
        x, pairs = torch.cat([x, candidates]), [*pairs, *new]
    w = (x @ p) / p.norm()
    rank = w.tolist()
    ranked = sorted(range(len(x)), key=lambda i: (-rank[i], i))
    kept = sorted(ranked[: ceil(KEPT_NODES * nodes)])
    place = {node: row for row, node in enumerate(kept)}
    left = [(a, b) for a, b in pairs if a in place and b in place]
    by_difference = sorted(left if candidates is None else pairs, key=lambda e: -abs(rank[e[0]] - rank[e[1]]))
    chosen = by_difference[: floor(KEPT_EDGES * (len(left) if candidates is None else edges))]
    return x[kept] * torch.tanh(w[kept])[:, None], [(place[a], place[b]) for a, b in chosen if (a, b) in left]


class PlainClient:
    """A client's graphs, prompt and head."""

    def __init__(self, number: int, folder: Path, view: View) -> None:
        mine = np.load(folder / "assignment.npy") == number
        self.number, self.view = number, view
        self.candidates: Tensor | None = None
        self.split, self.y = np.load(folder / "split.npy")[mine], torch.from_numpy(np.load(folder / "y.npy")[mine])
        self.graphs = [(torch.from_numpy(x), pairs) for x, pairs in graphs_of(folder, number, view)]
        self.p = nn.Parameter(torch.empty(FEATURES))
        self.head = nn.Linear(HIDDEN, CLASSES)
        self.optimizer = torch.optim.Adam([self.p, *self.head.parameters()], lr=LR, weight_decay=0.01)

    @property
    def theta(self) -> Tensor:
        return nn.utils.parameters_to_vector([self.p, *self.head.parameters()]).detach()

    def load(self, theta: Tensor) -> None:
        nn.utils.vector_to_parameters(theta.clone(), [self.p, *self.head.parameters()])

    def batches(self, round_number: int) -> list[np.ndarray]:
        rows = np.flatnonzero(self.split == TRAIN)
        found = []
        for epoch in range(EPOCHS):
            rng = torch.Generator().manual_seed(key(0, round_number, self.number, f"order {epoch}"))
            order = torch.randperm(len(rows), generator=rng).numpy() if len(rows) > BATCH else np.arange(len(rows))
            found += [rows[order[start : start + BATCH]] for start in range(0, len(rows), BATCH)]
        return found

    def with_prompt(self, graphs: np.ndarray) -> Prompted:
        return [prompted(self.p, *self.graphs[g], self.candidates) for g in graphs]

    def counts(self, gnn: Net) -> np.ndarray:
        gnn.eval()
        with torch.no_grad():
            predicted = self.head(gnn(self.with_prompt(np.arange(len(self.y))))).argmax(1)
        return row_counts(self.view, predicted.tolist(), CLASSES)


class OneProcess:
    """Everything in one place."""

    def __init__(self, clients: list[PlainClient], gnn: Net, updates: str) -> None:
        self.clients, self.gnn, self.updates = clients, gnn, updates
        self.optimizer = torch.optim.Adam(gnn.parameters(), lr=SERVER_LR)

    def round(self, number: int, cohort: list[int]) -> dict[int, float]:
        """Trains; gives the losses of the last epoch."""
        able = [self.clients[i] for i in cohort if (self.clients[i].split == TRAIN).any()]
        losses: dict[int, float] = {}
        if self.updates == "per_batch_seq":
            rng = torch.Generator().manual_seed(key(0, number, "server", "order of clients"))
            for client in [able[place] for place in torch.randperm(len(able), generator=rng).tolist()]:
                self._lock_step(number, [client], self.gnn, self.optimizer, losses)
        elif self.updates == "per_client_avg":
            before = nn.utils.parameters_to_vector(self.gnn.parameters()).detach()
            found = []
            for client in able:
                copy = Net()
                nn.utils.vector_to_parameters(before.clone(), copy.parameters())
                self._lock_step(number, [client], copy, torch.optim.Adam(copy.parameters(), lr=SERVER_LR), losses)
                found.append(nn.utils.parameters_to_vector(copy.parameters()).detach())
            nn.utils.vector_to_parameters(torch.stack(found).mean(0), self.gnn.parameters())
        else:
            count = self._lock_step(number, able, self.gnn, None, losses)
            for p in self.gnn.parameters():
                assert p.grad is not None
                p.grad /= count
            if self.updates == "round_accumulate":
                self.optimizer.step()
            self.optimizer.zero_grad()
        return losses

    def _lock_step(
        self, number: int, clients: list[PlainClient], gnn: Net, optimizer: Any, losses: dict[int, float]
    ) -> int:
        """Batches of one number at once; with an optimizer the GNN takes a step after each. Gives their number."""
        gnn.train()
        batches = {client.number: client.batches(number) for client in clients}
        count = 0
        for step in range(max(map(len, batches.values()))):
            now = [client for client in clients if len(batches[client.number]) > step]
            graphs = {client.number: client.with_prompt(batches[client.number][step]) for client in now}
            torch.manual_seed(key(0, number, "server", f"batch {step} from client {clients[0].number}"))
            answers = gnn([graph for client in now for graph in graphs[client.number]])
            total, start = torch.zeros(()), 0
            for client in now:
                chosen = batches[client.number][step]
                said = client.head(answers[start : start + len(chosen)])
                loss = F.cross_entropy(said, client.y[chosen])
                start += len(chosen)
                total = total + loss
                if step >= len(batches[client.number]) // EPOCHS * (EPOCHS - 1):
                    share = len(chosen) / (client.split == TRAIN).sum()
                    losses[client.number] = losses.get(client.number, 0.0) + float(loss.detach()) * float(share)
                client.optimizer.zero_grad()
            total.backward()
            count += len(now)
            for client in now:
                client.optimizer.step()
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad()
        return count


def export_of(server: Server, gnn: Net) -> None:
    """Puts the server's GNN into a network of PyG, by the names of its parameters."""
    flat, left = server._build("model"), server.state.server["gnn"].clone()
    values = {}
    for name, p in flat.module.named_parameters():
        if ".convs." in name:
            values["convs." + name.partition(".convs.")[2]] = left[: p.numel()].view_as(p)
            left = left[p.numel() :]
    assert not len(left)
    gnn.load_state_dict(values)


@pytest.fixture
def keys(graph_task: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    plain = {name: value for name, value in graph_task.items() if name != "model.name"}
    return {**plain, **KEYS, **cohorts_of(tmp_path, ONLINE)}


@pytest.fixture
def one_process(keys: dict[str, Any], views: Views) -> Callable[[Server, str], OneProcess]:
    def one_process(server: Server, updates: str) -> OneProcess:
        folder = Path(keys["data.path"])
        clients = [PlainClient(i, folder, view) for i, view in enumerate(views(server))]
        gnn = Net()
        export_of(server, gnn)
        for client in clients:
            client.load(server.state.server["theta"][client.number])
        return OneProcess(clients, gnn, updates)

    return one_process


def mixed(before: Tensor, clients: list[PlainClient], cohort: list[int]) -> Tensor:
    """Everybody is of one task, whose weights depend on how far clients are from their mean."""
    able = [i for i in cohort if i != WITHOUT_TRAIN]
    end = torch.stack([clients[i].theta for i in able]).double()
    distance = (end - end.mean(0)).square().mean(1).sqrt()
    weight = 1 - torch.sigmoid(distance)
    return ((weight / weight.sum()) @ end).float().expand_as(before)


def test_rounds_with_pre_defined_candidates(start: Start, keys: Keys, one_process: Make) -> None:
    """They are the same for all clients and never sent: the direction and the classifier are what is mixed."""
    written = {"candidates": 3, "learnt": False, "seed": 6, "join": "below", "shares": "original"}
    model = {**KEYS["model"], "prompt": {**KEYS["model"]["prompt"], **written}}  # type: ignore
    server = start({**keys, "model": model})
    plain = one_process(server, "round_accumulate")
    drawn = torch.rand(3, FEATURES, generator=torch.Generator().manual_seed(6))
    for client in plain.clients:
        client.candidates = (2 * drawn - 1) / FEATURES**0.5
    assert_rounds_are_those_of(plain, server)


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("updates", ["frozen", "round_accumulate", "per_batch_seq", "per_client_avg"])
def test_rounds_are_those_of_one_process(start: Start, keys: Keys, one_process: Make, updates: str) -> None:
    server = start({**keys, "algorithm.gnn": updates})
    assert_rounds_are_those_of(one_process(server, updates), server)


def assert_rounds_are_those_of(plain: OneProcess, server: Server) -> None:
    for number, cohort in enumerate(ONLINE, start=1):
        for i in cohort:
            plain.clients[i].load(server.state.server["theta"][i])
        before = server.state.server["theta"]
        losses = plain.round(number, cohort)
        line = server.round()
        found = Net()
        export_of(server, found)
        for (name, p), q in zip(found.named_parameters(), plain.gnn.parameters()):
            torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-5, msg=name)
        after = server.state.server["theta"]
        torch.testing.assert_close(after, mixed(before, plain.clients, cohort), rtol=1e-3, atol=1e-5)
        require_mean_loss(line, losses, [client.view for client in plain.clients])
        for i in cohort:
            np.testing.assert_array_equal(server.state.scores["trained"][i], plain.clients[i].counts(found))
            # Nothing of a round is left with a client but its optimizer.
            assert {name for name in server.state.clients[i] if ".opt." not in name} == set()
        for i in cohort:
            plain.clients[i].load(after[i])
            np.testing.assert_array_equal(server.state.scores["deployed"][i], plain.clients[i].counts(found))


@pytest.mark.exhaustive(4)
@pytest.mark.parametrize("updates", ["frozen", "round_accumulate", "per_batch_seq", "per_client_avg"])
def test_a_context_that_is_computed_again_has_the_same_bits(run: Start, keys: dict[str, Any], updates: str) -> None:
    keys = {**keys, "algorithm.gnn": updates}
    assert_same_runs(*(run({**keys, "algorithm.recompute": recompute}, rounds=1) for recompute in (False, True)))


def test_small_passes_are_one_large_one(run: Start, keys: dict[str, Any]) -> None:
    """Without dropout, whose masks are drawn by pass."""
    keys = {**keys, "train.dropout": 0.0}
    found = [run({**keys, "algorithm.most_rows": most}, rounds=1).state.server for most in (65_536, 1)]
    for name in ("gnn", "theta"):
        torch.testing.assert_close(found[1][name], found[0][name], rtol=1e-4, atol=1e-6)


def test_an_export_predicts(configure: Make, start: Start, keys: Keys, one_process: Make, tmp_path: Path) -> None:
    out = export(run_config(configure({**keys, "run.root": str(tmp_path), "run.tensorboard": False})))
    models, batch = load_file(out / "models.safetensors"), pa.ipc.open_file(out / "predictions.arrow").get_batch(0)
    column = {name: batch.column(name).to_numpy() for name in ("client", "deployed")}
    for client in one_process(start(keys), "frozen").clients:
        mine = f"client/{client.number:05d}/"
        own = {name.removeprefix(f"{mine}backbone.backbone."): t for name, t in models.items() if mine in name}
        gnn = Net()
        gnn.load_state_dict({name: t for name, t in own.items() if name.startswith("convs.")})
        head = (own["head.linears.0.weight"], own["head.linears.0.bias"])
        client.p = nn.Parameter(models[f"{mine}prompt.direction"])
        z = gnn.eval()(client.with_prompt(np.arange(len(client.graphs))))
        predicted = F.linear(z, *head).argmax(1).numpy()
        np.testing.assert_array_equal(column["deployed"][column["client"] == client.number], predicted)


def test_bytes_are_of_the_formula(start: Start, keys: Keys, one_process: Make) -> None:
    server = start({**keys, "algorithm.gnn": "frozen"})
    plain = one_process(server, "frozen")
    own = server.state.server["theta"].shape[1]
    assert own == FEATURES + HIDDEN * CLASSES + CLASSES
    up = down = 4 * own * len(ONLINE[0])
    for i in ONLINE[0]:
        client = plain.clients[i]
        if i != WITHOUT_TRAIN:
            for graphs in client.batches(1):
                nodes = sum(ceil(KEPT_NODES * len(client.graphs[g][0])) for g in graphs)
                down += 4 * FEATURES * nodes + 4 * HIDDEN * len(graphs)
                up += 4 * FEATURES * nodes + 4 * (len(graphs) + 1) + 4 * HIDDEN * len(graphs)
    line = server.round()
    assert line["bytes_down"] == down
    # Pairs take 8 bytes each; which are left depends on the prompt.
    assert line["bytes_up"] > up
    assert (line["bytes_up"] - up) % 8 == 0


def test_classifiers_alone_and_no_mixing(start: Start, keys: dict[str, Any]) -> None:
    model = {**KEYS["model"], "prompt": "none"}  # type: ignore[dict-item]
    server = start({**keys, "model": model, "algorithm.mixing": "none"})
    begun = server.state.server["theta"]
    assert begun.shape[1] == HIDDEN * CLASSES + CLASSES
    server.round()
    moved = (server.state.server["theta"] != begun).any(dim=1).tolist()
    assert [i for i, has in enumerate(moved) if has] == [0, 1]


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("noise", ["paper", "clipped"])
def test_noise_is_of_the_messages(start: Start, keys: dict[str, Any], noise: str) -> None:
    """With a huge epsilon, and a clip beyond all rows, rounds are nearly those without."""
    options = {"algorithm.noise": noise, "algorithm.clip": 50.0}
    servers = [start(keys), *(start({**keys, **options, "algorithm.epsilon": e}) for e in (1e9, 1.0, 1.0))]
    lines = [server.round() for server in servers]
    plain, faint, loud, again = (server.state.server["theta"] for server in servers)
    torch.testing.assert_close(faint, plain, rtol=1e-2, atol=1e-3)
    assert (loud - plain).abs().max() > 1e-2
    assert torch.equal(loud, again)
    notes = [line.get("notes", {}).get("epsilon of a training graph") for line in (lines[2], servers[2].round())]
    assert notes == ([None] * 2 if noise == "paper" else [4.0, 8.0])


@pytest.mark.parametrize("width", [FEATURES, HIDDEN])
def test_noise_reaches_features_and_gradients(
    start: Start, keys: Keys, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise on messages of one width alone moves the GNN."""

    def noise_of(rows: Tensor, *_: object) -> Tensor:
        return rows + (rows.shape[1] == width)

    servers = [start({**keys, "algorithm.noise": noise}) for noise in ("off", "clipped")]
    servers[0].round()
    monkeypatch.setattr(fedgpl, "add_noise", noise_of)
    servers[1].round()
    assert (servers[0].state.server["gnn"] - servers[1].state.server["gnn"]).abs().max() > 1e-3
