"""Where hosts compute, and in which precision; what does not go together is refused before anything starts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from shoal.algorithms.protocol import Tree
from shoal.engine.config.config import Config
from shoal.engine.hosts.device import CONTEXT_BYTES, cache_bytes, take_device, tensor_bytes
from shoal.engine.rounds.server import Server
from shoal.engine.runs.run import run as run_config
from shoal.storage.errors import ShoalError
from shoal.storage.store.view import View, smoothed

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@no_gpu
def test_a_host_without_a_gpu_says_what_to_do(configure: Callable[..., Config], tmp_path: Any) -> None:
    config = configure({"engine.device": "cuda", "run.root": str(tmp_path)})
    with pytest.raises(ShoalError, match=r"engine.device: cuda: torch .* finds no GPU on this host; install .* or set"):
        run_config(config)


def test_the_processor_needs_no_preparation() -> None:
    device = take_device("cpu", 1.0, "float32")
    assert device == torch.device("cpu")
    assert cache_bytes(device, 0.5, 123) == 123


def test_a_share_leaves_room_for_the_context() -> None:
    assert CONTEXT_BYTES == 751_619_276
    assert tensor_bytes(0.25, 80 * 2**30) == 20 * 2**30 - CONTEXT_BYTES
    with pytest.raises(ShoalError, match=r"gpus_per_host: 0.05 of a GPU of 8.0 GiB is less than the 0.7 GiB"):
        tensor_bytes(0.05, 8 * 2**30)


def test_the_sparse_product_smooths_as_the_kernel_does(views: Callable[..., list[View]]) -> None:
    for view in views():
        y = torch.rand(view.nodes, 3)
        torch.testing.assert_close(smoothed(view.adjacency, view.degree, y), view.smooth(y))


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("path", ["autograd", "batched"])
@pytest.mark.parametrize("model", ["sgc", "gamlp", "mlp", "sign", "s2gc", "gbp"])
def test_bfloat16_is_near_float32_and_keeps_float32_parameters(
    run: Callable[..., Server], model: str, path: str
) -> None:
    keys: dict[str, Any] = {"model.name": model, "engine.trainer": path, "train.dropout": 0.0, "rounds": 2}
    exact, rounded = (run({**keys, "engine.precision": precision}) for precision in ("float32", "bfloat16"))
    w, near = exact.state.server["w"], rounded.state.server["w"]
    assert near.dtype == torch.float32
    assert not torch.equal(w, near)
    assert float((w - near).norm() / w.norm()) < 0.05
    moments: Tree = rounded.state.clients[0]
    assert {t.dtype for t in moments.values()} == {torch.float32}
