"""FedNH: whole rounds written out, its server by hand, and what stands where the classifier was."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from support.fixtures import Keys, Make, PlainClients, Start
from torch import Tensor, nn

from shoal.algorithms.methods.fednh import FedNH, spread
from shoal.algorithms.models.layers.head import Output
from shoal.engine.records.outputs import PREDICTIONS
from shoal.engine.runs.export import export
from shoal.engine.runs.run import run as run_config

NAME = {"algorithm.name": "fednh"}


def normal(row: Any) -> np.ndarray:
    row = np.asarray(row, dtype=np.float64)
    return row / np.linalg.norm(row) if np.linalg.norm(row) > 0 else row


def cosines(z_NH: Tensor, classes: list[np.ndarray]) -> Tensor:
    rows = [[(z @ torch.from_numpy(w).float()) / (z @ z).sqrt().clamp_min(1e-9) for w in classes] for z in z_NH]
    return torch.stack([torch.stack(row) for row in rows])


def bodies(module: nn.Module) -> list[nn.Parameter]:
    top = module.head.linears[-1]  # type: ignore
    return [p for p in module.parameters() if p is not top.weight and p is not top.bias]


def body_of(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in bodies(module)])


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"algorithm.scale": 3.0, "algorithm.rho": 0.4, "algorithm.weight": "train", "train.batch_size": 2},
        # The parameters of its attention lie behind the classifier.
        {"model.name": "gamlp", "algorithm.weight": "uniform"},
    ],
)
def test_rounds_written_out(start: Start, patchy: Keys, plain_clients: PlainClients, more: Keys) -> None:
    server = start({**patchy, **NAME, "model.hidden": 8, **more})
    clients, scale, rho = plain_clients(server), more.get("algorithm.scale", 20.0), more.get("algorithm.rho", 0.9)
    body = body_of(clients[0].module)
    assert torch.equal(server.state.server["w"], body)
    assert server.state.server.keys() == {"w", "classes"}
    classes = [row.double().numpy() for row in server.state.server["classes"]]
    for a in range(4):
        np.testing.assert_allclose([classes[a] @ w for w in classes], np.eye(4)[a] * 4 / 3 - 1 / 3, atol=1e-6)

    for number in range(1, 8):
        line, cohort = server.round(), server.cohort(number)
        total, count, up = torch.zeros_like(body), 0, 0
        sums, rows = np.zeros((4, 8)), np.zeros(4)
        for client in (clients[i] for i in cohort):
            nn.utils.vector_to_parameters(body.clone(), bodies(client.module))
            # Classifiers are not read, and their moments are nobody's business.
            loss = lambda out, y: F.cross_entropy(scale * cosines(out.embedding_NH, classes), y)  # noqa: E731
            client.train(number, loss, more.get("train.batch_size", 100))
            n = {"nodes": 14, "train": len(client.y), "uniform": 1}[more.get("algorithm.weight", "nodes")]
            n *= len(client.y) > 0
            total, count = total + n * body_of(client.module), count + n
            found = client.embeddings()
            for c, z in found.items():
                mean = normal(np.mean([normal(row) for row in z], 0))
                sums[c], rows[c] = sums[c] + len(z) * mean, rows[c] + len(z)
            up += 4 * (len(body) + 1 + 8 * len(found) + 4)
        body = total / count if count else body
        for c in np.flatnonzero(rows):
            classes[c] = normal(rho * classes[c] + (1 - rho) * normal(sums[c]))
        down = len(cohort) * 4 * (len(body) + 4 * 8)
        assert (line["bytes_up"], line["bytes_down"]) == (up, down)
        held = server.state.server
        torch.testing.assert_close(held["w"], body, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(held["classes"], np.stack(classes), rtol=1e-3, atol=1e-5)
        assert line["scopes"].keys() == {"trained", "deployed", "global"}
        module = clients[0].module
        nn.utils.vector_to_parameters(held["w"].clone(), bodies(module))
        for i, client in enumerate(clients):
            with torch.no_grad():
                z = module.eval()([client.view.hop(k) for k in module.inputs]).embedding_NH
            predicted = cosines(z, [row.double().numpy() for row in held["classes"]]).argmax(1)
            for part, chosen in enumerate((client.view.val, client.view.test)):
                right = [int(client.view.label[r]) for r in chosen.tolist() if client.view.label[r] == predicted[r]]
                expected = np.bincount(right, minlength=4)
                np.testing.assert_array_equal(server.state.scores["global"][i][part, 2], expected)


def test_a_row_without_a_direction_teaches_nothing() -> None:
    z = torch.tensor([[0.0, 0.0], [1.0, 2.0]], requires_grad=True)
    loss = FedNH().loss(Output(torch.zeros(2, 2), z), torch.tensor([0, 1]), torch.zeros(1), torch.eye(2))
    loss.backward()
    assert z.grad is not None
    assert z.grad[0].tolist() == [0, 0]
    assert 0 < float(z.grad[1].abs().max()) < 20


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("model", ["gcn", "gamlp", "mlp"])
def test_the_exported_model_alone_predicts_the_same(configure: Make, tmp_path: Path, model: str) -> None:
    keys = {**NAME, "rounds": 2, "run.root": str(tmp_path), "run.tensorboard": False, "model.name": model}
    out = export(run_config(configure(keys)))
    models = load_file(out / "models.safetensors")
    assert {name.split("/")[0] for name in models} == {"global"}
    (top,) = [name for name in models if name.endswith(".bias") and len(models[name]) == 4 and "linears" in name]
    assert not models[top].any()
    weight = models[top.replace("bias", "weight")]
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(4))
    assert (out / PREDICTIONS).exists()


def draw(classes: int, width: int, seed: int = 0) -> Tensor:
    return spread(classes, width, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("classes", "width"), [(1, 3), (2, 1), (2, 8), (4, 3), (7, 64), (40, 39), (172, 256)])
def test_a_simplex_where_there_is_room(classes: int, width: int) -> None:
    found = draw(classes, width)
    assert (found.shape, found.dtype) == ((classes, width), torch.float32)
    expected = torch.full((classes, classes), -1 / max(classes - 1, 1)).fill_diagonal_(1)
    torch.testing.assert_close(found @ found.T, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("classes", "width"), [(5, 3), (6, 3), (16, 8), (10, 8), (3, 1)])
def test_a_basis_and_its_opposites_where_there_is_less(classes: int, width: int) -> None:
    found = draw(classes, width)
    cosine = found @ found.T
    torch.testing.assert_close(cosine.diagonal(), torch.ones(classes))
    apart = cosine - torch.eye(classes)
    if classes <= 2 * width:
        assert float(apart.max()) < 1e-6
    torch.testing.assert_close(cosine[:width, :width], torch.eye(width), rtol=0, atol=1e-6)
    torch.testing.assert_close(found[width:], -found[: classes - width] if classes <= 2 * width else found[width:])


def test_many_classes_on_few_dimensions() -> None:
    found = draw(20, 3)
    assert found.shape == (20, 3)
    torch.testing.assert_close(found.norm(dim=1), torch.ones(20))
    # Four bases, each turned by itself: no direction comes twice.
    cosine = found @ found.T - 2 * torch.eye(20)
    assert float(cosine.max()) < 0.999
    torch.testing.assert_close(found[6:9], -found[9:12])


def test_turned_at_random() -> None:
    assert torch.equal(draw(4, 8, 1), draw(4, 8, 1))
    assert not torch.allclose(draw(4, 8, 1), draw(4, 8, 2))
    # All dimensions are used, not the first C - 1 alone.
    assert bool((draw(4, 8).abs().max(0).values > 1e-3).all())
