"""Models that pass messages, trained in one call beside autograd's steps, visit for visit and round for round."""

import gc
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.fixtures import MakeView, Start
from support.one_call import (
    VISITS,
    client_of,
    fit_in_one_call,
    model_of,
    require_same_bits_on_any_threads,
    require_visits_of_autograd,
    view_of,
)
from support.user_graph import sparse_features

from shoal.algorithms.client import FlatModel
from shoal.algorithms.models.inputs.neighbourhood import Neighbourhood, all_nodes
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.analytic.choice import analytic
from shoal.algorithms.training.analytic.one_call import TracedModel

CASES = [
    "gcn conv",
    "gcn conv weighted",
    "gcn linear",
    "sage conv",
    "sage linear",
    "gin linear",
    "gcnii linear weighted",
]


@pytest.mark.exhaustive(3)
@pytest.mark.parametrize("options", VISITS)
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("case", CASES)
def test_visits_are_those_of_autograd(case: str, dropout: float, options: str, make_view: MakeView) -> None:
    name, head, *weighted = case.split()
    view = view_of(make_view, bool(weighted))
    require_visits_of_autograd(lambda: client_of(model_of(name, dropout, head=head), view), analytic, VISITS[options])


@pytest.mark.parametrize("hidden", [8, 130])
@pytest.mark.parametrize("name", ["gcn", "sage"])
def test_steps_of_adam_are_those_of_autograd_to_rounding_at_any_width(
    name: str, hidden: int, make_view: MakeView
) -> None:
    view = view_of(make_view)
    require_visits_of_autograd(lambda: client_of(model_of(name, hidden=hidden), view), analytic, {"epochs": 10}, 1e-6)


def small_of(model: FlatModel) -> TracedModel:
    small = analytic(model).one_call
    assert isinstance(small, TracedModel)
    return small


def test_a_plan_is_kept_as_long_as_the_view_of_its_client_lives(make_view: MakeView) -> None:
    model, views = model_of("gcn"), [view_of(make_view), view_of(make_view)]
    small, clients = small_of(model), [client_of(model, view) for view in views]
    model.set_training(True)
    first, second = (small.plan_plainly(client.model, TrainOptions()) for client in clients)
    assert first is not None
    assert first is not second
    assert small.plan_plainly(client_of(model, views[0]).model, TrainOptions()) is first
    model.module.requires_grad_(False)
    assert small.plan_plainly(clients[0].model, TrainOptions()) is None
    model.module.requires_grad_(True)
    kept = weakref.ref(first)
    del first, clients, views
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("name", ["gcn", "sage", "gin"])
def test_bits_depend_on_no_threads(name: str, make_view: MakeView) -> None:
    require_same_bits_on_any_threads(lambda: client_of(model_of(name, 0.4), view_of(make_view)), small_of)


@pytest.mark.parametrize("name", ["gcn", "sage", "gin", "gcnii"])
def test_nan_in_any_weight_that_is_read_is_nan_in_the_loss(name: str, make_view: MakeView) -> None:
    view = view_of(make_view)
    for parameter in dict(model_of(name).module.named_parameters()):
        client = client_of(model_of(name), view)
        client.model.module.get_parameter(parameter).data[...] = torch.nan
        last, first = fit_in_one_call(small_of(client.model.flat), client, view.train_label)
        assert np.isnan([last, first]).all(), parameter


def test_a_label_that_is_no_class_is_left_to_autograd(make_view: MakeView) -> None:
    client = client_of(model_of("gcn"), view_of(make_view))
    client.model.flat.set_training(True)
    assert small_of(client.model.flat).plan(client.model.gathered("train"), client.data.train_label + 1) is None


def test_what_one_call_takes(make_view: MakeView) -> None:
    view = view_of(make_view)
    client = client_of(model_of("gcn"), view)
    field, small = client.model.gathered("train"), small_of(client.model.flat)
    assert isinstance(field, Neighbourhood)
    assert small.takes(field, TrainOptions(batch_size=8))
    assert small.takes(field._replace(x_NF=field.x_NF.to_dense()), TrainOptions())
    assert not small.takes(field, TrainOptions(batch_size=7))
    assert not small.takes(field, TrainOptions(optimizer="sgd", momentum=0.1))
    assert small.takes(all_nodes(view, "symmetric", 2)._replace(rows=view.train), TrainOptions())
    assert not small_of(model_of("gcn", jumping="max")).takes(field, TrainOptions())


@pytest.mark.exhaustive(2)
@pytest.mark.parametrize("model", ["gcn", "sage"])
def test_whole_rounds(model: str, start: Start, graphs: Mapping[str, Path], tmp_path: Path) -> None:
    """Losses are those of autograd, and no bit depends on the cells that clients come in."""
    arrays = {file.stem: np.load(file) for file in graphs["plain"].glob("*.npy")}
    np.savez(tmp_path / "graph.npz", **{**arrays, "x": sparse_features(len(arrays["y"]), 40, 0.1)})
    keys = {"data.path": str(tmp_path / "graph.npz"), "data.layout": "sparse", "data.store": str(tmp_path / "store")}
    keys |= {"model": {"name": model, "hidden": 8}, "train.dropout": 0.3}
    ways: list[dict[str, Any]] = [{"engine.trainer": "autograd"}, {"engine.trainer": "analytic"}]
    ways.append({"engine.trainer": "analytic", "engine.cell_size": 1})
    servers = [start({**keys, **way}) for way in ways]
    expected, *losses = [[server.round()["loss"] for _ in range(3)] for server in servers]
    np.testing.assert_allclose(losses, [expected, expected], rtol=1e-5)
    by_autograd, found, by_cells = (server.state.server["w"] for server in servers)
    assert torch.equal(found, by_cells)
    # Rounding of Adam's steps tells which way was taken.
    assert not torch.equal(found, by_autograd)
