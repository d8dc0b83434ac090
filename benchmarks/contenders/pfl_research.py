"""pfl-research: one process, its simulated backend, weights by data points."""

import itertools
import sys
from dataclasses import replace

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
from task import Task, Turns, read
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector


class WithLoss(nn.Module):
    """The model in the form that pfl asks for."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, x: Tensor, y: Tensor, is_eval: bool = False) -> Tensor:
        return F.cross_entropy(self.module(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, float]:
        return {}


class InTurns(FederatedAveraging):
    """Federated averaging, a round a turn, without the evaluation that the first round would have."""

    def __init__(self, turns: Turns) -> None:
        super().__init__()
        self.turns = turns

    def get_next_central_contexts(self, model, iteration, params, *rest):  # type: ignore[no-untyped-def]
        if iteration:
            self.turns.finished()
        if iteration < params.central_num_iterations:
            self.turns.wait()
        contexts, model, metrics = super().get_next_central_contexts(model, iteration, params, *rest)
        training = contexts and tuple(replace(context, do_evaluation=False) for context in contexts)
        return training, model, metrics


def main() -> None:
    task = read(sys.argv[1], Task)
    turns = Turns(task.a_turn)
    data, module = task.data(), WithLoss(task.module())
    order = itertools.chain(*task.cohorts, itertools.cycle([0]))
    dataset = FederatedDataset(lambda client: Dataset(data[client], user_id=str(client)), lambda: next(order))
    model = PyTorchModel(module, torch.optim.SGD, central_optimizer=torch.optim.SGD(module.parameters(), 1.0))
    InTurns(turns).run(
        NNAlgorithmParams(len(task.cohorts), len(task.cohorts), len(task.cohorts[0]), None),
        SimulatedBackend(dataset, dataset, postprocessors=[WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_num_epochs=task.steps, local_learning_rate=task.lr, local_batch_size=None),
        send_metrics_to_platform=False,
    )
    task.finish(parameters_to_vector(module.parameters()))
