"""Models that are trained together against the same steps in plain torch, with a random stream for each."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.errors import refused
from support.fixtures import Make
from support.plain_fedavg import flat
from support.visits import trainer_of, visited
from torch import Tensor

from shoal.algorithms.client import Client
from shoal.algorithms.models.inputs.neighbourhood import all_nodes, sample_neighbourhood
from shoal.algorithms.protocol import MODEL, Tree
from shoal.algorithms.rng import key
from shoal.algorithms.train_options import TrainOptions
from shoal.algorithms.training.joint_training import JointLoss, Outputs, label_loss, train_jointly, weighted_sum
from shoal.storage.shards.view import View

ADAM = TrainOptions(2, "adam", 0.02, 0.01)
OTHER = {MODEL: "copilot", "copilot": MODEL}
PURPOSE = {MODEL: "train", "copilot": "copilot/train"}


def labels_alone(client: Client, name: str, part: str = "train") -> JointLoss:
    return lambda outputs: label_loss(client, outputs[name], part)


def taught(client: Client, name: str, part: str) -> JointLoss:
    def loss(outputs: Outputs) -> Tensor:
        other = outputs[OTHER[name]].logits_NC.detach()
        return label_loss(client, outputs[name], part) + (outputs[name].logits_NC - other).square().mean()

    return loss


@pytest.mark.parametrize("part", ["train", "all"])
def test_equals_plain_torch(part: str, view: View, make_pair: Make) -> None:
    """Both answer before either steps; moments are kept from visit to visit, and the mode that was does not count."""
    client = make_pair()
    twins = {name: copy.deepcopy(model.module).train() for name, model in client.models.items()}
    optimizers = {name: torch.optim.Adam(twin.parameters(), lr=0.02, weight_decay=0.01) for name, twin in twins.items()}
    rows = view.train if part == "train" else torch.arange(20)
    own_rows = torch.arange(10) if part == "train" else view.train
    for number in (1, 2):
        client = visited(client, number)
        known = [model.logits() for model in client.models.values()]
        losses = {name: taught(client, name, part) for name in OTHER}
        found = train_jointly(client, trainer_of(client, ADAM), losses, part)
        streams = {}
        for name, purpose in PURPOSE.items():
            torch.manual_seed(key(0, number, 0, purpose))
            streams[name] = torch.get_rng_state()
        for _ in range(2):
            answers, values = {}, {}
            for name, twin in twins.items():
                torch.set_rng_state(streams[name])
                around = all_nodes(view, "symmetric", 2)
                if part == "train":
                    around = sample_neighbourhood(view, "symmetric", [-1, -1], rows, np.random.default_rng(0))
                inputs = [view.x[rows]] if name == MODEL else around
                answers[name] = twin(inputs).logits_NC
                streams[name] = torch.get_rng_state()
            for name, other in OTHER.items():
                own = F.cross_entropy(answers[name][own_rows], view.label[view.train])
                values[name] = own + F.mse_loss(answers[name], answers[other].detach())
            for name, value in values.items():
                optimizers[name].zero_grad()
                value.backward()
            for optimizer in optimizers.values():
                optimizer.step()
        for (name, model), before in zip(client.models.items(), known):
            torch.testing.assert_close(model.w, flat(twins[name]), rtol=1e-5, atol=1e-6)
            assert found[name] == pytest.approx(values[name].item(), rel=1e-5)
            assert not torch.equal(model.logits(), before)
    moments = {f"{name}.opt.{moment}" for name in OTHER for moment in ("step", "exp_avg", "exp_avg_sq")}
    assert set(client.state) == moments


def trained(client: Client, losses: dict[str, JointLoss], part: str = "train") -> Tree:
    client = visited(client, 1)
    train_jointly(client, trainer_of(client, ADAM), losses, part)
    return {name: client.models[name].w.clone() for name in losses}


@pytest.mark.parametrize("part", ["train", "all"])
def test_joint_training_dropout_streams_are_independent(part: str, make_pair: Make) -> None:
    clients = [make_pair() for _ in range(3)]
    alone = {name: labels_alone(clients[0], name, part) for name in OTHER}
    expected = {name: trained(clients[i], {name: alone[name]}, part)[name] for i, name in enumerate(OTHER)}
    assert len(expected) == 2
    for order in (OTHER, reversed(OTHER)):
        found = trained(make_pair(), {name: alone[name] for name in order}, part)
        assert all(torch.equal(found[name], expected[name]) for name in OTHER)
    # A loss draws from the stream of the model that learns.
    noisy = {MODEL: lambda outputs: alone[MODEL](outputs) + 0 * torch.rand(3).sum(), "copilot": alone["copilot"]}
    found = trained(make_pair(), noisy, part)
    assert torch.equal(found["copilot"], expected["copilot"])
    assert not torch.equal(found[MODEL], expected[MODEL])


@pytest.mark.parametrize("name", OTHER)
def test_joint_training_on_labels_equals_fit_to_the_bit(name: str, make_pair: Make) -> None:
    left, right = make_pair(), make_pair()
    loss = train_jointly(left, trainer_of(left, ADAM), {name: labels_alone(left, name)}, "train")
    assert loss == {name: trainer_of(right, ADAM).fit(right, {}, name)}
    assert torch.equal(left.models[name].w, right.models[name].w)
    assert all(torch.equal(right.state[entry], t) for entry, t in left.state.items())


def test_a_loss_without_a_term_leaves_its_model(make_pair: Make) -> None:
    client = make_pair()
    before = client.models["copilot"].w.clone()
    losses = {MODEL: taught(client, MODEL, "all"), "copilot": lambda outputs: weighted_sum()}
    found = train_jointly(client, trainer_of(client, ADAM), losses)
    assert torch.equal(client.models["copilot"].w, before)
    assert found["copilot"] == 0
    assert found[MODEL] > 0
    assert {name.partition(".")[0] for name in client.state} == {MODEL}


def test_a_loss_that_is_not_finite(make_pair: Make) -> None:
    client = make_pair()
    losses = {MODEL: lambda outputs: label_loss(client, outputs[MODEL], "all") + float("inf")}
    with refused(says="loss is infinite"):
        train_jointly(client, trainer_of(client, ADAM), losses)


def test_joint_training_with_batches_or_fanouts_is_refused(view: View, make_pair: Make) -> None:
    client = make_pair()
    with refused("train.batch_size"):
        train_jointly(client, trainer_of(client, TrainOptions(batch_size=4)), {MODEL: taught(client, MODEL, "all")})
    drawing = make_pair(fanouts=[2, 2])
    losses = {name: taught(drawing, name, "all") for name in OTHER}
    with refused("algorithm.copilot.fanouts"):
        train_jointly(drawing, trainer_of(drawing, ADAM), losses)
    # Of a model that is not trained nothing is asked.
    train_jointly(drawing, trainer_of(drawing, ADAM), {MODEL: labels_alone(drawing, MODEL, "all")})
    turned = Client(drawing.info, view, {MODEL: drawing.models["copilot"]}, {}, {}, drawing.random)
    with refused("model.fanouts"):
        train_jointly(turned, trainer_of(turned, ADAM), {MODEL: labels_alone(turned, MODEL)})


def test_a_term_without_weight_is_not_computed() -> None:
    def term() -> Tensor:
        raise AssertionError("not asked for")

    assert float(weighted_sum((0.0, term), (2.0, lambda: torch.tensor(3.0)), (0.5, lambda: torch.tensor(4.0)))) == 8
    assert float(weighted_sum((0, term))) == 0
