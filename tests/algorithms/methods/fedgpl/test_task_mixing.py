"""FedGPL's mixing within and between tasks by its equations, and its noise."""

from math import exp, log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.plain_hidta import by_loops

from shoal.algorithms.methods.fedgpl.fedgpl import FedGPL, Trained, add_noise, laplace, task_weights, transferability

TASKS = [0, 2, 0, 1, 2]


def drawn(seed: int, tasks: list[int] = TASKS, width: int = 7) -> Trained:
    rng = torch.Generator().manual_seed(seed)
    start = torch.randn(3, width, generator=rng, dtype=torch.float64)
    task = torch.tensor(tasks)
    return Trained(start[task], start[task] + torch.randn(len(tasks), width, generator=rng, dtype=torch.float64), task)


@pytest.mark.parametrize("distance", ["rms", "norm"])
@pytest.mark.parametrize("diagonal", ["weight_norm", "delta"])
@pytest.mark.parametrize("seed", range(3))
def test_weights_are_those_of_the_equations(seed: int, diagonal: Any, distance: Any) -> None:
    trained = drawn(seed)
    tau, weight = by_loops(trained, diagonal, distance)
    np.testing.assert_allclose(transferability(trained, diagonal), tau, rtol=1e-12)
    np.testing.assert_allclose(task_weights(trained, "hidta", diagonal, distance), weight, rtol=1e-9)


def test_means_within_tasks_and_over_all() -> None:
    trained = drawn(0)
    within = task_weights(trained, "task_mean", "delta")
    assert within.tolist() == [[0.5, 0, 0.5, 0, 0], [0, 0, 0, 1, 0], [0, 0.5, 0, 0, 0.5]]
    assert task_weights(trained, "mean", "delta").tolist() == [[0.2] * 5] * 3


@pytest.mark.parametrize("mixing", ["hidta", "task_mean", "mean"])
def test_a_task_without_clients_has_no_weights(mixing: str) -> None:
    trained = drawn(1, [0, 2, 2])
    weight = task_weights(trained, mixing, "weight_norm")  # type: ignore[arg-type]
    assert weight[1].tolist() == [0, 0, 0]
    torch.testing.assert_close(weight.sum(1), torch.tensor([1.0, 0, 1], dtype=torch.float64))


@pytest.mark.parametrize("diagonal", ["weight_norm", "delta"])
def test_a_task_that_stood_still_listens_to_itself(diagonal: str) -> None:
    trained = drawn(2)
    still = trained.start_NQ.clone()
    end = torch.where((trained.task_N == 2)[:, None], still, trained.end_NQ)
    weight = task_weights(Trained(still, end, trained.task_N), "hidta", diagonal)  # type: ignore[arg-type]
    torch.testing.assert_close(weight[2], torch.tensor([0, 0.5, 0, 0, 0.5], dtype=torch.float64))
    # At the origin no norm is left to weigh with.
    nothing = Trained(torch.zeros(2, 3).double(), torch.zeros(2, 3).double(), torch.tensor([0, 1]))
    assert task_weights(nothing, "hidta", diagonal).tolist() == [[1, 0], [0, 1]]  # type: ignore[arg-type]


def test_far_clients_count_and_do_not_underflow() -> None:
    """With plain norms of 7e3 times the root of a million, exp(-norm) would be zero for both."""
    end = torch.zeros(3, 1_000_000, dtype=torch.float64)
    end[1], end[2] = 900.0, 1800.0
    weight = task_weights(Trained(end - 1, end, torch.zeros(3, dtype=torch.int64)), "hidta", "delta")[0]
    # At distances of 900, 0 and 900.
    assert weight[1] > 0.999
    assert weight.isfinite().all()
    third = torch.tensor([[0.0], [0.0], [3.0]], dtype=torch.float64)
    weight = task_weights(Trained(third - 1, third, torch.zeros(3, dtype=torch.int64)), "hidta", "delta")[0]
    assert log(float(weight[0] / weight[2])) == pytest.approx(log((1 + exp(2)) / (1 + exp(1))))


CPU = torch.device("cpu")


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_distribution_is_that_of_laplace() -> None:
    drawn = laplace(torch.Size([200_000]), 3.0, rng(), CPU).double()
    assert drawn.mean().abs() < 0.05
    assert drawn.var() == pytest.approx(2 * 3.0**2, rel=0.02)
    # P(|x| <= t) = 1 - exp(-t / scale).
    for t in (0.5, 3.0, 9.0):
        assert (drawn.abs() <= t).double().mean() == pytest.approx(1 - torch.tensor(-t / 3).exp().item(), abs=0.004)
    assert drawn.isfinite().all()


def test_the_paper_s_scale_is_the_range_over_epsilon() -> None:
    x = torch.tensor([[-1.0, 4.0], [0.0, 2.0]])
    torch.testing.assert_close(add_noise(x, "paper", 10.0, 1.0, rng(1)), x + laplace(x.shape, 0.5, rng(1), CPU))
    even = torch.full((2, 3), 7.0)
    assert torch.equal(add_noise(even, "paper", 10.0, 1.0, rng()), even)
    assert add_noise(x[:0], "paper", 10.0, 1.0, rng()).shape == (0, 2)


def test_clipped_rows_are_shrunk_to_the_norm_and_no_further() -> None:
    x = torch.tensor([[3.0, -1.0], [0.5, 0.5], [0.0, 0.0]])
    shrunk = torch.tensor([[1.5, -0.5], [0.5, 0.5], [0.0, 0.0]])
    found = add_noise(x, "clipped", 8.0, 2.0, rng(2))
    torch.testing.assert_close(found, shrunk + laplace(x.shape, 0.5, rng(2), CPU))
    assert x[0, 0] == 3


def test_a_task_without_a_client_in_the_cohort_keeps_its_own() -> None:
    clients = [SimpleNamespace(domain=domain, train=domain != 3) for domain in (0, 0, 1, 2, 3)]
    ctx: Any = SimpleNamespace(clients=clients, record_mixing=lambda *_: None)
    before = torch.arange(10.0).reshape(5, 2)
    server = {"theta": before.clone()}
    FedGPL(mixing="task_mean")._mix(server, ctx, [0, 2, 4], torch.tensor([[9.0, 1], [5, 5], [7, 7]]))
    assert server["theta"].tolist() == [[9, 1], [9, 1], [5, 5], before[3].tolist(), before[4].tolist()]
