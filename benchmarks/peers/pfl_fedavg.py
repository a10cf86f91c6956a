"""FedAvg by pfl-research: `torchrun --nproc_per_node 2 pfl_fedavg.py ROUNDS`. Package: pfl."""

import os
from typing import Any

import torch
import torch.nn.functional as F
import work
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel


class Model(work.Net):
    """With the two methods that pfl asks for."""

    def loss(self, x: torch.Tensor, y: torch.Tensor, **_: Any) -> torch.Tensor:
        """The local loss."""
        return F.cross_entropy(self(x), y)

    def metrics(self, *_: Any, **__: Any) -> dict[str, Any]:
        """None: it does not evaluate here."""
        return {}


class Timer(TrainingProcessCallback):  # type: ignore[misc]
    """Notes the end of each round."""

    def __init__(self) -> None:
        self.laps = work.Laps()

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
        """Called by pfl."""
        self.laps.lap()
        return False, Metrics()


def main() -> None:
    """Two processes, gloo; no evaluation."""
    torch.set_num_threads(1)
    data = work.clients()

    def sampler() -> Any:
        while True:
            yield from torch.randperm(work.CLIENTS).tolist()

    drawn = sampler()
    users = FederatedDataset(lambda k: PyTorchTensorDataset(data[k]), lambda: next(drawn))
    net = Model()
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    timer = Timer()
    params = NNAlgorithmParams(work.rounds(), 10**9, work.COHORT, 0)
    train = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=work.LR, local_batch_size=work.BATCH)
    FederatedAveraging().run(
        params, SimulatedBackend(users, None), model, train, NNEvalHyperParams(None), callbacks=[timer]
    )
    if os.environ.get("RANK", "0") == "0":
        timer.laps.tell()


main()
